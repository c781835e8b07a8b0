"""Recorders: what a run sums or logs inside the scan, one file each."""

from collections.abc import Sequence
from typing import Any

from cqbjax.core.recorders.departures import Departures
from cqbjax.core.recorders.explored import Explored
from cqbjax.core.recorders.protocol import Recorder, Round
from cqbjax.core.recorders.queue_length import QueueLength
from cqbjax.core.recorders.regret import Regret
from cqbjax.core.types import Problem

__all__ = ["ALWAYS", "Departures", "Explored", "QueueLength", "Recorder", "Regret", "Round"]

# What every run records; a sweep may ask for more.
ALWAYS: tuple[Recorder, ...] = (QueueLength(), Regret(), Departures(), Explored())


def start(recorders: Sequence[Recorder], problem: Problem) -> dict[str, Any]:
    """Return the states before round 1, by name."""
    return {one.name: one.start(problem) for one in recorders}


def update(recorders: Sequence[Recorder], states: dict[str, Any], round_: Round) -> dict[str, Any]:
    """Add one round to every state."""
    return {one.name: one.update(states[one.name], round_) for one in recorders}


def read(recorders: Sequence[Recorder], states: dict[str, Any], per: str) -> dict[str, Any]:
    """Return what those of a kind (`per`) store, by name."""
    return {one.name: one.read(states[one.name]) for one in recorders if one.per == per}
