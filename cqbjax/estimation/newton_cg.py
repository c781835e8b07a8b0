"""Maximum likelihood over a table: exact gradient and preconditioned Newton steps, whitened.

The likelihood needs each (server, table row) pair only through two numbers: the residual and the
curvature, summed over the rounds that served it. In the coordinates phi = W^-1 theta, W W' = V^-1,
each quantity is a product with the whitened table S = X W of an offered server, since W' V W = I
gives

    W' gradient = phi + S' (residual - n S phi),
    W' H_jk W = 1{j = k} (I - S_j' n_j S_j) + S_j' w_jk S_k,

with n the number of offers of the server for each row. X and W themselves are not needed. Plain
conjugate gradients in these coordinates are conjugate gradients preconditioned with V^-1. The
steps start at the last estimate.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from cqbjax.core import linalg
from cqbjax.core.types import Problem, mask_unoffered
from cqbjax.estimation.belief import Interaction
from cqbjax.estimation.table_history import TableHistory, sum_residuals
from cqbjax.estimation.whitened_tables import WhitenedTables

# (Newton steps per round after the step along the new row, conjugate-gradient steps in each beyond
# K); docs/notebook/estimator.md measures the remaining error. Contexts of a pool of prompts have
# unit length, so one row changes little; other contexts are longer. Contexts that a policy replaces
# are nearly collinear, because all of them contain a constant or the output of a head.
POOL_STEPS = (1, 1)
VIEWED_STEPS = (1, 2)
OTHER_STEPS = (3, 5)
# Most conjugate-gradient steps for an exact solution, which needs K d in exact arithmetic.
EXACT_CG_STEPS = 64


class ServerEstimates(NamedTuple):
    """Estimates of the K offered servers.

    Attributes:
        tables: their whitened tables, the round included.
        phi: [K, d] estimates in whitened coordinates.
        scores: [K, I] utilities of the whole table.
        offset: [K, I] known part of the utilities, which is not X theta; None: zero.
    """

    tables: WhitenedTables
    phi: Array
    scores: Array
    offset: Array | None

    @property
    def learned_scores(self) -> Array:
        """Return S phi, the utilities without the offset: [K, I]."""
        return self.scores if self.offset is None else self.scores - self.offset


class RankOneUpdate(NamedTuple):
    """The change of K servers by one context in V, with theta unchanged.

    Attributes:
        along: [K, I] column factor of the change of their tables, S <- S - along row'.
        row: [K, d] row factor of this change, w = W'x.
        phi: [K, d] W^-1 theta afterwards.
        pushed: [K, I] S w of the changed tables.
    """

    along: Array
    row: Array
    phi: Array
    pushed: Array


def update(
    offered: ServerEstimates, added: RankOneUpdate, scores: Array, record: TableHistory,
    problem: Problem, new: Interaction, exact_steps: int = 0,
) -> ServerEstimates:  # fmt: skip
    """Move the estimates of the offered servers by Newton steps on the exact likelihood.

    Args:
        offered: the offered servers, the round included in their tables.
        added: the round's change. The new likelihood term is curved along w = W'x; S w is known, so
            the first step, along w, needs no product with a table.
        scores: [N, I] utilities of the whole table before the round.
        record: the history, the round included.
        problem: shapes; parameters must be disjoint.
        new: the round's interaction.
        exact_steps: 0 for the numbers of steps above, n > 0 for n exact Newton steps.

    Returns:
        The offered servers with their new estimates.
    """
    steps, more = OTHER_STEPS
    if problem.pooled:
        steps, more = VIEWED_STEPS if problem.policy_contexts else POOL_STEPS
    iterations = problem.assortment_size + more
    if exact_steps:
        iterations = min(problem.assortment_size * problem.dim, EXACT_CG_STEPS)
    count = record.offered[new.servers]

    def sums(offered: ServerEstimates) -> tuple[Array, Array]:
        residual, weight = sum_residuals(offered.scores, scores, record, problem, new)
        if new.offered is not None:  # a server that did not answer is coupled with no other
            both = (new.offered[:, None] & new.offered) | jnp.eye(len(new.offered), dtype=bool)
            weight = jnp.where(both[:, :, None], weight, 0.0)
        return residual, weight

    def step(_: int, offered: ServerEstimates) -> ServerEstimates:
        residual, weight = sums(offered)
        pulled, tables = offered.tables.pull(residual - count * offered.learned_scores)
        slope = mask_unoffered(new.offered, offered.phi + pulled, 0.0)
        move, along = conjugate_gradient(tables, weight, count, -slope, iterations)
        return offered._replace(
            tables=tables, phi=offered.phi + move, scores=offered.scores + along
        )

    offered = _step_along(offered, added, count, *sums(offered), new)
    if exact_steps:
        begun = offered._replace(tables=offered.tables.write())
        return jax.lax.fori_loop(0, exact_steps, step, begun)
    for _ in range(steps):
        offered = step(0, offered)
    return offered


def _step_along(
    offered: ServerEstimates, added: RankOneUpdate, count: Array, residual: Array, weight: Array,
    new: Interaction,
) -> ServerEstimates:  # fmt: skip
    """Take the Newton step of the K step lengths along the directions.

    The direction of a server that did not answer is zero, so any length is correct.
    """
    v = added.pushed
    slope = jnp.sum(offered.phi * added.row, axis=1)
    slope += jnp.sum((residual - count * offered.learned_scores) * v, axis=1)
    own = jnp.sum(added.row**2, axis=1) - jnp.sum(count * v**2, axis=1)
    bend = jnp.diag(mask_unoffered(new.offered, own, 1.0)) + jnp.einsum(
        "jki,ji,ki->jk", weight, v, v
    )
    lengths = -linalg.solve_positive(bend, slope)[:, None]
    return offered._replace(
        phi=offered.phi + lengths * added.row, scores=offered.scores + lengths * v
    )


def conjugate_gradient(
    tables: WhitenedTables, weight: Array, count: Array, target: Array, iterations: int
) -> tuple[Array, Array]:
    """Solve for a joint step of the K offered blocks by conjugate gradients.

    The curvature along each direction yields S y as well, so the scores follow the step without
    another product, and the last iteration needs no product with S'.

    Args:
        tables: S of the K servers.
        weight: [K, K, I] w.
        count: [K, I] n.
        target: [K, d].
        iterations: how many; after convergence they change nothing.

    Returns:
        y [K, d] and S y [K, I].
    """

    def ratio(above: Array, below: Array) -> Array:
        return jnp.where(below > 0, above / jnp.where(below > 0, below, 1.0), 0.0)

    step, moved = jnp.zeros_like(target), jnp.zeros_like(count)
    left = direction = target
    size = jnp.sum(left**2)
    for i in range(iterations):
        along, bend, pulled = tables.bend(direction, weight, count, last=i + 1 == iterations)
        length = ratio(size, jnp.sum(direction**2) + bend)
        step, moved = step + length * direction, moved + length * along
        if pulled is None:
            break
        left = left - length * (direction + pulled)
        new_size = jnp.sum(left**2)
        direction = left + ratio(new_size, size) * direction
        size = new_size
    return step, moved
