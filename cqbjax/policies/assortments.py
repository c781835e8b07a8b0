"""Helpers of policies: choose a query and servers, draw assortments, exclude absent servers."""

import jax
import jax.numpy as jnp
from jax import Array

from cqbjax.core import mnl, queueing, rng
from cqbjax.core.pytree import option_index
from cqbjax.core.types import DOWN_UTILITY, Action, Feedback, Observation, Problem
from cqbjax.policies import retries
from cqbjax.policies.retries import Retry, Tally

# Offers of a server that must not be offered again.
MANY = 2**30


def choose_query_and_servers(
    schedule: queueing.Schedule | Array, observation: Observation, utilities: Array,
    uniform: Array, retry: Retry = "same", tally: Tally | None = None,
    precision: Array | float = 1.0, few: int | None = None,
) -> tuple[Array, list[Array]]:  # fmt: skip
    """Return the query that a schedule picks, and its assortment, by a retry rule.

    `joint` takes the argmax of R(x, S) over waiting queries x and assortments S (Algorithm 1
    line 7). With `retry="fallback"`, each query has only one S, the one that
    `retries.next_assortment` gives. Servers that do not answer this round are chosen last.

    Args:
        schedule: a name in `queueing.Schedule`, or its number.
        observation: the round.
        utilities: [C, N] utilities of each slot's query, which `retries.revise_utilities` revises.
        uniform: [] in [0, 1), for the random rules.
        retry: `fallback` and `cache` take the servers offered least often to the query first; the
            other rules take the best servers.
        tally: outcomes by prompt, from `retries.init_tally`.
        precision: s in `posterior` and `recall`.
        few: how many servers the policy will offer, at most K; only the best ones of an assortment,
            this many, count in its score. None: K.

    Returns:
        Slot ([] int32) and servers (K times [] int32), the best first; ties go to the lowest slot
        and servers.
    """
    size, queue = observation.problem.assortment_size, observation.queue
    few = few or size
    utilities = retries.revise_utilities(retry, utilities, observation, tally, precision)
    utilities = mask_unavailable(utilities, observation)
    if retry in ("fallback", "cache"):
        offers = mask_unavailable(retries.read_offer_counts(queue), observation, MANY)
        score = retries.score_assortment(utilities, retries.next_assortment(utilities, offers, few))
        slot = queueing.pick(schedule, queue, uniform, score)
        return slot, retries.next_assortment(utilities[slot], offers[slot], size)
    score = mnl.best_score(utilities, few)
    slot = queueing.pick(schedule, queue, uniform, score)
    return slot, mnl.best_picks(utilities[slot], size)


def mask_unavailable(
    values: Array, observation: Observation, otherwise: float | int = DOWN_UTILITY
) -> Array:
    """Return values [..., N]; servers that do not answer this round get the value `otherwise`."""
    answers = observation.available
    return values if answers is None else jnp.where(answers, values, otherwise)


def replace_unavailable(key: Array, servers: Array, observation: Observation) -> Array:
    """Replace an assortment [K] if one of its servers does not answer.

    The replacement is a random assortment whose servers all answer. A uniform assortment thus
    becomes uniform over the assortments whose servers all answer. If fewer than K servers answer,
    the replacement holds all of them.
    """
    answers, problem = observation.available, observation.problem
    if answers is None:
        return servers
    priorities = draw_server_priorities(key, problem, rng.Stream.REPLACEMENT)
    best = mnl.best_picks(jnp.where(answers, priorities, -1.0), problem.assortment_size)
    return jnp.where(jnp.all(answers[servers]), servers, mnl.sort_picks(best))


def draw_tie(key: Array, schedule: queueing.Schedule | Array) -> Array:
    """Draw the uniform that a schedule needs: [].

    Of queries that arrived in the same round, `oldest` serves the one in the lowest slot.
    """
    number = option_index(queueing.Schedule, schedule, "schedule")
    return jnp.where(number == queueing.OLDEST, 0.0, rng.uniform(key, rng.Stream.QUERY))


def draw_assortment(key: Array, observation: Observation) -> Array:
    """Draw an assortment uniformly among those whose servers all answer: [K] int32, increasing."""
    rank = draw_assortment_rank(key, observation.problem)
    return unrank_available(key, rank, observation)


def unrank_available(key: Array, rank: Array, observation: Observation) -> Array:
    """Return the assortment of a rank, replaced if a server does not answer: [K] int32."""
    problem = observation.problem
    servers = mnl.unrank_assortment(rank, problem.num_servers, problem.assortment_size)
    return replace_unavailable(key, servers, observation)


def draw_assortment_rank(key: Array, problem: Problem) -> Array:
    """Draw the lexicographic rank of an assortment uniformly: [] int32."""
    count = mnl.num_assortments(problem.num_servers, problem.assortment_size)
    return jax.random.randint(rng.stream_key(key, rng.Stream.ASSORTMENT), (), 0, count, jnp.int32)


def draw_server_priorities(key: Array, problem: Problem, stream: rng.Stream) -> Array:
    """Draw uniform priorities of the servers, to pick some at random: [N]."""
    return jax.random.uniform(rng.stream_key(key, stream), (problem.num_servers,))


def init_stateless(problem: Problem, contexts: Array) -> tuple[()]:
    """Return the empty state of a policy that does not learn online: its `init`."""
    return ()


def update_stateless(
    state: tuple[()], observation: Observation, action: Action, feedback: Feedback
) -> tuple[()]:
    """Return the state unchanged: the `update` of a policy that does not learn online."""
    return state


def draw_log_gammas(key: Array, first: Array, second: Array) -> Array:
    """Draw logarithms of Gamma(first) and Gamma(second) for each server: [N], [N] -> [2, N].

    If X is drawn from Gamma(first) and Y from Gamma(second), X / (X + Y) has the distribution
    Beta(first, second), and its log-odds are log X - log Y. One copy of the rejection sampler for
    both draws compiles and runs faster than two copies.
    """
    keys = rng.batchable_key(jax.random.split(rng.stream_key(key, rng.Stream.BETA)))
    return jax.vmap(jax.random.loggamma)(keys, jnp.stack([first, second]))
