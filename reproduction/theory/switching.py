"""The proof's policy-switching queues (appendix, "Coupling process and policy-switching queues").

Q_i follows the policy in rounds 1 .. i and the optimal policy afterwards. All queues meet the same
arrivals, contexts, explorations and samples. In a round the same uniform U is compared with the
cumulative choice probabilities of the assortment of each queue. The simulator's draws are addressed
by (seed, round, stream) and by no process, so the coupling needs no further code.

Indices are the paper's: Q(i, t) is the length at the beginning of round t. Until round i all later
processes are still one run. One scan therefore carries the policy's run and the queues that have
switched.

`count_failures` counts the sentences of Lemma 8 and its proof over sample paths: where each applies
and where it fails. The lemma is read in two ways. As printed, the departures that decide the sign
of psi(i, t) are those of round t; in the proof they are those of round i, in which the two
processes part.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import polars as pl
import xarray as xr
from jax import Array

from cqbjax.core import mnl, queueing, simulate
from cqbjax.core.types import DOWN_UTILITY, Policy, Problem, Queue, Source
from cqbjax.engine.progress import Reporter
from cqbjax.engine.spec import Capacity
from cqbjax.engine.sweep import sweep
from cqbjax.policies import OptimalPolicy
from reproduction.theory.runs import mean_columns, offered_rows, simulate_seeds

# States that the proof reaches from each case: S_0 and S_1 where the optimal policy alone served a
# query in round i; S_0, S_2 and S_3 where both or neither did.
AFTER_PARTING, AFTER_AGREEING = (0, 1), (0, 2, 3)


class SwitchingQueues(NamedTuple):
    """The T + 1 coupled processes of one sample path, i = 0 .. T.

    Attributes:
        length: [T + 1, T + 1] int16 Q(i, t), column t - 1 for t = 1 .. T + 1.
        departed: [T + 1, T] bool D(i, t), column t - 1.
        state: [T + 1, T + 1] int8 the state of Q_i and Q_{i-1} in the proof of Lemma 8, at the
            beginning of round t: 0 to 4 for S_{t,0} to S_{t,4}, 5 for any other; row 0 is 0.
        gap: [T] float R(x_i^*, S_i^*) - R(x_i, S_i) of the policy's run in round i, over all
            waiting queries, column i - 1; 0 where no query waits.
        overflow: [] int32 first round in which a query found no free slot, 0 if there was none.
    """

    length: Any
    departed: Any
    state: Any
    gap: Any
    overflow: Any


def measure(
    policies: Mapping[str, Policy], source: Source, arrival_rate: float, problem: Problem,
    seeds: np.ndarray, capacity: Capacity, progress: Reporter,
) -> xr.Dataset:  # fmt: skip
    """Run policies alone and in all their switching queues, and count failures of Lemma 8.

    Args:
        policies: label -> policy.
        source: where queries come from.
        arrival_rate: lambda, queries a round.
        problem: shapes of a run.
        seeds: [S] one sample path each.
        capacity: queue slots of the switching queues, or `auto`.
        progress: is notified of compiling and of rounds.

    Returns:
        The result of `count_failures`, by policy.

    Raises:
        QueueOverflow: a queue outgrew a numeric capacity.
    """
    alone = sweep(
        policies, source, arrival_rate=[arrival_rate], seeds=seeds.tolist(),
        horizon=problem.horizon, K=problem.assortment_size, record_every=1, progress=progress,
    ).isel(arrival_rate=0)  # fmt: skip

    def from_first_round(lengths: xr.DataArray) -> np.ndarray:
        """Return Q(t) for t = 1 .. T + 1 of the recorded Q(t + 1): [S, T + 1]."""
        by_round = lengths.transpose("seed", "round").values.astype(int)
        return np.pad(by_round, ((0, 0), (1, 0)))

    optimal = from_first_round(alone["optimal_queue_length"])
    each, rounds = [], len(seeds) * problem.horizon
    for label, policy in policies.items():
        progress.expect(rounds * (problem.horizon + 1))
        queues = run(policy, source, arrival_rate, problem, seeds, capacity, progress)
        progress.advance(rounds * problem.horizon)
        queue = from_first_round(alone["queue_length"].sel(policy=label))
        each.append(count_failures(queues, queue, optimal).assign_coords(seed=seeds))
    return xr.concat(each, "policy").assign_coords(policy=list(policies))


def run(
    policy: Policy, source: Source, arrival_rate: float, problem: Problem, seeds: np.ndarray,
    capacity: Capacity, progress: Reporter | None = None,
) -> SwitchingQueues:  # fmt: skip
    """Run all switching queues of every seed, one path after the other.

    The T + 1 processes of a path are the batch.

    Args:
        policy: pi.
        source: where queries come from.
        arrival_rate: lambda, queries a round.
        problem: shapes of a run.
        seeds: [S] one sample path each.
        capacity: queue slots, or `auto`.
        progress: is notified of compiling and of the seconds of simulation.

    Returns:
        NumPy arrays with a leading [S].

    Raises:
        QueueOverflow: a queue outgrew a numeric capacity.
    """
    return simulate_seeds(
        _run_path, (problem,), policy, source, arrival_rate, seeds, "all processes", capacity,
        progress, batched=False,
    )  # fmt: skip


def _run_path(
    policy: Policy, instance: simulate.Instance, rate: Array, problem: Problem, capacity: int
) -> SwitchingQueues:
    """Run the switching queues of one sample path."""
    horizon, optimal = problem.horizon, OptimalPolicy()
    numbers = jnp.arange(horizon + 1)
    best = mnl.best_score(instance.workload.utilities, problem.assortment_size)

    def advance(carry: simulate.Carry, round_: Array) -> simulate.Carry:
        return simulate.run_round(optimal, problem, instance, carry, round_)[0]

    def one(both: tuple[simulate.Carry, simulate.Carry], round_: Array) -> Any:
        own, all_ = both
        waiting = queueing.mark_waiting(own.queue)
        # R(x_t^*, S_t^*), the largest departure rate of a waiting query.
        most = jax.nn.sigmoid(jnp.max(jnp.where(waiting, best[own.queue.row], -jnp.inf)))
        own, decision = simulate.run_round(policy, problem, instance, own, round_)
        utilities = instance.workload.utilities[decision.row]
        served = mnl.departure_rate(offered_rows(utilities, decision.servers, DOWN_UTILITY))
        # Q_i for i >= t has not switched before round t: it is in the state of the policy's run.
        # The optimal policy has no state of its own and reads utilities, not features.
        following = own._replace(slot_features=None, state=())
        switched = jax.vmap(advance, (0, None))(all_, round_)

        def select(after: Array, before: Array) -> Array:
            return jnp.where((numbers < round_).reshape(-1, *(1,) * before.ndim), after, before)

        new = jax.tree.map(select, switched, following)
        departed = new.recorded["departures"] > all_.recorded["departures"]
        gap = jnp.where(decision.valid, most - served, 0.0)
        return (own, new), (new.length.astype(jnp.int16), departed, _states(new.queue, best), gap)

    own = simulate.start(policy, problem, instance, capacity)
    begun = simulate.start(optimal, problem, instance, capacity)._replace(slot_features=None)
    everyone = jax.tree.map(lambda x: jnp.broadcast_to(x, (horizon + 1, *x.shape)), begun)
    rounds = jnp.arange(1, horizon + 1, dtype=jnp.int32)
    (_, last), (length, departed, state, gap) = jax.lax.scan(one, (own, everyone), rounds)
    empty = jnp.zeros((1, horizon + 1), jnp.int16)
    length = jnp.concatenate([empty, length]).T
    state = jnp.concatenate([empty.astype(jnp.int8), state]).T
    return SwitchingQueues(length, departed.T, state, gap, jnp.max(last.overflow))


def _states(queue: Queue, best: Array) -> Array:
    """Return the state of each process and the one before it: [P] int8, as in `SwitchingQueues`.

    The proof compares sets of departure rates. This function compares queries by their arrival
    rounds; queries with equal departure rates count as one.

    Args:
        queue: [P, C] of the processes, in order.
        best: [I] log-odds of each row's best departure rate.
    """

    def state(this: Queue, other: Queue) -> Array:
        here, there = queueing.mark_waiting(this), queueing.mark_waiting(other)
        same = this.arrived[:, None] == other.arrived[None, :]
        more = here & ~jnp.any(same & there[None, :], axis=1)
        less = there & ~jnp.any(same & here[:, None], axis=0)
        high = jnp.max(jnp.where(more, best[this.row], -jnp.inf))
        low = jnp.max(jnp.where(less, best[other.row], -jnp.inf))
        both = jnp.where(high == low, 0, jnp.where(high > low, 3, 4))
        plus, minus = jnp.sum(more), jnp.sum(less)
        number = jnp.where(plus > 0, jnp.where(minus > 0, both, 1), jnp.where(minus > 0, 2, 0))
        return jnp.where((plus > 1) | (minus > 1), 5, number).astype(jnp.int8)

    before = jax.tree.map(lambda x: jnp.concatenate([x[:1], x[:-1]]), queue)
    return jax.vmap(state)(queue, before)


def count_failures(queues: SwitchingQueues, queue: np.ndarray, optimal: np.ndarray) -> xr.Dataset:
    """Count, path by path, how often each sentence of the lemma applies and how often it fails.

    Args:
        queues: from `run`.
        queue: [S, T + 1] Q(t) of the policy alone, for t = 1 .. T + 1.
        optimal: [S, T + 1] Q*(t), likewise.

    Returns:
        Over seed (0 .. S - 1) and rule: `checked` and `failed`, numbers of (i, t), of t or of i;
        over seed and switch i = 1 .. T: `psi` = psi(i, T + 1), `parted`, whether D(i, i) = 0 and
        D(i-1, i) = 1, and `gap` of round i.
    """
    paths, horizon = queues.gap.shape
    at, everywhere = np.arange(horizon), np.True_
    # psi(i, t) = Q(i, t) - Q(i-1, t): [S, T, T + 1], i = 1 .. T and t = 1 .. T + 1.
    psi = np.diff(queues.length.astype(np.int32), axis=1).astype(np.int8)
    # D(i, i) and D(i-1, i), i = 1 .. T.
    own_at, other_at = queues.departed[:, at + 1, at], queues.departed[:, at, at]
    # [S, T] D(i, i) = 0 and D(i-1, i) = 1; its opposite, which the coupling rules out.
    split, against = ~own_at & other_at, own_at & ~other_at
    later = np.arange(1, horizon + 2) > (at + 1)[:, None]  # t > i, where psi can differ from 0
    parted, agreed = split[:, :, None] & later, ~split[:, :, None] & later
    own, other = queues.departed[:, 1:], queues.departed[:, :-1]
    # As printed: psi(i, t) with the departures of round t, known for t <= T.
    now, before = psi[:, :, :-1], later[None, :, :-1]
    length, state = queues.length[:, 1:], queues.state[:, 1:]
    emptied = np.maximum.accumulate(parted & (length == 0), axis=2)
    total, other_empty = psi.sum(axis=1, dtype=np.int32), queues.length[:, :-1] == 0
    # Sentence -> where it applies, and where it would be wrong if it did.
    rules = {
        "psi(i, t) is -1, 0 or 1": (everywhere, np.abs(psi) > 1),
        "the sum of psi(i, t) over i is Q(t) - Q*(t)": (everywhere, total != queue - optimal),
        "D(i, i) <= D(i-1, i)": (everywhere, against),
        "D(i, i) = 0, D(i-1, i) = 1: psi is 0 or 1": (parted, psi < 0),
        "D(i, i) = D(i-1, i): psi is -1 or 0": (agreed, psi > 0),
        "as printed, D(i, t) = 0, D(i-1, t) = 1: psi is 0 or 1": (~own & other & before, now < 0),
        "as printed, D(i, t) = D(i-1, t): psi is -1 or 0": ((own == other) & before, now > 0),
        "the pair is in a state of the proof": (everywhere, state > 4),
        "D(i, i) = 0, D(i-1, i) = 1: S_0 or S_1": (parted, ~np.isin(state, AFTER_PARTING)),
        "D(i, i) = D(i-1, i): S_0, S_2 or S_3": (agreed, ~np.isin(state, AFTER_AGREEING)),
        "parted, and Q_i was empty since: psi is 0": (emptied, psi != 0),
        "sketch: parted, Q_{i-1} empty: Q_i empty": (parted & other_empty, length != 0),
    }  # fmt: skip

    def count(of: np.ndarray, wrong: np.ndarray) -> np.ndarray:
        return np.broadcast_to(of, wrong.shape).reshape(paths, -1).sum(axis=1, dtype=np.int64)

    checked = [count(where, wrong) for where, wrong in rules.values()]
    failed = [count(where & wrong, wrong) for where, wrong in rules.values()]
    counts = {"checked": np.stack(checked, axis=1), "failed": np.stack(failed, axis=1)}
    effects = {"psi": psi[:, :, -1], "parted": split.astype(np.int8), "gap": queues.gap}
    data: dict[str, Any] = {name: (("seed", "rule"), each) for name, each in counts.items()}
    data |= {name: (("seed", "switch"), each) for name, each in effects.items()}
    coords = {"seed": np.arange(paths), "rule": list(rules), "switch": np.arange(1, horizon + 1)}
    return xr.Dataset(data, coords)


def tabulate_rules(paths: xr.Dataset) -> pl.DataFrame:
    """Tabulate how often each sentence applies and how often it fails.

    Args:
        paths: from `count_failures`.

    Returns:
        A row a sentence: `rule`, `checked` and `failed`, numbers of (path, i, t), of (path, t) or
        of (path, i), and `paths_failed`, the number of sample paths with a failure.
    """
    ordered = paths.transpose("seed", "rule", ...)
    checked, failed = ordered["checked"].values, ordered["failed"].values
    columns = {"rule": [str(rule) for rule in paths["rule"].values], "checked": checked.sum(axis=0)}
    failures = {"failed": failed.sum(axis=0), "paths_failed": (failed > 0).sum(axis=0)}
    return pl.DataFrame(columns | failures)


def average_by_switch(paths: xr.Dataset, block: int) -> pl.DataFrame:
    """Average the effect of round i at the end of the run, in blocks of consecutive i.

    Args:
        paths: from `count_failures`.
        block: rounds in a block; the last one may be shorter.

    Returns:
        A row a block: its `first` and `last` round, and the mean over paths with its 95% interval
        (_low, _high) of `psi` = psi(i, T + 1), of `longer` and `shorter`, the shares of paths with
        psi 1 and -1, of `chance`, R(x*, S*) - R(x_i, S_i) that Q_i and Q_{i-1} part in round i, and
        of `parted`, the share of paths on which they do; and `e`, sqrt(E[gap^2]).
    """
    ordered = paths.transpose("seed", "switch", ...)
    end, gap, parted = (ordered[name].values for name in ("psi", "gap", "parted"))
    values = {"psi": end, "longer": end > 0, "shorter": end < 0, "chance": gap, "parted": parted}
    rows: list[dict[str, float]] = []
    for first in range(0, end.shape[1], block):
        here = slice(first, min(first + block, end.shape[1]))
        row: dict[str, float] = {"first": first + 1, "last": here.stop}
        for name, of_path in values.items():
            mean = xr.DataArray(of_path[:, here].astype(float).mean(axis=1), dims="seed")
            row |= mean_columns(name, mean, name in ("longer", "shorter", "parted"))
        row["e"] = float(np.sqrt(np.mean(gap[:, here].astype(float) ** 2)))
        rows.append(row)
    return pl.DataFrame(rows)
