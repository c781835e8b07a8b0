"""What a sweep is asked for: parts, with their rates and seeds, and the rounds that are recorded.

A part is what one figure's panel shows: policies at some arrival rates and seeds on one source.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple

import numpy as np

from cqbjax.core.recorders import ALWAYS, Recorder
from cqbjax.core.types import Policy, Problem, Source

MAX_RECORDS = 250
MAX_CALLS = 10

Capacity = int | Literal["auto"]


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
        recorders: what is recorded.
    """

    policies: Mapping[str, Policy | PerSeed]
    source: Source
    problem: Problem
    rates: np.ndarray
    seeds: np.ndarray
    records: Records
    capacity: Capacity
    recorders: tuple[Recorder, ...] = ALWAYS

    @property
    def runs_a_policy(self) -> int:
        """How many runs each policy has."""
        return self.rates.size * self.seeds.size


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
