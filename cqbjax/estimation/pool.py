"""Belief over a table: what the posterior's root makes of each context, and nothing of size d x d.

With W W' = V^-1, a run over I contexts needs W only through the image X W [I, d]: a sampled utility
is a row of the image times a normal vector, a new row x changes V by rank one and the image by

    X W <- X W - f (X W w) w',  w = W'x (a row of the image),  f = (1 - 1/sqrt(1 + |w|^2)) / |w|^2,

and in the whitened coordinates phi = W^-1 theta gradient, Hessian and preconditioner of the
likelihood are products with the image alone (`newton_cg`). A round reads the images of
the K shown servers and the rows of the waiting queries, not N d^2 numbers.
"""

import dataclasses
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from cqbjax.core import linalg, mnl, platforms, queueing
from cqbjax.core.types import NOBODY, Observation, Problem
from cqbjax.estimation import gaussian, newton_cg, table_record
from cqbjax.estimation.images import Apart, Image, InPlace
from cqbjax.estimation.rows import Row
from cqbjax.estimation.table_record import Record

# Samples that are multiplied with a row as it is read; more are worth a copy of the rows.
FEW_SAMPLES = 4


class PoolState(NamedTuple):
    """Posterior and estimate of every server over the table.

    Attributes:
        image: [N, I, d] X W_j.
        learnt: [N] float, in how many rounds each server was learnt from.
        phi: [N, d] the estimate in whitened coordinates, theta_j = W_j phi_j.
        scores: [N, I] utilities, X theta_j and the offset.
        offset: [N, I] what of them was known beforehand; None is none.
        record: the history as the likelihood needs it.
    """

    image: Array
    learnt: Array
    phi: Array
    scores: Array
    offset: Array | None
    record: Record


class Change(NamedTuple):
    """What a round changes of the K shown servers.

    Attributes:
        along: [K, I] and
        row: [K, d], the change of their images, S <- S - along row'.
        phi: [K, d] their new estimates.
        scores: [K, I] their utilities.
    """

    along: Array
    row: Array
    phi: Array
    scores: Array


@dataclasses.dataclass(frozen=True)
class Pool:
    """The belief over a table (`Belief`), estimated by `newton_cg`.

    Attributes:
        problem: shapes; parameters must be disjoint.
        exact_steps: 0 for the estimator's own steps, n > 0 for n Newton steps to the end.
    """

    problem: Problem
    exact_steps: int = 0

    least_lambda0 = 0.0

    def init(self, contexts: Array, lambda0: Array, offset: Array | None = None) -> PoolState:
        """Return V = lambda0 I and theta = 0, the utilities being the offset."""
        servers, rows = self.problem.num_servers, self.problem.num_rows
        image = contexts / jnp.sqrt(lambda0)
        known = None if offset is None else jnp.asarray(offset, image.dtype).T
        return PoolState(
            jnp.broadcast_to(image, (servers, *image.shape)),
            jnp.zeros(servers),
            jnp.zeros((servers, self.problem.dim)),
            jnp.zeros((servers, rows)) if known is None else known,
            known,
            table_record.init(self.problem),
        )

    def learnt(self, state: PoolState) -> Array:
        """Return in how many rounds each server was learnt from: [N]."""
        return state.learnt

    def theta(self, state: PoolState, contexts: Array) -> Array:
        """Return the estimates in the contexts' own coordinates: [N, d]; leading axes are kept.

        theta lies in the span of the contexts, so the least-squares solution of X theta = scores,
        less the offset, is it. For tests and notebooks: a run never needs it.
        """
        learnt = state.scores if state.offset is None else state.scores - state.offset
        return learnt @ jnp.linalg.pinv(contexts).T

    def sampled(
        self, state: PoolState, observation: Observation, alpha: Array, normal: Array
    ) -> Array:
        """Return the largest sampled utilities; slots past the last waiting query hold zero."""
        columns = linalg.settle(normal.transpose(1, 2, 0))

        def largest(rows: Array) -> Array:
            if platforms.current().fused and len(normal) <= FEW_SAMPLES:
                return jnp.max(linalg.sums([rows * one[:, None] for one in normal]), axis=0)
            return jnp.max(rows @ columns, axis=-1)

        return _optimistic(state, observation, alpha, largest)

    def bounded(self, state: PoolState, observation: Observation, alpha: Array) -> Array:
        """Return the upper confidence bound, with ||x||_{V^-1} = |W'x|; slots as in `sampled`."""
        return _optimistic(state, observation, alpha, lambda rows: jnp.linalg.norm(rows, axis=-1))

    def update(self, state: PoolState, new: Row) -> PoolState:
        """Absorb one round: the images of the shown servers first, then their estimates."""
        record = table_record.append(state.record, new)
        if platforms.current().fused:
            return self._update_in_place(state, new, record)
        servers = new.servers
        stale = _images(state, servers)
        known = None if state.offset is None else state.offset[servers]

        def learn(stale: tuple[Array, ...], phi: Array, scores: Array) -> Change:
            own = [image[new.row] for image in stale]
            if new.shown is not None:
                own = list(new.of_shown(jnp.stack(own), 0.0))
            along = [image @ one for image, one in zip(stale, own, strict=True)]
            absorbed = _absorb(own, along, phi)
            images = Apart(tuple(map(Image, stale, absorbed.along, absorbed.row)))
            shown = newton_cg.Shown(images, absorbed.phi, scores, known)
            newest = newton_cg.Direction(absorbed.row, absorbed.pushed)
            shown = newton_cg.update(
                shown, newest, state.scores, record, self.problem, new, self.exact_steps
            )
            return Change(absorbed.along, newest.phi, shown.phi, shown.scores)

        def skip(_: tuple[Array, ...], phi: Array, scores: Array) -> Change:
            return Change(jnp.zeros_like(scores), jnp.zeros_like(phi), phi, scores)

        # The branch keeps XLA from reading the images again after they were overwritten, which
        # would cost a copy of all of them each round.
        before = state.phi[servers], state.scores[servers]
        change = jax.lax.cond(new.valid, learn, skip, stale, *before)
        image, phi, scores = state.image, state.phi, state.scores
        for k, server in enumerate(servers):
            # One slice after another is written in place; one scatter of K copies every image.
            changed = stale[k] - jnp.outer(change.along[k], change.row[k])
            image = jax.lax.dynamic_update_index_in_dim(image, changed, server, 0)
            phi = jax.lax.dynamic_update_index_in_dim(phi, change.phi[k], server, 0)
            scores = jax.lax.dynamic_update_index_in_dim(scores, change.scores[k], server, 0)
        learnt = state.learnt + self._learns(new)
        return PoolState(image, learnt, phi, scores, state.offset, record)

    def _learns(self, new: Row) -> Array:
        """Mark the servers whose answers are learnt from: [N] bool."""
        return mnl.shown(new.of_shown(new.servers, NOBODY), self.problem.num_servers) & new.valid

    def _update_in_place(self, state: PoolState, new: Row, record: Record) -> PoolState:
        """Absorb one round, the images changed where they lie; a round not valid adds zero."""
        servers, valid = new.servers, new.valid
        known = None if state.offset is None else state.offset[servers]
        phi, scores = state.phi[servers], state.scores[servers]
        # Held, or XLA reads it again after the images are changed and copies all of them for that.
        own = new.of_shown(linalg.hold(state.image[servers, new.row]), 0.0)
        along = InPlace(state.image, servers).push(own)
        absorbed = _absorb(list(own), list(along), phi)
        change = jnp.where(valid, absorbed.along, 0.0), absorbed.row
        images = InPlace(state.image, servers, change)
        shown = newton_cg.update(
            newton_cg.Shown(images, absorbed.phi, scores, known),
            newton_cg.Direction(absorbed.row, absorbed.pushed),
            state.scores, record, self.problem, new, self.exact_steps,
        )  # fmt: skip
        assert isinstance(shown.images, InPlace)
        return PoolState(
            shown.images.written().image,
            state.learnt + self._learns(new),
            state.phi.at[servers].set(jnp.where(valid, shown.phi, phi)),
            state.scores.at[servers].set(jnp.where(valid, shown.scores, scores)),
            state.offset,
            record,
        )


def _optimistic(
    state: PoolState, observation: Observation, alpha: Array, bonus: Callable[[Array], Array]
) -> Array:
    """Return scores + alpha * bonus(rows of the image) for the slots in use: [C, N]."""
    queue, servers = observation.queue, observation.problem.num_servers
    slots = queue.row.shape[0]
    # The queue is read up to its last waiting query, this many slots at a time.
    together = min(platforms.current().slots, slots)
    blocks = -(-slots // together)
    rows = queue.row
    if platforms.current().fused:
        # Free slots all read one row, which stays in the caches: a batch turns to its longest
        # queue, and shorter ones then cost it next to no memory's time.
        rows = jnp.where(queueing.waiting(queue), rows, 0)
    rows = jnp.pad(rows, (0, blocks * together - slots))
    last = jnp.max(jnp.where(queueing.waiting(queue), jnp.arange(slots) + 1, 0))

    def score(number: Array, values: Array) -> Array:
        here = jax.lax.dynamic_slice(rows, (number * together,), (together,))
        value = state.scores[:, here] + alpha[:, None] * bonus(state.image[:, here])
        return jax.lax.dynamic_update_slice(values, value.T, (number * together, 0))

    empty = jnp.zeros((blocks * together, servers), state.scores.dtype)
    return jax.lax.fori_loop(0, (last + together - 1) // together, score, empty)[:slots]


def _images(state: PoolState, servers: Array) -> tuple[Array, ...]:
    """Return the images of the shown servers, copied once and read from there."""
    images = [jax.lax.dynamic_index_in_dim(state.image, one, keepdims=False) for one in servers]
    return linalg.hold(tuple(images))


class Absorbed(NamedTuple):
    """One context in V of the K shown servers, their theta staying where it is.

    Attributes:
        along: [K, I] and
        row: [K, d] w = W'x, the change of their images, S <- S - along row'.
        phi: [K, d] W^-1 theta.
        pushed: [K, I] S w of the changed images.
    """

    along: Array
    row: Array
    phi: Array
    pushed: Array


def _absorb(own: list[Array], along: list[Array], phi: Array) -> Absorbed:
    """Add one context to V of the shown servers.

    Args:
        own: K times [d], its row of their images before the round.
        along: K times [I], S times that.
        phi: [K, d] before the round.
    """
    changes, phis, pushed = [], [], []
    for row, moved, before in zip(own, along, phi, strict=True):
        size = jnp.sum(row**2)
        grown, factor = jnp.sqrt(1.0 + size), gaussian.shrinkage(size)
        changes.append(factor * moved)
        # phi = W^-1 theta: (I - f w w')^-1 = I + f sqrt(1+s) w w'.
        phis.append(before + factor * grown * jnp.sum(row * before) * row)
        pushed.append(moved / grown)
    return Absorbed(jnp.stack(changes), jnp.stack(own), jnp.stack(phis), jnp.stack(pushed))
