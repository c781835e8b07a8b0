"""What a policy does with a query that comes back: the same again, another server, or less hope.

In the paper's algorithms a retry changes nothing but the queue: the prediction x'theta_j of the
servers that failed a query stays as it is, and they are shown to it again. Gateways fall back to
the next model instead (`fallback`), and may keep which model answered a prompt (`cache`). A
statistician would say that a failure tells something of this query beyond its features
(`posterior`), or of its prompt, whoever asks it (`recall`). All are here, for any policy that has
utilities of queries and servers.
"""

import math
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from cqbjax.core import linalg, mnl
from cqbjax.core.inputs import is_number
from cqbjax.core.types import Action, Feedback, Observation, Problem, Queue

Retry = Literal["same", "fallback", "posterior", "recall", "cache"]
RecallBy = Literal["row", "embedding"]

# What an accepted answer adds to a utility in the eyes of a cache: more than utilities differ by.
CACHED = 100.0


def needs_offer_counts(retry: Retry) -> bool:
    """Tell whether a rule needs to know which servers were offered to each waiting query."""
    return retry in ("fallback", "posterior", "cache")


def check_precision(precision: Array | float) -> None:
    """Refuse a precision at which `after_outcomes` is not defined.

    Raises:
        ValueError: naming it and what is allowed.
    """
    if not is_number(precision) or not 0 < float(precision) < math.inf:
        raise ValueError(f"precision={precision} must be a finite number above 0")


class Tally(NamedTuple):
    """What became of every prompt's attempts, whichever query made them.

    Attributes:
        accepted: [I, N] int32, rounds in which the server's answer was chosen.
        failed: [I, N] int32, rounds with it that ended in a retrial.
        place: [I] int32 where each row is counted: with the first row of the same embedding; None:
            each row by itself.
    """

    accepted: Array
    failed: Array
    place: Array | None = None

    def of(self, row: Array) -> Array:
        """Return where rows [...] of the run's table are counted: [...] int32."""
        return row if self.place is None else self.place[row]


def begin(
    retry: Retry, problem: Problem, contexts: Array, by: RecallBy = "row"
) -> Tally | None:  # fmt: skip
    """Return the empty tally of a rule that keeps one, else None.

    Args:
        retry: the rule.
        problem: shapes.
        contexts: [I, ...] the run's table as the policy sees it.
        by: what is remembered: `row`, the prompt; or `embedding`, prompts of equal ones as one.
    """
    if retry not in ("recall", "cache"):
        return None
    zeros = jnp.zeros((problem.num_rows, problem.num_servers), jnp.int32)
    return Tally(zeros, zeros, first_of_equals(contexts) if by == "embedding" else None)


def first_of_equals(contexts: Array) -> Array:
    """Return of each row the number of the first row that is equal: [I, ...] -> [I] int32.

    Rows are sorted by two sums of their bits, so that equals are neighbours: exact arithmetic, in
    which nothing is rounded, and far cheaper than sorting by every feature.
    """
    rows = contexts.reshape(contexts.shape[0], -1)
    bits = jax.lax.bitcast_convert_type(rows.astype(jnp.float32), jnp.uint32)
    odd = np.random.default_rng(0).integers(0, 2**31, (2, rows.shape[1]), np.uint32) * 2 + 1
    mixed = bits ^ (bits >> 15)
    sums = [jnp.sum(mixed * jnp.asarray(own), axis=1, dtype=jnp.uint32) for own in odd]
    order = jnp.lexsort((jnp.arange(len(rows)), *sums))
    ahead = jnp.any(rows[order[1:]] != rows[order[:-1]], axis=1)
    starts = jnp.concatenate([jnp.ones(1, bool), ahead])
    begins = jax.lax.cummax(jnp.where(starts, jnp.arange(len(rows)), 0))
    return jnp.zeros(len(rows), jnp.int32).at[order].set(order[begins].astype(jnp.int32))


def add(
    tally: Tally | None, observation: Observation, action: Action, feedback: Feedback
) -> Tally | None:
    """Add a round to a tally, if there is one."""
    if tally is None:
        return None
    size, servers = observation.problem.assortment_size, observation.problem.num_servers
    row = tally.of(observation.queue.row[action.slot])
    chosen = mnl.mark_choice(action.servers, feedback.choice, servers)
    failed = mnl.mark_servers(action.answering_servers, servers) & (feedback.choice == size)
    return tally._replace(
        accepted=tally.accepted.at[row].add(chosen & feedback.valid),
        failed=tally.failed.at[row].add(failed & feedback.valid),
    )


def revised(
    retry: Retry, utilities: Array, observation: Observation, tally: Tally | None,
    precision: Array | float,
) -> Array:  # fmt: skip
    """Return the utilities of every slot and server given what its attempts showed: [C, N]."""
    queue = observation.queue
    if retry in ("recall", "cache"):
        assert tally is not None, "a rule that recalls keeps a tally"
        place = tally.of(queue.row)
        accepted, failed = tally.accepted[place], tally.failed[place]
        if retry == "cache":
            return utilities + CACHED * (accepted > 0)
        return after_outcomes(utilities, accepted, failed, precision)
    if retry == "posterior":
        failed = shown_counts(queue).astype(utilities.dtype)
        return after_outcomes(utilities, jnp.zeros_like(failed), failed, precision)
    return utilities


def after_outcomes(
    utilities: Array, accepted: Array, failed: Array, precision: Array | float
) -> Array:
    """Return utilities given what was seen of the same query, or of the same prompt.

    A beta-binomial random effect stands for what the features do not tell: a server of utility u
    satisfies the users of a prompt with a probability drawn once from a Beta distribution of mean
    m = e^u / (1 + e^u) and precision s. After a acceptances and f failures its mean is
    (m s + a) / (s + a + f), whose log-odds are

        u + log(1 + a (1 + e^-u) / s) - log(1 + f (1 + e^u) / s).

    A precision without bound is the paper's model; one near zero all but rules out a server that
    failed. That other servers stood beside it changes nothing: given that the user chose either j
    or none, they chose j with log-odds u_j (independence of irrelevant alternatives), and rounds in
    which another server was chosen are not counted.

    Args:
        utilities: [..., N] u.
        accepted: [..., N] a.
        failed: [..., N] f.
        precision: [] s, how many attempts the prediction is worth.

    Returns:
        [..., N].
    """
    up = jnp.log(accepted / precision) + jnp.logaddexp(0.0, -utilities)
    down = jnp.log(failed / precision) + jnp.logaddexp(0.0, utilities)
    return utilities + jnp.logaddexp(0.0, up) - jnp.logaddexp(0.0, down)


def next_picks(utilities: Array, shown: Array, size: int) -> list[Array]:
    """Return the fallback's assortment: servers shown least often first, the best of them first.

    With K = 1 that is the n-th best server at a query's n-th attempt; with K > 1 the best K not yet
    shown, and once fewer than K are left these and the best of the others. After all servers it
    begins again.

    Args:
        utilities: [..., N].
        shown: [..., N] int32.
        size: K.

    Returns:
        K arrays [...] int32; ties go to lower numbers.
    """
    numbers = jnp.arange(utilities.shape[-1], dtype=jnp.int32)
    picks, left = [], jnp.ones(utilities.shape, bool)
    for _ in range(size):
        fewest = -linalg.maximum(jnp.where(left, -shown, jnp.iinfo(jnp.int32).min), axis=-1)
        first = left & (shown == fewest[..., None])
        pick = linalg.first_argmax(jnp.where(first, utilities, -jnp.inf))
        picks.append(pick)
        left &= numbers != pick[..., None]
    return picks


def score_of_picks(utilities: Array, picks: list[Array]) -> Array:
    """Return log of the sum of exp(u) over an assortment: [..., N], K times [...] -> [...].

    It orders assortments as R(x, S) does.
    """
    numbers = jnp.arange(utilities.shape[-1], dtype=jnp.int32)
    chosen = [
        linalg.maximum(jnp.where(numbers == pick[..., None], utilities, -jnp.inf), axis=-1)
        for pick in picks
    ]
    score = chosen[0]
    for one in chosen[1:]:
        score = jnp.logaddexp(score, one)
    return score


def shown_counts(queue: Queue) -> Array:
    """Return how often each server was shown for each slot's query: [C, N] int32."""
    assert queue.shown is not None, "the policy must declare needs = Needs(offer_counts=True)"
    return queue.shown
