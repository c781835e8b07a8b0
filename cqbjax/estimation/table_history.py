"""The history as the likelihood over a table needs it: counts for each server and table row.

K = 1 needs only how often a server was offered and chosen for a row. With K > 1 the choice
probability also depends on the other servers: K = 2 counts pairs, K > 2 keeps all rounds.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from cqbjax.core import mnl
from cqbjax.core.types import DOWN_UTILITY, NO_SERVER, Problem, mask_unoffered
from cqbjax.estimation.belief import Interaction

# Rounds read at once when the likelihood of K > 2 walks the history.
BLOCK = 64


class RoundHistory(NamedTuple):
    """Interactions by round, so that each run of a batch writes at the same position.

    Attributes:
        row: [T'] int32 table rows, T' the horizon rounded up to whole blocks.
        servers: [T', K] int32; -1 in place of a server that did not answer.
        choice: [T'] int32; -1 in a round without feedback.
    """

    row: Array
    servers: Array
    choice: Array


class TableHistory(NamedTuple):
    """Offers and choices by server and table row.

    Attributes:
        offered: [N, I] float, how often the server was offered for the table row.
        accepted: [N, I] float, how often its answer was chosen.
        pairs: the servers offered together. K = 1: None; K = 2: [N, N, I] float, how often the two
            were offered for the row, a server with itself where it was offered alone; K > 2: all
            rounds.
    """

    offered: Array
    accepted: Array
    pairs: Array | RoundHistory | None


def init(problem: Problem) -> TableHistory:
    """Return an empty history."""
    servers, size = problem.num_servers, problem.assortment_size
    zeros = jnp.zeros((servers, problem.num_rows))
    pairs: Array | RoundHistory | None = None
    if size == 2:
        pairs = jnp.zeros((servers, servers, problem.num_rows))
    elif size > 2:
        rounds = -(-problem.attempts // BLOCK) * BLOCK
        no_rows, no_choices = jnp.zeros(rounds, jnp.int32), jnp.full(rounds, -1, jnp.int32)
        pairs = RoundHistory(no_rows, jnp.zeros((rounds, size), jnp.int32), no_choices)
    return TableHistory(zeros, zeros, pairs)


def append(record: TableHistory, new: Interaction) -> TableHistory:
    """Add an interaction."""
    offered, accepted, pairs = record
    size = len(new.servers)
    one = jnp.where(new.valid, 1.0, 0.0).astype(offered.dtype)
    for k, server in enumerate(new.servers):
        each = one if new.offered is None else one * new.offered[k]
        offered = offered.at[server, new.row].add(each)
    chosen = new.servers[jnp.minimum(new.choice, size - 1)]
    accepted = accepted.at[chosen, new.row].add(jnp.where(new.choice < size, one, 0.0))
    if isinstance(pairs, RoundHistory):
        choice = jnp.where(new.valid, new.choice, -1)
        servers = mask_unoffered(new.offered, new.servers, NO_SERVER)
        pairs = RoundHistory(*(
            jax.lax.dynamic_update_index_in_dim(old, one, new.round - 1, 0)
            for old, one in zip(pairs, (new.row, servers, choice), strict=True)
        ))  # fmt: skip
    elif pairs is not None:
        first, second = new.servers
        if new.offered is not None:
            alone = jnp.where(new.offered[0], first, second)
            single = one * ~jnp.all(new.offered)
            pairs, one = pairs.at[alone, alone, new.row].add(single), one - single
        pairs = pairs.at[first, second, new.row].add(one).at[second, first, new.row].add(one)
    return TableHistory(offered, accepted, pairs)


def sum_residuals(
    own: Array, scores: Array, record: TableHistory, problem: Problem, new: Interaction
) -> tuple[Array, Array]:
    """Sum residual and curvature of the offered servers over the rounds of each table row.

    Returns:
        residual [K, I], the sum of p_j - y_j, and curvature [K, K, I], the sum of the entries of
        diag(p) - p p' between the offered servers.
    """
    offered, accepted = record.offered[new.servers], record.accepted[new.servers]
    if record.pairs is None:
        p = jax.nn.sigmoid(own)
        return offered * p - accepted, (offered * p * (1.0 - p))[None]
    scores = scores.at[new.servers].set(own)
    if isinstance(record.pairs, RoundHistory):
        mass, curvature = _history_sums(record.pairs, scores, problem, new)
    else:
        mass, curvature = _pair_sums(record.pairs[new.servers], scores, own, new)
    return mass - accepted, curvature


def _pair_sums(together: Array, scores: Array, own: Array, new: Interaction) -> tuple[Array, Array]:
    """Sum p and curvature of the two offered servers over all their pairs.

    Args:
        together: [2, N, I] how often each was offered with each other server.
        scores: [N, I] utilities.
        own: [2, I] those of the two.
        new: the round's row.

    Returns:
        [2, I] and [2, 2, I].
    """
    # An infinite exponential gives a probability of zero.
    rivals = jnp.exp(scores - own[:, None])
    if new.offered is not None:
        # A server that was offered alone has no rival.
        oneself = new.servers[:, None] == jnp.arange(len(scores))
        rivals = jnp.where(oneself[:, :, None], 0.0, rivals)
    p = 1.0 / (1.0 + jnp.exp(-own)[:, None] + rivals)
    mass = jnp.sum(together * p, axis=1)
    diagonal = jnp.sum(together * p * (1.0 - p), axis=1)
    first, second = new.servers
    cross = -together[0, second] * p[0, second] * p[1, first]
    return mass, jnp.stack([jnp.stack([diagonal[0], cross]), jnp.stack([cross, diagonal[1]])])


def _history_sums(
    history: RoundHistory, scores: Array, problem: Problem, new: Interaction
) -> tuple[Array, Array]:
    """Read the rounds in blocks and add p and curvature of each to its table row.

    Returns:
        [K, I] and [K, K, I].
    """
    size, table_rows = problem.assortment_size, problem.num_rows

    def add(number: Array, sums: tuple[Array, Array]) -> tuple[Array, Array]:
        start = number * BLOCK
        rows = RoundHistory(*(jax.lax.dynamic_slice_in_dim(x, start, BLOCK) for x in history))
        utilities = scores[rows.servers, rows.row[:, None]]
        if new.offered is not None:
            utilities = jnp.where(rows.servers >= 0, utilities, DOWN_UTILITY)
        p = mnl.choice_probabilities(utilities)
        match = rows.servers[None] == new.servers[:, None, None]
        match &= (rows.choice >= 0)[:, None]
        own = jnp.sum(jnp.where(match, p, 0.0), axis=-1)  # [K, L], p of each offered server
        curvature = jnp.eye(size)[:, :, None] * own - own[:, None] * own[None, :]
        return sums[0].at[:, rows.row].add(own), sums[1].at[:, :, rows.row].add(curvature)

    zeros = jnp.zeros((size, table_rows)), jnp.zeros((size, size, table_rows))
    return jax.lax.fori_loop(0, (new.round + BLOCK - 1) // BLOCK, add, zeros)
