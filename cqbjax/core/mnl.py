"""The multinomial-logit choice model with the outside option as retrial (paper, section 2)."""

import itertools
import math

import jax.numpy as jnp
import numpy as np
from jax import Array

from cqbjax.core import linalg

# The most assortments that a mean over assortments takes; of more it takes a random sample.
SOME_ASSORTMENTS = 64


def choice_probabilities(utilities: Array) -> Array:
    """Return p_j(x, S) = exp(u_j) / (1 + sum_S exp(u)) for every server of one assortment.

    Args:
        utilities: [..., K] utilities of the assortment's servers.

    Returns:
        [..., K] probabilities; the outside option has the rest.
    """
    top = jnp.maximum(linalg.maximum(utilities, axis=-1), 0.0)[..., None]
    weights = jnp.exp(utilities - top)
    return weights / (jnp.exp(-top) + linalg.total(weights, axis=-1)[..., None])


def departure_rate(utilities: Array) -> Array:
    """Return R(x, S) = sum_S p_j(x, S) of one assortment.

    Args:
        utilities: [..., K].

    Returns:
        [...] probability that the query departs.
    """
    return linalg.total(choice_probabilities(utilities), axis=-1)


def best_picks(utilities: Array, size: int) -> list[Array]:
    """Return the positions of the `size` largest utilities, in descending order of utility.

    In a tie, the server with the lower number comes first.

    Args:
        utilities: [..., N].
        size: K.

    Returns:
        K arrays [...] int32.
    """
    numbers = jnp.arange(utilities.shape[-1], dtype=jnp.int32)
    picks = []
    for _ in range(size):
        pick = linalg.first_argmax(utilities)
        picks.append(pick)
        utilities = jnp.where(numbers == pick[..., None], -jnp.inf, utilities)
    return picks


def best_score(utilities: Array, size: int) -> Array:
    """Return the log of the largest sum of exp(u) over K servers; it ranks queries as max_S R does.

    R(x, S) grows with the sum of exp(u) over S, so the best S holds the K largest utilities and no
    enumeration is needed.

    Args:
        utilities: [..., N].
        size: K.

    Returns:
        [...] log-sum-exp of the K largest utilities.
    """
    top = linalg.maximum(utilities, axis=-1)
    if size == 1:
        return top
    numbers = jnp.arange(utilities.shape[-1], dtype=jnp.int32)
    weights, rest = jnp.ones_like(top), utilities
    for _ in range(size - 1):
        rest = jnp.where(numbers == linalg.first_argmax(rest)[..., None], -jnp.inf, rest)
        weights = weights + jnp.exp(linalg.maximum(rest, axis=-1) - top)
    return top + jnp.log(weights)


def best_servers(utilities: Array, size: int) -> Array:
    """Return the assortment with the largest departure rate: [K] increasing server numbers."""
    return sort_picks(best_picks(utilities, size))


def sort_picks(picks: list[Array]) -> Array:
    """Sort K distinct numbers by exchanging neighbours: K is small and static.

    Args:
        picks: K arrays [...].

    Returns:
        [..., K].
    """
    picks = list(picks)
    for last in range(len(picks) - 1, 0, -1):
        for i in range(last):
            low = jnp.minimum(picks[i], picks[i + 1])
            picks[i], picks[i + 1] = low, jnp.maximum(picks[i], picks[i + 1])
    return jnp.stack(picks, axis=-1)


def mark_servers(servers: Array, num_servers: int) -> Array:
    """Mark the servers that an assortment [K] shows: [N] bool."""
    return jnp.any(servers[:, None] == jnp.arange(num_servers), axis=0)


def mark_choice(servers: Array, choice: Array, num_servers: int) -> Array:
    """Mark the chosen server of an assortment: [N] bool, all False for a retrial.

    Args:
        servers: [K] int32 the assortment.
        choice: [] int32 position in the assortment, K for the outside option.
        num_servers: N.
    """
    here = jnp.arange(servers.shape[0]) == choice
    return mark_servers(jnp.where(here, servers, -1), num_servers)


def num_assortments(num_servers: int, size: int) -> int:
    """Return |C|, the number of K-subsets of N servers."""
    return math.comb(num_servers, size)


def mean_departure_rate(utilities: np.ndarray, size: int) -> np.ndarray:
    """Return the mean of R(x, S) over assortments S, on the host.

    If there are more than `SOME_ASSORTMENTS` assortments, the mean is over a fixed random sample.

    Args:
        utilities: [..., N].
        size: K.

    Returns:
        [...] probability that a query departs when it is shown a uniformly random assortment.
    """
    servers = utilities.shape[-1]
    if num_assortments(servers, size) <= SOME_ASSORTMENTS:
        mark_choice = [list(one) for one in itertools.combinations(range(servers), size)]
    else:
        draws = np.random.default_rng(0)
        mark_choice = [list(draws.permutation(servers)[:size]) for _ in range(SOME_ASSORTMENTS)]
    # Beyond e^700 a sum could overflow; the rate is 1 to the last bit long before.
    weights = np.exp(np.minimum(np.asarray(utilities, float), 700.0))
    mean = np.zeros(utilities.shape[:-1])
    for assortment in mark_choice:
        together = weights[..., assortment].sum(axis=-1)
        mean += together / (1.0 + together) / len(mark_choice)
    return mean


def unrank_assortment(rank: Array, num_servers: int, size: int) -> Array:
    """Return the K-subset with this number in lexicographic order, without storing the list.

    Args:
        rank: [] int32 in 0 .. |C| - 1.
        num_servers: N.
        size: K.

    Returns:
        [K] int32 increasing server numbers.
    """
    if size == 1:
        return rank[None].astype(jnp.int32)
    numbers = jnp.arange(num_servers)
    last, servers = jnp.int32(-1), []
    for k in range(size):
        # after[j + 1]: how many ways to choose the servers k, k+1, ... all beyond j.
        after = jnp.asarray(
            [math.comb(num_servers - 1 - j, size - k) for j in range(-1, num_servers)], jnp.int32
        )
        passed = (numbers <= last) | (after[last + 1] - after[1:] <= rank)
        server = jnp.sum(passed, dtype=jnp.int32)
        rank = rank - (after[last + 1] - after[server])
        last = server
        servers.append(server)
    return jnp.stack(servers)


def choose(uniform: Array, utilities: Array) -> Array:
    """Draw the user's choice by the paper's coupling: walk the cumulative p_j in server order.

    An alternative with probability 0 is never chosen, even if U is exactly 0.

    Args:
        uniform: [] U in [0, 1), shared by all policies in a round.
        utilities: [K] true utilities of the assortment, servers increasing.

    Returns:
        [] int32 position of the chosen server; K is the outside option (a retrial).
    """
    p = choice_probabilities(utilities)
    uniform = jnp.maximum(uniform, jnp.finfo(p.dtype).tiny)
    reached, choice = jnp.zeros_like(p[0]), jnp.int32(0)
    for k in range(p.shape[0]):
        reached = reached + p[k]
        choice = choice + (uniform > reached)
    return choice


def curvature_columns(probabilities: Array) -> Array:
    """Factor the Hessian of one choice, diag(p) - p p' = L L', in closed form.

    With q_k = 1 - p_1 - ... - p_k, L_kk = sqrt(p_k q_k / q_{k-1}) and
    L_ik = -p_i sqrt(p_k / (q_k q_{k-1})) for i > k.

    Args:
        probabilities: [K] with a sum below one.

    Returns:
        [K, K] lower-triangular L.
    """
    size = probabilities.shape[0]
    rest = jnp.maximum(1.0 - jnp.cumsum(probabilities), jnp.finfo(probabilities.dtype).tiny)
    before = jnp.concatenate([jnp.ones_like(rest[:1]), rest[:-1]])
    diagonal = jnp.sqrt(probabilities * rest / before)
    below = -probabilities[:, None] * jnp.sqrt(probabilities / (rest * before))[None, :]
    row, column = jnp.arange(size)[:, None], jnp.arange(size)[None, :]
    return jnp.where(row == column, diagonal[None, :], jnp.where(row > column, below, 0.0))
