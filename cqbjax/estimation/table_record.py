"""The history as the likelihood over a table needs it: counts for each server and table row.

How often a server was shown and chosen for a row is all that K = 1 needs. With more, a choice
probability depends on who was shown beside it: K = 2 counts pairs, K > 2 walks the rounds.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from cqbjax.core import mnl
from cqbjax.core.types import DOWN, Problem
from cqbjax.estimation import rows as past
from cqbjax.estimation.rows import History, Row


class Record(NamedTuple):
    """The history as the likelihood needs it.

    Attributes:
        shown: [N, I] float, how often the server was shown for the table row.
        accepted: [N, I] float, how often its answer was chosen.
        company: who was shown beside it. K = 1: nothing; K = 2: [N, N, I] float, how often the two
            were shown for the row, a server with itself where it was shown alone; K > 2: every
            round in turn.
    """

    shown: Array
    accepted: Array
    company: Array | History | None


def init(problem: Problem) -> Record:
    """Return the record of no round."""
    servers, rows = problem.num_servers, problem.num_rows
    zeros = jnp.zeros((servers, rows))
    if problem.assortment_size == 1:
        return Record(zeros, zeros, None)
    if problem.assortment_size == 2:
        return Record(zeros, zeros, jnp.zeros((servers, servers, rows)))
    return Record(zeros, zeros, past.init(problem))


def append(record: Record, new: Row) -> Record:
    """Record a round."""
    shown, accepted, company = record
    size = len(new.servers)
    one = jnp.where(new.valid, 1.0, 0.0).astype(shown.dtype)
    for k, server in enumerate(new.servers):
        each = one if new.shown is None else one * new.shown[k]
        shown = shown.at[server, new.row].add(each)
    chosen = new.servers[jnp.minimum(new.choice, size - 1)]
    accepted = accepted.at[chosen, new.row].add(jnp.where(new.choice < size, one, 0.0))
    if isinstance(company, History):
        company = past.append(company, new)
    elif company is not None:
        first, second = new.servers
        if new.shown is not None:
            alone = jnp.where(new.shown[0], first, second)
            single = one * ~jnp.all(new.shown)
            company, one = company.at[alone, alone, new.row].add(single), one - single
        company = company.at[first, second, new.row].add(one).at[second, first, new.row].add(one)
    return Record(shown, accepted, company)


def sums_of(
    own: Array, scores: Array, record: Record, problem: Problem, new: Row
) -> tuple[Array, Array]:
    """Sum residual and curvature of the shown servers over each table row's rounds.

    Returns:
        residual [K, I], the sum of p_j - y_j, and curvature [K, K, I], the sum of the entries of
        diag(p) - p p' between the shown servers.
    """
    shown, accepted = record.shown[new.servers], record.accepted[new.servers]
    if record.company is None:
        p = jax.nn.sigmoid(own)
        return shown * p - accepted, (shown * p * (1.0 - p))[None]
    scores = scores.at[new.servers].set(own)
    if isinstance(record.company, History):
        mass, curvature = _history_sums(record.company, scores, problem, new)
    else:
        mass, curvature = _pair_sums(record.company[new.servers], scores, own, new)
    return mass - accepted, curvature


def _pair_sums(together: Array, scores: Array, own: Array, new: Row) -> tuple[Array, Array]:
    """Sum p and curvature of the two shown servers over all their pairs, the whole table at once.

    Args:
        together: [2, N, I] how often each was shown with each other server.
        scores: [N, I] utilities.
        own: [2, I] those of the two.
        new: the round's row.

    Returns:
        [2, I] and [2, 2, I].
    """
    # An infinite exponential is a probability of zero.
    rivals = jnp.exp(scores - own[:, None])
    if new.shown is not None:
        # Who was shown alone had no rival.
        oneself = new.servers[:, None] == jnp.arange(len(scores))
        rivals = jnp.where(oneself[:, :, None], 0.0, rivals)
    p = 1.0 / (1.0 + jnp.exp(-own)[:, None] + rivals)
    mass = jnp.sum(together * p, axis=1)
    diagonal = jnp.sum(together * p * (1.0 - p), axis=1)
    first, second = new.servers
    cross = -together[0, second] * p[0, second] * p[1, first]
    return mass, jnp.stack([jnp.stack([diagonal[0], cross]), jnp.stack([cross, diagonal[1]])])


def _history_sums(
    history: History, scores: Array, problem: Problem, new: Row
) -> tuple[Array, Array]:
    """Walk the history in blocks and scatter each row's p and curvature to its table row.

    Returns:
        [K, I] and [K, K, I].
    """
    size, table_rows = problem.assortment_size, problem.num_rows

    def add(number: Array, sums: tuple[Array, Array]) -> tuple[Array, Array]:
        rows = past.block(history, number)
        utilities = scores[rows.servers, rows.row[:, None]]
        if new.shown is not None:
            utilities = jnp.where(rows.servers >= 0, utilities, DOWN)
        p = mnl.choice_probabilities(utilities)
        match = rows.servers[None] == new.servers[:, None, None]
        match &= (rows.choice >= 0)[:, None]
        own = jnp.sum(jnp.where(match, p, 0.0), axis=-1)  # [K, L], p of each shown server
        curvature = jnp.eye(size)[:, :, None] * own - own[:, None] * own[None, :]
        return sums[0].at[:, rows.row].add(own), sums[1].at[:, :, rows.row].add(curvature)

    zeros = jnp.zeros((size, table_rows)), jnp.zeros((size, size, table_rows))
    return jax.lax.fori_loop(0, past.blocks_until(new.round), add, zeros)
