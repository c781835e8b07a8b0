"""Policies and their switching queues side by side: what Lemma 8 is counted on."""

import functools
from collections.abc import Mapping

import numpy as np
import xarray as xr

from cqbjax.core.pytree import arrays
from cqbjax.core.types import Policy, Source
from cqbjax.engine.progress import Reporter
from cqbjax.engine.spec import Capacity
from cqbjax.engine.sweep import sweep
from reproduction.theory import lemma, switching
from reproduction.theory.playing import with_room


def measure(
    policies: Mapping[str, Policy], source: Source, arrival_rate: float, seeds: np.ndarray,
    horizon: int, K: int, capacity: Capacity, progress: Reporter,
) -> xr.Dataset:  # fmt: skip
    """Run policies by themselves and in all their switching queues, and count.

    Args:
        policies: label -> policy.
        source: where queries come from.
        arrival_rate: lambda, queries a round.
        seeds: [S] one sample path each.
        horizon: T, rounds.
        K: servers offered per query.
        capacity: queue slots of the switching queues, or `auto`.
        progress: told of compiling and of rounds.

    Returns:
        What `lemma.counted` returns, by policy.

    Raises:
        QueueOverflow: a queue outgrew a capacity that was given.
    """
    alone = sweep(
        policies, source, arrival_rate=[arrival_rate], seeds=seeds.tolist(), horizon=horizon,
        K=K, record_every=1, progress=progress,
    ).isel(arrival_rate=0)  # fmt: skip
    best = _from_the_first(alone["optimal_queue_length"])
    problem, each = source.problem(K, horizon), []
    for label, policy in policies.items():
        rounds = len(seeds) * horizon * (horizon + 1)
        progress.expect(rounds)
        fixed = arrays(policy), arrays(source), arrival_rate, problem, seeds
        made = with_room(
            capacity, horizon, functools.partial(switching.run, *fixed, progress=progress)
        )
        progress.advance(rounds)
        queue = _from_the_first(alone["queue_length"].sel(policy=label))
        each.append(lemma.counted(made, queue, best).assign_coords(seed=seeds))
    return xr.concat(each, "policy").assign_coords(policy=list(policies))


def _from_the_first(lengths: xr.DataArray) -> np.ndarray:
    """Return Q(t) for t = 1 .. T + 1 of the recorded Q(t + 1): [S, T + 1]."""
    by_round = lengths.transpose("seed", "round").values
    return np.concatenate([np.zeros((len(by_round), 1), int), by_round], axis=1)
