"""Retry rules: how a policy routes a query that returns.

In the paper's algorithms a retry changes only the queue: the prediction x'theta_j of the servers
that failed a query stays the same, and they may be offered again. Gateways instead fall back to the
next model (`fallback`), and may remember which model answered a prompt (`cache`). Statistically, a
failure is evidence about the query beyond its features (`posterior`), or about its prompt for all
users (`recall`). The rules work for any policy with utilities of queries and servers.
"""

import functools
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from cqbjax.core import linalg, mnl
from cqbjax.core.types import Action, Feedback, Observation, Problem, Queue

Retry = Literal["same", "fallback", "posterior", "recall", "cache"]
RecallBy = Literal["row", "embedding"]

# Added to the utility of a server whose answer is cached; exceeds all differences of utilities.
CACHED = 100.0


def needs_offer_counts(retry: Retry) -> bool:
    """Return whether a rule needs the number of offers of each server to each waiting query."""
    return retry in ("fallback", "posterior", "cache")


class Tally(NamedTuple):
    """Outcomes of all attempts by prompt.

    Attributes:
        accepted: [I, N] int32, rounds in which the server's answer was chosen.
        failed: [I, N] int32, rounds with the server that ended in a retrial.
        place: [I] int32 the row that stores the counts of each row, which is the first row with the
            same embedding; None: each row stores its own counts.
    """

    accepted: Array
    failed: Array
    place: Array | None = None

    def locate(self, row: Array) -> Array:
        """Return the rows that store the counts of rows [...] of the run's table: [...] int32."""
        return row if self.place is None else self.place[row]


def init_tally(
    retry: Retry, problem: Problem, contexts: Array, by: RecallBy = "row"
) -> Tally | None:  # fmt: skip
    """Return the empty tally of `recall` and `cache`; None for the other rules.

    Args:
        retry: the rule.
        problem: shapes.
        contexts: [I, ...] the run's table as the policy sees it.
        by: what identifies a prompt: its `row`, or its `embedding`.
    """
    if retry not in ("recall", "cache"):
        return None
    zeros = jnp.zeros((problem.num_rows, problem.num_servers), jnp.int32)
    return Tally(zeros, zeros, find_first_equal_row(contexts) if by == "embedding" else None)


def find_first_equal_row(contexts: Array) -> Array:
    """Return the number of the first equal row of each row: [I, ...] -> [I] int32.

    Sorting by two integer hashes of the bits puts equal rows next to each other, which is exact and
    much cheaper than sorting by every feature.
    """
    rows = contexts.reshape(contexts.shape[0], -1)
    bits = jax.lax.bitcast_convert_type(rows.astype(jnp.float32), jnp.uint32)
    odd = np.random.default_rng(0).integers(0, 2**31, (2, rows.shape[1]), np.uint32) * 2 + 1
    bits = bits ^ (bits >> 15)
    hashes = [jnp.sum(bits * jnp.asarray(one), axis=1, dtype=jnp.uint32) for one in odd]
    order = jnp.lexsort((jnp.arange(len(rows)), *hashes))
    differs = jnp.any(rows[order[1:]] != rows[order[:-1]], axis=1)
    starts = jnp.concatenate([jnp.ones(1, bool), differs])
    begins = jax.lax.cummax(jnp.where(starts, jnp.arange(len(rows)), 0))
    return jnp.zeros(len(rows), jnp.int32).at[order].set(order[begins].astype(jnp.int32))


def update_tally(
    tally: Tally | None, observation: Observation, action: Action, feedback: Feedback
) -> Tally | None:
    """Add the outcome of a round to a tally, if there is one."""
    if tally is None:
        return None
    size, servers = observation.problem.assortment_size, observation.problem.num_servers
    row = tally.locate(observation.queue.row[action.slot])
    chosen = mnl.mark_choice(action.servers, feedback.choice, servers)
    failed = mnl.mark_servers(action.answering_servers, servers) & (feedback.choice == size)
    return tally._replace(
        accepted=tally.accepted.at[row].add(chosen & feedback.valid),
        failed=tally.failed.at[row].add(failed & feedback.valid),
    )


def revise_utilities(
    retry: Retry, utilities: Array, observation: Observation, tally: Tally | None,
    precision: Array | float,
) -> Array:  # fmt: skip
    """Return the utilities of every slot and server, given earlier outcomes: [C, N]."""
    queue = observation.queue
    if retry in ("recall", "cache"):
        assert tally is not None, "recall and cache have a tally"
        place = tally.locate(queue.row)
        accepted, failed = tally.accepted[place], tally.failed[place]
        if retry == "cache":
            return utilities + CACHED * (accepted > 0)
        return condition_on_outcomes(utilities, accepted, failed, precision)
    if retry == "posterior":
        failed = read_offer_counts(queue).astype(utilities.dtype)
        return condition_on_outcomes(utilities, jnp.zeros_like(failed), failed, precision)
    return utilities


def condition_on_outcomes(
    utilities: Array, accepted: Array, failed: Array, precision: Array | float
) -> Array:
    """Return utilities given the outcomes of the same query, or of the same prompt.

    A beta-binomial random effect models what the features miss: a server of utility u satisfies the
    users of a prompt with a probability drawn once from a Beta distribution of mean
    m = e^u / (1 + e^u) and precision s. Given a, the number of acceptances, and f, of failures, its
    mean is (m s + a) / (s + a + f), with log-odds

        u + log(1 + a (1 + e^-u) / s) - log(1 + f (1 + e^u) / s).

    An infinite precision is the paper's model. With a precision near zero, a server that failed has
    a probability near zero unless it was accepted before. Rounds in which the user chose another
    server than j are not counted. In the other rounds the user chose j with log-odds u_j, whatever
    else was offered (independence of irrelevant alternatives).

    Args:
        utilities: [..., N] u.
        accepted: [..., N] a.
        failed: [..., N] f.
        precision: [] s, in attempts.

    Returns:
        [..., N].
    """
    up = jnp.log(accepted / precision) + jnp.logaddexp(0.0, -utilities)
    down = jnp.log(failed / precision) + jnp.logaddexp(0.0, utilities)
    return utilities + jnp.logaddexp(0.0, up) - jnp.logaddexp(0.0, down)


def next_assortment(utilities: Array, offers: Array, size: int) -> list[Array]:
    """Return the assortment of `fallback`: servers offered less often come first, then better ones.

    With K = 1 this is the n-th best server at a query's n-th attempt. With K > 1 it is the best K
    servers not yet offered. If fewer than K are left, it is these and the best of the others. When
    all servers have been offered, the order starts again.

    Args:
        utilities: [..., N].
        offers: [..., N] int32, how often each server was offered to the query.
        size: K.

    Returns:
        K arrays [...] int32; ties go to lower numbers.
    """
    numbers = jnp.arange(utilities.shape[-1], dtype=jnp.int32)
    chosen, left = [], jnp.ones(utilities.shape, bool)
    for _ in range(size):
        fewest = -linalg.maximum(jnp.where(left, -offers, jnp.iinfo(jnp.int32).min), axis=-1)
        first = left & (offers == fewest[..., None])
        server = linalg.first_argmax(jnp.where(first, utilities, -jnp.inf))
        chosen.append(server)
        left &= numbers != server[..., None]
    return chosen


def score_assortment(utilities: Array, servers: list[Array]) -> Array:
    """Return log of the sum of exp(u) over an assortment: [..., N], K times [...] -> [...].

    It orders assortments as R(x, S) does.
    """
    numbers = jnp.arange(utilities.shape[-1], dtype=jnp.int32)
    return functools.reduce(jnp.logaddexp, [
        linalg.maximum(jnp.where(numbers == one[..., None], utilities, -jnp.inf), axis=-1)
        for one in servers
    ])  # fmt: skip


def read_offer_counts(queue: Queue) -> Array:
    """Return the offers of each server to each slot's query: [C, N] int32."""
    assert queue.offer_counts is not None, (
        "the policy must declare needs = Needs(offer_counts=True)"
    )
    return queue.offer_counts
