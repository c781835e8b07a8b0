"""Compiled programs: `vmap` over the runs of a device, `shard_map` over devices.

A program is remembered by its `Shape`, which holds all that it depends on, so that a second sweep
of the process that differs in numbers, words, seeds or rates compiles nothing.
"""

import functools
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from cqbjax.core import backend, extent, platforms, pytree, rng, simulate
from cqbjax.core.contract import is_foreign
from cqbjax.core.pytree import Kind
from cqbjax.core.recorders import Recorder
from cqbjax.core.types import Policy, Problem, read_needs

AXIS = "run"
# Of each kind; the one used longest ago goes when there are more.
MOST_KEPT = 64
# Queue slots over which XLA unrolls a loop.
UNROLLED = 2
# Records that a program has room for on a CPU; more of them are several calls.
RECORDS = 32


class Shape(NamedTuple):
    """All that the programs of a batch depend on.

    Attributes:
        devices: which split a batch among them.
        width: runs a device.
        problem: shapes of a run.
        numbers: the kind of what of its source is a run's own.
        tables: the kind of what all sources share.
        policy: its kind.
        slots: of the queue.
        per_call: records of one call of `advance`.
        every: rounds a record; 0: the program is told it when it runs.
        recorders: what is recorded.
        room: shapes of longer runs, which the programs have room for; None: of no longer ones.
    """

    devices: tuple[jax.Device, ...]
    width: int
    problem: Problem
    numbers: Kind
    tables: Kind
    policy: Kind
    slots: int
    per_call: int
    every: int
    recorders: tuple[Recorder, ...]
    room: Problem | None = None

    @property
    def batch(self) -> int:
        """Runs in one call, over all devices."""
        return self.width * len(self.devices)

    @property
    def told(self) -> "Shape":
        """What its programs are compiled for: a GPU would be asked whether a round is the last."""
        if self.devices[0].platform != "cpu":
            return self
        return self._replace(problem=self.room or self.problem, per_call=RECORDS, every=0)


class Program:
    """A jitted function, lowered for its devices and shapes, and compiled at most once.

    Attributes:
        out_info: the shapes of its results.
        compiled: the compiled program; None before `compile`.
    """

    def __init__(
        self, devices: tuple[jax.Device, ...], function: Any, shapes: tuple[Any, ...],
        **options: bool,
    ) -> None:  # fmt: skip
        """Lower a function; options are those of `backend.compile_lowered`."""
        begun, platform = time.perf_counter(), devices[0].platform
        with platforms.use(platforms.of(platform)):
            lowered = function.lower(*shapes)
        self.compiled: Any = None
        self.out_info, self._lock = lowered.out_info, threading.Lock()
        self._compile = functools.partial(backend.compile_lowered, lowered, platform, **options)
        self._seconds = time.perf_counter() - begun

    def compile(self) -> Any:
        """Return the compiled program, compiling it on first use."""
        with self._lock:
            if self.compiled is None:
                begun = time.perf_counter()
                self.compiled = self._compile()
                del self._compile  # the lowered program is no longer needed
                self._seconds += time.perf_counter() - begun
        return self.compiled

    def count(self) -> float:
        """Return the seconds that lowering and compiling took; 0 from the second call on."""
        seconds, self._seconds = self._seconds, 0.0
        return seconds


class Programs(NamedTuple):
    """What runs a batch.

    Attributes:
        draw: (seeds, rates, numbers of each run's source, tables of all, *`until`) -> instances.
        start: (policies, instances) -> carries before round 1.
        advance: (policies, instances, carries, stretch) -> (carries, what was recorded).
        shape: what they run.
        seconds: of lowering and compiling; a program counts where it is used first.
    """

    draw: Any
    start: Any
    advance: Any
    shape: Shape
    seconds: float

    @property
    def until(self) -> tuple[extent.Extent, ...]:
        """What drawing is told of the horizon, where the programs have room for a longer one."""
        return () if self.shape.room is None else (extent.of(self.shape.problem.horizon),)

    def stretches(self, first: int) -> Iterator[tuple[Any, int]]:
        """Yield the stretches of a call from a round on, one after another, with their records."""
        records, every = self.shape.per_call, self.shape.every
        if self.shape == self.shape.told:
            yield np.int32(first), records
            return
        for done in range(0, records, RECORDS):
            few = min(RECORDS, records - done)
            yield simulate.Stretch(*map(np.int32, (first + done * every, every, few))), few


def compiled(shape: Shape) -> Programs:
    """Compile what a shape needs, or return what was compiled for it in this process."""
    compile_all([shape])
    draw, start, advance = _lowered(shape.told)
    seconds = draw.count() + start.count() + advance.count()
    return Programs(draw.compiled, start.compiled, advance.compiled, shape, seconds)


def compile_all(shapes: Sequence[Shape], at: Callable[[int], None] = lambda number: None) -> None:
    """Compile the programs of several shapes, as many at once as there are devices.

    This thread lowers them in order, while others compile: XLA releases Python's lock. After an
    error or Ctrl-C only programs that are being compiled already are waited for.

    Args:
        shapes: of the programs.
        at: is called with the position of the shape that is lowered or waited for.
    """
    pool = ThreadPoolExecutor(max((len(shape.devices) for shape in shapes), default=1))
    asked: dict[Program, Any] = {}
    try:
        for number, shape in enumerate(shapes):
            at(number)
            for program in _lowered(shape.told):
                if program.compiled is None and program not in asked:
                    asked[program] = number, pool.submit(program.compile)
        for number, future in asked.values():
            at(number)
            future.result()
    finally:
        pool.shutdown(cancel_futures=True)


@functools.lru_cache(MOST_KEPT)
def _lowered(shape: Shape) -> tuple[Program, Program, Program]:
    """Lower the programs of a shape: those that draw, start and advance."""
    roomy = shape.room is not None
    draw = _draw(shape.devices, shape.width, shape.problem, shape.numbers, shape.tables, roomy)

    def start(policy: Policy, instance: simulate.Instance) -> simulate.Carry:
        watched = is_foreign(policy)
        return simulate.start(
            policy, shape.problem, instance, shape.slots, watched, shape.recorders
        )

    def advance(policy: Policy, instance: Any, carry: Any, told: Any) -> Any:
        records = shape.per_call
        stretch = simulate.Stretch(told, shape.every, records) if shape.every else told
        return simulate.advance(
            policy, shape.problem, instance, carry, stretch, records, shape.recorders
        )

    devices, width = shape.devices, shape.width
    policies, instances = shape.policy.shapes(shape.batch), draw.out_info
    # XLA unrolls loops over so few slots, and cannot emit the barriers that it then fuses.
    options = {"barriers": shape.slots > UNROLLED, "emitters": _emitted(shape)}
    over_runs = _over_runs(devices, width, start, batched=2)
    begun = Program(devices, over_runs, (policies, instances), **options)
    number = jax.ShapeDtypeStruct((), jnp.int32)
    told = number if shape.every else simulate.Stretch(number, number, number)
    # A carry gives its memory up to its successor.
    over_runs = _over_runs(devices, width, advance, batched=3, shared=1, donated=2)
    shapes = policies, instances, begun.out_info, told
    return draw, begun, Program(devices, over_runs, shapes, **options)


def _emitted(shape: Shape) -> bool:
    """Tell whether XLA's fusion emitters compile the rounds of a shape, or its older generator.

    The older one compiles ACQB in two thirds of the time, to a program that is as fast or faster
    where each server has its own parameters of few dimensions. Elsewhere programs become slower
    (docs/notebook/performance.md).
    """
    problem, policy = shape.problem, shape.policy.shapes()
    return problem.pooled or problem.parameters == "shared" or read_needs(policy).fusion_emitters


@functools.lru_cache(MOST_KEPT)
def _draw(
    devices: tuple[jax.Device, ...], width: int, problem: Problem, numbers: Kind, tables: Kind,
    roomy: bool,
) -> Program:  # fmt: skip
    """Lower the drawing of instances, the same for every policy of a width."""

    # The source is an argument, not a constant: another slackness or table then finds the same
    # program. What is a run's own is batched; tables are shared, never copied a run.
    def draw(
        seed: jax.Array, rate: jax.Array, numbers: Any, tables: Any, *until: extent.Extent
    ) -> simulate.Instance:
        source, key = united(numbers, tables), rng.run_key(seed)
        return simulate.draw_instance(key, source, rate, problem, *until)

    runs = width * len(devices)
    seeds = jax.ShapeDtypeStruct((runs,), jnp.int32)
    rates = jax.ShapeDtypeStruct((runs,), jnp.result_type(float))
    until = [pytree.kind_of(extent.of(problem.horizon)).shapes()] if roomy else []
    over_runs = _over_runs(devices, width, draw, batched=3, shared=1 + roomy)
    shapes = seeds, rates, numbers.shapes(runs), tables.shapes(), *until
    return Program(devices, over_runs, shapes)


def divided(source: Any, own: Sequence[bool]) -> tuple[Any, Any]:
    """Divide a source into what is a run's own and what is shared: None for the other's leaves.

    Args:
        source: a tree of arrays.
        own: of each leaf, whether it is a run's own.
    """
    leaves, structure = jax.tree.flatten(source)
    numbers = [leaf if mine else None for leaf, mine in zip(leaves, own, strict=True)]
    tables = [None if mine else leaf for leaf, mine in zip(leaves, own, strict=True)]
    return jax.tree.unflatten(structure, numbers), jax.tree.unflatten(structure, tables)


def united(numbers: Any, tables: Any) -> Any:
    """Return the source that was `divided`."""
    return jax.tree.map(
        lambda number, table: table if number is None else number, numbers, tables,
        is_leaf=lambda leaf: leaf is None,
    )  # fmt: skip


def _over_runs(
    devices: tuple[jax.Device, ...], width: int, function: Callable[..., Any], batched: int,
    shared: int = 0, donated: int | None = None,
) -> Any:  # fmt: skip
    """Batch a function of one run and split the runs over devices, without communication.

    Args:
        devices: where the runs go.
        width: runs a device.
        function: of one run.
        batched: how many of its arguments, the first ones, are a run's own.
        shared: how many further ones all runs share.
        donated: which argument's memory the result may take.
    """
    along, whole, mesh = PartitionSpec(AXIS), PartitionSpec(), Mesh(np.asarray(devices), (AXIS,))
    sharded = jax.shard_map(
        _batch(function, width, batched),
        mesh=mesh,
        in_specs=(along,) * batched + (whole,) * shared,
        out_specs=along,
        check_vma=False,
    )
    # Said here, so that it is known of what is lowered: another program takes the result.
    split = NamedSharding(mesh, along)
    donate = () if donated is None else donated
    return jax.jit(sharded, donate_argnums=donate, out_shardings=split)


def _batch(function: Callable[..., Any], width: int, batched: int) -> Callable[..., Any]:
    """Batch a function of one run over `width` runs; further arguments are shared."""

    def alone(*args: Any) -> Any:
        one = jax.tree.map(lambda leaf: leaf[0], args[:batched])
        return jax.tree.map(lambda leaf: leaf[None], function(*one, *args[batched:]))

    def together(*args: Any) -> Any:
        axes = (0,) * batched + (None,) * (len(args) - batched)
        return jax.vmap(function, in_axes=axes, axis_size=width)(*args)

    return alone if width == 1 else together


def forget() -> None:
    """Forget all compiled programs: for who times compiling, or plants a fault in what is."""
    _lowered.cache_clear()
    _draw.cache_clear()
