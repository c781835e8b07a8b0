"""The sweep spec: policies at every arrival rate and seed, on one source.

`validation.build_spec` validates the arguments of `cqbjax.sweep` and returns a `SweepSpec`. What
comes after it (batches, programs, chunks) reads the spec and does not validate it again.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple

import numpy as np

from cqbjax.core.inputs import is_integer
from cqbjax.core.recorders import STANDARD, Recorder
from cqbjax.core.types import Policy, Problem, Source

MAX_RECORDS = 250
MAX_CALLS = 10

Capacity = int | Literal["auto"]


@dataclasses.dataclass(frozen=True)
class PerSeed:
    """A policy whose arrays differ between seeds, such as a router trained on each seed's split.

    Attributes:
        policies: [S] one policy per seed, in the order of the sweep's seeds.
    """

    policies: Sequence[Policy]


class RecordSchedule(NamedTuple):
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
        """The recorded rounds, [R], counting from 1."""
        return self.every * np.arange(1, self.per_call * self.calls + 1)


@dataclasses.dataclass(frozen=True)
class SweepSpec:
    """A validated sweep; `validation.build_spec` returns it.

    Attributes:
        policies: label -> policy, the optimal policy included.
        source: where queries come from, with its user and service dynamics.
        problem: shapes of a run.
        rates: [L] arrival rates.
        seeds: [S] seeds.
        records: which rounds are recorded.
        capacity: queue slots, or `auto`.
        recorders: what is recorded.
    """

    policies: Mapping[str, Policy | PerSeed]
    source: Source
    problem: Problem
    rates: np.ndarray
    seeds: np.ndarray
    records: RecordSchedule
    capacity: Capacity
    recorders: tuple[Recorder, ...] = STANDARD

    @property
    def runs_per_policy(self) -> int:
        """L * S."""
        return self.rates.size * self.seeds.size


def choose_records(horizon: int, every: int | None = None) -> RecordSchedule:
    """Choose the recorded rounds: always the last one, and at most about `MAX_RECORDS`.

    Args:
        horizon: T.
        every: a divisor of the horizon; None chooses the smallest that keeps the records few.

    Raises:
        ValueError: `every` does not divide the horizon.
    """
    if every is None:
        records = max(n for n in range(1, min(MAX_RECORDS, horizon) + 1) if horizon % n == 0)
        # A prime horizon has no divisor between 1 and itself: then every round is recorded.
        every = horizon // records
        every = every if every <= 4 * max(1, horizon // MAX_RECORDS) else 1
    if not is_integer(every) or every < 1 or horizon % every:
        raise ValueError(f"record_every={every} must divide horizon={horizon}")
    count = horizon // every
    calls = max(n for n in range(1, MAX_CALLS + 1) if count % n == 0)
    return RecordSchedule(every, count // calls, calls)
