"""Stationary means of sweeps, held to known ones."""

import dataclasses

import jax.numpy as jnp
import numpy as np

import cqbjax
from cqbjax.core.recorders import Recorder

MOST_ERRORS, WIDEST = 3.5, 0.02
# What is left out at the start: ten relaxation times of the longest memory here, at load 0.6.
BURN_IN = 300


def close(values, expected, widest=WIDEST):
    """Hold seeds' means [S] to the known one; the standard error is small, so the test is sharp."""
    values = np.asarray(values, float)
    error = values.std(ddof=1) / np.sqrt(len(values))
    assert error <= widest * expected, f"a standard error of {error:.3g} of {expected:.3g}"
    assert abs(values.mean() - expected) <= MOST_ERRORS * error, (
        f"{values.mean():.4f} +- {error:.4f}, and {expected:.4f} is known"
    )


def assert_less(values, others):
    """Hold that seeds' means [S] are less than others' on the same draws, beyond chance."""
    lead = np.asarray(others, float) - np.asarray(values, float)
    assert lead.mean() > MOST_ERRORS * lead.std(ddof=1) / np.sqrt(len(lead))


def sweep_stationary(policies, source, rate, *, seeds, horizon, burn_in=BURN_IN, every=5, **more):
    """Return what a sweep recorded once the queue has forgotten that it began empty."""
    data = cqbjax.sweep(
        policies, source, arrival_rate=[rate], num_seeds=seeds, horizon=horizon, record_every=every,
        capacity=more.pop("capacity", 64), **more,
    )  # fmt: skip
    return data.isel(arrival_rate=0, round=slice(burn_in // every, None))


def mean_per_round(sums):
    """Return the means over rounds of what a recorder summed up: [...] without `round`."""
    rounds = float(sums["round"][-1] - sums["round"][0])
    return (sums.isel(round=-1) - sums.isel(round=0)) / rounds


@dataclasses.dataclass(frozen=True)
class WaitingByRow(Recorder):
    """Queries that wait, of each row of the source's table, summed over rounds."""

    name, label, unit, dims = "waiting", "Waiting", "queries", ("row",)

    def start(self, problem):
        return jnp.zeros(problem.num_rows, jnp.int32)

    def update(self, state, round_):
        before = round_.before
        return state.at[before.row].add((before.arrived > 0).astype(jnp.int32))


def mean_queue(left, burn_in, until):
    """Return the mean number of queries in the system over the rounds that count.

    Args:
        left: Ciw's records; all who came before the last round that counts must be among them.
        burn_in: rounds that do not count.
        until: the last that does.
    """
    came = np.array([one.arrival_date for one in left])
    gone = np.ceil([one.exit_date for one in left])
    there = np.minimum(gone, until) - np.maximum(came, burn_in)
    return float(np.maximum(there, 0).sum() / (until - burn_in))
