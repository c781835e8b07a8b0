"""Maximum likelihood from a rolling quadratic model of the history: constant work a round.

Every block keeps the rows that showed it in pages of `PAGE` rows, and each page its part of the
loss's gradient, expanded to first order about the estimate at which the page was last visited. A
round solves the model with its own row exactly, then visits a few pages of the shown blocks in
turn, expands them anew and solves again. A block of n rows is thus expanded whole every
n / (PAGE * VISITS) of its own rounds: in all of them while it is small, and always after its
history grew by the same small ratio, whatever the other blocks do.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from cqbjax import linalg, mnl
from cqbjax.estimators import pages
from cqbjax.estimators.history import Row
from cqbjax.estimators.pages import Pages
from cqbjax.types import Problem

# Pages visited a round and block. Two, so that a block that fits in one page takes two Newton
# steps: the second ends within 2% of alpha where the first does not (docs/estimator.md).
VISITS = 2
# Newton steps on the new row, and sweeps over the shown blocks where assortments couple them.
PASSES = 4


class State(NamedTuple):
    """The model: the loss's gradient of block b is offset_b + sum_m hessian_bm theta_m.

    Attributes:
        theta: [B, d] the estimate.
        offset: [B, d].
        hessian: [B, W, d, d] W = N where assortments couple blocks, else 1, the block itself.
        inverse: [B, d, d] inverses of the blocks on the diagonal.
        pages: the rows.
    """

    theta: Array
    offset: Array
    hessian: Array
    inverse: Array
    pages: Pages


def init(problem: Problem, lambda0: Array) -> State:
    """Return theta = 0 with the regulariser as the whole model."""
    blocks, dim = problem.num_blocks, problem.dim
    width = pages.width(problem)
    eye = jnp.broadcast_to(jnp.eye(dim), (blocks, dim, dim))
    own = jnp.eye(blocks, width) if width > 1 else jnp.ones((blocks, 1))
    hessian = lambda0 * own[:, :, None, None] * eye[:, None]
    theta = jnp.zeros((blocks, dim))
    return State(theta, theta, hessian, eye / lambda0, pages.init(problem))


def update(
    state: State, problem: Problem, root: Array, lambda0: Array, new: Row, exact_steps: int = 0
) -> State:
    """Absorb one row, visit pages, and move the shown blocks' estimates.

    Args:
        state: the model.
        problem: shapes.
        root: unused here (the other estimator's preconditioner).
        lambda0: unused after `init`.
        new: the round's row.
        exact_steps: 0 for `VISITS` pages; n > 0 visits every page n times, to the exact minimiser.
    """
    del root, lambda0
    blocks = pages.shown_blocks(problem, new)
    state = _absorb(state, problem, new, blocks)

    def visit(state: State) -> State:
        return _solve(_visit(state, problem, new, blocks), blocks, new.valid)

    if exact_steps:
        visits = exact_steps * pages.most_of_a_block(problem)
        return jax.lax.fori_loop(0, visits, lambda _, state: visit(state), state)
    for _ in range(VISITS):
        state = visit(state)
    return state


def _slopes(state: State, blocks: Array) -> Array:
    """Return the model's gradient of the shown blocks: [A, d]."""
    hessian = state.hessian[blocks]
    theta = state.theta[blocks][:, None] if hessian.shape[1] == 1 else state.theta[None]
    return state.offset[blocks] + linalg.total(linalg.matvec(hessian, theta), axis=1)


def _between(state: State, blocks: Array) -> Array:
    """Return the Hessian between the shown blocks: [A, A, d, d]."""
    if state.hessian.shape[1] == 1:
        return state.hessian[blocks]
    return state.hessian[blocks[:, None], blocks]


def _solve(state: State, blocks: Array, valid: Array) -> State:
    """Minimise the model over the shown blocks, one after another where they are coupled."""
    slopes, between = linalg.settle((_slopes(state, blocks), _between(state, blocks)))
    inverse = state.inverse[blocks]
    count = blocks.shape[0]
    step = jnp.zeros_like(slopes)
    for _ in range(PASSES if count > 1 else 1):
        for a in range(count):
            slope = slopes[a] + linalg.total(linalg.matvec(between[a], step), axis=0)
            step = step.at[a].add(-linalg.matvec(inverse[a], slope))
        step = linalg.settle(step)
    return state._replace(theta=_added(state.theta, blocks, step, valid))


def _absorb(state: State, problem: Problem, new: Row, blocks: Array) -> State:
    """Minimise model + new row over the shown blocks and store the row, expanded there."""
    coupled = blocks.shape[0] > 1
    step = (_coupled_step if coupled else _single_step)(state, problem, new, blocks)
    theta = linalg.settle(_added(state.theta, blocks, step, new.valid))
    offset, hessian, stored = state.offset, state.hessian, state.pages
    for a in range(blocks.shape[0]):
        entry = jnp.where(new.valid, pages.entry(problem, new, a), 0.0)
        part = pages.expand(problem, entry[:, None], theta, blocks[a])
        stored = pages.append(stored, blocks[a], entry, part, new.valid)
        offset, hessian = _changed(offset, hessian, blocks[a], part)
    return State(theta, offset, hessian, state.inverse, stored)


def _single_step(state: State, problem: Problem, new: Row, blocks: Array) -> Array:
    """Return the step of the one block that the row touches: [1, d].

    With P the block's inverse Hessian, X the rows [K, d] and e = p - y, stationarity reads
    step = -P (gradient + X'e), which leaves K equations in e, solved by Newton's method.
    """
    rows = jnp.atleast_2d(new.features)
    chosen = (jnp.arange(problem.assortment_size) == new.choice).astype(rows.dtype)
    inverse = state.inverse[blocks[0]]
    pushed = linalg.settle(linalg.matvec(inverse, rows))  # [K, d], the rows of X P
    moved = linalg.settle(linalg.matvec(inverse, _slopes(state, blocks)[0]))
    start = linalg.dot(rows, state.theta[blocks[0]] - moved)
    gram = linalg.dot(rows[:, None, :], pushed[None, :, :])
    start, gram = linalg.settle((start, gram))
    excess = jnp.zeros_like(chosen)
    for _ in range(PASSES):
        p = mnl.choice_probabilities(start - linalg.matvec(gram, excess))
        factor = mnl.curvature_columns(p)
        excess = excess + linalg.solve_shifted(factor, gram, p - chosen - excess)
    return (-moved - linalg.vecmat(excess, pushed))[None]


def _coupled_step(state: State, problem: Problem, new: Row, blocks: Array) -> Array:
    """Return the steps of the K blocks that the row couples: [K, d]."""
    size, features = problem.assortment_size, new.features
    chosen = (jnp.arange(size) == new.choice).astype(features.dtype)
    slopes, between = linalg.settle((_slopes(state, blocks), _between(state, blocks)))
    start = linalg.dot(state.theta[blocks], features)
    pushed = linalg.settle(linalg.matvec(state.inverse[blocks], features))  # [K, d]
    spread = linalg.dot(pushed, features)
    step = jnp.zeros_like(slopes)
    for _ in range(PASSES):
        for a in range(size):
            p = mnl.choice_probabilities(start + linalg.dot(step, features))[a]
            slope = slopes[a] + linalg.total(linalg.matvec(between[a], step), axis=0)
            slope = slope + (p - chosen[a]) * features
            # The block's inverse with the row's own curvature, by Sherman and Morrison.
            ahead = linalg.matvec(state.inverse[blocks[a]], slope)
            curvature = p * (1.0 - p)
            share = curvature * linalg.dot(ahead, features) / (1.0 + curvature * spread[a])
            step = step.at[a].add(share * pushed[a] - ahead)
        step = linalg.settle(step)
    return step


def _visit(state: State, problem: Problem, new: Row, blocks: Array) -> State:
    """Expand the next page of every shown block anew, about the current estimate."""
    offset, hessian, inverse, stored = state.offset, state.hessian, state.inverse, state.pages
    for a in range(blocks.shape[0]):
        page, old, stored = pages.turn(stored, blocks[a], new.valid)
        fresh = linalg.settle(pages.expand(problem, page, state.theta, blocks[a]))
        fresh = jnp.where(new.valid, fresh, old)
        stored = pages.put(stored, blocks[a], fresh)
        offset, hessian = _changed(offset, hessian, blocks[a], fresh - old)
        own = blocks[a] if hessian.shape[1] > 1 else 0
        inverted = invert(linalg.settle(hessian[blocks[a], own]))
        inverse = _put(inverse, blocks[a], inverted)
    return State(state.theta, offset, hessian, inverse, stored)


def _changed(offset: Array, hessian: Array, block: Array, part: Array) -> tuple[Array, Array]:
    """Add a part, [W d + 1, d] as `pages.expand` returns it, to one block of the model."""
    strip = part[:-1].reshape(hessian.shape[1:])
    here = jnp.arange(offset.shape[0]) == block
    return (
        jnp.where(here[:, None], offset + part[-1], offset),
        jnp.where(here[:, None, None, None], hessian + strip, hessian),
    )


def _added(theta: Array, blocks: Array, step: Array, valid: Array) -> Array:
    """Add [A, d] to the shown ones of [B, d] where the round is valid."""
    here = (blocks[:, None] == jnp.arange(theta.shape[0])) & valid
    return theta + linalg.total(jnp.where(here[:, :, None], step[:, None], 0.0), axis=0)


def _put(blocks: Array, block: Array, value: Array) -> Array:
    """Write one block of [B, d, d]."""
    return jnp.where((jnp.arange(blocks.shape[0]) == block)[:, None, None], value, blocks)


def invert(matrix: Array) -> Array:
    """Invert a symmetric positive definite matrix [d, d] by repeated rank-one elimination.

    Gauss-Jordan without pivoting: d elementwise steps, which batch well everywhere, unlike small
    Cholesky factorisations on a GPU.
    """
    dim = matrix.shape[-1]
    for i in range(dim):
        pivot = 1.0 / matrix[i, i]
        edge = pivot * matrix[:, i]
        swept = matrix - linalg.outer(edge, matrix[:, i])
        at = jnp.arange(dim) == i
        swept = jnp.where(at[:, None], edge[None, :], swept)
        swept = jnp.where(at[None, :], edge[:, None], swept)
        matrix = linalg.settle(jnp.where(at[:, None] & at[None, :], -pivot, swept))
    return -matrix
