"""What a sweep is asked for: parts, with their rates and seeds, and the rounds that are recorded.

A part is what one figure's panel shows: policies at some arrival rates and seeds on one source.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np

from cqbjax.core.given import is_whole
from cqbjax.core.recorders import ALWAYS, Recorder
from cqbjax.core.rng import MOST_SEED
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
    def total(self) -> int:
        """R, how many rounds are recorded."""
        return self.per_call * self.calls

    @property
    def rounds(self) -> np.ndarray:
        """Return the recorded rounds, [R], counting from 1."""
        return self.every * np.arange(1, self.total + 1)


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
    """Return the seeds as an array: [S].

    Raises:
        ValueError: if they are not integers, or too large.
    """
    given: Any = range(seeds) if is_whole(seeds) else seeds  # type: ignore[arg-type]
    if isinstance(given, range):
        if given and max(given[0], given[-1]) >= MOST_SEED:
            raise ValueError("seeds must be below 2^31")
        return np.arange(given.start, given.stop, given.step)
    numbers = np.asarray(given)
    if numbers.ndim != 1 or (numbers.size and not np.issubdtype(numbers.dtype, np.integer)):
        raise ValueError(f"seeds={seeds!r} must be integers: how many, or a list of them")
    return numbers.astype(int)


def choose_records(horizon: int, every: int | None = None) -> Records:
    """Choose the recorded rounds: the last one always, and at most about `MAX_RECORDS`.

    Args:
        horizon: T.
        every: a divisor of the horizon; None chooses the smallest that keeps the records few.

    Raises:
        ValueError: if `every` is no divisor of the horizon.
    """
    if every is None:
        records = max(n for n in range(1, min(MAX_RECORDS, horizon) + 1) if horizon % n == 0)
        # A prime horizon has no divisor between 1 and itself: then every round is kept.
        every = horizon // records
        every = every if every <= 4 * max(1, horizon // MAX_RECORDS) else 1
    if not is_whole(every) or every < 1 or horizon % every:
        raise ValueError(f"record_every={every} must divide horizon={horizon}")
    count = horizon // every
    calls = max(n for n in range(1, MAX_CALLS + 1) if count % n == 0)
    return Records(every, count // calls, calls)
