"""How long departed queries were in the system, as a histogram: its quantiles are within 2%."""

import dataclasses
import math
from collections.abc import Mapping

import jax.numpy as jnp
import numpy as np
from jax import Array

from cqbjax.core.recorders.protocol import Recorder, Round, Summary
from cqbjax.core.types import Problem

# Bins of one round each; then each is so many times as wide as the one before.
EXACT, RATIO = 48, 1.03
QUANTILES = {"median": 0.5, "90%": 0.9, "99%": 0.99, "99.9%": 0.999}
# Whose times a number is of, by the beginning of its name.
WHO = {"": "", "first_": " of who was satisfied at once", "later_": " of who was satisfied later"}


@dataclasses.dataclass(frozen=True)
class TimeInSystem(Recorder):
    """Satisfied queries by the rounds from arrival to departure, and whether at the first attempt.

    Stored are counts [2, bins]: those satisfied at their first attempt, and later; bin i holds the
    times that `values` says.
    """

    name, label, unit, better = "time_in_system", "Time in system", "queries", ""
    per, dims = "run", ("retried", "time_bin")

    def start(self, problem: Problem) -> Array:
        """Return nobody."""
        return jnp.zeros((2, len(values(problem.horizon))), jnp.int32)

    def update(self, state: Array, round_: Round) -> Array:
        """Count who departed."""
        slot = round_.action.slot
        rounds = round_.round - round_.before.arrived[slot]
        retried = (round_.before.served[slot] > 0).astype(jnp.int32)
        return state.at[retried, bin_of(rounds)].add(round_.departed.astype(jnp.int32))

    def summaries(self, stored: np.ndarray, horizon: int) -> Mapping[str, Summary]:
        """Return mean and quantiles of all times, and of those with and without a retrial."""
        counts = {"": stored.sum(axis=-2), "first_": stored[..., 0, :], "later_": stored[..., 1, :]}
        return {
            f"time_{who}{name}": one
            for who, of_them in counts.items()
            for name, one in _told(of_them, self.label + WHO[who], horizon).items()
        }


def _told(counts: np.ndarray, label: str, horizon: int) -> dict[str, Summary]:
    """Return the mean and the quantiles of counted times [..., bins], NaN of none."""
    left = counts.sum(axis=-1)
    with np.errstate(invalid="ignore"):
        mean = (counts * values(horizon)).sum(axis=-1) / left
    made = {"mean": Summary(mean, label, "rounds")}
    for word, share in QUANTILES.items():
        name = word.replace("%", "").replace(".", "_")
        made[name] = Summary(quantile(counts, share, horizon), f"{label}, {word}", "rounds")
    return made


def bin_of(rounds: Array) -> Array:
    """Return the bins of times [...] in rounds, at least 1: [...] int32."""
    wide = jnp.log(jnp.maximum(rounds, EXACT) / EXACT) / math.log(RATIO)
    return jnp.where(rounds <= EXACT, jnp.maximum(rounds, 1) - 1, EXACT + wide.astype(jnp.int32))


def values(horizon: int) -> np.ndarray:
    """Return the time, in rounds, that stands for each bin: [bins], within 1.5% of all in it."""
    wide = math.floor(math.log(max(horizon, EXACT) / EXACT) / math.log(RATIO)) + 2
    middles = EXACT * RATIO ** (np.arange(wide) + 0.5)
    return np.concatenate([np.arange(1, EXACT + 1), middles])


def longest(horizon: int) -> np.ndarray:
    """Return the longest time, in rounds, that each bin holds: [bins]."""
    wide = len(values(horizon)) - EXACT
    return np.concatenate([np.arange(1, EXACT + 1), EXACT * RATIO ** np.arange(1, wide + 1)])


def quantile(counts: np.ndarray, share: float, horizon: int) -> np.ndarray:
    """Return the time that a share of the queries does not exceed, NaN of none.

    Args:
        counts: [..., bins].
        share: in (0, 1).
        horizon: T, which the bins follow from.

    Returns:
        [...] rounds.
    """
    until = np.cumsum(counts, axis=-1)
    total = until[..., -1:]
    at = np.argmax(until >= share * total, axis=-1)
    return np.where(total[..., 0] > 0, values(horizon)[at], np.nan)
