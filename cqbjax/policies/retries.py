"""What a policy does with a query that comes back: the same again, another server, or less hope.

In the paper's algorithms a retry changes nothing but the queue: the prediction x'theta_j of the
servers that failed a query stays as it is, and they are shown to it again. Gateways fall back to
the next model instead, and a statistician would say that a failure tells something of this query
beyond its features. Both are here, for any policy that has utilities of queries and servers.
"""

import math
from typing import Literal

import jax.numpy as jnp
from jax import Array

from cqbjax import linalg
from cqbjax.types import Queue

Retry = Literal["same", "fallback", "posterior"]


def is_aware(retry: Retry) -> bool:
    """Tell whether a rule asks which servers were shown for each waiting query."""
    return retry != "same"


def check_precision(precision: Array | float) -> None:
    """Refuse a precision at which `after_failures` is not defined.

    Raises:
        ValueError: naming it and what is allowed.
    """
    wrong = precision is None or isinstance(precision, str | bool)
    if wrong or not 0 < float(precision) < math.inf:
        raise ValueError(f"precision={precision} must be a finite number above 0")


def after_failures(utilities: Array, shown: Array, precision: Array | float) -> Array:
    """Return the utilities of servers that failed a query before: its own posterior.

    A server of utility u satisfies the query with a probability drawn, once for this query and
    server, from a Beta distribution of mean m = e^u / (1 + e^u) and precision s (a beta-binomial
    random effect: what the features do not tell). All that is known of a query that waits is that
    each of the n showings failed, so the mean is now m s / (s + n), whose log-odds are

        u - log(1 + n (1 + e^u) / s).

    A precision without bound is the paper's model, one near zero all but rules a server out once it
    failed. For K > 1 each server of an assortment is held to have failed alone.

    Args:
        utilities: [..., N] u.
        shown: [..., N] int32 n.
        precision: [] s, how many attempts the prediction is worth.

    Returns:
        [..., N].
    """
    hardly = jnp.logaddexp(0.0, utilities)  # log(1 + e^u)
    return utilities - jnp.logaddexp(0.0, jnp.log(shown / precision) + hardly)


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
        fewest = -linalg.largest(jnp.where(left, -shown, jnp.iinfo(jnp.int32).min), axis=-1)
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
        linalg.largest(jnp.where(numbers == pick[..., None], utilities, -jnp.inf), axis=-1)
        for pick in picks
    ]
    score = chosen[0]
    for one in chosen[1:]:
        score = jnp.logaddexp(score, one)
    return score


def shown_counts(queue: Queue) -> Array:
    """Return how often each server was shown for each slot's query: [C, N] int32."""
    assert queue.shown is not None, "the policy must say `retry_aware = True`"
    return queue.shown
