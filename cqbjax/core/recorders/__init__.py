"""Recorders: sums and logs that a run computes inside the scan."""

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
