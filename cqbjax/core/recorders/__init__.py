"""Recorders: sums and logs that a run computes inside the scan."""

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
from cqbjax.core.recorders.users import AbandonmentShare, AttemptsPerQuery, Fairness, TimeInSystem
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
    return {recorder.name: recorder.start(problem) for recorder in recorders}


def update(recorders: Sequence[Recorder], states: dict[str, Any], round_: Round) -> dict[str, Any]:
    """Update the state of every recorder with a round, and return the states by name."""
    return {recorder.name: recorder.update(states[recorder.name], round_) for recorder in recorders}


def read(recorders: Sequence[Recorder], states: dict[str, Any], per: str) -> dict[str, Any]:
    """Return the stored values of the recorders with this `per`, by name."""
    return {
        recorder.name: recorder.read(states[recorder.name])
        for recorder in recorders
        if recorder.per == per
    }
