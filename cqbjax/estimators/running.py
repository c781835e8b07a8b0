"""Maximum likelihood from a running quadratic model of the history: constant work a round.

Between refreshes the loss of the past is its second-order expansion (gradient, Hessian) about the
current estimate; the round's own row enters exactly. On a geometric schedule of rounds the model is
expanded anew from the whole history, so all refreshes together cost work linear in the horizon.
"""

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from cqbjax import mnl
from cqbjax.estimators import history as past
from cqbjax.estimators.history import History, Row
from cqbjax.types import Problem

# Every round is refreshed at first, where one row moves the estimate most; then each time the
# history has grown by this ratio.
DENSE_ROUNDS = 16
GROWTH = 1.25
# Passes of the fixed-Jacobian Newton iteration on the model with the new row.
PASSES = 4


class State(NamedTuple):
    """The quadratic model about the current estimate.

    Attributes:
        theta: [B, d] the estimate.
        gradient: [B, d] gradient of the loss there (zero for a block just solved).
        hessian: [B, d, d] diagonal blocks, or [B, B, d, d] where assortments couple blocks.
        inverse: [B, d, d] inverses of the diagonal blocks.
        history: every row, for the refreshes.
    """

    theta: Array
    gradient: Array
    hessian: Array
    inverse: Array
    history: History


def coupled(problem: Problem) -> bool:
    """Tell whether two blocks can meet in one row's likelihood."""
    return problem.parameters == "disjoint" and problem.assortment_size > 1


def init(problem: Problem, lambda0: Array) -> State:
    """Return theta = 0 with the regulariser as the whole model."""
    blocks, dim = problem.num_blocks, problem.dim
    eye = jnp.broadcast_to(jnp.eye(dim), (blocks, dim, dim))
    hessian = lambda0 * eye
    if coupled(problem):
        hessian = jnp.eye(blocks)[:, :, None, None] * hessian[None]
    zeros = jnp.zeros((blocks, dim))
    return State(zeros, zeros, hessian, eye / lambda0, past.init(problem))


def refresh_rounds(horizon: int) -> np.ndarray:
    """Return [T + 1] bool: in which rounds the model is expanded anew."""
    rounds = np.arange(1, horizon + 2)
    steps = np.floor(np.log(rounds) / math.log(GROWTH))
    due = np.concatenate([[False], steps[1:] > steps[:-1]])
    due[1 : DENSE_ROUNDS + 1] = True
    return due[: horizon + 1]


def update(
    state: State, problem: Problem, root: Array, lambda0: Array, new: Row, exact_steps: int = 0
) -> State:
    """Absorb one row and, where the schedule says so, expand the model anew.

    Args:
        state: the model.
        problem: shapes.
        root: unused here (the other estimator's preconditioner).
        lambda0: [] regularisation.
        new: the round's row.
        exact_steps: 0 for the schedule; n > 0 refreshes n times every round, to the exact minimiser.
    """
    del root
    state = state._replace(history=past.append(state.history, new))
    hit = _hit(problem, new)
    state = _absorb(state, problem, new, hit)

    def renew(state: State) -> State:
        for _ in range(max(exact_steps, 1)):
            state = _solve(_refresh(state, problem, lambda0, new), hit)
        return state

    if exact_steps:
        return renew(state)
    due = jnp.asarray(refresh_rounds(problem.horizon))[new.round]
    return jax.lax.cond(due, renew, lambda state: state, state)


def _hit(problem: Problem, new: Row) -> Array:
    """Mark the blocks this round may move: [B] bool."""
    if problem.parameters == "shared":
        return new.valid[None]
    return jnp.any(new.servers[:, None] == jnp.arange(problem.num_servers), axis=0) & new.valid


def _design(problem: Problem, new: Row) -> Array:
    """Return [K, B, d]: the row of each shown server in every block, zero where it has none."""
    if problem.parameters == "shared":
        return jnp.where(new.valid, new.features, 0.0)[:, None, :]
    here = (new.servers[:, None] == jnp.arange(problem.num_servers)) & new.valid
    return here[:, :, None] * new.features


def _apply(hessian: Array, step: Array) -> Array:
    """Multiply the Hessian with a step: [B, d]."""
    if hessian.ndim == 3:
        return jnp.sum(hessian * step[:, None, :], axis=-1)
    return jnp.sum(hessian * step[None, :, None, :], axis=(1, 3))


def _absorb(state: State, problem: Problem, new: Row, hit: Array) -> State:
    """Minimise model + new row over the shown blocks, then fold the row into the model."""
    design = _design(problem, new)
    chosen = (jnp.arange(problem.assortment_size) == new.choice).astype(design.dtype)
    start = jnp.sum(design * state.theta, axis=(1, 2))
    inverse = _add_rows(state.inverse, problem, design, mnl.choice_probabilities(start))
    step = jnp.zeros_like(state.theta)
    for _ in range(PASSES):
        excess = mnl.choice_probabilities(start + jnp.sum(design * step, axis=(1, 2))) - chosen
        slope = state.gradient + _apply(state.hessian, step)
        slope = slope + jnp.sum(design * excess[:, None, None], axis=0)
        step = step - hit[:, None] * jnp.sum(inverse * slope[:, None, :], axis=-1)
    probabilities = mnl.choice_probabilities(start + jnp.sum(design * step, axis=(1, 2)))
    excess = probabilities - chosen
    gradient = state.gradient + _apply(state.hessian, step)
    return state._replace(
        theta=state.theta + step,
        gradient=gradient + jnp.sum(design * excess[:, None, None], axis=0),
        hessian=state.hessian + _row_hessian(problem, design, probabilities),
        inverse=_add_rows(state.inverse, problem, design, probabilities),
    )


def _columns(problem: Problem, design: Array, probabilities: Array) -> list[Array]:
    """Return rows [B, d] whose outer products sum to the diagonal blocks of the row's Hessian."""
    if problem.parameters == "shared":
        factor = mnl.curvature_columns(probabilities)
        mixed = jnp.sum(design[:, None] * factor[:, :, None, None], axis=0)
        return list(mixed)
    weight = jnp.sqrt(probabilities * (1.0 - probabilities))
    return [jnp.sum(design * weight[:, None, None], axis=0)]


def _add_rows(inverse: Array, problem: Problem, design: Array, probabilities: Array) -> Array:
    """Add the row's curvature to each inverse diagonal block (Sherman-Morrison): [B, d, d]."""
    for column in _columns(problem, design, probabilities):
        pushed = jnp.sum(inverse * column[:, None, :], axis=-1)
        size = 1.0 + jnp.sum(pushed * column, axis=-1)
        inverse = inverse - pushed[:, :, None] * (pushed / size[:, None])[:, None, :]
    return inverse


def _row_hessian(problem: Problem, design: Array, probabilities: Array) -> Array:
    """Return the row's Hessian, sum_kl (diag(p) - p p')_kl z_k z_l', in the model's layout."""
    if coupled(problem):
        mean = jnp.sum(design * probabilities[:, None, None], axis=0)
        cross = -mean[:, None, :, None] * mean[None, :, None, :]
        square = sum(
            p * z[:, None, :, None] * z[None, :, None, :]
            for p, z in zip(probabilities, design, strict=True)
        )
        return cross + square
    columns = _columns(problem, design, probabilities)
    return sum((c[:, :, None] * c[:, None, :] for c in columns), jnp.zeros(()))


def _solve(state: State, hit: Array) -> State:
    """Minimise the model over the shown blocks."""
    step = jnp.zeros_like(state.theta)
    for _ in range(PASSES if state.hessian.ndim == 4 else 1):
        slope = state.gradient + _apply(state.hessian, step)
        step = step - hit[:, None] * jnp.sum(state.inverse * slope[:, None, :], axis=-1)
    gradient = state.gradient + _apply(state.hessian, step)
    return state._replace(theta=state.theta + step, gradient=gradient)


def _refresh(state: State, problem: Problem, lambda0: Array, new: Row) -> State:
    """Expand the loss of the whole history about the current estimate."""
    empty = init(problem, lambda0)

    def add(number: Array, sums: tuple[Array, Array]) -> tuple[Array, Array]:
        gradient, hessian = sums
        rows = past.block(state.history, number)
        member, chosen = past.shown(rows, problem.num_servers)
        features = new.contexts[rows.row]
        expand = _expand_shared if problem.parameters == "shared" else _expand_disjoint
        extra = expand(problem, features, state.theta, member, chosen)
        return gradient + extra[0], hessian + extra[1]

    gradient, hessian = jax.lax.fori_loop(
        0, past.blocks_until(new.round), add, (lambda0 * state.theta, empty.hessian)
    )
    diagonal = hessian if hessian.ndim == 3 else jnp.einsum("bbij->bij", hessian)
    return state._replace(gradient=gradient, hessian=hessian, inverse=_invert(diagonal))


def _invert(matrices: Array) -> Array:
    """Invert symmetric positive definite blocks [B, d, d] by repeated rank-one elimination.

    Gauss-Jordan without pivoting: d elementwise steps, which batch well everywhere, unlike small
    Cholesky factorisations on a GPU.
    """
    dim = matrices.shape[-1]
    for i in range(dim):
        pivot = 1.0 / matrices[:, i, i]
        column = matrices[:, :, i]
        swept = matrices - (pivot[:, None] * column)[:, :, None] * column[:, None, :]
        edge = pivot[:, None] * column
        at = jnp.arange(dim) == i
        swept = jnp.where(at[None, :, None], edge[:, None, :], swept)
        swept = jnp.where(at[None, None, :], edge[:, :, None], swept)
        matrices = jnp.where(at[:, None] & at[None, :], -pivot[:, None, None], swept)
    return -matrices


def _expand_disjoint(
    problem: Problem, features: Array, theta: Array, member: Array, chosen: Array
) -> tuple[Array, Array]:
    """Return gradient [N, d] and Hessian of a block of rows, features [L, d]."""
    utilities = jnp.einsum("ld,nd->ln", features, theta)
    p = past.shown_probabilities(utilities, member)
    gradient = jnp.einsum("ln,ld->nd", p - chosen, features)
    if not coupled(problem):
        weight = p * (1.0 - p)
        return gradient, jnp.einsum("ln,li,lj->nij", weight, features, features)
    weight = jnp.eye(problem.num_servers) * p[:, None, :] - p[:, :, None] * p[:, None, :]
    return gradient, jnp.einsum("lnm,li,lj->nmij", weight, features, features)


def _expand_shared(
    problem: Problem, features: Array, theta: Array, member: Array, chosen: Array
) -> tuple[Array, Array]:
    """Return gradient [1, d] and Hessian [1, d, d] of a block of rows, features [L, N, d]."""
    utilities = jnp.einsum("lnd,d->ln", features, theta[0])
    p = past.shown_probabilities(utilities, member)
    gradient = jnp.einsum("ln,lnd->d", p - chosen, features)
    mean = jnp.einsum("ln,lnd->ld", p, features)
    hessian = jnp.einsum("ln,lni,lnj->ij", p, features, features)
    return gradient[None], (hessian - jnp.einsum("li,lj->ij", mean, mean))[None]


