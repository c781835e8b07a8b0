"""Batches: policies that share one compiled program, and the plan of their sizes.

A batch holds all runs, of one or several sweep specs, that the same compiled program can simulate:
they differ in rates, seeds, options, and the numbers of policy and source. A chunk holds those runs
of a batch that are on the devices at once. Its width (runs per device) follows from memory.
"""

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from cqbjax.core import contract, linalg, pytree
from cqbjax.core.files import arrays_digest
from cqbjax.core.types import Problem, Source, read_needs
from cqbjax.engine import memory, programs
from cqbjax.engine.programs import ProgramSpec
from cqbjax.engine.spec import Capacity, PerSeed, SweepSpec

START_CAPACITY = 64
# A round over a pool of prompts costs far more than its slots, and real queues grow longer.
START_CAPACITY_POOL = 256
# Overflowing runs are repeated with this many times the slots: a compilation costs more than slots.
GROWTH = 4
# The longest of some queues may end this many square roots of the horizon above their mean.
SPREAD = 2.5
# Members whose sources differ in a table larger than this do not share a batch, because each run
# would need a copy of its table.
MAX_COPIED_BYTES = 1_000_000
# On a CPU, runs of fewer rounds use the programs of one of these horizons. Longer runs take longer
# than compiling.
PADDED_HORIZONS = (512, 2048, 8192)


class Member(NamedTuple):
    """A policy of a sweep spec.

    Attributes:
        spec: index of the spec.
        label: label of the policy in this spec.
    """

    spec: int
    label: str


class Runs(NamedTuple):
    """Runs of one batch: each field [runs].

    Attributes:
        member: index into the batch's members.
        rate: arrival rate.
        seed: seed.
        policy: index into the batch's policies.
    """

    member: np.ndarray
    rate: np.ndarray
    seed: np.ndarray
    policy: np.ndarray


@dataclasses.dataclass(frozen=True)
class Batch:
    """Runs of one compiled program.

    Attributes:
        members: the policies, each once.
        specs: the sweep spec of each member.
        policies: one policy whose leaves have a leading axis: over members and, with `per_seed`,
            over the seeds of each member.
        per_seed: whether members are `PerSeed`.
        numbers: the source leaves that differ between members, [members, ...]: its numbers, and
            small tables.
        tables: the source leaves that all members share (`programs.split_source`).
        duplicates: policies that are not run because all their runs equal those of a member: for
            example, the optimal policy at points that differ only in the constants of another
            policy.
    """

    members: tuple[Member, ...]
    specs: tuple[SweepSpec, ...]
    policies: Any
    per_seed: bool
    numbers: Any
    tables: Any
    duplicates: Mapping[Member, Member]

    @property
    def spec(self) -> SweepSpec:
        """One spec; all have the same problem, records, recorders and capacity."""
        return self.specs[0]

    @property
    def labels(self) -> tuple[str, ...]:
        """The distinct labels of the members."""
        return tuple(dict.fromkeys(member.label for member in self.members))

    @property
    def runs_per_label(self) -> int:
        """The most runs that the members of one label have together."""
        counts = dict.fromkeys(self.labels, 0)
        for member, spec in zip(self.members, self.specs, strict=True):
            counts[member.label] += spec.runs_per_policy
        return max(counts.values())

    @functools.cached_property
    def runs(self) -> Runs:
        """The runs: member by member, rate by rate, seed by seed."""
        runs, first = [], 0
        for number, spec in enumerate(self.specs):
            rate, seed = (axis.ravel() for axis in np.indices((spec.rates.size, spec.seeds.size)))
            policy = first + (seed if self.per_seed else np.zeros_like(seed))
            member = np.full(seed.size, number)
            runs.append(Runs(member, spec.rates[rate], spec.seeds[seed], policy))
            first += spec.seeds.size if self.per_seed else 1
        return Runs(*(np.concatenate(field) for field in zip(*runs, strict=True)))

    @functools.cached_property
    def order(self) -> np.ndarray:
        """The order in which runs are divided into chunks: the highest arrival rates first.

        Over a pool a round scores as many slots as the longest queue of the chunk has, and a chunk
        stops when all its runs have overflowed. So runs of one rate belong together.
        """
        return np.argsort(-self.runs.rate, kind="stable")

    def initial_slots(self) -> int:
        """Return the queue slots of the first attempt.

        A policy that does not see contexts serves about as many queries as uniform routing. If more
        arrive, its queue grows by the difference each round, and too few slots would mean a second
        program to compile.
        """
        problem = self.spec.problem
        slots, horizon = initial_slots(problem, self.spec.capacity), problem.horizon
        if self.spec.capacity == "auto" and not read_needs(take(self.policies, 0)).contexts:
            size = problem.assortment_size
            excess = max(
                rate - spec.source.uniform_service(spec.seeds, rate, size)
                for spec in {id(one): one for one in self.specs}.values()
                for rate in spec.rates
            )
            wanted = min(excess * horizon + SPREAD * horizon**0.5, problem.max_queries)
            while slots < wanted:
                slots = grow_slots(slots, problem.max_queries)
        return slots

    def run_bytes(self, slots: int, padded: Problem | None = None) -> int:
        """Return the bytes of one run, or of one with the shapes of a padded problem."""
        source = programs.merge_source(take(self.numbers, 0), self.tables)
        signatures = pytree.signature_of(take(self.policies, 0)), pytree.signature_of(source)
        return memory.bytes_per_run(
            *signatures, padded or self.spec.problem, slots, self.spec.recorders
        )


@dataclasses.dataclass(frozen=True)
class SweepPlan:
    """The batches of one or several sweeps, and what determines their chunks.

    Attributes:
        specs: sweep specs of all sweeps.
        batches: all batches.
        chunk: runs per device and chunk; None leaves it to memory.
        devices: where chunks run.
        bytes_per_device: what the runs of one device may fill.
    """

    specs: tuple[SweepSpec, ...]
    batches: tuple[Batch, ...]
    chunk: int | None
    devices: tuple[jax.Device, ...]
    bytes_per_device: int

    def program_spec(self, batch: Batch, slots: int) -> ProgramSpec:
        """Return what the programs of a batch at this many slots depend on."""
        problem, records = batch.spec.problem, batch.spec.records
        products = problem.num_servers * problem.dim**2 * problem.assortment_size
        spare = memory.CPU_MOST_SPARE // (products * problem.horizon)
        width = self.chunk or memory.chunk_width(
            batch.run_bytes(slots), len(batch.runs.seed), batch.runs_per_label, self.devices,
            self.bytes_per_device, spare,
        )  # fmt: skip
        on_cpu = self.devices[0].platform == "cpu"
        padded = pad_horizon(batch, slots, self.bytes_per_device // width) if on_cpu else None
        return ProgramSpec(
            self.devices, width, problem, pytree.signature_of(take(batch.numbers, 0)),
            pytree.signature_of(batch.tables), pytree.signature_of(take(batch.policies, 0)), slots,
            records.per_call, records.every, batch.spec.recorders, padded,
        )  # fmt: skip

    def describe(self, batch: Batch, slots: int, runs: int) -> str:
        """Return a line with the bytes per run, runs per chunk and chunks of some runs."""
        size, count = batch.run_bytes(slots), len(self.devices)
        chunk = self.program_spec(batch, slots).runs
        return (
            f"{', '.join(batch.labels)}: {runs:,} runs of {size / 1e6:,.2f} MB, {chunk:,} a chunk "
            f"on {count} device{'s' if count > 1 else ''} ({chunk * size / 1e6:,.0f} MB), "
            f"{-(-runs // chunk):,} chunk{'s' if runs > chunk else ''}, {slots} queue slots"
        )


def plan_sweep(
    specs: Sequence[SweepSpec],
    chunk: int | None = None,
    memory_gb: float | None = None,
    devices: Sequence[jax.Device] | None = None,
) -> SweepPlan:
    """Plan sweeps that share batches where they can.

    Args:
        specs: from `validation.build_spec`.
        chunk: as in `cqbjax.sweep`.
        memory_gb: as in `cqbjax.sweep`, for all sweeps together.
        devices: as in `cqbjax.sweep`.
    """
    devices = tuple(devices or jax.devices())
    budget = memory.device_budget(memory_gb, devices)
    return SweepPlan(tuple(specs), tuple(form_batches(specs)), chunk, devices, budget)


def initial_slots(problem: Problem, capacity: Capacity) -> int:
    """Return the queue slots of the first attempt of a policy that sees contexts."""
    if capacity != "auto":
        return int(capacity)
    start = START_CAPACITY_POOL if problem.pooled else START_CAPACITY
    return min(start, max_slots(problem.max_queries))


def max_slots(queries: int) -> int:
    """Return slots for all queries of a run, rounded up to a multiple of `linalg.WORD`.

    Marks of slots are packed into words of this many bits: with 1,024 slots, a policy that does not
    see contexts takes a third less time than with 1,000 (docs/notebook/performance.md).
    """
    return -(-queries // linalg.WORD) * linalg.WORD


def grow_slots(slots: int, queries: int) -> int:
    """Return the queue slots of the next attempt, after an overflow."""
    return min(GROWTH * slots, max_slots(queries))


def pad_horizon(batch: Batch, slots: int, max_run_bytes: int) -> Problem | None:
    """Return the padded problem whose programs a batch uses, or None to compile for its horizon.

    Rounds that are not run take only memory. Records, and what user-defined classes compute from
    the horizon, follow the batch's own problem.

    Args:
        batch: the batch whose horizon is padded.
        slots: slots of the queue.
        max_run_bytes: the most bytes that a run may take.
    """
    problem, source, recorders = batch.spec.problem, batch.spec.source, batch.spec.recorders
    policy, most = take(batch.policies, 0), min(max_run_bytes, memory.CPU_BYTES_ALONE)
    plain = problem.channels == problem.max_arrivals == 1 and getattr(source, "extends", False)
    if not plain or contract.is_third_party(policy):
        return None
    for horizon in PADDED_HORIZONS:
        if horizon < problem.horizon:
            continue
        padded = source.problem(problem.assortment_size, horizon)
        # A policy may hold a table with a row per context row: it is then defined for one horizon.
        if (
            contract.policy_error(policy, padded) is None
            and memory.record_shapes(recorders, problem) == memory.record_shapes(recorders, padded)
            and batch.run_bytes(slots, padded) <= most
        ):
            return padded
    return None


class _StackedMember(NamedTuple):
    """A member whose policies and source are trees of arrays."""

    member: Member
    spec: SweepSpec
    policies: Any
    source: Any


def form_batches(specs: Sequence[SweepSpec]) -> list[Batch]:
    """Group the policies of all specs by program, so that each program is compiled once."""
    by_program: dict[Any, list[_StackedMember]] = {}
    cache: dict[Any, Any] = {}
    for number, spec in enumerate(specs):
        source = _share_arrays(spec.source, cache)
        large = tuple(
            id(leaf) for leaf in jax.tree.leaves(source) if leaf.nbytes > MAX_COPIED_BYTES
        )
        for label, policy in spec.policies.items():
            per_seed = isinstance(policy, PerSeed)
            each = policy.policies if isinstance(policy, PerSeed) else (policy,)
            stacked = _stack(each)
            program = (
                pytree.signature_of(take(stacked, 0)), per_seed, spec.problem, spec.records,
                spec.capacity, pytree.signature_of(source), large, spec.recorders,
            )  # fmt: skip
            stacked_member = _StackedMember(Member(number, label), spec, stacked, source)
            by_program.setdefault(program, []).append(stacked_member)
    return [_form_batch(members, program[1]) for program, members in by_program.items()]


def _form_batch(members: Sequence[_StackedMember], per_seed: bool) -> Batch:
    """Return the batch of members that share a program."""
    leaves = [jax.tree.leaves(each.source) for each in members]
    differs = [
        leaf.ndim == 0 or any(others[i] is not leaf for others in leaves)
        for i, leaf in enumerate(leaves[0])
    ]
    first: dict[tuple[str, str], tuple[_StackedMember, Any]] = {}
    duplicates: dict[Member, Member] = {}
    for each in members:
        numbers, _ = programs.split_source(each.source, differs)
        determined_by = (each.policies, numbers, each.spec.rates, each.spec.seeds)
        digest = arrays_digest(map(np.asarray, jax.tree.leaves(determined_by)))
        # Two labels of one spec are both run, even if their policies are equal.
        earlier, _ = first.setdefault((each.member.label, digest), (each, numbers))
        if earlier is not each:
            duplicates[each.member] = earlier.member
    distinct = [each for each, _ in first.values()]
    _, tables = programs.split_source(members[0].source, differs)
    return Batch(
        tuple(each.member for each in distinct),
        tuple(each.spec for each in distinct),
        jax.tree.map(lambda *leaves: np.concatenate(leaves), *(e.policies for e in distinct)),
        per_seed,
        _stack([numbers for _, numbers in first.values()]),
        tables,
        duplicates,
    )


def _share_arrays(source: Source, cache: dict[Any, Any]) -> Any:
    """Return a source as a tree of arrays in which tables of equal content are one array.

    Args:
        source: to convert.
        cache: id of a leaf -> the leaf, which keeps its id from being used again, and its array;
            digest -> array. The tables of this source are added.
    """
    leaves, structure = jax.tree.flatten(pytree.as_arrays(source))
    for i, leaf in enumerate(jax.tree.leaves(source)):
        if leaves[i].ndim and id(leaf) not in cache:
            digest = arrays_digest([np.asarray(leaves[i])])
            cache[id(leaf)] = leaf, cache.setdefault(digest, leaves[i])
        if leaves[i].ndim:
            leaves[i] = cache[id(leaf)][1]
    return jax.tree.unflatten(structure, leaves)


def take(tree: Any, index: Any) -> Any:
    """Return the rows of a tree of arrays at an index, or at several."""
    return jax.tree.map(lambda leaf: leaf[index], tree)


def _stack(trees: Sequence[Any]) -> Any:
    """Stack trees of equal structure along a new first axis, on the host.

    The leaves have the dtypes of `pytree.as_arrays`, whose arrays would take longer than planning.
    """
    return jax.tree.map(
        lambda *leaves: np.stack([np.asarray(one, pytree.array_dtype(one)) for one in leaves]),
        *trees,
    )
