"""Policies whose programs are the same, of whatever part: one program and one batch.

They differ in numbers, words, rates, seeds and their source's numbers.
"""

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from cqbjax.core import linalg, pytree
from cqbjax.core.files import arrays_digest
from cqbjax.core.types import Problem, Source, read_needs
from cqbjax.engine import programs
from cqbjax.engine.memory import bytes_a_run
from cqbjax.engine.parts import Capacity, Part, PerSeed

START_CAPACITY = 64
# A round over a pool of prompts costs far more than its slots, and real queues grow longer.
START_CAPACITY_POOL = 256
# Overflowing runs are repeated with this many times the slots: a compilation costs more than slots.
GROWTH = 4
# The longest of some queues may end this many square roots of the horizon above their mean.
SPREAD = 2.5

# Members whose sources differ in a larger table do not share a batch: it would be copied a run.
MOST_OWN = 1_000_000


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
    """Policies of one compiled program and one batch: they differ in numbers and words alone.

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
        """Return a part of the group: problem, records, recorders and capacity are those of all."""
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
    def source_kind(self) -> pytree.Kind:
        """Return the kind of the members' sources."""
        return pytree.kind_of(programs.united(row(self.numbers, 0), self.tables))

    @functools.cached_property
    def runs(self) -> Runs:
        """Return the runs: member by member, rate by rate, seed by seed."""
        runs, row = [], 0
        for number, part in enumerate(self.parts):
            rate, seed = (axis.ravel() for axis in np.indices((part.rates.size, part.seeds.size)))
            own = row + (seed if self.per_seed else np.zeros_like(seed))
            member = np.full(seed.size, number)
            runs.append(Runs(member, part.rates[rate], part.seeds[seed], own))
            row += part.seeds.size if self.per_seed else 1
        return Runs(*(np.concatenate(field) for field in zip(*runs, strict=True)))

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
        slots, horizon = least_slots(problem, capacity), problem.horizon
        if capacity == "auto" and not read_needs(self.one).contexts:
            excess = max(_excess(part) for part in {id(part): part for part in self.parts}.values())
            wanted = min(excess * horizon + SPREAD * horizon**0.5, problem.most_queries)
            while slots < wanted:
                slots = more_slots(slots, problem.most_queries)
        return slots

    def run_bytes(self, slots: int, room: Problem | None = None) -> int:
        """Return the bytes of one run, or of one that has room for more rounds."""
        kinds = pytree.kind_of(self.one), self.source_kind
        return bytes_a_run(*kinds, room or self.part.problem, slots, self.part.recorders)


def least_slots(problem: Problem, capacity: Capacity) -> int:
    """Return the queue slots of the first attempt of a policy that sees contexts."""
    if capacity != "auto":
        return int(capacity)
    start = START_CAPACITY_POOL if problem.pooled else START_CAPACITY
    return min(start, most_slots(problem.most_queries))


def most_slots(queries: int) -> int:
    """Return slots that no queue outgrows: one a query that may come, in whole words of marks.

    A queue is read a word of marks at a time (`linalg.packed`): 1,024 slots take a blind policy a
    third less than 1,000 (docs/notebook/performance.md).
    """
    return -(-queries // linalg.WORD) * linalg.WORD


def more_slots(slots: int, queries: int) -> int:
    """Return the queue slots of the next attempt, where these were not enough."""
    return min(GROWTH * slots, most_slots(queries))


def _excess(part: Part) -> float:
    """Return by how much arrivals exceed what uniform routing serves, queries a round."""
    size = part.problem.assortment_size
    served = [part.source.uniform_service(part.seeds, rate, size) for rate in part.rates]
    return max(rate - own for rate, own in zip(part.rates, served, strict=True))


class _Drawn(NamedTuple):
    """A member's policies and source, as arrays."""

    member: Member
    part: Part
    policies: Any
    source: Any


def grouped(parts: Sequence[Part]) -> list[Group]:
    """Collect policies whose programs are the same, so that each is compiled once and batched."""
    by_program: dict[Any, list[_Drawn]] = {}
    tables = _Tables()
    for number, part in enumerate(parts):
        source = tables.arrays(part.source)
        large = tuple(id(leaf) for leaf in jax.tree.leaves(source) if leaf.nbytes > MOST_OWN)
        for label, policy in part.policies.items():
            per_seed = isinstance(policy, PerSeed)
            each = policy.policies if isinstance(policy, PerSeed) else (policy,)
            stacked = _stack([pytree.arrays(one) for one in each])
            common = (
                pytree.kind_of(row(stacked, 0)), per_seed, part.problem, part.records,
                part.capacity, pytree.kind_of(source), large, part.recorders,
            )  # fmt: skip
            drawn = _Drawn(Member(number, label), part, stacked, source)
            by_program.setdefault(common, []).append(drawn)
    return [_group(same, common[1]) for common, same in by_program.items()]


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
        earlier, _ = first.setdefault((each.member.label, digest), (each, numbers))
        if earlier is not each:
            twins[each.member] = earlier.member
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


def row(tree: Any, number: int) -> Any:
    """Return one of stacked trees."""
    return jax.tree.map(lambda leaf: leaf[number], tree)


def _stack(trees: Sequence[Any]) -> Any:
    """Stack trees of equal structure along a new first axis, on the host."""
    return jax.tree.map(lambda *leaves: np.stack([np.asarray(leaf) for leaf in leaves]), *trees)
