"""Batches that the theory plays outside a sweep."""

import functools
import time
from collections.abc import Callable
from typing import Any, TypeVar

import jax
import numpy as np
from jax import Array

from cqbjax.core import types
from cqbjax.core.pytree import Kind, kind_of
from cqbjax.core.queueing import QueueOverflow
from cqbjax.engine.batches import START_CAPACITY, grow_slots, max_slots
from cqbjax.engine.programs import CACHE_SIZE, Program
from cqbjax.engine.progress import Reporter
from cqbjax.engine.spec import Capacity

T = TypeVar("T")


def of_shown(values: Array, servers: Array, otherwise: float) -> Array:
    """Return values [N, ...] of a decision's servers [K], another one of those not shown (-1)."""
    return types.of_shown(servers >= 0, values[servers], otherwise)


def with_room(capacity: Capacity, horizon: int, play: Callable[[int], T]) -> T:
    """Play with as many queue slots as were asked for, or with more until they are enough.

    Args:
        capacity: queue slots, or `auto`.
        horizon: T, rounds.
        play: of the slots.

    Raises:
        QueueOverflow: a queue outgrew a capacity that was given.
    """
    if capacity != "auto":
        return play(int(capacity))
    slots = min(START_CAPACITY, max_slots(horizon))
    while True:
        try:
            return play(slots)
        except QueueOverflow:
            slots = grow_slots(slots, horizon)


def played(
    function: Callable[..., Any], fixed: tuple[Any, ...], arguments: tuple[Any, ...], label: str,
    progress: Reporter | None,
) -> Any:  # fmt: skip
    """Run a batch on one device.

    Args:
        function: of (devices, fixed, *arguments); what it returns has `overflow`, the first round
            in which a query found no free slot, 0 if there was none.
        fixed: what it depends on besides its arguments, hashable; the queue's capacity last.
        arguments: trees of arrays.
        label: what is run, for the progress.
        progress: told of compiling and of the seconds of simulation.

    Returns:
        What the function returns, as NumPy arrays.

    Raises:
        QueueOverflow: a queue outgrew the capacity.
    """
    progress = progress or Reporter()
    progress.set_activity("compiling", label)
    program = _compiled(function, tuple(jax.devices()[:1]), fixed, *map(kind_of, arguments))
    progress.set_activity("running", label)
    begun = time.perf_counter()
    made = jax.tree.map(np.asarray, jax.block_until_ready(program(*arguments)))
    progress.run_seconds += time.perf_counter() - begun
    lost = made.overflow[made.overflow > 0]
    if lost.size:
        raise QueueOverflow(f"capacity={fixed[-1]} overflowed in round {lost.min()}: raise it")
    return made


@functools.lru_cache(CACHE_SIZE)
def _compiled(
    function: Callable[..., Any], devices: tuple[jax.Device, ...], fixed: Any, *kinds: Kind
) -> Any:
    """Compile a function of a whole batch, once in a process.

    Args:
        function: of (devices, fixed, *arguments).
        devices: where it runs.
        fixed: what it depends on besides its arguments, hashable.
        kinds: of its arguments.

    Returns:
        A function of the arguments.
    """
    alone = jax.jit(functools.partial(function, devices, fixed))
    return Program(devices, alone, tuple(kind.shapes() for kind in kinds)).compile()
