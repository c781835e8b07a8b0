"""Maximum likelihood for few dimensions: a rolling cubic model of the history.

Every block keeps its rows in pages, and each page a cubic model of its rows' loss, expanded about
the estimate at which the page was last visited. A round solves the model with its own row exactly,
then visits a page of each shown block, expands it anew and takes a Newton step on the sum of all
pages' models. The work of a round is the same however long the history.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from cqbjax import linalg, mnl
from cqbjax.estimators import cubic, likelihood, pages
from cqbjax.estimators.cubic import Cubic
from cqbjax.estimators.history import Row
from cqbjax.estimators.pages import Pages
from cqbjax.types import Problem

# Pages visited a round and shown block.
VISITS = 1
# Newton steps on the new row's K residuals, the rest of the model being eliminated exactly.
PASSES = 4


class State(NamedTuple):
    """The model of the whole loss.

    Attributes:
        theta: [B, d] the estimate.
        model: [B] models of the blocks' gradients.
        lost: [B] what rounding took off `model` so far (compensated summation).
        pages: the rows.
    """

    theta: Array
    model: Cubic
    lost: Cubic
    pages: Pages


def init(problem: Problem, lambda0: Array) -> State:
    """Return theta = 0 with the regulariser as the whole model."""
    blocks, dim, wide = problem.num_blocks, problem.dim, cubic.width(problem)
    own = jnp.eye(blocks, wide) if wide > 1 else jnp.ones((blocks, 1))
    none = cubic.zeros(problem, blocks)
    model = none._replace(linear=lambda0 * own[:, :, None, None] * jnp.eye(dim))
    return State(jnp.zeros((blocks, dim)), model, none, pages.init(problem))


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
    blocks = jnp.zeros(1, jnp.int32) if problem.parameters == "shared" else new.servers
    state = _absorb(state, problem, new, blocks)

    def visit(state: State) -> State:
        return _solve(_visit(state, problem, new, blocks), problem, new, blocks)

    if exact_steps:
        visits = exact_steps * pages.most_of_a_block(problem)
        return jax.lax.fori_loop(0, visits, lambda _, state: visit(state), state)
    for _ in range(VISITS):
        state = visit(state)
    return state


def _absorb(state: State, problem: Problem, new: Row, blocks: Array) -> State:
    """Minimise model + new row over the shown blocks, store the row and add its model there."""
    state = _added(state, blocks, _row_step(state, problem, new, blocks), new.valid)
    entries = likelihood.entries(problem, new)
    models = _expand(problem, entries[:, :, None], state.theta, blocks)
    page, stored = pages.append(state.pages, blocks, entries, new.valid)
    stored = stored._replace(models=_map(lambda a, b: a.at[page].add(b), stored.models, models))
    return _grown(state, blocks, models)._replace(pages=stored)


def _visit(state: State, problem: Problem, new: Row, blocks: Array) -> State:
    """Expand the next page of every shown block anew, about the current estimate."""
    page, stored = pages.turn(state.pages, blocks)
    rows, old = linalg.settle((stored.rows[page], _map(lambda a: a[page], stored.models)))
    fresh = linalg.settle(_expand(problem, rows, state.theta, blocks))
    fresh = _map(lambda a, b: jnp.where(new.valid, a, b), fresh, old)
    change = _map(jnp.subtract, fresh, old)
    stored = stored._replace(models=_map(lambda a, b: a.at[page].set(b), stored.models, fresh))
    return _grown(state, blocks, change)._replace(pages=stored)


def _expand(problem: Problem, rows: Array, theta: Array, blocks: Array) -> Cubic:
    """Expand [A, F, L] rows of the shown blocks."""
    one = [likelihood.expand(problem, rows[a], theta, blocks[a]) for a in range(len(blocks))]
    return Cubic(*map(jnp.stack, zip(*one, strict=True)))


def _map(function, *models):
    """Apply a function to the parts of models."""
    return Cubic(*map(function, *models))


def _grown(state: State, blocks: Array, change: Cubic) -> State:
    """Add [A] models to the shown blocks' sums, keeping what rounding takes off."""
    here = blocks[:, None] == jnp.arange(state.theta.shape[0])
    model, lost = [], []
    for old, gone, more in zip(state.model, state.lost, change, strict=True):
        mask = here.reshape(*here.shape, *[1] * (more.ndim - 1))
        more = linalg.total(jnp.where(mask, more[:, None], 0.0), axis=0) + gone
        new = linalg.settle(old + more)
        model.append(new)
        lost.append(more - (new - old))
    return state._replace(model=Cubic(*model), lost=Cubic(*lost))


def _system(state: State, problem: Problem, blocks: Array) -> tuple[Array, Array]:
    """Return the shown blocks' gradient [A d] and Hessian [A d, A d] at the estimate."""
    slopes, rows = [], []
    for block in blocks:
        wide = cubic.width(problem) > 1
        about = state.theta if wide else state.theta[block][None]
        here = cubic.shift(_map(lambda a, b=block: a[b], state.model), about)
        slopes.append(here.offset)
        strip = here.linear[blocks] if wide else here.linear
        rows.append(jnp.moveaxis(strip, 0, 1).reshape(problem.dim, -1))
    return linalg.settle((jnp.concatenate(slopes), jnp.concatenate(rows)))


def _row_step(state: State, problem: Problem, new: Row, blocks: Array) -> Array:
    """Return the step [A, d] to the minimum of the quadratic model about the estimate + new row.

    With P the inverse Hessian, X the rows [K, A d] and e = p - y, stationarity reads
    step = -P (gradient + X'e), which leaves K equations in e, solved by Newton's method.
    """
    slope, hessian = _system(state, problem, blocks)
    inverse = invert(hessian)
    size = problem.assortment_size
    rows = new.features
    if problem.parameters == "disjoint":
        rows = (jnp.eye(size)[:, :, None] * rows).reshape(size, -1)
    chosen = (jnp.arange(size) == new.choice).astype(rows.dtype)
    pushed = linalg.settle(linalg.matvec(inverse, rows))  # [K, A d], the rows of X P
    moved = linalg.settle(linalg.matvec(inverse, slope))
    start = linalg.dot(rows, state.theta[blocks].reshape(-1) - moved)
    gram = linalg.dot(rows[:, None, :], pushed[None, :, :])
    start, gram = linalg.settle((start, gram))
    excess = jnp.zeros_like(chosen)
    for _ in range(PASSES):
        p = mnl.choice_probabilities(start - linalg.matvec(gram, excess))
        factor = mnl.curvature_columns(p)
        excess = excess + linalg.solve_shifted(factor, gram, p - chosen - excess)
    return (-moved - linalg.vecmat(excess, pushed)).reshape(blocks.shape[0], -1)


def _solve(state: State, problem: Problem, new: Row, blocks: Array) -> State:
    """Take a Newton step of the shown blocks jointly on the model."""
    slope, hessian = _system(state, problem, blocks)
    step = -linalg.matvec(invert(hessian), slope).reshape(blocks.shape[0], -1)
    return _added(state, blocks, step, new.valid)


def _added(state: State, blocks: Array, step: Array, valid: Array) -> State:
    """Add [A, d] to the shown blocks' estimates where the round is valid."""
    here = (blocks[:, None] == jnp.arange(state.theta.shape[0])) & valid
    moved = linalg.total(jnp.where(here[:, :, None], step[:, None], 0.0), axis=0)
    return state._replace(theta=linalg.settle(state.theta + moved))


def invert(matrix: Array) -> Array:
    """Invert a symmetric positive definite matrix [d, d].

    Gauss-Jordan without pivoting where it is small: d elementwise steps, which batch well
    everywhere, unlike small Cholesky factorisations on a GPU.
    """
    dim = matrix.shape[-1]
    if dim > 2 * linalg.SMALL:
        return jnp.linalg.inv(matrix)
    for i in range(dim):
        pivot = 1.0 / matrix[i, i]
        edge = pivot * matrix[:, i]
        swept = matrix - linalg.outer(edge, matrix[:, i])
        at = jnp.arange(dim) == i
        swept = jnp.where(at[:, None], edge[None, :], swept)
        swept = jnp.where(at[None, :], edge[:, None], swept)
        matrix = linalg.settle(jnp.where(at[:, None] & at[None, :], -pivot, swept))
    return -matrix
