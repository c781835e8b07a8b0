"""How often the events hold on which the proofs rest, and the loss of a round.

With shared parameters, for every round l in which a query waits (equations of the appendix; alpha
is the radius that ACQB uses, beta_l = alpha_l min(sqrt(6 d log(M t)), sqrt(2 log(2 M)) + sqrt(6
log(K l t))), t the horizon):

    covered     |theta_(l-1) - theta*|_V <= alpha                       E_1, Lemma 33
    near        u~_j(x) - x'theta_(l-1) <= beta |x|_(V^-1), all x and j  E_2(l), Lemma 35
    optimistic  max R~ > max R(x, S, theta*)                            Lemma 31: at least .086
    loss        max R(x, S, theta*) - R(x~, S~, theta*)                 Propositions 10 and 14
    drift       lambda - R(x~, S~, theta*)                              Lemma 16

where x~, S~ is the optimistic pair, taken in every round without exploration. This module sums V
over the served queries; it does not read the policy's own matrix.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import polars as pl
import xarray as xr
from jax import Array

from cqbjax.core import mnl, queueing, rng, simulate
from cqbjax.core.types import Problem, Source
from cqbjax.engine.progress import Reporter
from cqbjax.estimation.gaussian import num_samples
from cqbjax.policies import Acqb
from reproduction.theory.runs import mean_columns, offered_rows, simulate_seeds

EVENTS = ("covered", "near", "optimistic")


class Seen(NamedTuple):
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
    """

    waits: Array
    covered: Array
    near: Array
    optimistic: Array
    loss: Array
    drift: Array
    bonus: Array
    gram: Array


class Recorded(NamedTuple):
    """The records of a run: every round, and the first one without a free slot, or 0."""

    seen: Seen
    overflow: Array


def measure(
    policies: dict[str, Acqb], source: Source, arrival_rate: float, problem: Problem,
    seeds: np.ndarray, capacity: int, progress: Reporter | None = None,
) -> xr.Dataset:  # fmt: skip
    """Run policies and return the quantities of every round of every run.

    Args:
        policies: label -> ACQB or a variant of it with Thompson sampling.
        source: where queries come from, with shared parameters.
        arrival_rate: lambda, queries a round.
        problem: shapes of a run.
        seeds: [S].
        capacity: queue slots.
        progress: is notified of compiling and of the seconds of simulation.

    Returns:
        Over policy, seed and round: `EVENTS` as 0 and 1, `loss`, `squared`, its square, `drift` and
        `bound`, Proposition 10's second bound on the loss, (alpha + 48 beta) lambda_min(V)^(-1/2);
        all NaN in rounds without a waiting query.

    Raises:
        QueueOverflow: a queue outgrew the capacity.
    """
    columns: dict[str, list[np.ndarray]] = {}
    for label, policy in policies.items():
        seen = simulate_seeds(
            _run, (problem, capacity), policy, source, arrival_rate, seeds, label, progress
        ).seen
        least = np.linalg.eigvalsh(seen.gram.astype(float))[..., 0]
        values = {name: getattr(seen, name).astype(float) for name in (*EVENTS, "loss", "drift")}
        values |= {"squared": values["loss"] ** 2, "bound": np.sqrt(seen.bonus / least)}
        for name, by_round in values.items():
            columns.setdefault(name, []).append(np.where(seen.waits, by_round, np.nan))
    rounds = np.arange(1, problem.horizon + 1)
    data = {name: (("policy", "seed", "round"), np.stack(each)) for name, each in columns.items()}
    coords = {"policy": list(policies), "seed": np.asarray(seeds), "round": rounds}
    return xr.Dataset(data, coords, {"arrival_rate": arrival_rate})


def table(point: xr.Dataset, rounds: list[int], slackness: float) -> pl.DataFrame:
    """Tabulate shares and means between rounds.

    Args:
        point: from `measure`.
        rounds: last round of each interval; the first interval begins in round 1.
        slackness: epsilon.

    Returns:
        A row an interval and policy: the shares of rounds in which `EVENTS` hold, the means of
        `loss` and `drift`, each with its 95% interval over seeds; `root`, the root of the mean
        squared loss; `falls`, the share of rounds with a drift of at most -epsilon / 2; and
        `bound`, the least of Proposition 10's in any of them.
    """
    rows = []
    for last, end in zip([0, *rounds], rounds, strict=False):
        for label in point["policy"].values.tolist():
            one = point.sel(policy=label, round=slice(last + 1, end))
            row: dict[str, Any] = {"first": last + 1, "last": end, "policy": label}
            row["seeds"] = one.sizes["seed"]
            for name in (*EVENTS, "loss", "drift"):
                row |= mean_columns(name, one[name].mean("round"), name in EVENTS)
            row["root"] = float(np.sqrt(one["squared"].mean()))
            falls = (one["drift"] <= -slackness / 2).where(one["drift"].notnull())
            row |= {"falls": float(falls.mean()), "bound": float(one["bound"].min())}
            rows.append(row)
    return pl.DataFrame(rows)


def _run(
    policy: Acqb, instance: simulate.Instance, rate: Array, problem: Problem, capacity: int
) -> Recorded:
    """Examine every round of a run before it is simulated."""
    contexts = instance.workload.contexts
    rows, utilities = contexts.reshape(-1, problem.dim), instance.workload.utilities.reshape(-1)
    # Utilities are x'theta*: the least squares are exact.
    truth = jnp.linalg.solve(rows.T @ rows, rows.T @ utilities)

    def step(both: Any, round_: Array) -> tuple[Any, Seen]:
        carry, gram = both
        seen = _examine(policy, problem, instance, carry, round_, gram, truth, rate)
        carry, made = simulate.run_round(policy, problem, instance, carry, round_)
        offered = offered_rows(contexts[made.row], made.servers, 0.0)
        return (carry, gram + made.valid * offered.T @ offered), seen

    gram = jnp.asarray(policy.lambda0, float) * jnp.eye(problem.dim)
    begun = simulate.start(policy, problem, instance, capacity), gram
    rounds = jnp.arange(1, problem.horizon + 1, dtype=jnp.int32)
    (carry, _), seen = jax.lax.scan(step, begun, rounds)
    return Recorded(seen, carry.overflow)


def _examine(
    policy: Acqb, problem: Problem, instance: simulate.Instance, carry: simulate.Carry,
    round_: Array, gram: Array, truth: Array, rate: Array,
) -> Seen:  # fmt: skip
    """Compute the quantities of the proofs in one round."""
    size, state = problem.assortment_size, carry.state
    observation = simulate.observe(policy, problem, instance, carry, round_)
    waiting = queueing.mark_waiting(observation.queue)
    draws = policy.draws(rng.round_key(instance.key, round_), problem)
    optimistic = policy.optimistic(draws, state, observation)
    theta = policy.theta(state, instance.workload.contexts, problem)[0]
    alpha = policy.radius(problem, policy.belief(problem).learnt(state.belief))[0]
    t, samples = problem.horizon, num_samples(size)
    past = jnp.log(size * round_.astype(float) * t)
    beta = alpha * jnp.minimum(
        jnp.sqrt(6.0 * problem.dim * jnp.log(samples * t)),
        jnp.sqrt(2 * jnp.log(2.0 * samples)) + jnp.sqrt(6.0 * past),
    )

    error, features = theta - truth, observation.features
    spread = jnp.sqrt(jnp.sum((features @ jnp.linalg.inv(gram)) * features, axis=-1))
    near = optimistic - features @ theta <= beta * spread * (1 + 1e-5) + 1e-5
    true = simulate.true_utilities(instance, observation.queue.row, round_)
    score = jnp.where(waiting, mnl.best_score(optimistic, size), -jnp.inf)
    best = jnp.max(jnp.where(waiting, mnl.best_score(true, size), -jnp.inf))
    slot = jnp.argmax(score)
    served = mnl.departure_rate(true[slot][mnl.best_servers(optimistic[slot], size)])
    return Seen(
        jnp.any(waiting), error @ gram @ error <= alpha**2, jnp.all(near | ~waiting[:, None]),
        score[slot] > best, jax.nn.sigmoid(best) - served, rate - served,
        (alpha + 48 * beta) ** 2, gram,
    )  # fmt: skip
