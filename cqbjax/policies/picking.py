"""What policies share: a query and its assortment, a uniform assortment, learning nothing."""

import jax
import jax.numpy as jnp
from jax import Array

from cqbjax.core import mnl, queueing, rng
from cqbjax.core.types import DOWN_UTILITY, Action, Feedback, Observation, Problem
from cqbjax.policies import retries
from cqbjax.policies.retries import Retry

# Showings of a server that is not to be shown again.
MANY = 2**30


def best_answer(
    schedule: queueing.Schedule | Array,
    observation: Observation,
    utilities: Array,
    uniform: Array,
    retry: Retry = "same",
    few: int | None = None,
) -> tuple[Array, list[Array]]:
    """Return the query that a schedule picks, and the assortment for it.

    With `joint` the pair is argmax over waiting queries x and assortments S of R(x, S), S being any
    assortment, or with `retry="fallback"` the query's next one.

    Servers that do not answer this round are taken last.

    Args:
        schedule: a word of `queueing.Schedule`, or its number.
        observation: the round.
        utilities: [C, N] of each slot's query.
        uniform: [] in [0, 1), for the random rules.
        retry: `fallback` and `cache` take the servers shown least often for the query first; any
            other rule the best, its utilities `retries.revised`.
        few: how many of the K are to be shown, the first ones: what a query promises is what they
            do. None: all.

    Returns:
        Slot ([] int32) and servers (K times [] int32), the best first; ties go to the lowest slot
        and servers.
    """
    size, queue = observation.problem.assortment_size, observation.queue
    few = few or size
    utilities = of_available(utilities, observation)
    if retry in ("fallback", "cache"):
        shown = of_available(retries.shown_counts(queue), observation, MANY)
        score = retries.score_of_picks(utilities, retries.next_picks(utilities, shown, few))
        slot = queueing.pick(schedule, queue, uniform, score)
        return slot, retries.next_picks(utilities[slot], shown[slot], size)
    score = mnl.best_score(utilities, few)
    slot = queueing.pick(schedule, queue, uniform, score)
    return slot, mnl.best_picks(utilities[slot], size)


def of_available(
    values: Array, observation: Observation, otherwise: float | int = DOWN_UTILITY
) -> Array:
    """Return values [..., N] of the servers that answer this round, another one of the others."""
    there = observation.available
    return values if there is None else jnp.where(there, values, otherwise)


def instead(key: Array, servers: Array, observation: Observation) -> Array:
    """Replace an assortment [K] with a server that does not answer by one of those that all do.

    The replacement is drawn uniformly: an assortment that is uniform over all of them becomes
    uniform over those that answer. Where fewer than K servers answer it holds all of these.
    """
    there, problem = observation.available, observation.problem
    if there is None:
        return servers
    drawn = replacement_uniforms(key, problem)
    picks = mnl.best_picks(jnp.where(there, drawn, -1.0), problem.assortment_size)
    return jnp.where(jnp.all(there[servers]), servers, mnl.sort_picks(picks))


def uniform_assortment(key: Array, observation: Observation) -> Array:
    """Draw an assortment uniformly from those whose servers all answer: [K] int32, increasing."""
    problem = observation.problem
    rank = random_assortment(key, problem)
    servers = mnl.unrank_assortment(rank, problem.num_servers, problem.assortment_size)
    return instead(key, servers, observation)


def random_assortment(key: Array, problem: Problem) -> Array:
    """Draw the rank of an assortment uniformly from C: [] int32, in lexicographic order."""
    count = mnl.num_assortments(problem.num_servers, problem.assortment_size)
    return jax.random.randint(rng.stream_key(key, rng.Stream.ASSORTMENT), (), 0, count, jnp.int32)


def replacement_uniforms(key: Array, problem: Problem) -> Array:
    """Draw the uniforms that order the servers which replace one that does not answer: [N]."""
    return jax.random.uniform(rng.stream_key(key, rng.Stream.REPLACEMENT), (problem.num_servers,))


def random_lots(key: Array, problem: Problem) -> Array:
    """Draw the uniforms by which a random fallback orders the servers: [N]."""
    return jax.random.uniform(rng.stream_key(key, rng.Stream.ASSORTMENT), (problem.num_servers,))


def no_state(problem: Problem, contexts: Array) -> tuple[()]:
    """Return the state of a policy that learns nothing online: its `init`."""
    return ()


def learn_nothing(
    state: tuple[()], observation: Observation, action: Action, feedback: Feedback
) -> tuple[()]:
    """Return the state as it is: the `update` of a policy that learns nothing online."""
    return state


def gamma_logarithms(key: Array, first: Array, second: Array) -> Array:
    """Draw logarithms of Gamma(first) and Gamma(second) for each server: [N], [N] -> [2, N].

    Of X and Y so drawn X / (X + Y) is Beta(first, second), and log X - log Y its log-odds. Side by
    side: one copy of the rejection sampler compiles in less time, and runs in less.
    """
    keys = rng.batchable_key(jax.random.split(rng.stream_key(key, rng.Stream.BETA)))
    drawn: Array = jax.vmap(jax.random.loggamma)(keys, jnp.stack([first, second]))
    return drawn
