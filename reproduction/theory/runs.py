"""Batches that the theory simulates outside a sweep, and the intervals of its tables."""

import functools
import time
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import xarray as xr
from jax import Array

from cqbjax.core import rng, simulate, types
from cqbjax.core.pytree import Signature, as_arrays, signature_of
from cqbjax.core.queueing import QueueOverflow
from cqbjax.core.types import Policy, Source
from cqbjax.engine.batches import START_CAPACITY, grow_slots, max_slots
from cqbjax.engine.programs import CACHE_SIZE, Program
from cqbjax.engine.progress import Reporter
from cqbjax.engine.spec import Capacity
from cqbjax.results.summaries import mean_ci


def offered_rows(values: Array, servers: Array, filler: float) -> Array:
    """Return the rows of `values` [N, ...] of an assortment [K]; `filler` where it is -1."""
    return types.mask_unoffered(servers >= 0, values[servers], filler)


def mean_columns(name: str, values: xr.DataArray, share: bool = False) -> dict[str, float]:
    """Return the mean over seeds and its 95% interval: columns NAME, NAME_low and NAME_high."""
    interval = mean_ci(values, share=share)
    ends = ("mean", ""), ("low", "_low"), ("high", "_high")
    return {f"{name}{end}": float(interval[part]) for part, end in ends}


def simulate_seeds(
    one_run: Callable[..., Any], static: tuple[Any, ...], policy: Policy, source: Source,
    arrival_rate: float, seeds: Sequence[int] | np.ndarray, label: str, capacity: Capacity,
    progress: Reporter | None = None, batched: bool = True,
) -> Any:  # fmt: skip
    """Simulate every seed of a policy on one device.

    Args:
        one_run: (policy, instance, arrival rate, *static, slots) -> a named tuple with `overflow`,
            the first round in which a query found no free slot, 0 if there was none.
        static: hashable arguments, the problem first.
        policy: runs at every seed.
        source: where queries come from.
        arrival_rate: lambda, queries a round.
        seeds: [S].
        label: what runs, for the progress.
        capacity: slots of the queue; `auto` adds slots until no queue overflows.
        progress: is notified of compiling, of rounds and of the seconds of simulation.
        batched: run all seeds in one batch, not one after the other.

    Returns:
        The result of `one_run` with a leading axis [S], as NumPy arrays.

    Raises:
        QueueOverflow: a queue outgrew a numeric capacity.
    """
    progress, horizon = progress or Reporter(), static[0].horizon
    slots = min(START_CAPACITY, max_slots(horizon)) if capacity == "auto" else int(capacity)
    begins = as_arrays((policy, source))
    arguments = *begins, jnp.asarray(arrival_rate, float), jnp.asarray(seeds)
    while True:
        progress.set_activity("compiling", label)
        program = _compile(one_run, (*static, slots), batched, *map(signature_of, arguments))
        progress.set_activity("running", label)
        begun = time.perf_counter()
        result = jax.tree.map(np.asarray, jax.block_until_ready(program(*arguments)))
        progress.run_seconds += time.perf_counter() - begun
        overflows = result.overflow[result.overflow > 0]
        if not overflows.size:
            progress.advance(len(seeds) * horizon)
            return result
        if capacity != "auto":
            raise QueueOverflow(f"capacity={slots} overflowed in round {overflows.min()}: raise it")
        slots = grow_slots(slots, horizon)


@functools.lru_cache(CACHE_SIZE)
def _compile(
    one_run: Callable[..., Any], static: tuple[Any, ...], batched: bool, *kinds: Signature
) -> Any:
    """Compile the program of all seeds, once in a process."""

    def run(policy: Policy, source: Source, rate: Array, seeds: Array) -> Any:
        def of_seed(seed: Array) -> Any:
            instance = simulate.draw_instance(rng.run_key(seed), source, rate, static[0])
            return one_run(policy, instance, rate, *static)

        return jax.vmap(of_seed)(seeds) if batched else jax.lax.map(of_seed, seeds)

    shapes = tuple(kind.shapes() for kind in kinds)
    return Program(tuple(jax.devices()[:1]), jax.jit(run), shapes).compile()
