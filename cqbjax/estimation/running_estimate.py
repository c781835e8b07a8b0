"""Maximum likelihood for few dimensions: a model of the whole history, bounded work per round.

Every block stores its rows in pages, and for each page its part of the model (`loss_model`): c and
H, expanded about the estimate of the last visit. T is summed over all rows, each at the time of its
arrival. In each round

    1. the offered blocks step to the minimum of the model plus the exact loss of the new row;
    2. the row is written to their last pages and added to the model;
    3. the next page of each offered block is visited: it is expanded again, and the offered blocks
       take a Newton step on the whole model.

docs/notebook/estimator.md derives this in the same order and measures the distance to the exact
minimiser.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from cqbjax.core import linalg, mnl, platforms
from cqbjax.core.types import DOWN_UTILITY, Problem, broadcast_marks, mask_unoffered
from cqbjax.estimation import likelihood, loss_model, packed_matrices, paged_history
from cqbjax.estimation.belief import Interaction
from cqbjax.estimation.loss_model import LossModel
from cqbjax.estimation.paged_history import PagedHistory

# Newton steps on the K residuals of the new row.
PASSES = 4
# Most equations of a system that is solved number by number, which takes long to compile.
NUMBERS = 10
# With less regularisation the model extrapolates too far in short runs and may diverge.
LEAST_LAMBDA0 = 0.3


class RunningEstimate(NamedTuple):
    """theta-hat and the model behind it.

    Within a round `model`, `lost` and `second` are those of the A offered blocks.

    Attributes:
        theta: [B, d] the estimates.
        model: [B, G] c and H of every block, regulariser and all pages (`pack_vector`).
        lost: [B, G] rounding error of `model` (compensated summation).
        second: [B, D, W, d, P] T of every block (`LossModel.second`).
        pages: the rows.
    """

    theta: Array
    model: Array
    lost: Array
    second: Array
    pages: PagedHistory


def init(problem: Problem, lambda0: Array) -> RunningEstimate:
    """Return theta = 0, with the regulariser as the whole model: H_jj = lambda0 I."""
    blocks, dim, wide = problem.num_blocks, problem.dim, loss_model.width(problem)
    own = jnp.eye(blocks, wide) if wide > 1 else jnp.ones((blocks, 1))
    none = jnp.zeros((blocks, loss_model.vector_size(problem)))
    ridge = lambda0 * own[:, :, None] * jnp.eye(dim)[packed_matrices.upper_indices(dim)]
    ridge = ridge.reshape(blocks, -1)
    model = none.at[:, dim : dim + ridge.shape[1]].set(ridge)
    second = jnp.zeros((blocks, *loss_model.second_shape(problem)))
    theta, pages = jnp.zeros((blocks, dim)), paged_history.init(problem)
    return RunningEstimate(theta, model, none, second, pages)


def update(
    state: RunningEstimate, problem: Problem, new: Interaction, exact_steps: int = 0
) -> RunningEstimate:
    """Add one row, visit pages, and move the estimates of the offered blocks.

    Args:
        state: the estimate before the round.
        problem: shapes.
        new: the interaction.
        exact_steps: 0 for one visit; n > 0 visits every page n times, which ends at the exact
            minimiser.
    """
    shared = problem.parameters == "shared"
    blocks = jnp.zeros(1, jnp.int32) if shared else new.servers
    learns = new.valid if shared else new.learns  # [] or [A]
    work = state._replace(
        model=state.model[blocks], lost=state.lost[blocks], second=state.second[blocks]
    )
    step = row_step(_newton_system(work, problem, new, blocks), problem, new, work.theta[blocks])
    work = _append(_add_step(work, blocks, step, learns), problem, new, blocks, learns)
    if exact_steps:
        visits = exact_steps * paged_history.max_pages(problem)
        work = jax.lax.fori_loop(
            0, visits, lambda _, work: _visit(work, problem, new, blocks, learns), work
        )
    else:
        work = _visit(work, problem, new, blocks, learns)
    return work._replace(
        model=linalg.put_rows(state.model, blocks, work.model),
        lost=linalg.put_rows(state.lost, blocks, work.lost),
        second=state.second.at[blocks].set(work.second),
    )


def sweep(
    state: RunningEstimate, problem: Problem, new: Interaction, times: int
) -> RunningEstimate:
    """Move all blocks jointly: visit the next page of each, take a Newton step, and repeat.

    Where rows couple blocks (disjoint, K > 1), the minimiser over the offered blocks alone is not
    that over all of them.

    Args:
        state: the estimate after `update`.
        problem: shapes.
        new: the interaction that was added.
        times: the number of visits and steps.
    """
    blocks = jnp.arange(problem.num_blocks)
    learns = new.valid & (state.pages.length > 0)  # a block without rows stays at zero
    whole = new._replace(offered=None)
    return jax.lax.fori_loop(
        0, times, lambda _, work: _visit(work, problem, whole, blocks, learns), state
    )


def row_step(
    system: tuple[Array, Array], problem: Problem, new: Interaction, theta: Array
) -> Array:
    """Return the step [A, d] to the minimum of the quadratic model plus the exact loss of a row.

    With g and H the model's gradient and Hessian at the estimate, X [K, A d] the derivatives of the
    row's K utilities and e = p - y, stationarity reads step = -H^-1 (g + X'e). Newton's method
    solves the K equations in e.

    Args:
        system: g and H, as `solve` takes them.
        problem: shapes.
        new: the row.
        theta: [A, d] estimates of the offered blocks.
    """
    (gradient, hessian), size, rows = system, problem.assortment_size, new.features
    if problem.parameters == "disjoint":
        rows = (jnp.eye(size)[:, :, None] * rows).reshape(size, -1)
    chosen = (jnp.arange(size) == new.choice).astype(rows.dtype)
    pushed, newton = solve(hessian, rows, gradient)  # pushed [K, A d] is X H^-1
    start = linalg.dot(rows, theta.reshape(-1) - newton)
    gram = linalg.dot(rows[:, None, :], pushed[None, :, :])
    start, gram = linalg.add_barrier((start, gram))
    excess = _residuals(mask_unoffered(new.offered, start, DOWN_UTILITY), gram, chosen)
    return (-newton - linalg.vecmat(excess, pushed)).reshape(theta.shape)


def _residuals(start: Array, gram: Array, chosen: Array) -> Array:
    """Solve the residual equation e = p(s - G e) - y by Newton's method: [K], [K, K], [K] -> [K].

    (I + (diag(p) - p p') G)^-1 (p - y - e) is the step; s is `start`.
    """
    size = len(chosen)
    if platforms.get_current().fused and size <= 2:
        # Scalars without an axis keep all passes in one kernel.
        solve_few = _one_residual if size == 1 else _two_residuals
        residuals = solve_few(list(start), [list(row) for row in gram], list(chosen))
        return linalg.stack_last(residuals)
    excess = jnp.zeros_like(chosen)
    for _ in range(PASSES):
        p = mnl.choice_probabilities(start - linalg.matvec(gram, excess))
        factor = mnl.curvature_columns(p)
        excess = excess + linalg.solve_shifted(factor, gram, p - chosen - excess)
    return excess


def _one_residual(start: list[Array], gram: list[list[Array]], chosen: list[Array]) -> list[Array]:
    """Solve `_residuals` for K = 1 with scalars."""
    e = jnp.zeros_like(start[0])
    for _ in range(PASSES):
        p = jax.nn.sigmoid(start[0] - gram[0][0] * e)
        e = e + (p - chosen[0] - e) / (1.0 + p * (1.0 - p) * gram[0][0])
    return [e]


def _two_residuals(start: list[Array], gram: list[list[Array]], chosen: list[Array]) -> list[Array]:
    """Solve `_residuals` for K = 2 with scalars."""
    e, f = jnp.zeros_like(start[0]), jnp.zeros_like(start[1])
    for _ in range(PASSES):
        u = start[0] - gram[0][0] * e - gram[0][1] * f
        v = start[1] - gram[1][0] * e - gram[1][1] * f
        top = jnp.maximum(jnp.maximum(u, v), 0.0)
        one, other = jnp.exp(u - top), jnp.exp(v - top)
        mass = jnp.exp(-top) + one + other
        p, q = one / mass, other / mass
        # Cramer's rule for I + (diag(p) - p p') G, whose determinant is at least one.
        a = 1.0 + p * ((1.0 - p) * gram[0][0] - q * gram[1][0])
        b = p * ((1.0 - p) * gram[0][1] - q * gram[1][1])
        c = q * ((1.0 - q) * gram[1][0] - p * gram[0][0])
        d = 1.0 + q * ((1.0 - q) * gram[1][1] - p * gram[0][1])
        left, right = p - chosen[0] - e, q - chosen[1] - f
        e = e + (d * left - b * right) / (a * d - b * c)
        f = f + (a * right - c * left) / (a * d - b * c)
    return [e, f]


def _append(
    work: RunningEstimate, problem: Problem, new: Interaction, blocks: Array, learns: Array
) -> RunningEstimate:
    """Write the row to the last page of each offered block, and add its model there."""
    rows = likelihood.encode_rows(problem, new, work.theta)
    models, second = _expand(work.theta, problem, rows[:, :, None], blocks)
    page, stored = paged_history.append(work.pages, blocks, rows, learns)
    # The barriers, here and where a page is read, keep XLA from copying all pages: it copies an
    # array that is read again after a write, and a round would cost more the longer the run.
    stored = stored._replace(models=linalg.add_barrier(stored.models.at[page].add(models)))
    second = linalg.add_barrier(work.second + second)
    return _add_models(work._replace(second=second, pages=stored), models)


def _visit(
    work: RunningEstimate, problem: Problem, new: Interaction, blocks: Array, learns: Array
) -> RunningEstimate:
    """Expand the next page of every offered block again, and take a Newton step of the blocks."""
    page, stored = paged_history.next_page(work.pages, blocks, learns)
    old = linalg.add_barrier(stored.models[page])
    fresh, _ = _expand(work.theta, problem, paged_history.read_rows(stored, page), blocks)
    fresh = linalg.add_barrier(jnp.where(broadcast_marks(learns, fresh), fresh, old))
    stored = stored._replace(models=stored.models.at[page].set(fresh))
    work = _add_models(work._replace(pages=stored), fresh - old)
    gradient, hessian = _newton_system(work, problem, new, blocks)
    (newton,) = solve(hessian, gradient)
    return _add_step(work, blocks, -newton.reshape(blocks.shape[0], -1), learns)


def _expand(theta: Array, problem: Problem, rows: Array, blocks: Array) -> tuple[Array, Array]:
    """Expand rows [A, F, L] of the offered blocks: [A, G], and the second derivatives."""

    def one(rows: Array, about: Array, own: Array) -> tuple[Array, Array]:
        model = likelihood.expand(problem, rows, about, own)
        return model.pack_vector(), model.second

    return jax.vmap(one)(rows, *_expansion_points(theta, problem, blocks))


def _add_models(work: RunningEstimate, change: Array) -> RunningEstimate:
    """Add models [A, G] to those of the offered blocks by compensated summation."""
    model, lost = linalg.add_compensated(work.model, work.lost, change)
    return work._replace(model=model, lost=lost)


def _newton_system(
    work: RunningEstimate, problem: Problem, new: Interaction, blocks: Array
) -> tuple[Array, Array]:
    """Return gradient [A d] and Hessian of the offered blocks at the estimate, for `solve`.

    A block whose server did not answer is uncoupled from the others, and its gradient unused.
    """

    def one(vector: Array, second: Array, about: Array, own: Array) -> LossModel:
        model = loss_model.unpack_vector(problem, vector, second)
        return loss_model.recenter(problem, model, about, own)

    here = jax.vmap(one)(work.model, work.second, *_expansion_points(work.theta, problem, blocks))
    between = here.first[:, blocks] if loss_model.width(problem) > 1 else here.first
    if new.offered is not None and problem.parameters == "disjoint":
        both = new.offered[:, None] & new.offered
        between = jnp.where((both | jnp.eye(len(blocks), dtype=bool))[:, :, None], between, 0.0)
    size = len(blocks) * problem.dim
    if platforms.get_current().fused and size <= NUMBERS:
        return here.value.reshape(-1), between
    hessian = jnp.swapaxes(packed_matrices.unpack(linalg.add_barrier(between), problem.dim), 1, 2)
    return linalg.add_barrier((here.value.reshape(-1), hessian.reshape(size, size)))


def _expansion_points(theta: Array, problem: Problem, blocks: Array) -> tuple[Array, Array]:
    """Return the estimates that each offered block's model depends on, and its own mark.

    Returns:
        [A, W, d], and [A, W] one at the block itself.
    """
    if loss_model.width(problem) == 1:
        return theta[blocks][:, None], jnp.ones((len(blocks), 1), theta.dtype)
    own = (blocks[:, None] == jnp.arange(problem.num_blocks)).astype(theta.dtype)
    return jnp.broadcast_to(theta, (len(blocks), *theta.shape)), own


def _add_step(work: RunningEstimate, blocks: Array, step: Array, learns: Array) -> RunningEstimate:
    """Add [A, d] to the estimates of the blocks that learn, [] or [A]."""
    here = (blocks[:, None] == jnp.arange(work.theta.shape[0])) & broadcast_marks(
        learns, blocks[:, None]
    )
    moved = linalg.total(jnp.where(here[:, :, None], step[:, None], 0.0), axis=0)
    return work._replace(theta=linalg.add_barrier(work.theta + moved))


def solve(hessian: Array, *right: Array) -> tuple[Array, ...]:
    """Solve H v = r for several right sides [..., A d], H symmetric positive definite.

    Args:
        hessian: [A d, A d]; or [A, A, P] the packed blocks of H, to be solved with scalars.
        right: the right sides.
    """
    if hessian.ndim == 3:
        dim = right[0].shape[-1] // len(hessian)
        upper = linalg.factor_triangular(packed_matrices.block_entries(hessian, dim))
        return tuple(linalg.solve_triangular(upper, one) for one in right)
    inverse = invert(hessian)
    return tuple(linalg.add_barrier(linalg.matvec(inverse, one)) for one in right)


def invert(matrix: Array) -> Array:
    """Invert a symmetric positive definite matrix [d, d], given by its lower triangle.

    A small matrix takes Gauss-Jordan without pivoting: d elementwise steps, which batch well,
    unlike small Cholesky factorisations on a GPU.
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
        matrix = linalg.add_barrier(jnp.where(at[:, None] & at[None, :], -pivot, swept))
    return -matrix
