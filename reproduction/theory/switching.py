"""The proof's policy-switching queues (appendix, "Coupling process and policy-switching queues").

Q_i follows the policy in rounds 1 .. i and the optimal policy afterwards. All of them meet the same
arrivals, contexts, explorations and samples, and in a round the same uniform U is laid against the
cumulative choice probabilities of whatever each of them shows. Here that is no work: draws are
addressed by (seed, round, stream), and no address names a process.

Indices are the paper's: Q(i, t) is the length at the beginning of round t. Up to round i all later
processes are still one run, so that one scan carries the policy's run and, beside it, the queues
that have switched.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from cqbjax.core import mnl, queueing, rng, simulate
from cqbjax.core.types import DOWN, Policy, Problem, Queue, Source
from cqbjax.engine.progress import Reporter
from cqbjax.policies import Optimal
from reproduction.theory.playing import of_shown, played


class Switching(NamedTuple):
    """The T + 1 coupled processes of one sample path, i = 0 .. T.

    Attributes:
        length: [T + 1, T + 1] int16 Q(i, t), column t - 1 for t = 1 .. T + 1.
        departed: [T + 1, T] bool D(i, t), column t - 1.
        state: [T + 1, T + 1] int8 in which state of the proof of Lemma 8 Q_i and Q_{i-1} are at the
            beginning of round t: 0 to 4 for S_{t,0} to S_{t,4}, 5 for none of them; row 0 is 0.
        gap: [T] float R(x_i^*, S_i^*) - R(x_i, S_i) of the policy's run in round i, over all that
            waits then, column i - 1; 0 where nothing waits.
        overflow: [] int32 first round in which a query found no free slot, 0 if there was none.
    """

    length: Any
    departed: Any
    state: Any
    gap: Any
    overflow: Any


def run(
    policy: Policy, source: Source, arrival_rate: float, problem: Problem, seeds: np.ndarray,
    capacity: int, progress: Reporter | None = None,
) -> Switching:  # fmt: skip
    """Run all switching queues of every seed.

    Args:
        policy: pi.
        source: where queries come from.
        arrival_rate: lambda, queries a round.
        problem: shapes of a run.
        seeds: [S] one sample path each.
        capacity: queue slots.
        progress: told of compiling and of the seconds of simulation.

    Returns:
        NumPy arrays with a leading [S].

    Raises:
        QueueOverflow: a queue outgrew the capacity.
    """
    arguments = policy, source, jnp.asarray(arrival_rate, float), jnp.asarray(seeds)
    made: Switching = played(_run, (problem, capacity), arguments, "all processes", progress)
    return made


def _run(
    devices: tuple[jax.Device, ...], fixed: tuple[Problem, int],
    policy: Policy, source: Source, rate: Array, seeds: Array,
) -> Switching:  # fmt: skip
    """Run one path after another on one device: the T + 1 processes of one are the batch."""
    problem, capacity = fixed

    def path(seed: Array) -> Switching:
        instance = simulate.draw_instance(rng.run_key(seed), source, rate, problem)
        return one_path(policy, problem, instance, capacity)

    return jax.lax.map(path, seeds)


def one_path(
    policy: Policy, problem: Problem, instance: simulate.Instance, capacity: int
) -> Switching:
    """Run the switching queues of one sample path.

    Args:
        policy: pi.
        problem: shapes.
        instance: the path's draws.
        capacity: queue slots.
    """
    horizon, optimal = problem.horizon, Optimal()
    numbers = jnp.arange(horizon + 1)
    best = mnl.best_score(instance.world.utilities, problem.assortment_size)

    def after(carry: simulate.Carry, round_: Array) -> simulate.Carry:
        return simulate.run_round(optimal, problem, instance, carry, round_)[0]

    def one(both: tuple[simulate.Carry, simulate.Carry], round_: Array) -> Any:
        own, all_ = both
        most = _largest_rate(own.queue, best)
        own, decision = simulate.run_round(policy, problem, instance, own, round_)
        utilities = instance.world.utilities[decision.row]
        served = mnl.departure_rate(of_shown(utilities, decision.servers, DOWN))
        # Q_i for i >= t has not switched before round t: it is where the policy's run is.
        following = _as_optimal(own)
        switched = jax.vmap(after, (0, None))(all_, round_)
        new = jax.tree.map(
            lambda s, o: jnp.where((numbers < round_).reshape(-1, *(1,) * o.ndim), s, o),
            switched, following,
        )  # fmt: skip
        departed = new.recorded["departures"] > all_.recorded["departures"]
        kept = (
            new.length.astype(jnp.int16), departed, _states(new.queue, best),
            jnp.where(decision.valid, most - served, 0.0),
        )  # fmt: skip
        return (own, new), kept

    own = simulate.start(policy, problem, instance, capacity)
    begun = simulate.start(optimal, problem, instance, capacity)._replace(slot_features=None)
    everyone = jax.tree.map(lambda x: jnp.broadcast_to(x, (horizon + 1, *x.shape)), begun)
    rounds = jnp.arange(1, horizon + 1, dtype=jnp.int32)
    (_, last), (length, departed, state, gap) = jax.lax.scan(one, (own, everyone), rounds)
    empty = jnp.zeros((1, horizon + 1), jnp.int16)
    return Switching(
        jnp.concatenate([empty, length]).T, departed.T,
        jnp.concatenate([empty.astype(jnp.int8), state]).T, gap, jnp.max(last.overflow),
    )  # fmt: skip


def _as_optimal(carry: simulate.Carry) -> simulate.Carry:
    """Return a run's carry as the optimal policy would go on from it: it has no state of its own.

    Features in slots are left out: it looks at utilities alone.
    """
    return carry._replace(slot_features=None, state=())


def _largest_rate(queue: Queue, best: Array) -> Array:
    """Return R(x_t^*, S_t^*), the largest departure rate that waits: []."""
    return jax.nn.sigmoid(jnp.max(jnp.where(queueing.waiting(queue), best[queue.row], -jnp.inf)))


def _states(queue: Queue, best: Array) -> Array:
    """Return the state of each process and the one before it: [P] int8, see `Switching.state`.

    The proof compares sets of departure rates; here queries are compared, by the rounds in which
    they arrived, and those of one departure rate count as one.

    Args:
        queue: [P, C] of the processes, in order.
        best: [I] log-odds of each row's best departure rate.
    """

    def state(this: Queue, other: Queue) -> Array:
        here, there = queueing.waiting(this), queueing.waiting(other)
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
