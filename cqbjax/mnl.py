"""The multinomial-logit choice model with the outside option as retrial (paper, section 2)."""

import math

import jax
import jax.numpy as jnp
from jax import Array


def choice_probabilities(utilities: Array) -> Array:
    """Return p_j(x, S) = exp(u_j) / (1 + sum_S exp(u)) for every server of one assortment.

    Args:
        utilities: [..., K] utilities of the assortment's servers.

    Returns:
        [..., K] probabilities; the outside option has the rest.
    """
    top = jnp.maximum(jnp.max(utilities, axis=-1, keepdims=True), 0.0)
    weights = jnp.exp(utilities - top)
    return weights / (jnp.exp(-top) + jnp.sum(weights, axis=-1, keepdims=True))


def departure_rate(utilities: Array) -> Array:
    """Return R(x, S) = sum_S p_j(x, S) of one assortment.

    Args:
        utilities: [..., K].

    Returns:
        [...] probability that the query leaves.
    """
    return jnp.sum(choice_probabilities(utilities), axis=-1)


def best_members(utilities: Array, size: int) -> Array:
    """Mark the assortment of the largest departure rate: the `size` largest utilities.

    R(x, S) grows with the sum of exp(u) over S, so no enumeration is needed. Ties go to the lowest
    server numbers.

    Args:
        utilities: [..., N].
        size: K.

    Returns:
        [..., N] bool, exactly K of them true.
    """
    numbers = jnp.arange(utilities.shape[-1])
    members = jnp.zeros(utilities.shape, bool)
    for _ in range(size):
        best = jnp.argmax(jnp.where(members, -jnp.inf, utilities), axis=-1, keepdims=True)
        members = members | (numbers == best)
    return members


def best_score(utilities: Array, size: int) -> Array:
    """Return log of the largest sum of exp(u) over K servers, which orders queries as max_S R does.

    Args:
        utilities: [..., N].
        size: K.

    Returns:
        [...] log-sum-exp of the K largest utilities.
    """
    if size == 1:
        return jnp.max(utilities, axis=-1)
    if size == utilities.shape[-1]:
        return jax.nn.logsumexp(utilities, axis=-1)
    return jax.nn.logsumexp(jnp.where(best_members(utilities, size), utilities, -jnp.inf), axis=-1)


def members_to_servers(members: Array, size: int) -> Array:
    """List the marked servers in increasing order.

    Args:
        members: [N] bool with exactly K true.
        size: K.

    Returns:
        [K] int32.
    """
    order = jnp.cumsum(members)
    return jnp.stack([jnp.argmax(order == k + 1) for k in range(size)]).astype(jnp.int32)


def best_servers(utilities: Array, size: int) -> Array:
    """Return the assortment of the largest departure rate as [K] increasing server numbers."""
    if size == 1:
        return jnp.argmax(utilities, axis=-1, keepdims=True).astype(jnp.int32)
    return members_to_servers(best_members(utilities, size), size)


def num_assortments(num_servers: int, size: int) -> int:
    """Return |C|, the number of K-subsets of N servers."""
    return math.comb(num_servers, size)


def unrank_assortment(rank: Array, num_servers: int, size: int) -> Array:
    """Return the K-subset with this number in lexicographic order, without storing the list.

    Args:
        rank: [] int32 in 0 .. |C| - 1.
        num_servers: N.
        size: K.

    Returns:
        [K] int32 increasing server numbers.
    """
    numbers = jnp.arange(num_servers)
    servers: list[Array] = []
    for k in range(size):
        # How many subsets start with each next server, once the first k are fixed.
        starts = jnp.asarray(
            [math.comb(num_servers - 1 - j, size - 1 - k) for j in range(num_servers)], jnp.int32
        )
        if servers:
            starts = jnp.where(numbers > servers[-1], starts, 0)
        upto = jnp.cumsum(starts)
        server = jnp.argmax(upto > rank).astype(jnp.int32)
        rank = rank - (upto[server] - starts[server])
        servers.append(server)
    return jnp.stack(servers)


def choose(uniform: Array, utilities: Array) -> Array:
    """Draw the user's choice by the paper's coupling: walk the cumulative p_j in server order.

    Args:
        uniform: [] U in [0, 1), shared by all policies of a round.
        utilities: [K] true utilities of the assortment, servers increasing.

    Returns:
        [] int32 position of the chosen server; K is the outside option (a retrial).
    """
    reached = jnp.cumsum(choice_probabilities(utilities))
    return jnp.sum(uniform > reached).astype(jnp.int32)


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
