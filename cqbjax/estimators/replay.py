"""The exact gradient of the shown blocks, by reading the history again: vectors of rounds.

Rounds are the last axis, so that a block of them is read as contiguous vectors and only the final
sum runs across it.
"""

from functools import reduce
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from cqbjax import linalg
from cqbjax.estimators.history import BLOCK, Row, blocks_until
from cqbjax.types import Problem


class Replay(NamedTuple):
    """What was served and chosen, a column a round.

    Attributes:
        features: [d, T'] (disjoint) or [K, d, T'] (shared, of the shown servers).
        servers: [K, T'] int32.
        choice: [T'] int32; -1 where the round had no feedback.
    """

    features: Array
    servers: Array
    choice: Array


def init(problem: Problem) -> Replay:
    """Return an empty history for the whole horizon, rounded up to whole blocks."""
    rounds, size = -(-problem.horizon // BLOCK) * BLOCK, problem.assortment_size
    one = (problem.dim,) if problem.parameters == "disjoint" else (size, problem.dim)
    return Replay(
        jnp.zeros((*one, rounds)),
        jnp.zeros((size, rounds), jnp.int32),
        jnp.full(rounds, -1, jnp.int32),
    )


def append(replay: Replay, new: Row) -> Replay:
    """Write the column of round t."""
    at = new.round - 1

    def put(whole: Array, column: Array) -> Array:
        return jax.lax.dynamic_update_index_in_dim(whole, column, at, whole.ndim - 1)

    choice = jnp.where(new.valid, new.choice, -1)
    return Replay(
        put(replay.features, new.features),
        put(replay.servers, new.servers),
        put(replay.choice, choice),
    )


def gradient(replay: Replay, problem: Problem, theta: Array, lambda0: Array, new: Row) -> Array:
    """Return the gradient of the exact loss of rounds 1 .. t at theta.

    Args:
        replay: the history, round t included.
        problem: shapes.
        theta: [B, d].
        lambda0: [] regularisation.
        new: round t.

    Returns:
        [K, d] for the shown servers' blocks, or [1, d] (shared, and K = 1).
    """
    shared = problem.parameters == "shared"
    pull = _pull_shared if shared else _pull_single if problem.assortment_size == 1 else _pull_pairs
    own = theta if shared else theta[new.servers]

    def add(number: Array, sums: Array) -> Array:
        block = Replay(
            *(
                jax.lax.dynamic_slice_in_dim(part, number * BLOCK, BLOCK, axis=part.ndim - 1)
                for part in replay
            )
        )
        return sums + pull(block, theta, new.servers)

    empty = jnp.zeros((*own.shape, BLOCK))
    sums = jax.lax.fori_loop(0, blocks_until(new.round), add, empty)
    return lambda0 * own + jnp.sum(sums, axis=-1)


def _utilities(theta: Array, features: Array) -> Array:
    """Return theta' x for each round of a block: [..., d], [d, L] -> [..., L]."""
    parts = [theta[..., i, None] * features[i] for i in range(features.shape[0])]
    # exp of more would overflow float32; a probability is 1 long before.
    return jnp.minimum(reduce(jnp.add, parts), 80.0)


def _pull_single(block: Replay, theta: Array, servers: Array) -> Array:
    """Return (p - y) x of the rounds that showed one server, K = 1: [1, d, L]."""
    mine = (block.servers[0] == servers[0]) & (block.choice >= 0)
    p = jax.nn.sigmoid(_utilities(theta[servers[0]], block.features))
    excess = jnp.where(mine, p - (block.choice == 0), 0.0)
    return (excess * block.features)[None]


def _pull_pairs(block: Replay, theta: Array, servers: Array) -> Array:
    """Return (p_j - y_j) x of the rounds that showed each server j of K > 1: [K, d, L]."""
    numbers = jnp.arange(theta.shape[0])[:, None]
    weights = jnp.exp(_utilities(theta, block.features))  # [N, L]
    shown = [(one == numbers) & (block.choice >= 0) for one in block.servers]
    member = linalg.largest(jnp.stack(shown), axis=0)
    weights = jnp.where(member, weights, 0.0)
    p = linalg.settle(weights / (1.0 + linalg.total(weights, axis=0)))
    excess = []
    for server in servers:
        picked = [(one == server) & (block.choice == k) for k, one in enumerate(block.servers)]
        y = linalg.largest(jnp.stack(picked), axis=0)
        excess.append(p[server] - y)
    return jnp.stack(excess)[:, None] * block.features


def _pull_shared(block: Replay, theta: Array, servers: Array) -> Array:
    """Return sum_k (p_k - y_k) x_k of each round: [1, d, L]."""
    del servers
    weights = jnp.exp(jnp.stack([_utilities(theta[0], one) for one in block.features]))
    p = weights / (1.0 + linalg.total(weights, axis=0))
    chosen = jnp.arange(weights.shape[0])[:, None] == block.choice
    excess = jnp.where(block.choice >= 0, p - chosen, 0.0)
    return linalg.total(excess[:, None] * block.features, axis=0)[None]
