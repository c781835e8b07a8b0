"""What was served and chosen, one row a round."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from cqbjax.core.types import NOBODY, Problem, of_shown

# Rows read at once when the likelihood of K > 1 walks the history (`newton_cg`).
BLOCK = 64


class Row(NamedTuple):
    """One round's observation.

    Attributes:
        round: [] int32 t.
        row: [] int32 table row of the served query.
        features: [d] its context (disjoint) or [K, d] the features of the shown servers (shared).
        servers: [K] int32 the assortment.
        choice: [] int32 position of the chosen server, K for the outside option.
        valid: [] bool False for a round with an empty queue.
        shown: [K] bool which of the servers answered; None: all did. The features of the others
            count for nothing.
    """

    round: Array
    row: Array
    features: Array
    servers: Array
    choice: Array
    valid: Array
    shown: Array | None = None

    @property
    def learns(self) -> Array:
        """Return whose answers are learnt from: [] bool of all servers alike, or [K] bool."""
        return self.valid if self.shown is None else self.valid & self.shown

    def of_shown(self, values: Array, otherwise: float) -> Array:
        """Return values [K, ...] of those who answered, another one of the others."""
        return of_shown(self.shown, values, otherwise)


class History(NamedTuple):
    """Rows addressed by round, so that the write is at the same place in every run of a batch.

    Attributes:
        row: [T'] int32 table rows, T' the horizon rounded up to whole blocks.
        servers: [T', K] int32; -1 in place of one that did not answer.
        choice: [T'] int32; -1 where the round had no feedback.
    """

    row: Array
    servers: Array
    choice: Array


def init(problem: Problem) -> History:
    """Return an empty history for all attempts."""
    rounds = -(-problem.attempts // BLOCK) * BLOCK
    return History(
        jnp.zeros(rounds, jnp.int32),
        jnp.zeros((rounds, problem.assortment_size), jnp.int32),
        jnp.full(rounds, -1, jnp.int32),
    )


def append(history: History, new: Row) -> History:
    """Write the row of round t."""
    at = new.round - 1
    choice, servers = jnp.where(new.valid, new.choice, -1), new.of_shown(new.servers, NOBODY)
    return History(
        jax.lax.dynamic_update_index_in_dim(history.row, new.row, at, 0),
        jax.lax.dynamic_update_index_in_dim(history.servers, servers, at, 0),
        jax.lax.dynamic_update_index_in_dim(history.choice, choice, at, 0),
    )


def block(history: History, number: Array) -> History:
    """Return the rows of one block of `BLOCK` rounds."""
    start = number * BLOCK
    return History(*(jax.lax.dynamic_slice_in_dim(part, start, BLOCK) for part in history))


def blocks_until(round_: Array) -> Array:
    """Return how many blocks hold the rounds 1 .. t."""
    return (round_ + BLOCK - 1) // BLOCK
