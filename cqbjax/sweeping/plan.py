"""What a sweep will run, decided once before anything compiles: groups, runs, records, sizes."""

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple

import jax
import numpy as np

from cqbjax import pytree
from cqbjax.sweeping import memory
from cqbjax.sweeping.programs import Shape, bytes_a_run, kind_of
from cqbjax.types import Policy, Problem, Source

MAX_RECORDS = 250
MAX_CALLS = 10
START_CAPACITY = 64
# A round over a pool of prompts costs far more than its slots, and real queues grow longer.
START_CAPACITY_POOL = 256
# Overflowing runs are repeated with this many times the slots: a compilation costs more than slots.
GROWTH = 4
# The longest of some queues may end this many square roots of the horizon above their mean.
SPREAD = 2.5

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


@dataclasses.dataclass(frozen=True)
class Group:
    """Policies that share one compiled program and one batch: they differ in leaves alone.

    Attributes:
        labels: the policies' labels.
        stacked: one policy whose leaves have two leading axes, over `labels` and over seeds; the
            second is of length 1 where all seeds share one policy.
        per_seed: whether each seed has a policy of its own.
    """

    labels: tuple[str, ...]
    stacked: Any
    per_seed: bool

    @property
    def one(self) -> Any:
        """Return one of the policies, for its shapes."""
        return jax.tree.map(lambda leaf: leaf[0, 0], self.stacked)


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


@dataclasses.dataclass(frozen=True)
class Plan:
    """One sweep, its inputs checked and its sizes chosen.

    Attributes:
        source: where queries come from, its leaves arrays.
        problem: shapes of a run.
        rates: [L] arrival rates.
        seeds: [S] seeds.
        records: which rounds are kept.
        groups: what runs, each a program and a batch.
        capacity: queue slots, or `auto`.
        chunk: runs a device batches at once; None leaves it to the memory.
        devices: where runs go.
        bytes_a_device: what the runs of one device may fill.
    """

    source: Source
    problem: Problem
    rates: np.ndarray
    seeds: np.ndarray
    records: Records
    groups: tuple[Group, ...]
    capacity: Capacity
    chunk: int | None
    devices: tuple[jax.Device, ...]
    bytes_a_device: int

    @property
    def runs_a_policy(self) -> int:
        """How many runs each policy has."""
        return self.rates.size * self.seeds.size

    def runs(self, group: Group) -> Runs:
        """Return the runs of a group: label by label, rate by rate, seed by seed."""
        shape = (len(group.labels), self.rates.size, self.seeds.size)
        member, rate, seed = (axis.ravel() for axis in np.indices(shape))
        place = seed if group.per_seed else np.zeros_like(seed)
        return Runs(member, self.rates[rate], self.seeds[seed], place)

    def first_slots(self, group: Group) -> int:
        """Return the queue slots of a group's first attempt.

        A policy that sees no contexts serves what uniform routing does, about; where more arrives,
        its queue grows by the difference a round, and a second program would be compiled for it.
        """
        if self.capacity != "auto":
            return int(self.capacity)
        slots = START_CAPACITY_POOL if self.problem.pooled else START_CAPACITY
        horizon = self.problem.horizon
        if getattr(group.one, "blind", False):
            longest = self._excess * horizon + SPREAD * horizon**0.5
            while slots < longest:
                slots *= GROWTH
        return min(slots, horizon)

    @functools.cached_property
    def _excess(self) -> float:
        """Return by how much arrivals exceed what uniform routing serves, queries a round."""
        size = self.problem.assortment_size
        served = [self.source.uniform_service(self.seeds, rate, size) for rate in self.rates]
        return max(rate - own for rate, own in zip(self.rates, served, strict=True))

    def run_bytes(self, group: Group, slots: int) -> int:
        """Return the bytes of one run of a group."""
        kinds = kind_of(group.one), kind_of(self.source)
        return bytes_a_run(*kinds, self.problem, slots)

    def shape(self, group: Group, slots: int) -> Shape:
        """Return what the programs of a group at this many slots depend on."""
        runs = len(group.labels) * self.runs_a_policy
        width = self.chunk or memory.width(
            self.run_bytes(group, slots), runs, self.runs_a_policy, self.devices,
            self.bytes_a_device,
        )  # fmt: skip
        return Shape(
            self.devices, width, self.problem, kind_of(self.source), kind_of(group.one), slots,
            self.records.per_call, self.records.every,
        )  # fmt: skip

    def describe(self, group: Group, slots: int, runs: int) -> str:
        """Say in a line what some runs of a group will take: bytes a run, runs a chunk, chunks."""
        size, count = self.run_bytes(group, slots), len(self.devices)
        chunk = self.shape(group, slots).batch
        return (
            f"{', '.join(group.labels)}: {runs:,} runs of {size / 1e6:,.2f} MB, {chunk:,} a chunk "
            f"on {count} device{'s' if count > 1 else ''} ({chunk * size / 1e6:,.0f} MB), "
            f"{-(-runs // chunk):,} chunk{'s' if runs > chunk else ''}, {slots} queue slots"
        )


def make(
    policies: Mapping[str, Policy | PerSeed], source: Source, problem: Problem,
    rates: np.ndarray, seeds: np.ndarray, records: Records, capacity: Capacity,
    chunk: int | None, memory_gb: float | None, devices: Sequence[jax.Device],
) -> Plan:  # fmt: skip
    """Plan a sweep; the arguments are those of `sweep`, checked."""
    return Plan(
        pytree.arrays(source), problem, rates, seeds, records, tuple(group(policies)), capacity,
        chunk, tuple(devices), memory.budget(memory_gb, devices),
    )  # fmt: skip


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


def group(policies: Mapping[str, Policy | PerSeed]) -> list[Group]:
    """Collect policies of equal kind, so that each kind compiles once and runs in one batch."""
    members: dict[Any, list[tuple[str, Any]]] = {}
    for label, policy in policies.items():
        per_seed = isinstance(policy, PerSeed)
        each = policy.policies if isinstance(policy, PerSeed) else (policy,)
        stacked = _stack([pytree.arrays(one) for one in each])
        kind = kind_of(jax.tree.map(lambda leaf: leaf[0], stacked))
        members.setdefault((kind, per_seed), []).append((label, stacked))
    return [
        Group(tuple(label for label, _ in same), _stack([policy for _, policy in same]), per_seed)
        for (_, per_seed), same in members.items()
    ]


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
