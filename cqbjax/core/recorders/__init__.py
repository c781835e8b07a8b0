"""Recorders: what a run sums or logs inside the scan."""

from collections.abc import Sequence
from typing import Any

from cqbjax.core.recorders.answers import AnswerScore, CostPerQuery, TrafficShare
from cqbjax.core.recorders.protocol import Recorder, Round, Summary
from cqbjax.core.recorders.queries import QueryLog
from cqbjax.core.recorders.queue import (
    Departures,
    Exploration,
    LargestWait,
    OrbitSize,
    QueriesInService,
    QueueLength,
    Regret,
)
from cqbjax.core.recorders.users import (
    AbandonmentShare,
    AttemptsPerQuery,
    Fairness,
    TimeInSystem,
)
from cqbjax.core.types import Problem

__all__ = [
    "OPTIONAL", "STANDARD", "AbandonmentShare", "AnswerScore", "AttemptsPerQuery", "CostPerQuery",
    "Departures", "Exploration", "Fairness", "LargestWait", "OrbitSize", "QueriesInService",
    "QueryLog", "QueueLength", "Recorder", "Regret", "Round", "Summary", "TimeInSystem",
    "TrafficShare",
]  # fmt: skip

# Recorders of every run; a sweep may add more.
STANDARD: tuple[Recorder, ...] = (QueueLength(), Regret(), Departures(), Exploration())

# Recorders that a sweep may add by name.
OPTIONAL: dict[str, Recorder] = {
    recorder.name: recorder
    for recorder in (
        TimeInSystem(), AttemptsPerQuery(), AbandonmentShare(), CostPerQuery(), AnswerScore(),
        TrafficShare(), Fairness(), LargestWait(), OrbitSize(), QueriesInService(), QueryLog(),
    )
}  # fmt: skip


def start(recorders: Sequence[Recorder], problem: Problem) -> dict[str, Any]:
    """Return the states before round 1, by name."""
    return {one.name: one.start(problem) for one in recorders}


def update(recorders: Sequence[Recorder], states: dict[str, Any], round_: Round) -> dict[str, Any]:
    """Add one round to every state."""
    return {one.name: one.update(states[one.name], round_) for one in recorders}


def read(recorders: Sequence[Recorder], states: dict[str, Any], per: str) -> dict[str, Any]:
    """Return, by name, the stored values of all recorders read per "round" or per "run"."""
    return {one.name: one.read(states[one.name]) for one in recorders if one.per == per}
