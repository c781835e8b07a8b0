"""The belief over a table: whitened contexts of each server, without any d x d matrix.

With W W' = V^-1, a run over I contexts needs W only through the whitened table S = X W [I, d]. A
sampled utility is a row of S times a normal vector. A new row x changes V by rank one and S by

    S <- S - f (S w) w',  w = W'x (a row of S),  f = (1 - 1/sqrt(1 + |w|^2)) / |w|^2.

In the whitened coordinates phi = W^-1 theta, gradient, Hessian and preconditioner of the likelihood
are products with S (`newton_cg`). A round reads the tables of the K offered servers and the rows of
the waiting queries, not N d^2 numbers.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from cqbjax.core import linalg, mnl, platforms, queueing
from cqbjax.core.types import NO_SERVER, Observation, Problem, mask_unoffered
from cqbjax.estimation import gaussian, newton_cg, table_history, whitened_kernel
from cqbjax.estimation.belief import Interaction
from cqbjax.estimation.newton_cg import RankOneUpdate
from cqbjax.estimation.table_history import TableHistory
from cqbjax.estimation.whitened_tables import CopiedTables, TablesInPlace, WhitenedTables

# Up to this many samples are multiplied with a row as it is read; more justify a copy of the rows.
FEW_SAMPLES = 4


class TableBeliefState(NamedTuple):
    """Posterior and estimate of every server over the table.

    Attributes:
        table: [N, I, d] S_j = X W_j.
        num_updates: [N] float, number of updates of each server.
        phi: [N, d] estimates in whitened coordinates, theta_j = W_j phi_j.
        scores: [N, I] utilities, X theta_j + offset.
        offset: [N, I] known part of the utilities; None: zero.
        record: the history as the likelihood needs it.
    """

    table: Array
    num_updates: Array
    phi: Array
    scores: Array
    offset: Array | None
    record: TableHistory


@dataclasses.dataclass(frozen=True)
class TableBelief:
    """The belief over a table (`Belief`), estimated by `newton_cg`.

    Attributes:
        problem: shapes; parameters must be disjoint.
        exact_steps: 0 for the steps of `newton_cg`, n > 0 for n exact Newton steps.
    """

    problem: Problem
    exact_steps: int = 0

    least_lambda0 = 0.0

    def init(
        self, contexts: Array, lambda0: Array, offset: Array | None = None
    ) -> TableBeliefState:
        """Return V = lambda0 I, theta = 0 and the offset as utilities."""
        servers, rows = self.problem.num_servers, self.problem.num_rows
        table = contexts / jnp.sqrt(lambda0)
        known = None if offset is None else jnp.asarray(offset, table.dtype).T
        return TableBeliefState(
            jnp.broadcast_to(table, (servers, *table.shape)),
            jnp.zeros(servers),
            jnp.zeros((servers, self.problem.dim)),
            jnp.zeros((servers, rows)) if known is None else known,
            known,
            table_history.init(self.problem),
        )

    def num_updates(self, state: TableBeliefState) -> Array:
        """Return the number of updates of each server: [N]."""
        return state.num_updates

    def theta(self, state: TableBeliefState, contexts: Array) -> Array:
        """Return the estimates in the coordinates of the contexts: [..., N, d].

        theta lies in the span of the contexts, so it is the least-squares solution of
        X theta + offset = scores. For tests and notebooks; a run does not need it.
        """
        learnt = state.scores if state.offset is None else state.scores - state.offset
        return learnt @ jnp.linalg.pinv(contexts).T

    def optimistic_utilities(
        self, state: TableBeliefState, observation: Observation, alpha: Array,
        normal: Array | None = None,
    ) -> Array:  # fmt: skip
        """Return the largest sampled utilities or the upper confidence bounds: [C, N].

        Slots past the last waiting query are zero.
        """
        if normal is None:  # ||x||_{V^-1} = |W'x|
            return _add_bonus(
                state, observation, alpha, functools.partial(jnp.linalg.norm, axis=-1)
            )
        columns = linalg.add_barrier(normal.transpose(1, 2, 0))

        def largest(rows: Array) -> Array:
            if platforms.get_current().fused and len(normal) <= FEW_SAMPLES:
                return jnp.max(linalg.sum_terms([rows * z[:, None] for z in normal]), axis=0)
            return jnp.max(rows @ columns, axis=-1)

        return _add_bonus(state, observation, alpha, largest)

    def update(self, state: TableBeliefState, new: Interaction) -> TableBeliefState:
        """Add one interaction: to the tables of the offered servers, then to their estimates."""
        record = table_history.append(state.record, new)
        answered = mnl.mark_servers(
            mask_unoffered(new.offered, new.servers, NO_SERVER), self.problem.num_servers
        )
        state = state._replace(num_updates=state.num_updates + (answered & new.valid))
        if whitened_kernel.is_available():
            return self._update_in_place(state, new, record)
        servers = new.servers
        # Copied once, and read from there.
        stale = linalg.force_barrier(tuple(
            jax.lax.dynamic_index_in_dim(state.table, one, keepdims=False) for one in servers
        ))  # fmt: skip

        def learn(stale: tuple[Array, ...], phi: Array, scores: Array) -> tuple[Array, ...]:
            rows = [table[new.row] for table in stale]
            if new.offered is not None:
                rows = list(mask_unoffered(new.offered, jnp.stack(rows), 0.0))
            along = [table @ one for table, one in zip(stale, rows, strict=True)]
            added = _add_context(rows, along, phi)
            tables = CopiedTables(stale, added.along, added.row)
            offered = self._newton_steps(state, new, record, tables, added, scores)
            return added.along, added.row, offered.phi, offered.scores

        # The branch keeps XLA from reading the tables again after they were overwritten, which
        # would cost a copy of all of them each round.
        before = state.phi[servers], state.scores[servers]
        along, row, *after = jax.lax.cond(
            new.valid,
            learn,
            lambda _, phi, scores: (jnp.zeros_like(scores), jnp.zeros_like(phi), phi, scores),
            stale,
            *before,
        )
        table, phi, scores = state.table, state.phi, state.scores
        for k, server in enumerate(servers):
            # Slices are written in place one after another; one scatter of K copies every table.
            changed = stale[k] - jnp.outer(along[k], row[k])
            table = jax.lax.dynamic_update_index_in_dim(table, changed, server, 0)
            phi = jax.lax.dynamic_update_index_in_dim(phi, after[0][k], server, 0)
            scores = jax.lax.dynamic_update_index_in_dim(scores, after[1][k], server, 0)
        return state._replace(table=table, phi=phi, scores=scores, record=record)

    def _newton_steps(
        self, state: TableBeliefState, new: Interaction, record: TableHistory,
        tables: WhitenedTables, added: RankOneUpdate, scores: Array,
    ) -> newton_cg.ServerEstimates:  # fmt: skip
        known = None if state.offset is None else state.offset[new.servers]
        return newton_cg.update(
            newton_cg.ServerEstimates(tables, added.phi, scores, known),
            added, state.scores, record, self.problem, new, self.exact_steps,
        )  # fmt: skip

    def _update_in_place(
        self, state: TableBeliefState, new: Interaction, record: TableHistory
    ) -> TableBeliefState:
        """Add one interaction with the tables changed in place; an invalid one adds zero."""
        servers, valid = new.servers, new.valid
        phi, scores = state.phi[servers], state.scores[servers]
        # Held, or XLA reads it again after the tables are changed and copies all of them for that.
        rows = mask_unoffered(new.offered, linalg.force_barrier(state.table[servers, new.row]), 0.0)
        along = TablesInPlace(state.table, servers).push(rows)
        added = _add_context(list(rows), list(along), phi)
        change = jnp.where(valid, added.along, 0.0), added.row
        tables = TablesInPlace(state.table, servers, change)
        offered = self._newton_steps(state, new, record, tables, added, scores)
        assert isinstance(offered.tables, TablesInPlace)
        return state._replace(
            table=offered.tables.write().table,
            phi=state.phi.at[servers].set(jnp.where(valid, offered.phi, phi)),
            scores=state.scores.at[servers].set(jnp.where(valid, offered.scores, scores)),
            record=record,
        )


def _add_bonus(
    state: TableBeliefState, observation: Observation, alpha: Array, bonus: Callable[[Array], Array]
) -> Array:
    """Return scores + alpha * bonus(rows of the tables) for the slots in use: [C, N]."""
    queue, servers = observation.queue, observation.problem.num_servers
    slots = queue.row.shape[0]
    # The queue is read up to its last waiting query, this many slots at a time.
    together = min(platforms.get_current().slots, slots)
    blocks = -(-slots // together)
    rows = queue.row
    if platforms.get_current().fused:
        # Free slots all read one row, which stays in the caches: a batch loops over its longest
        # queue, and shorter queues then cost almost no memory traffic.
        rows = jnp.where(queueing.mark_waiting(queue), rows, 0)
    rows = jnp.pad(rows, (0, blocks * together - slots))
    last = jnp.max(jnp.where(queueing.mark_waiting(queue), jnp.arange(slots) + 1, 0))

    def score(number: Array, values: Array) -> Array:
        here = jax.lax.dynamic_slice(rows, (number * together,), (together,))
        value = state.scores[:, here] + alpha[:, None] * bonus(state.table[:, here])
        return jax.lax.dynamic_update_slice(values, value.T, (number * together, 0))

    empty = jnp.zeros((blocks * together, servers), state.scores.dtype)
    return jax.lax.fori_loop(0, (last + together - 1) // together, score, empty)[:slots]


def _add_context(rows: list[Array], along: list[Array], phi: Array) -> RankOneUpdate:
    """Add one context to V of the offered servers.

    Args:
        rows: K times w [d], the context's row of each table before the round.
        along: K times S w [I].
        phi: [K, d] before the round.
    """
    changes, phis, pushed = [], [], []
    for row, moved, before in zip(rows, along, phi, strict=True):
        size = jnp.sum(row**2)
        grown, factor = jnp.sqrt(1.0 + size), gaussian.shrinkage(size)
        changes.append(factor * moved)
        # phi = W^-1 theta: (I - f w w')^-1 = I + f sqrt(1+s) w w'.
        phis.append(before + factor * grown * jnp.sum(row * before) * row)
        pushed.append(moved / grown)
    return RankOneUpdate(jnp.stack(changes), jnp.stack(rows), jnp.stack(phis), jnp.stack(pushed))
