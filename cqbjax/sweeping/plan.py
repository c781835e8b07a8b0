"""What a sweep will run, decided once before anything compiles: groups, runs, records, sizes.

A sweep has parts: each is what one figure's panel shows, policies at some arrival rates and seeds
on one source. Policies of any part whose programs are the same form a group: one program and one
batch, whatever numbers, words, rates, seeds and source's numbers they differ in.
"""

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple

import jax
import numpy as np

from cqbjax import linalg, pytree
from cqbjax.files import arrays_digest
from cqbjax.sweeping import memory, programs
from cqbjax.sweeping.programs import Kind, Shape, bytes_a_run, kind_of
from cqbjax.types import Policy, Problem, Source, is_blind

MAX_RECORDS = 250
MAX_CALLS = 10
START_CAPACITY = 64
# A round over a pool of prompts costs far more than its slots, and real queues grow longer.
START_CAPACITY_POOL = 256
# Overflowing runs are repeated with this many times the slots: a compilation costs more than slots.
GROWTH = 4
# The longest of some queues may end this many square roots of the horizon above their mean.
SPREAD = 2.5

# Members whose sources differ in a larger table do not share a batch: it would be copied a run.
MOST_OWN = 1_000_000

Capacity = int | Literal["auto"]


class QueueOverflow(ValueError):
    """A query found no free slot at the capacity that was asked for."""


@dataclasses.dataclass(frozen=True)
class PerSeed:
    """A policy that differs from seed to seed, in its leaves alone: trained on each seed's split.

    Attributes:
        policies: [S] one policy a seed, in the order of the sweep's seeds.
    """

    policies: Sequence[Policy]


class Records(NamedTuple):
    """Which rounds are recorded, and how many per device call.

    Attributes:
        every: one round in this many is recorded.
        per_call: records of one device call.
        calls: device calls over the horizon.
    """

    every: int
    per_call: int
    calls: int

    @property
    def rounds(self) -> np.ndarray:
        """Return the recorded rounds, [R], counting from 1."""
        return self.every * np.arange(1, self.per_call * self.calls + 1)


@dataclasses.dataclass(frozen=True)
class Part:
    """Policies at every arrival rate and seed, on one source; its inputs are checked.

    Attributes:
        policies: label -> policy.
        source: where queries come from.
        problem: shapes of a run.
        rates: [L] arrival rates.
        seeds: [S] seeds.
        records: which rounds are kept.
        capacity: queue slots, or `auto`.
    """

    policies: Mapping[str, Policy | PerSeed]
    source: Source
    problem: Problem
    rates: np.ndarray
    seeds: np.ndarray
    records: Records
    capacity: Capacity

    @property
    def runs_a_policy(self) -> int:
        """How many runs each policy has."""
        return self.rates.size * self.seeds.size


class Member(NamedTuple):
    """A policy of a part.

    Attributes:
        part: number of the part.
        label: of the policy there.
    """

    part: int
    label: str


class Runs(NamedTuple):
    """Runs of one group, flattened: each field [runs].

    Attributes:
        member: index into the group's members.
        rate: arrival rate.
        seed: seed.
        policy: index into the group's policies.
    """

    member: np.ndarray
    rate: np.ndarray
    seed: np.ndarray
    policy: np.ndarray

    def take(self, index: np.ndarray) -> "Runs":
        """Return the runs at these positions."""
        return Runs(*(field[index] for field in self))


@dataclasses.dataclass(frozen=True)
class Group:
    """Policies that share one compiled program and one batch: they differ in numbers alone.

    Attributes:
        members: whose policies they are.
        parts: the part of each member.
        policies: one policy whose leaves have a leading axis, over members and, where each seed
            has a policy of its own, over a member's seeds.
        per_seed: whether each seed has a policy of its own.
        numbers: what of each member's source is its own, leaves [members, ...]: its numbers, and
            small tables in which members differ. The rest is in `tables`.
        tables: what the sources of all members have in common (`programs.divided`).
        twins: those whose runs would be a member's, number by number, as the optimal policy's are
            in points that differ in another policy's constants: twin -> the member.
    """

    members: tuple[Member, ...]
    parts: tuple[Part, ...]
    policies: Any
    per_seed: bool
    numbers: Any
    tables: Any
    twins: Mapping[Member, Member]

    @property
    def part(self) -> Part:
        """Return a part of the group: problem, records and capacity are those of all."""
        return self.parts[0]

    @property
    def labels(self) -> tuple[str, ...]:
        """Return the distinct labels of the members."""
        return tuple(dict.fromkeys(member.label for member in self.members))

    @property
    def one(self) -> Any:
        """Return one of the policies, for its shapes."""
        return jax.tree.map(lambda leaf: leaf[0], self.policies)

    @property
    def source_kind(self) -> Kind:
        """Return the kind of the members' sources."""
        return kind_of(programs.united(_row(self.numbers, 0), self.tables))

    @functools.cached_property
    def runs(self) -> Runs:
        """Return the runs: member by member, rate by rate, seed by seed."""
        found, row = [], 0
        for number, part in enumerate(self.parts):
            rate, seed = (axis.ravel() for axis in np.indices((part.rates.size, part.seeds.size)))
            own = row + (seed if self.per_seed else np.zeros_like(seed))
            member = np.full(seed.size, number)
            found.append(Runs(member, part.rates[rate], part.seeds[seed], own))
            row += part.seeds.size if self.per_seed else 1
        return Runs(*(np.concatenate(field) for field in zip(*found, strict=True)))

    @functools.cached_property
    def order(self) -> np.ndarray:
        """Return the order in which the runs are batched: the highest arrival rates first.

        Over a pool a round scores the queue up to the longest of the batch, and a batch whose runs
        have all outgrown their slots stops: runs of a rate belong together, whosever they are.
        """
        return np.argsort(-self.runs.rate, kind="stable")

    @property
    def runs_a_label(self) -> int:
        """Return the most runs that the members of one label have together."""
        counts: dict[str, int] = {}
        for member, part in zip(self.members, self.parts, strict=True):
            counts[member.label] = counts.get(member.label, 0) + part.runs_a_policy
        return max(counts.values())

    def first_slots(self) -> int:
        """Return the queue slots of the first attempt.

        A policy that sees no contexts serves what uniform routing does, about; where more arrives,
        its queue grows by the difference a round, and a second program would be compiled for it.
        """
        capacity, problem = self.part.capacity, self.part.problem
        if capacity != "auto":
            return int(capacity)
        slots, horizon = START_CAPACITY_POOL if problem.pooled else START_CAPACITY, problem.horizon
        if is_blind(self.one):
            excess = max(_excess(part) for part in {id(part): part for part in self.parts}.values())
            while slots < excess * horizon + SPREAD * horizon**0.5:
                slots *= GROWTH
        return min(slots, most_slots(horizon))

    def run_bytes(self, slots: int) -> int:
        """Return the bytes of one run."""
        return bytes_a_run(kind_of(self.one), self.source_kind, self.part.problem, slots)


def most_slots(horizon: int) -> int:
    """Return slots that no queue outgrows: one a round, in whole words of marks.

    A queue is read a word of marks at a time (`linalg.packed`): 1,024 slots take a blind policy a
    third less than 1,000 (docs/notebook/performance.md).
    """
    return -(-horizon // linalg.WORD) * linalg.WORD


def _excess(part: Part) -> float:
    """Return by how much arrivals exceed what uniform routing serves, queries a round."""
    size = part.problem.assortment_size
    served = [part.source.uniform_service(part.seeds, rate, size) for rate in part.rates]
    return max(rate - own for rate, own in zip(part.rates, served, strict=True))


@dataclasses.dataclass(frozen=True)
class Plan:
    """One sweep, its sizes chosen.

    Attributes:
        parts: what it shows.
        groups: what runs, each a program and a batch.
        chunk: runs a device batches at once; None leaves it to the memory.
        devices: where runs go.
        bytes_a_device: what the runs of one device may fill.
    """

    parts: tuple[Part, ...]
    groups: tuple[Group, ...]
    chunk: int | None
    devices: tuple[jax.Device, ...]
    bytes_a_device: int

    def shape(self, group: Group, slots: int) -> Shape:
        """Return what the programs of a group at this many slots depend on."""
        width = self.chunk or memory.width(
            group.run_bytes(slots), len(group.runs.seed), group.runs_a_label, self.devices,
            self.bytes_a_device,
        )  # fmt: skip
        records = group.part.records
        return Shape(
            self.devices, width, group.part.problem, kind_of(_row(group.numbers, 0)),
            kind_of(group.tables), kind_of(group.one), slots, records.per_call, records.every,
        )  # fmt: skip

    def describe(self, group: Group, slots: int, runs: int) -> str:
        """Say in a line what some runs of a group will take: bytes a run, runs a chunk, chunks."""
        size, count = group.run_bytes(slots), len(self.devices)
        chunk = self.shape(group, slots).batch
        return (
            f"{', '.join(group.labels)}: {runs:,} runs of {size / 1e6:,.2f} MB, {chunk:,} a chunk "
            f"on {count} device{'s' if count > 1 else ''} ({chunk * size / 1e6:,.0f} MB), "
            f"{-(-runs // chunk):,} chunk{'s' if runs > chunk else ''}, {slots} queue slots"
        )


def make(
    parts: Sequence[Part],
    chunk: int | None = None,
    memory_gb: float | None = None,
    devices: Sequence[jax.Device] | None = None,
) -> Plan:
    """Plan a sweep; chunk, memory_gb and devices are as in `sweep`."""
    devices = devices or jax.devices()
    groups = tuple(group(parts))
    return Plan(tuple(parts), groups, chunk, tuple(devices), memory.budget(memory_gb, devices))


def seed_numbers(seeds: int | Sequence[int]) -> np.ndarray:
    """Return the seeds as an array.

    Raises:
        ValueError: if they are not integers.
    """
    if isinstance(seeds, int | np.integer):
        return np.arange(seeds)
    numbers = np.asarray(seeds)
    if numbers.size and not np.issubdtype(numbers.dtype, np.integer):
        raise ValueError("seeds must be integers")
    return numbers.astype(int)


class _Drawn(NamedTuple):
    """A member's policies and source, as arrays."""

    member: Member
    part: Part
    policies: Any
    source: Any


def group(parts: Sequence[Part]) -> list[Group]:
    """Collect policies whose programs are the same, so that each is compiled once and batched."""
    found: dict[Any, list[_Drawn]] = {}
    tables = _Tables()
    for number, part in enumerate(parts):
        source = tables.arrays(part.source)
        large = tuple(id(leaf) for leaf in jax.tree.leaves(source) if leaf.nbytes > MOST_OWN)
        for label, policy in part.policies.items():
            per_seed = isinstance(policy, PerSeed)
            each = policy.policies if isinstance(policy, PerSeed) else (policy,)
            stacked = _stack([pytree.arrays(one) for one in each])
            common = (
                kind_of(_row(stacked, 0)), per_seed, part.problem, part.records, part.capacity,
                kind_of(source), large,
            )  # fmt: skip
            drawn = _Drawn(Member(number, label), part, stacked, source)
            found.setdefault(common, []).append(drawn)
    return [_group(same, common[1]) for common, same in found.items()]


def _group(same: Sequence[_Drawn], per_seed: bool) -> Group:
    """Return the group of members whose programs are the same."""
    leaves = [jax.tree.leaves(each.source) for each in same]
    own = [
        leaf.ndim == 0 or any(others[i] is not leaf for others in leaves)
        for i, leaf in enumerate(leaves[0])
    ]
    first: dict[tuple[str, str], tuple[_Drawn, Any]] = {}
    twins: dict[Member, Member] = {}
    for each in same:
        numbers, _ = programs.divided(each.source, own)
        settled = (each.policies, numbers, each.part.rates, each.part.seeds)
        digest = arrays_digest(map(np.asarray, jax.tree.leaves(settled)))
        # Of one part nothing is left out: who gives a policy two labels wants it to run twice.
        found, _ = first.setdefault((each.member.label, digest), (each, numbers))
        if found is not each:
            twins[each.member] = found.member
    distinct = [each for each, _ in first.values()]
    _, tables = programs.divided(same[0].source, own)
    return Group(
        tuple(each.member for each in distinct),
        tuple(each.part for each in distinct),
        jax.tree.map(lambda *leaves: np.concatenate(leaves), *(e.policies for e in distinct)),
        per_seed,
        _stack([numbers for _, numbers in first.values()]),
        tables,
        twins,
    )


class _Tables:
    """Sources as arrays; leaves of equal content are one array."""

    def __init__(self) -> None:
        self._known: dict[int, Any] = {}
        self._made: dict[str, Any] = {}
        self._given: list[Any] = []  # kept, so that no other object takes its place in memory

    def arrays(self, source: Source) -> Any:
        """Return a source as a tree of arrays."""
        given, made = jax.tree.leaves(source), pytree.arrays(source)
        leaves, structure = jax.tree.flatten(made)
        shared = [
            self._one(one, leaf) if leaf.ndim else leaf
            for one, leaf in zip(given, leaves, strict=True)
        ]
        return jax.tree.unflatten(structure, shared)

    def _one(self, given: Any, made: Any) -> Any:
        """Return the array that stands for all of this content."""
        if id(given) not in self._known:
            self._given.append(given)
            digest = arrays_digest([np.asarray(made)])
            self._known[id(given)] = self._made.setdefault(digest, made)
        return self._known[id(given)]


def _row(tree: Any, number: int) -> Any:
    """Return one of stacked trees."""
    return jax.tree.map(lambda leaf: leaf[number], tree)


def _stack(trees: Sequence[Any]) -> Any:
    """Stack trees of equal structure along a new first axis, on the host."""
    return jax.tree.map(lambda *leaves: np.stack([np.asarray(leaf) for leaf in leaves]), *trees)


def choose_records(horizon: int, every: int | None = None) -> Records:
    """Choose the recorded rounds: the last one always, and at most about `MAX_RECORDS`.

    Args:
        horizon: T.
        every: a divisor of the horizon; None chooses the smallest that keeps the records few.

    Raises:
        ValueError: if `every` does not divide the horizon.
    """
    if every is None:
        divisors = [n for n in range(1, horizon + 1) if horizon % n == 0]
        fitting = [n for n in divisors if horizon // n <= MAX_RECORDS]
        # A prime horizon has no divisor between 1 and itself: then every round is kept.
        every = fitting[0] if fitting[0] <= 4 * max(1, horizon // MAX_RECORDS) else 1
    if every < 1 or horizon % every:
        raise ValueError(f"record_every={every} must divide horizon={horizon}")
    count = horizon // every
    calls = max(n for n in range(1, MAX_CALLS + 1) if count % n == 0)
    return Records(every, count // calls, calls)
