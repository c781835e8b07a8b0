"""Recorders of users: attempts, abandonment, fairness, time in system."""

import dataclasses
import math
from collections.abc import Mapping

import jax.numpy as jnp
import numpy as np
from jax import Array

from cqbjax.core.recorders.answers import Ratio
from cqbjax.core.recorders.protocol import Recorder, Round, Summary, SumRecorder, Sums
from cqbjax.core.types import Problem


@dataclasses.dataclass(frozen=True)
class AttemptsPerQuery(Ratio):
    """Mean number of attempts of the satisfied queries."""

    name, label, unit, better = "attempts", "Attempts a query", "attempts", "less"

    def terms(self, round_: Round) -> tuple[Array, Array]:
        """Return the attempts of the queries that departed, and the departures."""
        departed = round_.departed.astype(float)
        return departed * (round_.before.served[round_.action.slot] + 1), departed


@dataclasses.dataclass(frozen=True)
class AbandonmentShare(Ratio):
    """The share of finished queries that were abandoned, after an attempt or unserved."""

    name, label, unit, better = "gave_up", "Share that gave up", "", "less"

    def terms(self, round_: Round) -> tuple[Array, Array]:
        """Return the abandonments, and the finished queries."""
        lost = jnp.zeros(()) if round_.gave_up is None else jnp.sum(round_.gave_up)
        if round_.reneged is not None:
            lost = lost + jnp.sum(round_.reneged)
        return lost.astype(float), lost + jnp.sum(round_.departed)


@dataclasses.dataclass(frozen=True)
class Fairness(SumRecorder):
    """Jain's index of the times in system of satisfied queries: 1 if all are equal."""

    name, label, unit, better = "fairness", "Jain's index of times in system", "", "more"

    num_terms = 3

    def terms(self, round_: Round) -> tuple[Array, Array, Array]:
        """Return the departures, their times, and their squared times."""
        rounds = (round_.round - round_.before.arrived[round_.action.slot]).astype(float)
        departed = round_.departed.astype(float)
        return departed, departed * rounds, departed * rounds**2

    def read(self, state: Sums) -> Array:
        """Return (sum x)^2 / (n sum x^2)."""
        count, times, squares = state[0]
        return times**2 / (count * squares)


# `UNIT_BINS` bins of one round each; then each bin is `BIN_RATIO` times as wide as the last.
UNIT_BINS, BIN_RATIO = 48, 1.03
QUANTILES = {"median": 0.5, "90%": 0.9, "99%": 0.99, "99.9%": 0.999}
# Prefix of a summary's name -> the queries whose times it summarizes.
SUBSETS = {
    "": "",
    "first_": " of queries satisfied at the first attempt",
    "later_": " of queries satisfied later",
}


@dataclasses.dataclass(frozen=True)
class TimeInSystem(Recorder):
    """Histogram of the rounds from arrival to departure of satisfied queries.

    The stored counts are [2, bins]: row 0 counts queries satisfied at their first attempt, row 1
    those satisfied later. `bin_times` returns the time that stands for each bin.
    """

    name, label, unit, better = "time_in_system", "Time in system", "queries", ""
    per, dims = "run", ("retried", "time_bin")

    def start(self, problem: Problem) -> Array:
        """Return zero counts."""
        return jnp.zeros((2, len(bin_times(problem.horizon))), jnp.int32)

    def update(self, state: Array, round_: Round) -> Array:
        """Count the queries that departed satisfied."""
        slot = round_.action.slot
        rounds = round_.round - round_.before.arrived[slot]
        retried = (round_.before.served[slot] > 0).astype(jnp.int32)
        return state.at[retried, time_bin(rounds)].add(round_.departed.astype(jnp.int32))

    def summaries(self, stored: np.ndarray, horizon: int) -> Mapping[str, Summary]:
        """Return mean and quantiles of all times, and of those without and with a retrial."""
        counts = {"": stored.sum(axis=-2), "first_": stored[..., 0, :], "later_": stored[..., 1, :]}
        return {
            f"time_{prefix}{name}": summary
            for prefix, subset in counts.items()
            for name, summary in _summarize(subset, self.label + SUBSETS[prefix], horizon).items()
        }


def _summarize(counts: np.ndarray, label: str, horizon: int) -> dict[str, Summary]:
    """Return the mean and the quantiles of counted times [..., bins]; NaN without a query."""
    with np.errstate(invalid="ignore"):
        mean = (counts * bin_times(horizon)).sum(axis=-1) / counts.sum(axis=-1)
    summaries = {"mean": Summary(mean, label, "rounds")}
    for text, share in QUANTILES.items():
        name = text.replace("%", "").replace(".", "_")
        summaries[name] = Summary(quantile(counts, share, horizon), f"{label}, {text}", "rounds")
    return summaries


def time_bin(rounds: Array) -> Array:
    """Return the bins of times [...] in rounds, at least 1: [...] int32."""
    wide = jnp.log(jnp.maximum(rounds, UNIT_BINS) / UNIT_BINS) / math.log(BIN_RATIO)
    return jnp.where(
        rounds <= UNIT_BINS, jnp.maximum(rounds, 1) - 1, UNIT_BINS + wide.astype(jnp.int32)
    )


def bin_times(horizon: int) -> np.ndarray:
    """Return a time in rounds that represents each bin, [bins].

    It differs from every time in its bin by at most 1.5%.
    """
    wide = math.floor(math.log(max(horizon, UNIT_BINS) / UNIT_BINS) / math.log(BIN_RATIO)) + 2
    middles = UNIT_BINS * BIN_RATIO ** (np.arange(wide) + 0.5)
    return np.concatenate([np.arange(1, UNIT_BINS + 1), middles])


def bin_upper_edges(horizon: int) -> np.ndarray:
    """Return the longest time of each bin in rounds: [bins]."""
    wide = len(bin_times(horizon)) - UNIT_BINS
    return np.concatenate(
        [np.arange(1, UNIT_BINS + 1), UNIT_BINS * BIN_RATIO ** np.arange(1, wide + 1)]
    )


def quantile(counts: np.ndarray, share: float, horizon: int) -> np.ndarray:
    """Return the time within which a share of the queries was satisfied; NaN without queries.

    Args:
        counts: [..., bins].
        share: in (0, 1).
        horizon: T, which determines the bins.

    Returns:
        [...] rounds.
    """
    until = np.cumsum(counts, axis=-1)
    total = until[..., -1:]
    at = np.argmax(until >= share * total, axis=-1)
    return np.where(total[..., 0] > 0, bin_times(horizon)[at], np.nan)
