"""Maximum likelihood for few dimensions: a running Hessian, and the exact gradient every round.

A round's row enters a quadratic model of the past (gradient and inverse Hessian), which gives a
first step; then the shown blocks take Newton steps on the exact gradient, read from the whole
history (`replay`). The Hessian is expanded anew on a geometric schedule of rounds.
"""

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from cqbjax import linalg, mnl
from cqbjax.estimators import coupling, replay
from cqbjax.estimators import history as past
from cqbjax.estimators.history import History, Row
from cqbjax.estimators.replay import Replay
from cqbjax.types import Problem

# Every round is refreshed at first, where one row moves the estimate most; then each time the
# history has grown by this ratio.
DENSE_ROUNDS = 32
GROWTH = 1.25
# Newton steps on the new row's K residuals, the rest of the model being eliminated exactly.
PASSES = 4
# Newton steps a round on the exact gradient of the shown blocks, the Hessian staying the model's.
CORRECTIONS = 2


class State(NamedTuple):
    """The quadratic model about the current estimate.

    Attributes:
        theta: [B, d] the estimate.
        gradient: [B, d] gradient of the loss there (zero for a block just solved).
        hessian: [B, B, d, d] where assortments couple blocks, else empty: the inverse is enough.
        inverse: [B, d, d] inverses of the Hessian's diagonal blocks.
        history: every row, for the refreshes.
        replay: the same, laid out for the exact gradient.
    """

    theta: Array
    gradient: Array
    hessian: Array
    inverse: Array
    history: History
    replay: Replay


def coupled(problem: Problem) -> bool:
    """Tell whether two blocks can meet in one row's likelihood."""
    return problem.parameters == "disjoint" and problem.assortment_size > 1


def init(problem: Problem, lambda0: Array) -> State:
    """Return theta = 0 with the regulariser as the whole model."""
    blocks, dim = problem.num_blocks, problem.dim
    eye = jnp.broadcast_to(jnp.eye(dim), (blocks, dim, dim))
    hessian = jnp.zeros((0, 0, dim, dim))
    if coupled(problem):
        hessian = jnp.eye(blocks)[:, :, None, None] * (lambda0 * eye)[None]
    zeros = jnp.zeros((blocks, dim))
    return State(zeros, zeros, hessian, eye / lambda0, past.init(problem), replay.init(problem))


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
        exact_steps: 0 for the schedule; n > 0 refreshes n times every round.
    """
    del root
    state = state._replace(
        history=past.append(state.history, new), replay=replay.append(state.replay, new)
    )
    absorb, solve = (_absorb_coupled, _solve_coupled) if coupled(problem) else (_absorb, _solve)
    state = absorb(state, problem, new)

    def renew(state: State) -> State:
        return solve(_refresh(state, problem, lambda0, new), problem, new)

    if exact_steps:
        return jax.lax.fori_loop(0, exact_steps, lambda _, state: renew(state), state)
    due = jnp.asarray(refresh_rounds(problem.horizon))[new.round]
    state = jax.lax.cond(due, renew, lambda state: state, state)
    for _ in range(CORRECTIONS):
        state = solve(_correct(state, problem, lambda0, new), problem, new)
    return state


def _correct(state: State, problem: Problem, lambda0: Array, new: Row) -> State:
    """Replace the shown blocks' gradient by the exact one."""
    exact = replay.gradient(state.replay, problem, state.theta, lambda0, new)
    gradient = state.gradient
    blocks = new.servers if problem.parameters == "disjoint" else jnp.zeros(1, jnp.int32)
    for block, own in zip(blocks, exact, strict=True):
        here = (jnp.arange(problem.num_blocks) == block)[:, None]
        gradient = jnp.where(here, own, gradient)
    return state._replace(gradient=gradient)


def _block(problem: Problem, new: Row) -> Array:
    """Return the one block that a row without coupling touches."""
    return new.servers[0] if problem.parameters == "disjoint" else jnp.int32(0)


def _absorb(state: State, problem: Problem, new: Row) -> State:
    """Minimise model + new row over its block, then fold the row into the model.

    With P the block's inverse Hessian, X the rows [K, d] and e = p - y, stationarity reads
    step = -P (gradient + X'e), which leaves K equations in e, solved by Newton's method.
    """
    block = _block(problem, new)
    rows = jnp.where(new.valid, jnp.atleast_2d(new.features), 0.0)
    chosen = (jnp.arange(problem.assortment_size) == new.choice).astype(rows.dtype)
    inverse, theta, gradient = state.inverse[block], state.theta[block], state.gradient[block]
    pushed = linalg.settle(linalg.matvec(inverse, rows))  # [K, d], the rows of X P
    moved = jnp.where(new.valid, linalg.matvec(inverse, gradient), 0.0)
    start = linalg.dot(rows, theta) - linalg.dot(rows, moved)
    gram = linalg.dot(rows[:, None, :], pushed[None, :, :])
    start, gram = linalg.settle(start), linalg.settle(gram)
    excess = jnp.zeros_like(chosen)
    for _ in range(PASSES):
        p = mnl.choice_probabilities(start - linalg.matvec(gram, excess))
        factor = mnl.curvature_columns(p)
        excess = excess + linalg.solve_shifted(factor, gram, p - chosen - excess)
    step = -moved - linalg.vecmat(excess, pushed)
    p = mnl.choice_probabilities(start - linalg.matvec(gram, excess))
    for column in linalg.matmul(mnl.curvature_columns(p).T, rows):
        inverse = coupling.add_column(inverse, column)
    here = (jnp.arange(problem.num_blocks) == block)[:, None]
    # The block's gradient is zero after the step, up to what Newton left of the K equations.
    left = linalg.vecmat(p - chosen - excess, rows)
    left = jnp.where(new.valid, left, gradient)
    return state._replace(
        theta=jnp.where(here, theta + step, state.theta),
        gradient=jnp.where(here, left, state.gradient),
        inverse=jnp.where(here[:, None], inverse, state.inverse),
    )


def _solve(state: State, problem: Problem, new: Row) -> State:
    """Minimise the model over the new row's block."""
    here = (jnp.arange(problem.num_blocks) == _block(problem, new)) & new.valid
    step = linalg.matvec(state.inverse, state.gradient)
    return state._replace(
        theta=jnp.where(here[:, None], state.theta - step, state.theta),
        gradient=jnp.where(here[:, None], 0.0, state.gradient),
    )


def _absorb_coupled(state: State, problem: Problem, new: Row) -> State:
    """Minimise model + new row over the K shown blocks jointly, then fold the row in."""
    model = coupling.Model(state.theta, state.gradient, state.hessian, state.inverse)
    return state._replace(**coupling.absorb(model, problem, new)._asdict())


def _solve_coupled(state: State, problem: Problem, new: Row) -> State:
    """Minimise the model over the K shown blocks jointly."""
    model = coupling.Model(state.theta, state.gradient, state.hessian, state.inverse)
    return state._replace(**coupling.solve(model, problem, new)._asdict())


def _refresh(state: State, problem: Problem, lambda0: Array, new: Row) -> State:
    """Expand the loss of the whole history about the current estimate."""
    blocks, dim = problem.num_blocks, problem.dim
    pairs = blocks if coupled(problem) else 1
    ridge = jnp.eye(blocks, pairs)[:, :, None, None] if coupled(problem) else 1.0
    ridge = jnp.broadcast_to(ridge * lambda0 * jnp.eye(dim), (blocks, pairs, dim, dim))

    def add(number: Array, sums: tuple[Array, Array]) -> tuple[Array, Array]:
        rows = past.block(state.history, number)
        member, chosen = past.shown(rows, problem.num_servers)
        features = new.contexts[rows.row]
        expand = _expand_shared if problem.parameters == "shared" else _expand_disjoint
        gradient, hessian = expand(problem, features, state.theta, member, chosen)
        return sums[0] + gradient, sums[1] + hessian.reshape(ridge.shape)

    gradient, hessian = jax.lax.fori_loop(
        0, past.blocks_until(new.round), add, (lambda0 * state.theta, ridge)
    )
    if coupled(problem):
        diagonal = jnp.einsum("bbij->bij", hessian)
        return state._replace(gradient=gradient, hessian=hessian, inverse=_invert(diagonal))
    return state._replace(gradient=gradient, inverse=_invert(hessian[:, 0]))


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
    """Return gradient [N, d] and Hessian [N or N N, d d] of a block of rows, features [L, d]."""
    p = past.shown_probabilities(features @ theta.T, member)
    gradient = (p - chosen).T @ features
    if coupled(problem):
        weight = jnp.eye(problem.num_servers) * p[:, None, :] - p[:, :, None] * p[:, None, :]
    else:
        weight = p * (1.0 - p)
    products = linalg.outer(features, features)
    length = features.shape[0]
    return gradient, weight.reshape(length, -1).T @ products.reshape(length, -1)


def _expand_shared(
    problem: Problem, features: Array, theta: Array, member: Array, chosen: Array
) -> tuple[Array, Array]:
    """Return gradient [1, d] and Hessian [d, d] of a block of rows, features [L, N, d]."""
    p = past.shown_probabilities(features @ theta[0], member)
    gradient = jnp.einsum("ln,lnd->d", p - chosen, features)
    mean = jnp.einsum("ln,lnd->ld", p, features)
    flat = features.reshape(-1, problem.dim)
    hessian = (p.reshape(-1, 1) * flat).T @ flat - mean.T @ mean
    return gradient[None], hessian
