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

from cqbjax import linalg
from cqbjax.estimators import history as past
from cqbjax.estimators.history import History, Row
from cqbjax.types import Problem

# Newton steps a round after the one along the new row, and conjugate-gradient steps in each beyond
# one for every shown server; what they leave is measured in docs/estimator.md.
NEWTON_STEPS = 1
MORE_CG_STEPS = 1
EXACT_CG_STEPS = 64


class Record(NamedTuple):
    """The history as the likelihood needs it.

    Attributes:
        shown: [N, I] float, how often the server was shown for the table row.
        choices: K = 1: [N, I] float, how often its answer was accepted; else every row in turn.
    """

    shown: Array
    choices: Array | History


class Shown(NamedTuple):
    """The K servers of the round's assortment.

    Attributes:
        images: K times [I, d], X W.
        phi: [K, d] estimates in whitened coordinates.
        scores: [K, I] their utilities of the whole table.
    """

    images: tuple[Array, ...]
    phi: Array
    scores: Array


class Direction(NamedTuple):
    """A direction for each of the K shown servers.

    Attributes:
        phi: [K, d] in whitened coordinates.
        scores: [K, I] what a unit step along it does to the scores, S phi.
    """

    phi: Array
    scores: Array


def init(problem: Problem) -> Record:
    """Return the record of no round."""
    zeros = jnp.zeros((problem.num_servers, problem.num_rows))
    return Record(zeros, zeros if problem.assortment_size == 1 else past.init(problem))


def append(record: Record, new: Row) -> Record:
    """Record a round."""
    one = jnp.where(new.valid, 1.0, 0.0).astype(record.shown.dtype)
    shown = record.shown
    for server in new.servers:
        shown = shown.at[server, new.row].add(one)
    if isinstance(record.choices, History):
        return Record(shown, past.append(record.choices, new))
    accepted = one * (new.choice == 0)
    return Record(shown, record.choices.at[new.servers[0], new.row].add(accepted))


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
    iterations = EXACT_CG_STEPS if exact_steps else problem.assortment_size + MORE_CG_STEPS
    count = record.shown[new.servers]

    def sums(shown: Shown) -> tuple[Array, Array]:
        return _table_sums(shown.scores, scores, record, problem, new)

    def step(_: int, shown: Shown) -> Shown:
        residual, weight = sums(shown)
        slope = shown.phi + _pull(shown.images, residual - count * shown.scores)
        move, along = conjugate_gradient(shown.images, weight, count, -slope, iterations)
        return shown._replace(phi=shown.phi + move, scores=shown.scores + along)

    shown = _step_along(shown, newest, count, *sums(shown))
    if exact_steps:
        return jax.lax.fori_loop(0, exact_steps, step, shown)
    for _ in range(NEWTON_STEPS):
        shown = step(0, shown)
    return shown


def _step_along(
    shown: Shown, newest: Direction, count: Array, residual: Array, weight: Array
) -> Shown:
    """Take the Newton step of the K step lengths along given directions."""
    v = newest.scores
    slope = jnp.sum(shown.phi * newest.phi, axis=1)
    slope += jnp.sum((residual - count * shown.scores) * v, axis=1)
    own = jnp.sum(newest.phi**2, axis=1) - jnp.sum(count * v**2, axis=1)
    bend = jnp.diag(own) + jnp.einsum("jki,ji,ki->jk", weight, v, v)
    lengths = -linalg.solve_positive(bend, slope)[:, None]
    return shown._replace(phi=shown.phi + lengths * newest.phi, scores=shown.scores + lengths * v)


def _push(images: tuple[Array, ...], direction: Array) -> Array:
    """Return S_k y_k: [K, d] -> [K, I]."""
    return jnp.stack([image @ one for image, one in zip(images, direction, strict=True)])


def _pull(images: tuple[Array, ...], values: Array) -> Array:
    """Return S_k' v_k: [K, I] -> [K, d]."""
    return jnp.stack([one @ image for image, one in zip(images, values, strict=True)])


def conjugate_gradient(
    images: tuple[Array, ...], weight: Array, count: Array, target: Array, iterations: int
) -> tuple[Array, Array]:
    """Solve for a joint step of the K shown blocks by conjugate gradients.

    S y comes for nothing with the curvature along each direction, so the caller's scores follow
    the step without another product, and the last iteration needs no product with S'.

    Args:
        images: K times [I, d] S.
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
        along = _push(images, direction)
        bent = jnp.sum(weight * along, axis=1) - count * along
        length = ratio(size, jnp.sum(direction**2) + jnp.sum(along * bent))
        step, moved = step + length * direction, moved + length * along
        if i + 1 == iterations:
            break
        left = left - length * (direction + _pull(images, bent))
        new_size = jnp.sum(left**2)
        direction = left + ratio(new_size, size) * direction
        size = new_size
    return step, moved


def _table_sums(
    own: Array, scores: Array, record: Record, problem: Problem, new: Row
) -> tuple[Array, Array]:
    """Sum residual and curvature of the shown servers over each table row's rounds.

    Returns:
        residual [K, I], the sum of p_j - y_j, and curvature [K, K, I], the sum of the entries of
        diag(p) - p p' between the shown servers.
    """
    if isinstance(record.choices, History):
        return _row_sums(record.choices, scores.at[new.servers].set(own), problem, new)
    shown, accepted = record.shown[new.servers], record.choices[new.servers]
    p = jax.nn.sigmoid(own)
    return shown * p - accepted, (shown * p * (1.0 - p))[None]


def _row_sums(history: History, scores: Array, problem: Problem, new: Row) -> tuple[Array, Array]:
    """Walk the history in blocks and scatter each row's residual and curvature to its table row."""
    size, table_rows = problem.assortment_size, problem.num_rows
    positions = jnp.arange(size)

    def add(number: Array, sums: tuple[Array, Array]) -> tuple[Array, Array]:
        rows = past.block(history, number)
        utilities = scores[rows.servers, rows.row[:, None]]
        valid = (rows.choice >= 0)[:, None]
        p = past.shown_probabilities(utilities, jnp.broadcast_to(valid, utilities.shape))
        excess = jnp.where(valid, p - (rows.choice[:, None] == positions), 0.0)
        match = (rows.servers[None] == new.servers[:, None, None]) & valid
        own = jnp.sum(jnp.where(match, p, 0.0), axis=-1)  # [K, L], p of each shown server
        residual = jnp.sum(jnp.where(match, excess, 0.0), axis=-1)
        curvature = jnp.eye(size)[:, :, None] * own - own[:, None] * own[None, :]
        return (
            sums[0].at[:, rows.row].add(residual),
            sums[1].at[:, :, rows.row].add(curvature),
        )

    zeros = jnp.zeros((size, table_rows)), jnp.zeros((size, size, table_rows))
    return jax.lax.fori_loop(0, past.blocks_until(new.round), add, zeros)
