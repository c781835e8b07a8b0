"""Maximum likelihood for few dimensions: a rolling model of the history, bounded work a round.

Every block keeps its rows in pages, and each page its rows' gradient and Hessian, expanded about
the estimate at which the page was last visited; the third derivatives of all rows are summed as
each was when its row came. A round solves the model with its own row exactly, then visits a page of
each shown block, expands it anew and takes a Newton step on the sum of all pages.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from cqbjax import linalg, mnl
from cqbjax.beliefs import cubic, likelihood, pages
from cqbjax.beliefs.cubic import Cubic
from cqbjax.beliefs.pages import Pages
from cqbjax.beliefs.rows import Row
from cqbjax.types import Problem

# Newton steps on the new row's K residuals, the rest of the model being eliminated exactly.
PASSES = 4
# With less regularisation the model extrapolates too far in young runs and may diverge.
LEAST_LAMBDA0 = 0.3


class Estimate(NamedTuple):
    """The model of the whole loss; within a round, `model`, `lost`, `third` of the A shown blocks.

    Attributes:
        theta: [B, d] the estimate.
        model: [B, G] the models of the blocks' gradients (`cubic.pack`).
        lost: [B, G] what rounding took off `model` so far (compensated summation).
        third: [B, D, W, d, P] sums of the rows' second derivatives, as each was when it came.
        pages: the rows.
    """

    theta: Array
    model: Array
    lost: Array
    third: Array
    pages: Pages


def is_small(problem: Problem) -> bool:
    """Tell whether models are small enough to carry third derivatives.

    Without them estimates are not held to their accuracy (docs/estimator.md).
    """
    return cubic.directions(problem) > 0


def init(problem: Problem, lambda0: Array) -> Estimate:
    """Return theta = 0 with the regulariser as the whole model."""
    blocks, dim, wide = problem.num_blocks, problem.dim, cubic.width(problem)
    own = jnp.eye(blocks, wide) if wide > 1 else jnp.ones((blocks, 1))
    none = jnp.zeros((blocks, cubic.size(problem)))
    ridge = lambda0 * own[:, :, None] * jnp.eye(dim)[cubic.upper(dim)]
    ridge = ridge.reshape(blocks, -1)
    model = none.at[:, dim : dim + ridge.shape[1]].set(ridge)
    third = jnp.zeros((blocks, cubic.directions(problem), wide, dim, len(cubic.upper(dim)[0])))
    return Estimate(jnp.zeros((blocks, dim)), model, none, third, pages.init(problem))


def update(state: Estimate, problem: Problem, new: Row, exact_steps: int = 0) -> Estimate:
    """Absorb one row, visit pages, and move the shown blocks' estimates.

    Args:
        state: the model.
        problem: shapes.
        new: the round's row.
        exact_steps: 0 for one visit; n > 0 visits every page n times, which ends at the exact
            minimiser.
    """
    blocks = jnp.zeros(1, jnp.int32) if problem.parameters == "shared" else new.servers
    work = state._replace(
        model=state.model[blocks], lost=state.lost[blocks], third=state.third[blocks]
    )
    work = _absorb(work, problem, new, blocks)
    if exact_steps:
        visits = exact_steps * pages.most_of_a_block(problem)
        work = jax.lax.fori_loop(
            0, visits, lambda _, work: _visit(work, problem, new, blocks), work
        )
    else:
        work = _visit(work, problem, new, blocks)
    return work._replace(
        model=state.model.at[blocks].set(work.model),
        lost=state.lost.at[blocks].set(work.lost),
        third=state.third.at[blocks].set(work.third),
    )


def _absorb(work: Estimate, problem: Problem, new: Row, blocks: Array) -> Estimate:
    """Minimise model + new row over the shown blocks, store the row and add its model there."""
    theta = _added(work.theta, blocks, _row_step(work, problem, new, blocks), new.valid)
    entries = likelihood.entries(problem, new, theta)
    models, third = _expand(theta, problem, entries[:, :, None], blocks)
    page, stored = pages.append(work.pages, blocks, entries, new.valid)
    stored = stored._replace(models=stored.models.at[page].add(models))
    third = linalg.settle(work.third + third)
    return _grown(work._replace(theta=theta, third=third, pages=stored), models)


def _visit(work: Estimate, problem: Problem, new: Row, blocks: Array) -> Estimate:
    """Expand the next page of every shown block anew, and take a Newton step of these blocks."""
    page, stored = pages.turn(work.pages, blocks, new.valid)
    old = stored.models[page]
    fresh, _ = _expand(work.theta, problem, stored.rows[page], blocks)
    fresh = linalg.settle(jnp.where(new.valid, fresh, old))
    stored = stored._replace(models=stored.models.at[page].set(fresh))
    work = _grown(work._replace(pages=stored), fresh - old)
    slope, hessian = _system(work, problem, blocks)
    step = -linalg.matvec(invert(hessian), slope).reshape(blocks.shape[0], -1)
    return work._replace(theta=_added(work.theta, blocks, step, new.valid))


def _grown(work: Estimate, change: Array) -> Estimate:
    """Add models [A, G] to the shown blocks' sums, keeping what rounding takes off."""
    more = work.lost + change
    model = linalg.settle(work.model + more)
    return work._replace(model=model, lost=more - (model - work.model))


def _around(theta: Array, problem: Problem, blocks: Array) -> tuple[Array, Array]:
    """Return what the models of the shown blocks depend on: [A, W, d] and [A, W], one at each."""
    if cubic.width(problem) == 1:
        return theta[blocks][:, None], jnp.ones((len(blocks), 1), theta.dtype)
    own = (blocks[:, None] == jnp.arange(problem.num_blocks)).astype(theta.dtype)
    return jnp.broadcast_to(theta, (len(blocks), *theta.shape)), own


def _expand(theta: Array, problem: Problem, rows: Array, blocks: Array) -> tuple[Array, Array]:
    """Expand [A, F, L] rows of the shown blocks: [A, G], and the second derivatives."""

    def one(rows: Array, about: Array, own: Array) -> tuple[Array, Array]:
        model = likelihood.expand(problem, rows, about, own)
        return cubic.pack(model), model.third

    return jax.vmap(one)(rows, *_around(theta, problem, blocks))


def _system(work: Estimate, problem: Problem, blocks: Array) -> tuple[Array, Array]:
    """Return the shown blocks' gradient [A d] and Hessian [A d, A d] at the estimate."""

    def one(packed: Array, third: Array, about: Array, own: Array) -> Cubic:
        return cubic.shift(problem, cubic.unpack(problem, packed, third), about, own)

    here = jax.vmap(one)(work.model, work.third, *_around(work.theta, problem, blocks))
    linear = here.linear[:, blocks] if cubic.width(problem) > 1 else here.linear
    size = len(blocks) * problem.dim
    hessian = jnp.swapaxes(cubic.full(linalg.settle(linear), problem.dim), 1, 2)
    return linalg.settle((here.offset.reshape(-1), hessian.reshape(size, size)))


def _row_step(work: Estimate, problem: Problem, new: Row, blocks: Array) -> Array:
    """Return the step [A, d] to the minimum of the quadratic model about the estimate + new row.

    With P the inverse Hessian, X the rows [K, A d] and e = p - y, stationarity reads
    step = -P (gradient + X'e), which leaves K equations in e, solved by Newton's method.
    """
    slope, hessian = _system(work, problem, blocks)
    inverse = invert(hessian)
    size = problem.assortment_size
    rows = new.features
    if problem.parameters == "disjoint":
        rows = (jnp.eye(size)[:, :, None] * rows).reshape(size, -1)
    chosen = (jnp.arange(size) == new.choice).astype(rows.dtype)
    pushed = linalg.settle(linalg.matvec(inverse, rows))  # [K, A d], the rows of X P
    moved = linalg.settle(linalg.matvec(inverse, slope))
    start = linalg.dot(rows, work.theta[blocks].reshape(-1) - moved)
    gram = linalg.dot(rows[:, None, :], pushed[None, :, :])
    start, gram = linalg.settle((start, gram))
    excess = jnp.zeros_like(chosen)
    for _ in range(PASSES):
        p = mnl.choice_probabilities(start - linalg.matvec(gram, excess))
        factor = mnl.curvature_columns(p)
        excess = excess + linalg.solve_shifted(factor, gram, p - chosen - excess)
    return (-moved - linalg.vecmat(excess, pushed)).reshape(blocks.shape[0], -1)


def _added(theta: Array, blocks: Array, step: Array, valid: Array) -> Array:
    """Add [A, d] to the shown blocks' estimates where the round is valid."""
    here = (blocks[:, None] == jnp.arange(theta.shape[0])) & valid
    moved = linalg.total(jnp.where(here[:, :, None], step[:, None], 0.0), axis=0)
    return linalg.settle(theta + moved)


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
