"""Compiled programs: `vmap` over the runs of a device, `shard_map` over devices.

Programs are cached by their `ProgramSpec`, which holds all that they depend on. A second sweep in
the same process with other numbers, options, seeds or rates does not compile.
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

from cqbjax.core import backend, platforms, pytree, rng, simulate
from cqbjax.core.contract import is_third_party
from cqbjax.core.pytree import Signature
from cqbjax.core.recorders import Recorder
from cqbjax.core.types import Policy, Problem, read_needs

AXIS = "run"
# Programs that are cached: those that draw, and those that start and advance.
CACHE_SIZE = 64
# Queue slots over which XLA unrolls a loop.
UNROLLED = 2
# On a CPU a program returns up to this many records; more of them take several calls.
RECORDS = 32


class ProgramSpec(NamedTuple):
    """All that the programs of a batch depend on.

    Attributes:
        devices: devices that share the runs of a chunk.
        width: runs per device.
        problem: shapes of a run.
        numbers: signature (structure, shapes and types) of the source leaves that each run has
            its own copy of.
        tables: signature of the source leaves that all runs share.
        policy: signature of the policy.
        slots: slots of the queue.
        per_call: records of one call of `advance`.
        every: rounds per record; 0 if it is an argument of the program.
        recorders: what is recorded.
        padded_problem: shapes of longer runs, for which the programs are compiled; None for those
            of `problem`.
    """

    devices: tuple[jax.Device, ...]
    width: int
    problem: Problem
    numbers: Signature
    tables: Signature
    policy: Signature
    slots: int
    per_call: int
    every: int
    recorders: tuple[Recorder, ...]
    padded_problem: Problem | None = None

    @property
    def runs(self) -> int:
        """Runs of a chunk, over all devices."""
        return self.width * len(self.devices)

    @property
    def shared_spec(self) -> "ProgramSpec":
        """The spec that is compiled: on a CPU, horizons and record schedules share programs.

        On a GPU they do not: it would have to test in each round whether that is the last one.
        """
        if self.devices[0].platform != "cpu":
            return self
        return self._replace(problem=self.padded_problem or self.problem, per_call=RECORDS, every=0)


class Program:
    """A jitted function, lowered for its devices and shapes, and compiled at most once.

    Attributes:
        out_info: shapes of its results.
        compiled: the compiled program; None before `compile`.
        seconds: of lowering and compiling, until `compile_one` has counted them.
    """

    def __init__(
        self, devices: tuple[jax.Device, ...], function: Any, shapes: tuple[Any, ...],
        **options: bool,
    ) -> None:  # fmt: skip
        """Lower a function; options are those of `backend.compile_lowered`."""
        begun, platform = time.perf_counter(), devices[0].platform
        with platforms.use(platforms.get(platform)):
            lowered = function.lower(*shapes)
        self.compiled: Any = None
        self.out_info, self._lock = lowered.out_info, threading.Lock()
        self._compile = functools.partial(backend.compile_lowered, lowered, platform, **options)
        self.seconds = time.perf_counter() - begun

    def compile(self) -> Any:
        """Return the compiled program, compiling it on first use."""
        with self._lock:
            if self.compiled is None:
                begun = time.perf_counter()
                self.compiled = self._compile()
                del self._compile  # the lowered program is no longer needed
                self.seconds += time.perf_counter() - begun
        return self.compiled


class Programs(NamedTuple):
    """The compiled programs that run the chunks of a batch.

    Attributes:
        draw: (seeds, rates, numbers, tables, *`extents`) -> instances; `numbers` are per run.
        start: (policies, instances) -> carries before round 1.
        advance: (policies, instances, carries, stretch) -> (carries, records).
        spec: what they were compiled for.
        seconds: seconds of lowering and compiling; a program counts where it is used first.
        extents: the runs' horizon, as a further argument of `draw` if programs are padded.
    """

    draw: Any
    start: Any
    advance: Any
    spec: ProgramSpec
    seconds: float
    extents: tuple[rng.RunLength, ...]

    def stretches(self, first: int) -> Iterator[tuple[Any, int]]:
        """Yield the stretches of a device call that begins at round `first`, and their records."""
        records, every = self.spec.per_call, self.spec.every
        if self.spec == self.spec.shared_spec:
            yield np.int32(first), records
            return
        for done in range(0, records, RECORDS):
            few = min(RECORDS, records - done)
            yield simulate.Segment(*map(np.int32, (first + done * every, every, few))), few


def compile_one(spec: ProgramSpec) -> Programs:
    """Return the programs of a spec, compiling them on first use in this process."""
    compile_all([spec])
    draw, start, advance = _lower(spec.shared_spec)
    seconds = draw.seconds + start.seconds + advance.seconds
    draw.seconds = start.seconds = advance.seconds = 0.0
    extents = (rng.run_length(spec.problem.horizon),) if spec.padded_problem else ()
    return Programs(draw.compiled, start.compiled, advance.compiled, spec, seconds, extents)


def compile_all(
    specs: Sequence[ProgramSpec], on_spec: Callable[[int], None] = lambda number: None
) -> None:
    """Compile the programs of several specs, as many at once as there are devices.

    This thread lowers them in order, while others compile: XLA releases Python's lock. After an
    error or Ctrl-C it waits only for programs that are being compiled already.

    Args:
        specs: specs of the programs.
        on_spec: called with the position of the spec that is lowered or waited for.
    """
    pool = ThreadPoolExecutor(max((len(spec.devices) for spec in specs), default=1))
    submitted: dict[Program, Any] = {}
    try:
        for number, spec in enumerate(specs):
            on_spec(number)
            for program in _lower(spec.shared_spec):
                if program.compiled is None and program not in submitted:
                    submitted[program] = number, pool.submit(program.compile)
        for number, future in submitted.values():
            on_spec(number)
            future.result()
    finally:
        pool.shutdown(cancel_futures=True)


@functools.lru_cache(CACHE_SIZE)
def _lower(spec: ProgramSpec) -> tuple[Program, Program, Program]:
    """Lower the programs of a spec: those that draw, start and advance."""
    padded = spec.padded_problem is not None
    draw = _lower_draw(spec.devices, spec.width, spec.problem, spec.numbers, spec.tables, padded)

    def start(policy: Policy, instance: simulate.Instance) -> simulate.Carry:
        watched = is_third_party(policy)
        return simulate.start(policy, spec.problem, instance, spec.slots, watched, spec.recorders)

    def advance(policy: Policy, instance: Any, carry: Any, stretch: Any) -> Any:
        records = spec.per_call
        stretch = simulate.Segment(stretch, spec.every, records) if spec.every else stretch
        several = (jax.vmap,) if spec.width > 1 else ()
        return simulate.advance(
            policy, spec.problem, instance, carry, stretch, records, spec.recorders, *several
        )

    devices, width = spec.devices, spec.width
    policies, instances = spec.policy.shapes(spec.runs), draw.out_info
    # XLA unrolls loops over so few slots, and cannot compile the barriers that it then fuses.
    options = {"barriers": spec.slots > UNROLLED, "emitters": _uses_emitters(spec)}
    mapped = _map_over_runs(devices, width, start, batched=2)
    begun = Program(devices, mapped, (policies, instances), **options)
    number = jax.ShapeDtypeStruct((), jnp.int32)
    stretch = number if spec.every else simulate.Segment(number, number, number)
    # The next carry takes the memory of the last.
    mapped = _map_over_runs(devices, width, advance, batched=3, shared=1, donated=2, inside=True)
    shapes = policies, instances, begun.out_info, stretch
    return draw, begun, Program(devices, mapped, shapes, **options)


def _uses_emitters(spec: ProgramSpec) -> bool:
    """Return whether XLA compiles rounds by its fusion emitters, not by its older generator.

    The older generator compiles ACQB in two thirds of the time. Its program is as fast or faster if
    each server has its own parameters of few dimensions, and slower otherwise
    (docs/notebook/performance.md).
    """
    problem, policy = spec.problem, spec.policy.shapes()
    return problem.pooled or problem.parameters == "shared" or read_needs(policy).fusion_emitters


@functools.lru_cache(CACHE_SIZE)
def _lower_draw(
    devices: tuple[jax.Device, ...], width: int, problem: Problem, numbers: Signature,
    tables: Signature, padded: bool,
) -> Program:  # fmt: skip
    """Lower the program that draws instances, which all policies share."""

    # The source is an argument, not a constant: another slackness or table does not recompile.
    # Numbers are batched over runs; tables are shared, not copied for each run.
    def draw(
        seed: jax.Array, rate: jax.Array, numbers: Any, tables: Any, *extents: rng.RunLength
    ) -> simulate.Instance:
        source, key = merge_source(numbers, tables), rng.run_key(seed)
        return simulate.draw_instance(key, source, rate, problem, *extents)

    runs = width * len(devices)
    seeds = jax.ShapeDtypeStruct((runs,), jnp.int32)
    rates = jax.ShapeDtypeStruct((runs,), jnp.result_type(float))
    extents = [pytree.signature_of(rng.run_length(problem.horizon)).shapes()] if padded else []
    mapped = _map_over_runs(devices, width, draw, batched=3, shared=1 + padded)
    shapes = seeds, rates, numbers.shapes(runs), tables.shapes(), *extents
    return Program(devices, mapped, shapes)


def split_source(source: Any, per_run: Sequence[bool]) -> tuple[Any, Any]:
    """Split a source into leaves that each run has its own copy of, and leaves that all runs share.

    Args:
        source: a tree of arrays.
        per_run: for each leaf, whether each run has its own copy.

    Returns:
        (numbers, tables), each with the structure of the source and None for the other's leaves.
    """
    leaves, structure = jax.tree.flatten(source)
    numbers = [leaf if own else None for leaf, own in zip(leaves, per_run, strict=True)]
    tables = [None if own else leaf for leaf, own in zip(leaves, per_run, strict=True)]
    return jax.tree.unflatten(structure, numbers), jax.tree.unflatten(structure, tables)


def merge_source(numbers: Any, tables: Any) -> Any:
    """Return the source that `split_source` split."""
    return jax.tree.map(
        lambda number, table: table if number is None else number, numbers, tables,
        is_leaf=lambda leaf: leaf is None,
    )  # fmt: skip


def _map_over_runs(
    devices: tuple[jax.Device, ...], width: int, function: Callable[..., Any], batched: int,
    shared: int = 0, donated: int | None = None, inside: bool = False,
) -> Any:  # fmt: skip
    """Map a function of one run over the runs of all devices, without communication.

    Args:
        devices: devices that share the runs.
        width: runs per device.
        function: a function of one run, or of several if it maps over them itself (`inside`).
        batched: how many of its first arguments have an axis over runs.
        shared: how many further arguments all runs share.
        donated: position of the argument whose memory the result may take.
        inside: whether `function` maps over runs, unless there is a single one.
    """

    def alone(*args: Any) -> Any:
        one = jax.tree.map(lambda leaf: leaf[0], args[:batched])
        return jax.tree.map(lambda leaf: leaf[None], function(*one, *args[batched:]))

    axes = (0,) * batched + (None,) * shared
    batch = function if inside else jax.vmap(function, in_axes=axes, axis_size=width)
    mapped = alone if width == 1 else batch
    along, whole, mesh = PartitionSpec(AXIS), PartitionSpec(), Mesh(np.asarray(devices), (AXIS,))
    sharded = jax.shard_map(
        mapped,
        mesh=mesh,
        in_specs=(along,) * batched + (whole,) * shared,
        out_specs=along,
        check_vma=False,
    )
    # Stated here because the next program is lowered for this sharding.
    split = NamedSharding(mesh, along)
    donate = () if donated is None else donated
    return jax.jit(sharded, donate_argnums=donate, out_shardings=split)


def clear_cache() -> None:
    """Drop all compiled programs, to time compiling or after a change to a global variable."""
    _lower.cache_clear()
    _lower_draw.cache_clear()
