"""Quantities of the proofs, measured in runs: eigenvalues of V, and events of a round.

Both sum V over the served queries and do not read the policy's own matrices.

**Eigenvalues.** Lemma 25 of the appendix ("min_eig_2"): with probability at least
1 - exp(-lambda m / 8) - d exp(-sigma_0^2 lambda m / 16), m = min(l, c1 sqrt(l)),

    lambda_min(V_l) >= lambda0 + sigma_0^2 lambda m / 4,

because the N(l) exploration rounds alone make lambda_min grow as fast as N(l): the matrix Chernoff
bound gives sigma_0^2 N / 2 for them.

**Events.** With shared parameters, for every round l in which a query waits (equations of the
appendix; alpha is the radius that ACQB uses, beta_l = alpha_l min(sqrt(6 d log(M t)), sqrt(2 log(2
M)) + sqrt(6 log(K l t))), t the horizon):

    covered     |theta_(l-1) - theta*|_V <= alpha                       E_1, Lemma 33
    near        u~_j(x) - x'theta_(l-1) <= beta |x|_(V^-1), all x and j  E_2(l), Lemma 35
    optimistic  max R~ > max R(x, S, theta*)                            Lemma 31: at least .086
    loss        max R(x, S, theta*) - R(x~, S~, theta*)                 Propositions 10 and 14
    drift       lambda - R(x~, S~, theta*)                              Lemma 16

where x~, S~ is the optimistic pair, taken in every round without exploration.
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

from cqbjax.core import mnl, queueing, rng, simulate
from cqbjax.core.types import Policy, Problem, Source
from cqbjax.engine.progress import Reporter
from cqbjax.engine.spec import Capacity
from cqbjax.estimation.gaussian import num_samples
from cqbjax.policies import Acqb
from reproduction.theory.runs import mean_columns, offered_rows, simulate_seeds


class EigenvalueRecords(NamedTuple):
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


def measure_eigenvalues(
    policies: dict[str, Policy], source: Source, arrival_rate: float, problem: Problem,
    seeds: np.ndarray, every: int, capacity: Capacity, progress: Reporter | None = None,
) -> xr.Dataset:  # fmt: skip
    """Run policies and return the smallest eigenvalues of every run.

    Args:
        policies: label -> policy of the ACQB family.
        source: where queries come from.
        arrival_rate: lambda, queries a round.
        problem: shapes of a run.
        seeds: [S].
        every: one round in this many is recorded; divides the horizon.
        capacity: queue slots, or `auto`.
        progress: is notified of compiling and of the seconds of simulation.

    Returns:
        Over policy, seed and round: `all`, lambda_min(V_t - lambda0 I), `explored`, the same for
        exploration rounds alone, and `count`, N(t); over seed: `sigma`, sigma_0^2. With disjoint
        parameters V is one matrix of N d rows, with one block a server.

    Raises:
        QueueOverflow: a queue outgrew a numeric capacity.
    """
    static, fixed = (problem, every), (source, arrival_rate, seeds)
    each = [
        simulate_seeds(_run_eigenvalues, static, policy, *fixed, label, capacity, progress)
        for label, policy in policies.items()
    ]
    rounds = np.arange(every, problem.horizon + 1, every)
    names = ("policy", "seed", "round")
    # One query in N adds to a server's own block.
    sigma = smallest(each[0].second[:, None]) / problem.num_blocks
    least = {k: [smallest(getattr(one, k)) for one in each] for k in ("all", "explored")}
    by_round = least | {"count": [one.explorations for one in each]}
    data: dict[str, Any] = {name: (names, values) for name, values in by_round.items()}
    coords = {"policy": list(policies), "seed": np.asarray(seeds), "round": rounds}
    return xr.Dataset(data | {"sigma": ("seed", sigma)}, coords, {"arrival_rate": arrival_rate})


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


def tabulate_eigenvalues(point: xr.Dataset, rounds: Sequence[int]) -> pl.DataFrame:
    """Tabulate eigenvalues beside the bounds of the proof.

    Args:
        point: from `measure_eigenvalues`, with attrs arrival_rate and c1.
        rounds: rounds to show, as far as they are recorded.

    Returns:
        A row a round and policy: `explorations`, N(t), and `all` and `explored`, as in
        `measure_eigenvalues`,
        each the mean over seeds with its 95% interval; `chernoff`, sigma_0^2 N(t) / 2, and `lemma`,
        its bound less lambda0, means over seeds; `reach_chernoff` and `reach_lemma`, the shares of
        runs in which `explored` and `all` are as large.
    """
    rows, rate, c1 = [], point.attrs["arrival_rate"], point.attrs["c1"]
    rounds = [t for t in rounds if t in point["round"].values]
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


def _run_eigenvalues(
    policy: Policy,
    instance: simulate.Instance,
    rate: Array,
    problem: Problem,
    every: int,
    slots: int,
) -> EigenvalueRecords:
    """Sum x x' over one run."""
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
    begun = simulate.start(policy, problem, instance, slots), (zero, zero)
    firsts = jnp.arange(1, problem.horizon + 1, every, dtype=jnp.int32)
    (carry, _), (total, explored, count) = jax.lax.scan(record, begun, firsts)
    rows = contexts.reshape(-1, problem.dim)
    return EigenvalueRecords(total, explored, count, rows.T @ rows / len(rows), carry.overflow)


def _outer_products(problem: Problem, context: Array, servers: Array) -> Array:
    """Return what one round adds to V: [B, d, d]."""
    if problem.parameters == "shared":
        offered = offered_rows(context, servers, 0.0)
        return (offered.T @ offered)[None]
    hit = mnl.mark_servers(servers, problem.num_servers)
    return hit[:, None, None] * jnp.outer(context, context)


EVENTS = ("covered", "near", "optimistic")


class EventRecords(NamedTuple):
    """The quantities of a round.

    Attributes:
        waits: [] bool whether a query waits: otherwise the rest is meaningless.
        covered: [] bool.
        near: [] bool.
        optimistic: [] bool.
        loss: [] of the optimistic pair.
        drift: [] of the queue if that pair is taken.
        bonus: [] (alpha + 48 beta)^2, of Proposition 10's second bound.
        gram: [d, d] V.
        overflow: [] int32 of a run: its first round without a free slot, or 0.
    """

    waits: Array
    covered: Array
    near: Array
    optimistic: Array
    loss: Array
    drift: Array
    bonus: Array
    gram: Array
    overflow: Any = ()


def measure_events(
    policies: dict[str, Acqb], source: Source, arrival_rate: float, problem: Problem,
    seeds: np.ndarray, capacity: Capacity, progress: Reporter | None = None,
) -> xr.Dataset:  # fmt: skip
    """Run policies and return the quantities of every round of every run.

    Args:
        policies: label -> ACQB or a variant of it with Thompson sampling.
        source: where queries come from, with shared parameters.
        arrival_rate: lambda, queries a round.
        problem: shapes of a run.
        seeds: [S].
        capacity: queue slots, or `auto`.
        progress: is notified of compiling and of the seconds of simulation.

    Returns:
        Over policy, seed and round: `EVENTS` as 0 and 1, `loss`, `squared`, its square, `drift` and
        `bound`, Proposition 10's second bound on the loss, (alpha + 48 beta) lambda_min(V)^(-1/2);
        all NaN in rounds without a waiting query.

    Raises:
        QueueOverflow: a queue outgrew a numeric capacity.
    """
    columns: dict[str, list[np.ndarray]] = {}
    fixed = source, arrival_rate, seeds
    for label, policy in policies.items():
        seen = simulate_seeds(_run_events, (problem,), policy, *fixed, label, capacity, progress)
        least = np.linalg.eigvalsh(seen.gram.astype(float))[..., 0]
        values = {name: getattr(seen, name).astype(float) for name in (*EVENTS, "loss", "drift")}
        values |= {"squared": values["loss"] ** 2, "bound": np.sqrt(seen.bonus / least)}
        for name, by_round in values.items():
            columns.setdefault(name, []).append(np.where(seen.waits, by_round, np.nan))
    rounds = np.arange(1, problem.horizon + 1)
    data = {name: (("policy", "seed", "round"), np.stack(each)) for name, each in columns.items()}
    coords = {"policy": list(policies), "seed": np.asarray(seeds), "round": rounds}
    return xr.Dataset(data, coords, {"arrival_rate": arrival_rate})


def tabulate_events(point: xr.Dataset, rounds: Sequence[int]) -> pl.DataFrame:
    """Tabulate shares and means between rounds.

    Args:
        point: from `measure_events`, with attrs slackness, epsilon.
        rounds: last round of each interval, at most that of the run; the first one begins in round
            1.

    Returns:
        A row an interval and policy: the shares of rounds in which `EVENTS` hold, the means of
        `loss` and `drift`, each with its 95% interval over seeds; `root`, the root of the mean
        squared loss; `falls`, the share of rounds with a drift of at most -epsilon / 2; and
        `bound`, the least of Proposition 10's in any of them.
    """
    rows, horizon = [], int(point["round"].max())
    ends = sorted({min(int(t), horizon) for t in rounds})
    for last, end in zip([0, *ends], ends, strict=False):
        for label in point["policy"].values.tolist():
            one = point.sel(policy=label, round=slice(last + 1, end))
            row: dict[str, Any] = {"first": last + 1, "last": end, "policy": label}
            row["seeds"] = one.sizes["seed"]
            for name in (*EVENTS, "loss", "drift"):
                row |= mean_columns(name, one[name].mean("round"), name in EVENTS)
            row["root"] = float(np.sqrt(one["squared"].mean()))
            least = -point.attrs["slackness"] / 2
            falls = (one["drift"] <= least).where(one["drift"].notnull())
            row |= {"falls": float(falls.mean()), "bound": float(one["bound"].min())}
            rows.append(row)
    return pl.DataFrame(rows)


def _run_events(
    policy: Acqb, instance: simulate.Instance, rate: Array, problem: Problem, capacity: int
) -> EventRecords:
    """Examine every round of a run before it is simulated."""
    contexts = instance.workload.contexts
    rows, utilities = contexts.reshape(-1, problem.dim), instance.workload.utilities.reshape(-1)
    # Utilities are x'theta*: the least squares are exact.
    truth = jnp.linalg.solve(rows.T @ rows, rows.T @ utilities)

    def step(both: Any, round_: Array) -> tuple[Any, EventRecords]:
        carry, gram = both
        seen = _examine(policy, problem, instance, carry, round_, gram, truth, rate)
        carry, made = simulate.run_round(policy, problem, instance, carry, round_)
        offered = offered_rows(contexts[made.row], made.servers, 0.0)
        return (carry, gram + made.valid * offered.T @ offered), seen

    gram = jnp.asarray(policy.lambda0, float) * jnp.eye(problem.dim)
    begun = simulate.start(policy, problem, instance, capacity), gram
    rounds = jnp.arange(1, problem.horizon + 1, dtype=jnp.int32)
    (carry, _), seen = jax.lax.scan(step, begun, rounds)
    return seen._replace(overflow=carry.overflow)


def _examine(
    policy: Acqb, problem: Problem, instance: simulate.Instance, carry: simulate.Carry,
    round_: Array, gram: Array, truth: Array, rate: Array,
) -> EventRecords:  # fmt: skip
    """Compute the quantities of the proofs in one round."""
    size, state = problem.assortment_size, carry.state
    observation = simulate.observe(policy, problem, instance, carry, round_)
    waiting = queueing.mark_waiting(observation.queue)
    draws = policy.draws(rng.round_key(instance.key, round_), problem)
    optimistic = policy.optimistic(draws, state, observation)
    theta = policy.theta(state, instance.workload.contexts, problem)[0]
    alpha = policy.radius(problem, policy.belief(problem).num_updates(state.belief))[0]
    t, samples = problem.horizon, num_samples(size)
    past = jnp.log(size * round_.astype(float) * t)
    long = jnp.sqrt(6.0 * problem.dim * jnp.log(samples * t))
    beta = alpha * jnp.minimum(long, jnp.sqrt(2 * jnp.log(2.0 * samples)) + jnp.sqrt(6.0 * past))

    error, features = theta - truth, observation.features
    spread = jnp.sqrt(jnp.sum((features @ jnp.linalg.inv(gram)) * features, axis=-1))
    near = optimistic - features @ theta <= beta * spread * (1 + 1e-5) + 1e-5
    true = simulate.true_utilities(instance, observation.queue.row, round_)
    score = jnp.where(waiting, mnl.best_score(optimistic, size), -jnp.inf)
    best = jnp.max(jnp.where(waiting, mnl.best_score(true, size), -jnp.inf))
    slot = jnp.argmax(score)
    served = mnl.departure_rate(true[slot][mnl.best_servers(optimistic[slot], size)])
    return EventRecords(
        jnp.any(waiting), error @ gram @ error <= alpha**2, jnp.all(near | ~waiting[:, None]),
        score[slot] > best, jax.nn.sigmoid(best) - served, rate - served,
        (alpha + 48 * beta) ** 2, gram,
    )  # fmt: skip
