"""The smallest eigenvalue of the design matrix V, and the growth that the proof needs.

Lemma 25 of the appendix ("min_eig_2"): with probability at least
1 - exp(-lambda m / 8) - d exp(-sigma_0^2 lambda m / 16), m = min(l, c1 sqrt(l)),

    lambda_min(V_l) >= lambda0 + sigma_0^2 lambda m / 4,

because the N(l) exploration rounds alone make lambda_min grow as fast as N(l): the matrix Chernoff
bound gives sigma_0^2 N / 2 for them. This module sums V, and the part of V from exploration rounds,
over the served queries; it does not read the policy's own matrices.
"""

import itertools
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import polars as pl
import xarray as xr
from jax import Array

from cqbjax.core import mnl, simulate
from cqbjax.core.types import Policy, Problem, Source
from cqbjax.engine.progress import Reporter
from reproduction.theory.runs import mean_columns, offered_rows, simulate_seeds


class Recorded(NamedTuple):
    """The records of a run.

    Attributes:
        all: [R, B, d, d] sum of x x' over all feedback so far: V - lambda0 I.
        explored: [R, B, d, d] the same sum over exploration rounds.
        explorations: [R] int32 N(t), exploration rounds so far.
        second: [d, d] mean of x x' over the queries of the run's table. With shared parameters it
            is also a mean over servers; with disjoint parameters N servers share a query.
        overflow: [] int32 first round in which a query found no free slot, 0 if there was none.
    """

    all: Array
    explored: Array
    explorations: Array
    second: Array
    overflow: Array


def measure(
    policies: dict[str, Policy], source: Source, arrival_rate: float, problem: Problem,
    seeds: np.ndarray, every: int, capacity: int, progress: Reporter | None = None,
) -> xr.Dataset:  # fmt: skip
    """Run policies and return the smallest eigenvalues of every run.

    Args:
        policies: label -> policy of the ACQB family.
        source: where queries come from.
        arrival_rate: lambda, queries a round.
        problem: shapes of a run.
        seeds: [S].
        every: one round in this many is recorded; divides the horizon.
        capacity: queue slots.
        progress: is notified of compiling and of the seconds of simulation.

    Returns:
        Over policy, seed and round: `all`, lambda_min(V_t - lambda0 I), `explored`, the same for
        exploration rounds alone, and `count`, N(t); over seed: `sigma`, sigma_0^2. With disjoint
        parameters V is one matrix of N d rows, with one block a server.

    Raises:
        QueueOverflow: a queue outgrew the capacity.
    """
    each = [
        simulate_seeds(
            _run, (problem, every, capacity), policy, source, arrival_rate, seeds, label, progress
        )
        for label, policy in policies.items()
    ]
    rounds = np.arange(every, problem.horizon + 1, every)
    names = ("policy", "seed", "round")
    # One query in N adds to a server's own block.
    sigma = smallest(each[0].second[:, None]) / problem.num_blocks
    return xr.Dataset(
        {
            "all": (names, [smallest(one.all) for one in each]),
            "explored": (names, [smallest(one.explored) for one in each]),
            "count": (names, [one.explorations for one in each]),
            "sigma": ("seed", sigma),
        },
        {"policy": list(policies), "seed": np.asarray(seeds), "round": rounds},
        {"arrival_rate": arrival_rate},
    )


def smallest(blocks: np.ndarray) -> np.ndarray:
    """Return the smallest eigenvalue of block-diagonal matrices: [..., B, d, d] -> [...]."""
    return np.linalg.eigvalsh(blocks.astype(float))[..., 0].min(axis=-1)


def lemma_bound(rounds: np.ndarray, sigma: Any, arrival_rate: float, c1: float) -> Any:
    """Return the lemma's bound on V - lambda0 I: sigma_0^2 lambda min(t, c1 sqrt(t)) / 4.

    Args:
        rounds: [R] t.
        sigma: sigma_0^2, a number or an array over seeds.
        arrival_rate: lambda.
        c1: of eta(t) = min(1, c1 / sqrt(t + 1)).
    """
    return sigma * arrival_rate * np.minimum(rounds, c1 * np.sqrt(rounds)) / 4


def table(point: xr.Dataset, rounds: Sequence[int]) -> pl.DataFrame:
    """Tabulate eigenvalues beside the bounds of the proof.

    Args:
        point: from `measure`, with attrs arrival_rate and c1.
        rounds: recorded rounds to show.

    Returns:
        A row a round and policy: `explorations`, N(t), and `all` and `explored`, as in `measure`,
        each the mean over seeds with its 95% interval; `chernoff`, sigma_0^2 N(t) / 2, and `lemma`,
        its bound less lambda0, means over seeds; `reach_chernoff` and `reach_lemma`, the shares of
        runs in which `explored` and `all` are as large.
    """
    rows, rate, c1 = [], point.attrs["arrival_rate"], point.attrs["c1"]
    for t, label in itertools.product(rounds, point.policy.values.tolist()):
        one = point.sel(policy=label, round=t)
        chernoff = one["sigma"] * one["count"] / 2
        lemma = lemma_bound(np.array(t), one["sigma"], rate, c1)
        row: dict[str, Any] = {"round": t, "policy": label, "seeds": one.sizes["seed"]}
        for name, column in (("explorations", "count"), ("all", "all"), ("explored", "explored")):
            row |= mean_columns(name, one[column])
        row |= {"chernoff": float(chernoff.mean()), "lemma": float(lemma.mean())}
        row["reach_chernoff"] = float((one["explored"] >= chernoff).mean())
        row["reach_lemma"] = float((one["all"] >= lemma).mean())
        rows.append(row)
    return pl.DataFrame(rows)


def _run(
    policy: Policy, instance: simulate.Instance, rate: Array, problem: Problem, every: int,
    capacity: int,
) -> Recorded:  # fmt: skip
    """Sum x x' over one run."""
    del rate
    contexts = instance.workload.contexts

    def step(both: Any, round_: Array) -> tuple[Any, None]:
        carry, (total, explored) = both
        carry, made = simulate.run_round(policy, problem, instance, carry, round_)
        added = _outer_products(problem, contexts[made.row], made.servers) * made.valid
        return (carry, (total + added, explored + added * made.explored)), None

    def record(both: Any, first: Array) -> Any:
        both, _ = jax.lax.scan(step, both, first + jnp.arange(every, dtype=jnp.int32))
        return both, (*both[1], both[0].recorded["explored"])

    zero = jnp.zeros((problem.num_blocks, problem.dim, problem.dim))
    begun = simulate.start(policy, problem, instance, capacity), (zero, zero)
    firsts = jnp.arange(1, problem.horizon + 1, every, dtype=jnp.int32)
    (carry, _), records = jax.lax.scan(record, begun, firsts)
    rows = contexts.reshape(-1, problem.dim)
    return Recorded(*records, rows.T @ rows / len(rows), carry.overflow)


def _outer_products(problem: Problem, context: Array, servers: Array) -> Array:
    """Return what one round adds to V: [B, d, d]."""
    if problem.parameters == "shared":
        offered = offered_rows(context, servers, 0.0)
        return (offered.T @ offered)[None]
    hit = mnl.mark_servers(servers, problem.num_servers)
    return hit[:, None, None] * jnp.outer(context, context)
