"""Maximum likelihood over a table: exact gradient and preconditioned Newton steps, whitened.

The likelihood needs each (server, table row) pair only through two numbers, the residual and the
curvature summed over the rounds that served it. In the coordinates phi = W^-1 theta, W W' = V^-1,
everything is a product with the image S = X W of a shown server, since W' V W = I gives

    W' gradient = phi + S' (residual - n S phi),
    W' H_jk W = 1{j = k} (I - S_j' n_j S_j) + S_j' w_jk S_k,

with n how often the server was shown for each row: X and W themselves are not needed, and plain
conjugate gradients here are conjugate gradients preconditioned with V^-1 there. Warm-started from
the last estimate.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from cqbjax.core import linalg
from cqbjax.core.types import Problem
from cqbjax.estimation.images import Images
from cqbjax.estimation.rows import Row
from cqbjax.estimation.table_record import Record, sums_of

# Newton steps a round after the one along the new row, and conjugate-gradient steps in each beyond
# one for every shown server; what they leave is measured in docs/notebook/estimator.md. A pool
# of prompts has contexts of unit length, by which one row changes little; others are longer.
# Those of a policy's own lie closer to a line: a constant, or what a head adds, is in all of them.
POOL_STEPS = (1, 1)
VIEWED_STEPS = (1, 2)
OTHER_STEPS = (3, 5)
# Steps at most to the end of a system: in exact arithmetic it has been reached after K d.
EXACT_CG_STEPS = 64


class Shown(NamedTuple):
    """The K servers of the round's assortment.

    Attributes:
        images: of the K, the round absorbed.
        phi: [K, d] estimates in whitened coordinates.
        scores: [K, I] their utilities of the whole table.
        offset: [K, I] what of the utilities is no X theta; None is none.
    """

    images: Images
    phi: Array
    scores: Array
    offset: Array | None

    @property
    def moved(self) -> Array:
        """Return S phi, the utilities less the offset: [K, I]."""
        return self.scores if self.offset is None else self.scores - self.offset


class Direction(NamedTuple):
    """A direction for each of the K shown servers.

    Attributes:
        phi: [K, d] in whitened coordinates.
        scores: [K, I] what a unit step along it does to the scores, S phi.
    """

    phi: Array
    scores: Array


def update(
    shown: Shown,
    newest: Direction,
    scores: Array,
    record: Record,
    problem: Problem,
    new: Row,
    exact_steps: int = 0,
) -> Shown:
    """Move the shown servers' estimates by Newton steps on the exact likelihood.

    Args:
        shown: the shown servers, the round already in their images.
        newest: w = W'x of the round's row, along which the new likelihood term bends; S w is known,
            so that the first step, along w, costs no product with an image.
        scores: [N, I] utilities of the whole table, before the round.
        record: the history, the round included.
        problem: shapes; parameters must be disjoint.
        new: the round's row.
        exact_steps: 0 for the steps that the constants above fix, n > 0 for n steps to the end.

    Returns:
        The shown servers with their new estimates.
    """
    steps, more = _steps(problem)
    iterations = problem.assortment_size + more
    if exact_steps:
        iterations = min(problem.assortment_size * problem.dim, EXACT_CG_STEPS)
    count = record.shown[new.servers]

    def sums(shown: Shown) -> tuple[Array, Array]:
        residual, weight = sums_of(shown.scores, scores, record, problem, new)
        return residual, weight if new.shown is None else _apart(weight, new.shown)

    def step(_: int, shown: Shown) -> Shown:
        residual, weight = sums(shown)
        pulled, images = shown.images.pull(residual - count * shown.moved)
        slope = new.of_shown(shown.phi + pulled, 0.0)
        move, along = conjugate_gradient(images, weight, count, -slope, iterations)
        return shown._replace(images=images, phi=shown.phi + move, scores=shown.scores + along)

    shown = _step_along(shown, newest, count, *sums(shown), new)
    if exact_steps:
        begun = shown._replace(images=shown.images.written())
        return jax.lax.fori_loop(0, exact_steps, step, begun)
    for _ in range(steps):
        shown = step(0, shown)
    return shown


def _apart(weight: Array, shown: Array) -> Array:
    """Uncouple servers that did not answer from the others: [K, K, I]."""
    both = (shown[:, None] & shown) | jnp.eye(len(shown), dtype=bool)
    return jnp.where(both[:, :, None], weight, 0.0)


def _steps(problem: Problem) -> tuple[int, int]:
    """Return Newton steps a round, and conjugate-gradient steps in each beyond K."""
    if not problem.pooled:
        return OTHER_STEPS
    return VIEWED_STEPS if problem.viewed else POOL_STEPS


def _step_along(
    shown: Shown, newest: Direction, count: Array, residual: Array, weight: Array, new: Row
) -> Shown:
    """Take the Newton step of the K step lengths along given directions.

    Of a server that did not answer the direction is zero, and any length will do.
    """
    v = newest.scores
    slope = jnp.sum(shown.phi * newest.phi, axis=1)
    slope += jnp.sum((residual - count * shown.moved) * v, axis=1)
    own = jnp.sum(newest.phi**2, axis=1) - jnp.sum(count * v**2, axis=1)
    bend = jnp.diag(new.of_shown(own, 1.0)) + jnp.einsum("jki,ji,ki->jk", weight, v, v)
    lengths = -linalg.solve_positive(bend, slope)[:, None]
    return shown._replace(phi=shown.phi + lengths * newest.phi, scores=shown.scores + lengths * v)


def conjugate_gradient(
    images: Images, weight: Array, count: Array, target: Array, iterations: int
) -> tuple[Array, Array]:
    """Solve for a joint step of the K shown blocks by conjugate gradients.

    S y comes for nothing with the curvature along each direction, so the caller's scores follow
    the step without another product, and the last iteration needs no product with S'.

    Args:
        images: of the K servers, S.
        weight: [K, K, I] w.
        count: [K, I] n.
        target: [K, d].
        iterations: a fixed number; a solved system stays where it is.

    Returns:
        y [K, d] and S y [K, I].
    """

    def ratio(above: Array, below: Array) -> Array:
        return jnp.where(below > 0, above / jnp.where(below > 0, below, 1.0), 0.0)

    step, moved = jnp.zeros_like(target), jnp.zeros_like(count)
    left = direction = target
    size = jnp.sum(left**2)
    for i in range(iterations):
        along, bend, pulled = images.bend(direction, weight, count, last=i + 1 == iterations)
        length = ratio(size, jnp.sum(direction**2) + bend)
        step, moved = step + length * direction, moved + length * along
        if pulled is None:
            break
        left = left - length * (direction + pulled)
        new_size = jnp.sum(left**2)
        direction = left + ratio(new_size, size) * direction
        size = new_size
    return step, moved
