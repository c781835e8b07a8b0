"""Maximum likelihood for few dimensions: a model of the whole history, bounded work a round.

Every block keeps its rows in pages, and each page its rows' part of the model (`cubic`): c and H,
expanded about the estimate at which the page was last visited. T of all rows is summed, each as it
was when its row came. In each round

    1. the shown blocks step to the minimum of the model and the round's own row, taken exactly;
    2. the row is written to their last pages and added to the model;
    3. the next page of each shown block is visited: it is expanded anew, and the shown blocks take
       a Newton step on the whole model.

docs/notebook/estimator.md derives this in the same order, and measures what is left to the exact
minimiser.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from cqbjax.core import linalg, mnl, platforms
from cqbjax.core.types import DOWN, Problem, along
from cqbjax.estimation import cubic, likelihood, pages, triangles
from cqbjax.estimation.cubic import Cubic
from cqbjax.estimation.pages import Pages
from cqbjax.estimation.rows import Row

# Newton steps on the K residuals of the round's own row.
PASSES = 4
# Most rows of a system that is solved number by number: such a solution takes long to compile.
NUMBERS = 10
# With less regularisation the model extrapolates too far in young runs and may diverge.
LEAST_LAMBDA0 = 0.3


class Estimate(NamedTuple):
    """theta-hat and the model behind it.

    Within a round `model`, `lost` and `second` are those of the A shown blocks alone.

    Attributes:
        theta: [B, d] the estimate.
        model: [B, G] c and H of every block, the regulariser and all pages (`cubic.to_vector`).
        lost: [B, G] what rounding took off `model` so far (compensated summation).
        second: [B, D, W, d, P] T of every block (`Cubic.second`).
        pages: the rows.
    """

    theta: Array
    model: Array
    lost: Array
    second: Array
    pages: Pages


def is_small(problem: Problem) -> bool:
    """Tell whether models are small enough to have second derivatives.

    Without them estimates are not held to their accuracy (docs/notebook/estimator.md).
    """
    return cubic.depth(problem) > 0


def init(problem: Problem, lambda0: Array) -> Estimate:
    """Return theta = 0 with the regulariser as the whole model: H_jj = lambda0 I."""
    blocks, dim, wide = problem.num_blocks, problem.dim, cubic.width(problem)
    own = jnp.eye(blocks, wide) if wide > 1 else jnp.ones((blocks, 1))
    none = jnp.zeros((blocks, cubic.vector_size(problem)))
    ridge = lambda0 * own[:, :, None] * jnp.eye(dim)[triangles.indices(dim)]
    ridge = ridge.reshape(blocks, -1)
    model = none.at[:, dim : dim + ridge.shape[1]].set(ridge)
    second = jnp.zeros((blocks, *cubic.second_shape(problem)))
    return Estimate(jnp.zeros((blocks, dim)), model, none, second, pages.init(problem))


def update(state: Estimate, problem: Problem, new: Row, exact_steps: int = 0) -> Estimate:
    """Absorb one row, visit pages, and move the shown blocks' estimates.

    Args:
        state: the estimate before the round.
        problem: shapes.
        new: the round's row.
        exact_steps: 0 for one visit; n > 0 visits every page n times, which ends at the exact
            minimiser.
    """
    blocks = jnp.zeros(1, jnp.int32) if problem.parameters == "shared" else new.servers
    work = state._replace(
        model=state.model[blocks], lost=state.lost[blocks], second=state.second[blocks]
    )
    step = row_step(_system(work, problem, new, blocks), problem, new, work.theta[blocks])
    work = _moved(work, blocks, step, learns(problem, new))
    work = _append(work, problem, new, blocks)
    if exact_steps:
        visits = exact_steps * pages.most_pages(problem)
        work = jax.lax.fori_loop(
            0, visits, lambda _, work: _visit(work, problem, new, blocks), work
        )
    else:
        work = _visit(work, problem, new, blocks)
    return work._replace(
        model=linalg.put_rows(state.model, blocks, work.model),
        lost=linalg.put_rows(state.lost, blocks, work.lost),
        second=state.second.at[blocks].set(work.second),
    )


def learns(problem: Problem, new: Row) -> Array:
    """Return which of the A shown blocks learn from a row: [] bool of all alike, or [A] bool."""
    return new.valid if problem.parameters == "shared" else new.learns


def row_step(system: tuple[Array, Array], problem: Problem, new: Row, theta: Array) -> Array:
    """Return the step [A, d] to the minimum of a model to second order and a row's exact loss.

    With g and H the model's gradient and Hessian at the estimate, X [K, A d] the derivatives of the
    row's K utilities and e = p - y, stationarity reads step = -H^-1 (g + X'e), which leaves K
    equations in e, solved by Newton's method.

    Args:
        system: g and H, as `solve` takes them.
        problem: shapes.
        new: the row.
        theta: [A, d] the estimate of the shown blocks.
    """
    (gradient, hessian), size, rows = system, problem.assortment_size, new.features
    if problem.parameters == "disjoint":
        rows = (jnp.eye(size)[:, :, None] * rows).reshape(size, -1)
    chosen = (jnp.arange(size) == new.choice).astype(rows.dtype)
    pushed, newton = solve(hessian, rows, gradient)  # pushed [K, A d] is X H^-1
    start = linalg.dot(rows, theta.reshape(-1) - newton)
    gram = linalg.dot(rows[:, None, :], pushed[None, :, :])
    start, gram = linalg.settle((start, gram))
    excess = _residuals(new.of_shown(start, DOWN), gram, chosen)
    return (-newton - linalg.vecmat(excess, pushed)).reshape(theta.shape)


def _residuals(start: Array, gram: Array, chosen: Array) -> Array:
    """Solve the residual equation e = p(s - G e) - y by Newton's method: [K], [K, K], [K] -> [K].

    (I + (diag(p) - p p') G)^-1 (p - y - e) is the step; s is `start`.
    """
    size = len(chosen)
    if platforms.current().fused and size <= 2:
        # Without an axis between the numbers all passes are one kernel.
        solve_few = _one_residual if size == 1 else _two_residuals
        residuals = solve_few(list(start), [list(row) for row in gram], list(chosen))
        return linalg.side_by_side(residuals)
    excess = jnp.zeros_like(chosen)
    for _ in range(PASSES):
        p = mnl.choice_probabilities(start - linalg.matvec(gram, excess))
        factor = mnl.curvature_columns(p)
        excess = excess + linalg.solve_shifted(factor, gram, p - chosen - excess)
    return excess


def _one_residual(start: list[Array], gram: list[list[Array]], chosen: list[Array]) -> list[Array]:
    """Do as `_residuals` for K = 1, number by number."""
    e = jnp.zeros_like(start[0])
    for _ in range(PASSES):
        p = jax.nn.sigmoid(start[0] - gram[0][0] * e)
        e = e + (p - chosen[0] - e) / (1.0 + p * (1.0 - p) * gram[0][0])
    return [e]


def _two_residuals(start: list[Array], gram: list[list[Array]], chosen: list[Array]) -> list[Array]:
    """Do as `_residuals` for K = 2, number by number."""
    e, f = jnp.zeros_like(start[0]), jnp.zeros_like(start[1])
    for _ in range(PASSES):
        u = start[0] - gram[0][0] * e - gram[0][1] * f
        v = start[1] - gram[1][0] * e - gram[1][1] * f
        top = jnp.maximum(jnp.maximum(u, v), 0.0)
        one, other = jnp.exp(u - top), jnp.exp(v - top)
        mass = jnp.exp(-top) + one + other
        p, q = one / mass, other / mass
        # I + (diag(p) - p p') G, and Cramer's rule: its determinant is at least one.
        a = 1.0 + p * ((1.0 - p) * gram[0][0] - q * gram[1][0])
        b = p * ((1.0 - p) * gram[0][1] - q * gram[1][1])
        c = q * ((1.0 - q) * gram[1][0] - p * gram[0][0])
        d = 1.0 + q * ((1.0 - q) * gram[1][1] - p * gram[0][1])
        left, right = p - chosen[0] - e, q - chosen[1] - f
        e = e + (d * left - b * right) / (a * d - b * c)
        f = f + (a * right - c * left) / (a * d - b * c)
    return [e, f]


def _append(work: Estimate, problem: Problem, new: Row, blocks: Array) -> Estimate:
    """Write the row to the last page of each shown block, and add its model there."""
    rows = likelihood.stored(problem, new, work.theta)
    models, second = _expand(work.theta, problem, rows[:, :, None], blocks)
    page, stored = pages.append(work.pages, blocks, rows, learns(problem, new))
    # Settled, here and where a page is read: what reads an array again after it is written makes
    # XLA copy all of it, so that a round would cost the more the longer the run.
    stored = stored._replace(models=linalg.settle(stored.models.at[page].add(models)))
    second = linalg.settle(work.second + second)
    return _grown(work._replace(second=second, pages=stored), models)


def _visit(work: Estimate, problem: Problem, new: Row, blocks: Array) -> Estimate:
    """Expand the next page of every shown block anew, and take a Newton step of these blocks."""
    learnt = learns(problem, new)
    page, stored = pages.turn(work.pages, blocks, learnt)
    old = linalg.settle(stored.models[page])
    fresh, _ = _expand(work.theta, problem, pages.read(stored, page), blocks)
    fresh = linalg.settle(jnp.where(along(learnt, fresh), fresh, old))
    stored = stored._replace(models=stored.models.at[page].set(fresh))
    work = _grown(work._replace(pages=stored), fresh - old)
    gradient, hessian = _system(work, problem, new, blocks)
    (newton,) = solve(hessian, gradient)
    return _moved(work, blocks, -newton.reshape(blocks.shape[0], -1), learnt)


def _expand(theta: Array, problem: Problem, rows: Array, blocks: Array) -> tuple[Array, Array]:
    """Expand [A, F, L] rows of the shown blocks: [A, G], and the second derivatives."""

    def one(rows: Array, about: Array, own: Array) -> tuple[Array, Array]:
        model = likelihood.expand(problem, rows, about, own)
        return cubic.to_vector(model), model.second

    return jax.vmap(one)(rows, *_around(theta, problem, blocks))


def _grown(work: Estimate, change: Array) -> Estimate:
    """Add models [A, G] to the shown blocks' sums, keeping what rounding takes off."""
    model, lost = linalg.add(work.model, work.lost, change)
    return work._replace(model=model, lost=lost)


def _system(work: Estimate, problem: Problem, new: Row, blocks: Array) -> tuple[Array, Array]:
    """Return the shown blocks' gradient [A d] and Hessian, as `solve` takes it, at the estimate.

    A block whose server did not answer is held: nothing couples it, and its gradient is no matter.
    """

    def one(vector: Array, second: Array, about: Array, own: Array) -> Cubic:
        return cubic.move(problem, cubic.from_vector(problem, vector, second), about, own)

    here = jax.vmap(one)(work.model, work.second, *_around(work.theta, problem, blocks))
    between = here.first[:, blocks] if cubic.width(problem) > 1 else here.first
    if new.shown is not None and problem.parameters == "disjoint":
        both = new.shown[:, None] & new.shown
        between = jnp.where((both | jnp.eye(len(blocks), dtype=bool))[:, :, None], between, 0.0)
    size = len(blocks) * problem.dim
    if platforms.current().fused and size <= NUMBERS:
        return here.value.reshape(-1), between
    hessian = jnp.swapaxes(triangles.whole(linalg.settle(between), problem.dim), 1, 2)
    return linalg.settle((here.value.reshape(-1), hessian.reshape(size, size)))


def _around(theta: Array, problem: Problem, blocks: Array) -> tuple[Array, Array]:
    """Return what the models of the shown blocks depend on: [A, W, d] and [A, W], one at each."""
    if cubic.width(problem) == 1:
        return theta[blocks][:, None], jnp.ones((len(blocks), 1), theta.dtype)
    own = (blocks[:, None] == jnp.arange(problem.num_blocks)).astype(theta.dtype)
    return jnp.broadcast_to(theta, (len(blocks), *theta.shape)), own


def _moved(work: Estimate, blocks: Array, step: Array, valid: Array) -> Estimate:
    """Add [A, d] to the estimates of the blocks that learn, [] or [A]."""
    here = (blocks[:, None] == jnp.arange(work.theta.shape[0])) & along(valid, blocks[:, None])
    moved = linalg.total(jnp.where(here[:, :, None], step[:, None], 0.0), axis=0)
    return work._replace(theta=linalg.settle(work.theta + moved))


def solve(hessian: Array, *right: Array) -> tuple[Array, ...]:
    """Solve H v = r for several right sides [..., A d], H symmetric positive definite.

    Args:
        hessian: [A d, A d]; or [A, A, P] the upper elements of its blocks, to be solved number by
            number.
        right: the right sides.
    """
    if hessian.ndim == 3:
        dim = right[0].shape[-1] // len(hessian)
        upper = linalg.triangular(triangles.entries(hessian, dim))
        return tuple(linalg.solve_triangular(upper, one) for one in right)
    inverse = invert(hessian)
    return tuple(linalg.settle(linalg.matvec(inverse, one)) for one in right)


def invert(matrix: Array) -> Array:
    """Invert a symmetric positive definite matrix [d, d], of which the lower triangle is read.

    Gauss-Jordan without pivoting where it is small: d elementwise steps, which batch well
    everywhere, unlike small Cholesky factorisations on a GPU.
    """
    dim = matrix.shape[-1]
    if dim > 3 * linalg.SMALL:
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
