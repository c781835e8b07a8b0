"""The smallest eigenvalue of the design matrix V, and what the proof asks of it.

Lemma 25 of the appendix ("min_eig_2"): with probability at least
1 - exp(-lambda m / 8) - d exp(-sigma_0^2 lambda m / 16), m = min(l, c1 sqrt(l)),

    lambda_min(V_l) >= lambda0 + sigma_0^2 lambda m / 4,

because the N(l) exploration rounds alone make lambda_min grow as fast as N(l): the matrix Chernoff
bound gives sigma_0^2 N / 2 of them. V and the exploration rounds' part of it are summed here from
what was served, whatever the policy keeps of them.
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

from cqbjax.core import mnl, rng, simulate
from cqbjax.core.types import Policy, Problem, Source
from cqbjax.engine.progress import Reporter
from cqbjax.results.summaries import mean_ci
from reproduction.theory.playing import of_shown, played


class Matrices(NamedTuple):
    """Sums over the rounds so far of one run.

    Attributes:
        all: [B, d, d] sum of x x' of all feedback: V - lambda0 I.
        explored: [B, d, d] the same of exploration rounds.
    """

    all: Array
    explored: Array


class Recorded(NamedTuple):
    """What is kept of a run.

    Attributes:
        matrices: each [R, B, d, d].
        explorations: [R] int32 N(t), exploration rounds so far.
        second: [d, d] mean of x x' over the queries of the run's table (and over servers, where
            parameters are shared): N servers share a query where they are disjoint.
        overflow: [] int32 first round in which a query found no free slot, 0 if there was none.
    """

    matrices: Matrices
    explorations: Array
    second: Array
    overflow: Array


def measure(
    policies: dict[str, Policy], source: Source, arrival_rate: float, problem: Problem,
    seeds: np.ndarray, every: int, capacity: int, progress: Reporter | None = None,
) -> xr.Dataset:  # fmt: skip
    """Run policies and return the smallest eigenvalues of every run.

    Args:
        policies: label -> policy, ACQB or a relative.
        source: where queries come from.
        arrival_rate: lambda, queries a round.
        problem: shapes of a run.
        seeds: [S].
        every: one round in this many is recorded; divides the horizon.
        capacity: queue slots.
        progress: told of compiling and of the seconds of simulation.

    Returns:
        Over policy, seed and round: `all`, lambda_min(V_t - lambda0 I), `explored`, the same of
        exploration rounds alone, and `count`, N(t); over seed: `sigma`, sigma_0^2. With disjoint
        parameters V is one matrix of N d rows, of one block a server.

    Raises:
        QueueOverflow: a queue outgrew the capacity.
    """
    rate, numbers = jnp.asarray(arrival_rate, float), jnp.asarray(seeds)
    fixed = problem, every, capacity
    each = [
        played(_run, fixed, (policy, source, rate, numbers), label, progress)
        for label, policy in policies.items()
    ]
    rounds = np.arange(every, problem.horizon + 1, every)
    names = ("policy", "seed", "round")
    share = problem.num_blocks  # a server's own block is met by one query in N
    return xr.Dataset(
        {
            "all": (names, [smallest(one.matrices.all) for one in each]),
            "explored": (names, [smallest(one.matrices.explored) for one in each]),
            "count": (names, [one.explorations for one in each]),
            "sigma": ("seed", smallest(each[0].second[:, None]) / share),
        },
        {"policy": list(policies), "seed": np.asarray(seeds), "round": rounds},
        {"arrival_rate": arrival_rate},
    )


def smallest(blocks: np.ndarray) -> np.ndarray:
    """Return the smallest eigenvalue of block-diagonal matrices: [..., B, d, d] -> [...]."""
    return np.linalg.eigvalsh(blocks.astype(float))[..., 0].min(axis=-1)


def lemma_bound(rounds: np.ndarray, sigma: Any, arrival_rate: float, c1: float) -> Any:
    """Return sigma_0^2 lambda min(t, c1 sqrt(t)) / 4, what V - lambda0 I exceeds by the lemma.

    Args:
        rounds: [R] t.
        sigma: sigma_0^2, a number or an array over seeds.
        arrival_rate: lambda.
        c1: of eta(t) = min(1, c1 / sqrt(t + 1)).
    """
    return sigma * arrival_rate * np.minimum(rounds, c1 * np.sqrt(rounds)) / 4


def table(point: xr.Dataset, rounds: Sequence[int]) -> pl.DataFrame:
    """Tabulate eigenvalues beside what the proof asks of them.

    Args:
        point: from `measure`, with attrs arrival_rate and c1.
        rounds: at which; each must be recorded.

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
        for name, of in (("explorations", "count"), ("all", "all"), ("explored", "explored")):
            interval = mean_ci(one[of])
            row |= {name: float(interval["mean"]), f"{name}_low": float(interval["low"])}
            row[f"{name}_high"] = float(interval["high"])
        row |= {"chernoff": float(chernoff.mean()), "lemma": float(lemma.mean())}
        row["reach_chernoff"] = float((one["explored"] >= chernoff).mean())
        row["reach_lemma"] = float((one["all"] >= lemma).mean())
        rows.append(row)
    return pl.DataFrame(rows)


def _run(
    devices: tuple[jax.Device, ...], fixed: tuple[Problem, int, int],
    policy: Policy, source: Source, rate: Array, seeds: Array,
) -> Recorded:  # fmt: skip
    """Run all seeds beside each other on one device."""
    problem, every, capacity = fixed

    def one(seed: Array) -> Recorded:
        instance = simulate.draw_instance(rng.run_key(seed), source, rate, problem)
        return _one_run(policy, problem, instance, every, capacity)

    return jax.vmap(one)(seeds)


def _one_run(
    policy: Policy, problem: Problem, instance: simulate.Instance, every: int, capacity: int
) -> Recorded:
    """Sum x x' over one run."""
    contexts = instance.world.contexts

    def step(both: tuple[simulate.Carry, Matrices], round_: Array) -> tuple[Any, None]:
        carry, sums = both
        carry, made = simulate.run_round(policy, problem, instance, carry, round_)
        added = _added(problem, contexts[made.row], made.servers) * made.valid
        return (carry, Matrices(sums.all + added, sums.explored + added * made.explored)), None

    def record(both: Any, first: Array) -> tuple[Any, tuple[Matrices, Array]]:
        both, _ = jax.lax.scan(step, both, first + jnp.arange(every, dtype=jnp.int32))
        return both, (both[1], both[0].recorded["explored"])

    none = jnp.zeros((problem.num_blocks, problem.dim, problem.dim))
    begun = simulate.start(policy, problem, instance, capacity), Matrices(none, none)
    firsts = jnp.arange(1, problem.horizon + 1, every, dtype=jnp.int32)
    (carry, _), (matrices, count) = jax.lax.scan(record, begun, firsts)
    rows = contexts.reshape(-1, problem.dim)
    return Recorded(matrices, count, rows.T @ rows / len(rows), carry.overflow)


def _added(problem: Problem, context: Array, servers: Array) -> Array:
    """Return what one round adds to V: [B, d, d]."""
    if problem.parameters == "shared":
        shown = of_shown(context, servers, 0.0)
        return (shown.T @ shown)[None]
    hit = mnl.shown(servers, problem.num_servers)
    return hit[:, None, None] * jnp.outer(context, context)
