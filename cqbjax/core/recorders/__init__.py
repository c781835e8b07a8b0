"""Recorders: what a run sums or logs inside the scan, one file each."""

from collections.abc import Sequence
from typing import Any

from cqbjax.core.recorders.attempts import Attempts
from cqbjax.core.recorders.away import Away
from cqbjax.core.recorders.departures import Departures
from cqbjax.core.recorders.dollars import Dollars
from cqbjax.core.recorders.explored import Explored
from cqbjax.core.recorders.fairness import Fairness
from cqbjax.core.recorders.gave_up import GaveUp
from cqbjax.core.recorders.in_service import InService
from cqbjax.core.recorders.largest_wait import LargestWait
from cqbjax.core.recorders.protocol import Recorder, Round, Summary
from cqbjax.core.recorders.queries import Queries
from cqbjax.core.recorders.queue_length import QueueLength
from cqbjax.core.recorders.regret import Regret
from cqbjax.core.recorders.score import Score
from cqbjax.core.recorders.time_in_system import TimeInSystem
from cqbjax.core.recorders.traffic import Traffic
from cqbjax.core.types import Problem

__all__ = [
    "ALWAYS", "NAMED", "Attempts", "Away", "Departures", "Dollars", "Explored", "Fairness",
    "GaveUp", "InService", "LargestWait", "Queries", "QueueLength", "Recorder", "Regret", "Round",
    "Score", "Summary", "TimeInSystem", "Traffic",
]  # fmt: skip

# What every run records; a sweep may ask for more.
ALWAYS: tuple[Recorder, ...] = (QueueLength(), Regret(), Departures(), Explored())

# What may be asked for by its name.
NAMED: dict[str, Recorder] = {
    one.name: one
    for one in (
        TimeInSystem(), Attempts(), GaveUp(), Dollars(), Score(), Traffic(), Fairness(),
        LargestWait(), Away(), InService(), Queries(),
    )
}  # fmt: skip


def start(recorders: Sequence[Recorder], problem: Problem) -> dict[str, Any]:
    """Return the states before round 1, by name."""
    return {one.name: one.start(problem) for one in recorders}


def update(recorders: Sequence[Recorder], states: dict[str, Any], round_: Round) -> dict[str, Any]:
    """Add one round to every state."""
    return {one.name: one.update(states[one.name], round_) for one in recorders}


def read(recorders: Sequence[Recorder], states: dict[str, Any], per: str) -> dict[str, Any]:
    """Return what those of a kind (`per`) store, by name."""
    return {one.name: one.read(states[one.name]) for one in recorders if one.per == per}
