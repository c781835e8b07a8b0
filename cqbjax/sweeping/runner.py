"""Many runs of one group: `vmap` in a chunk, `shard_map` over devices, chunks one after another."""

import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, PartitionSpec

from cqbjax import metrics, rng, simulate
from cqbjax.sweeping import backend, checkpoint, plan
from cqbjax.sweeping.checkpoint import Measured
from cqbjax.sweeping.plan import Capacity, Group, QueueOverflow, Records
from cqbjax.sweeping.progress import Reporter
from cqbjax.types import Policy, Problem, Source

AXIS = "run"
# Compiled programs of this process by all that they depend on, so that a second sweep that differs
# in floats, seeds or rates compiles nothing. The oldest goes when there are more than this many.
PROGRAMS: dict[Any, Any] = {}
MAX_PROGRAMS = 64


class Runs(NamedTuple):
    """Runs of one group, flattened: each field [runs].

    Attributes:
        member: index into the group's labels.
        rate: arrival rate.
        seed: seed.
        place: index into the seeds of the group's stacked policy.
    """

    member: np.ndarray
    rate: np.ndarray
    seed: np.ndarray
    place: np.ndarray

    def take(self, index: np.ndarray) -> "Runs":
        """Return the runs at these positions."""
        return Runs(*(field[index] for field in self))


class Outcome(NamedTuple):
    """What came out of a set of runs.

    Attributes:
        totals: each [runs, R].
        overflow: [runs] first round without a free slot, 0 if there was none.
        peak: [runs] longest queue.
    """

    totals: metrics.Totals
    overflow: np.ndarray
    peak: np.ndarray


class Program(NamedTuple):
    """A compiled group at one capacity and chunk size.

    Attributes:
        prepare: (seed, rate) -> instance; the same for every group of a chunk size.
        start: (policy, instance) -> carry.
        advance: (policy, instance, carry, first round) -> (carry, totals).
        chunk: runs in one call.
        seconds: spent compiling.
    """

    prepare: Any
    start: Any
    advance: Any
    chunk: int
    seconds: float


class Runner:
    """The fixed arguments of one sweep."""

    def __init__(
        self,
        source: Source,
        problem: Problem,
        kept: Records,
        capacity: Capacity,
        chunk: int | None,
        memory_gb: float | None,
        devices: Sequence[jax.Device],
        runs_a_policy: int,
        progress: Reporter,
        resume: Path | None,
    ) -> None:
        self.source = jax.tree.map(lambda leaf: jnp.asarray(leaf, float), source)
        self.problem = problem
        self.kept = kept
        self.capacity = capacity
        self.chunk = chunk
        self.devices = list(devices)
        self.bytes_a_device = plan.budget(memory_gb, self.devices)
        self.runs_a_policy = runs_a_policy
        self.progress = progress
        self.resume = resume
        self.first_slots = plan.first_slots(problem, capacity)

    def resume_group(
        self, group: Group, rates: np.ndarray, seeds: np.ndarray
    ) -> dict[str, Measured]:
        """Take a group from the folder of finished ones, or run it and keep it there."""
        if self.resume is None:
            return self.run_group(group, rates, seeds)
        parts = group.stacked, self.source, self.problem, self.kept.rounds, rates, seeds
        path = self.resume / f"{checkpoint.key(group.labels, self.capacity, *parts)}.npz"
        kept = checkpoint.load(path)
        if kept is None:
            kept = self.run_group(group, rates, seeds)
            checkpoint.save(path, kept)
        else:
            self.progress.note(f"{', '.join(kept)}: finished before, taken from {path}")
            self.progress.advance(len(kept) * rates.size * seeds.size * self.problem.horizon)
        return kept

    def run_group(self, group: Group, rates: np.ndarray, seeds: np.ndarray) -> dict[str, Measured]:
        """Run one group to the end, repeating overflowing runs with more slots."""
        shape = (len(group.labels), len(rates), len(seeds))
        member, rate, seed = (axis.ravel() for axis in np.indices(shape))
        place = seed if group.per_seed else np.zeros_like(seed)
        runs = Runs(member, rates[rate], seeds[seed], place)
        slots = self.first_slots
        compiled = ran = 0.0
        parts: list[tuple[np.ndarray, Outcome]] = []
        left = np.arange(len(member))
        while len(left):
            program = self.compile(group, slots)
            compiled += program.seconds
            begun = time.perf_counter()
            outcome = self.run(program, group, runs.take(left))
            ran += time.perf_counter() - begun
            lost = outcome.overflow > 0
            if self.capacity != "auto" and lost.any():
                self._refuse(group, runs.take(left), outcome, slots)
            parts.append((left[~lost], jax.tree.map(lambda leaf: leaf[~lost], outcome)))  # noqa: B023
            left, slots = left[lost], min(plan.GROWTH * slots, self.problem.horizon)
            if len(left):
                self.progress.expect(len(left) * self.problem.horizon)
                self.announce(group, slots, len(left))
        order = np.argsort(np.concatenate([index for index, _ in parts]))
        totals = jax.tree.map(
            lambda *leaves: np.concatenate(leaves)[order].reshape(*shape, -1),
            *(outcome.totals for _, outcome in parts),
        )
        rounds = member.size * self.problem.horizon
        self.progress.note(
            f"{', '.join(group.labels)}: {rounds:,} rounds in {ran:.1f} s, {rounds / ran:,.0f} a "
            f"second, after {compiled:.1f} s of compiling"
        )
        return {
            label: Measured(jax.tree.map(lambda leaf: leaf[i], totals), ran / rounds, compiled)  # noqa: B023
            for i, label in enumerate(group.labels)
        }

    def one(self, group: Group) -> Any:
        """Return one policy of a group, for its shapes."""
        return jax.tree.map(lambda leaf: leaf[0, 0], group.stacked)

    def bytes_a_run(self, group: Group, slots: int) -> int:
        """Return the bytes of one run of a group."""
        return plan.bytes_a_run(self.one(group), self.source, self.problem, slots)

    def width(self, run_bytes: int) -> int:
        """Return how many runs of this size each device batches at once."""
        fitting = run_bytes, self.runs_a_policy, self.devices, self.bytes_a_device
        return self.chunk or plan.width(*fitting)

    def announce(self, group: Group, slots: int, runs: int) -> None:
        """Tell the memory plan of some runs of a group, before they are compiled."""
        size, count = self.bytes_a_run(group, slots), len(self.devices)
        told = plan.describe(group.labels, size, runs, self.width(size), count)
        self.progress.note(f"{told}, {slots} queue slots")

    def compile(self, group: Group, slots: int) -> Program:
        """Compile what a group needs for one capacity, or take what an earlier sweep compiled."""
        self.progress.doing(f"compiling {group.labels[0]}")
        begun = time.perf_counter()
        each = self.width(self.bytes_a_run(group, slots))
        made = _remembered(
            (self.fixed(each), self.kept, slots, _kind(self.one(group))),
            lambda: self.compile_group(group, slots, each),
        )
        prepare, start, advance = made
        seconds = time.perf_counter() - begun
        return Program(prepare, start, advance, each * len(self.devices), seconds)

    def fixed(self, each: int) -> Any:
        """Return what every program of a chunk size depends on."""
        return tuple(self.devices), each, self.problem, _kind(self.source)

    def compile_group(self, group: Group, slots: int, each: int) -> tuple[Any, Any, Any]:
        """Compile prepare, start and advance of a group."""
        policy = self.one(group)
        prepare = self.compile_prepare(each)

        def start(policy: Policy, instance: simulate.Instance) -> simulate.Carry:
            return simulate.start(policy, self.problem, instance, slots)

        def advance(policy: Policy, instance: Any, carry: Any, first: jax.Array) -> Any:
            return simulate.advance(
                policy, self.problem, instance, carry, first, self.kept.per_call, self.kept.every
            )

        policies = self.shapes(policy, each)
        start_program = self.finish(self.split(start, each, 2).lower(policies, prepare.out_info))
        first = jax.ShapeDtypeStruct((), jnp.int32)
        advance_program = self.finish(
            self.split(advance, each, 3, donate=2).lower(
                policies, prepare.out_info, start_program.out_info, first
            )
        )
        return prepare, start_program, advance_program

    def compile_prepare(self, each: int) -> Any:
        """Compile the drawing of instances, once a chunk size."""

        # The source is an argument, not a constant: another slackness or table then finds the same
        # program.
        def prepare(seed: jax.Array, rate: jax.Array, source: Source) -> simulate.Instance:
            return simulate.prepare(rng.run_key(seed), source, rate, self.problem)

        def make() -> Any:
            shapes = self.shapes((jnp.zeros((), jnp.int32), jnp.zeros(())), each)
            return self.finish(self.split(prepare, each, 2).lower(*shapes, self.source))

        return _remembered((self.fixed(each), "prepare"), make)

    def finish(self, lowered: Any) -> Any:
        """Compile a lowered function with the options of the platform."""
        return lowered.compile(compiler_options=backend.compiler_options(self.devices[0].platform))

    def shapes(self, tree: Any, each: int) -> Any:
        """Return the shapes of a tree of one run's arrays, batched to a whole chunk."""
        size = each * len(self.devices)
        return jax.tree.map(lambda x: jax.ShapeDtypeStruct((size, *x.shape), x.dtype), tree)

    def split(self, function: Any, each: int, batched: int, donate: int | None = None) -> Any:
        """Batch a function of one run and split the runs over devices, without communication."""
        along, whole = PartitionSpec(AXIS), PartitionSpec()
        count = function.__code__.co_argcount
        specs = (along,) * batched + (whole,) * (count - batched)
        sharded = jax.shard_map(
            _batch(function, each, batched),
            mesh=Mesh(np.asarray(self.devices), (AXIS,)),
            in_specs=specs,
            out_specs=along,
            check_vma=False,
        )
        return jax.jit(sharded, donate_argnums=() if donate is None else donate)

    def run(self, program: Program, group: Group, runs: Runs) -> Outcome:
        """Run all chunks of a compiled group."""
        outcomes = [
            self._run_chunk(program, group, runs.take(index), real)
            for index, real in _chunks(len(runs.seed), program.chunk)
        ]
        return jax.tree.map(lambda *leaves: np.concatenate(leaves), *outcomes)

    def _run_chunk(self, program: Program, group: Group, runs: Runs, real: int) -> Outcome:
        """Run one chunk over the whole horizon; its last runs may be padding."""
        self.progress.doing(f"running {group.labels[0]}")
        policy = jax.tree.map(lambda leaf: leaf[runs.member, runs.place], group.stacked)
        rate = jnp.asarray(runs.rate, float)
        instance = program.prepare(jnp.asarray(runs.seed, jnp.int32), rate, self.source)
        carry = program.start(policy, instance)
        rounds = self.kept.per_call * self.kept.every
        pieces = []
        for call in range(self.kept.calls):
            first = jnp.asarray(1 + call * rounds, jnp.int32)
            carry, totals = program.advance(policy, instance, carry, first)
            pieces.append(jax.tree.map(np.asarray, totals))
            self.progress.advance(real * rounds)
            if (np.asarray(carry.overflow) > 0).all():
                # Every run here is to be repeated: what is left of it is worth nothing.
                left = self.kept.calls - call - 1
                self.progress.expect(-real * rounds * left)
                pieces += pieces[-1:] * left
                break
        totals = jax.tree.map(lambda *parts: np.concatenate(parts, axis=1), *pieces)
        outcome = Outcome(totals, np.asarray(carry.overflow), np.asarray(carry.peak))
        return jax.tree.map(lambda leaf: leaf[:real], outcome)

    def _refuse(self, group: Group, runs: Runs, outcome: Outcome, slots: int) -> None:
        """Raise for an overflow, after finding out what capacity would have been enough."""
        lost = np.flatnonzero(outcome.overflow > 0)
        first = lost[0]
        enough = slots
        while len(lost):
            enough = min(plan.GROWTH * enough, self.problem.horizon)
            again = self.run(self.compile(group, enough), group, runs.take(lost))
            peak, lost = again.peak.max(), lost[again.overflow > 0]
        raise QueueOverflow(
            f"capacity={slots} overflowed in round {outcome.overflow[first]} of policy "
            f"{group.labels[runs.member[first]]}, seed {runs.seed[first]}, arrival_rate "
            f"{runs.rate[first]:g}; capacity={peak} would have been enough, or use capacity=auto"
        )


def _kind(tree: Any) -> Any:
    """Return what of a pytree decides a program: its structure, the leaves' shapes and types."""
    leaves, structure = jax.tree.flatten(tree)
    return structure, tuple((jnp.shape(leaf), jnp.result_type(leaf)) for leaf in leaves)


def _remembered(key: Any, make: Callable[[], Any]) -> Any:
    """Return the program of a key, made if this process has not made it."""
    if key not in PROGRAMS:
        made = make()
        while len(PROGRAMS) >= MAX_PROGRAMS:
            del PROGRAMS[next(iter(PROGRAMS))]
        PROGRAMS[key] = made
    return PROGRAMS[key]


def _batch(function: Any, each: int, batched: int) -> Any:
    """Batch a function of one run over `each` runs; further arguments are shared."""

    def alone(*args: Any) -> Any:
        one = jax.tree.map(lambda leaf: leaf[0], args[:batched])
        return jax.tree.map(lambda leaf: leaf[None], function(*one, *args[batched:]))

    def together(*args: Any) -> Any:
        axes = (0,) * batched + (None,) * (len(args) - batched)
        return jax.vmap(function, in_axes=axes, axis_size=each)(*args)

    return alone if each == 1 else together


def _chunks(count: int, size: int) -> Iterator[tuple[np.ndarray, int]]:
    """Yield positions of each chunk, padded by repeating the last run, and how many are real."""
    for start in range(0, count, size):
        real = min(size, count - start)
        yield np.minimum(start + np.arange(size), count - 1), real
