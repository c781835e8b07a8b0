"""Maximum likelihood over a table: exact gradient and a preconditioned Newton step a round.

The likelihood needs each (server, table row) pair only through two numbers, the residual and the
curvature summed over the rounds that served it, so a gradient is two products with the table
however long the history. The Newton system is solved by conjugate gradients with W W' = V^-1 as
preconditioner, warm-started from the last estimate.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from cqbjax.estimators import history as past
from cqbjax.estimators.history import History, Row
from cqbjax.posterior import take_blocks
from cqbjax.types import Problem

# Newton steps a round, and conjugate-gradient steps in each; what they leave is measured in
# docs/estimator.md.
NEWTON_STEPS = 2
CG_STEPS = 3


class Counts(NamedTuple):
    """For K = 1, all the likelihood needs.

    Attributes:
        shown: [N, I] float, how often the server was shown for the table row.
        chosen: [N, I] float, how often its answer was accepted.
    """

    shown: Array
    chosen: Array


class State(NamedTuple):
    """Estimate and history.

    Attributes:
        theta: [N, d].
        scores: [N, I] utilities of the whole table at theta.
        history: counts for K = 1, else every row.
    """

    theta: Array
    scores: Array
    history: Counts | History


def init(problem: Problem, lambda0: Array) -> State:
    """Return theta = 0."""
    del lambda0
    servers, rows = problem.num_servers, problem.num_rows
    theta = jnp.zeros((servers, problem.dim))
    zeros = jnp.zeros((servers, rows))
    if problem.assortment_size == 1:
        return State(theta, zeros, Counts(zeros, zeros))
    return State(theta, zeros, past.init(problem))


def update(
    state: State, problem: Problem, root: Array, lambda0: Array, new: Row, exact_steps: int = 0
) -> State:
    """Absorb one row and move the shown servers' estimates by a Newton step.

    Args:
        state: the estimate.
        problem: shapes; parameters must be disjoint.
        root: [N, d, d] W' with W W' = V^-1, the round's row included.
        lambda0: [] regularisation.
        new: the round's row.
        exact_steps: 0 for the steps that the constants above fix, n > 0 for n steps to the end.
    """
    state = state._replace(history=_append(state.history, new))
    roots = take_blocks(root, new.servers)
    iterations = min(problem.dim, 64) if exact_steps else CG_STEPS

    def step(state: State) -> State:
        return _newton_step(state, problem, roots, lambda0, new, iterations)

    return jax.lax.fori_loop(0, exact_steps or NEWTON_STEPS, lambda _, state: step(state), state)


def _append(history: Counts | History, new: Row) -> Counts | History:
    """Record the round."""
    if isinstance(history, History):
        return past.append(history, new)
    one = jnp.where(new.valid, 1.0, 0.0).astype(history.shown.dtype)
    server = new.servers[0]
    return Counts(
        history.shown.at[server, new.row].add(one),
        history.chosen.at[server, new.row].add(one * (new.choice == 0)),
    )


def _newton_step(
    state: State, problem: Problem, roots: Array, lambda0: Array, new: Row, iterations: int
) -> State:
    """Take one Newton step on the shown servers jointly: exact gradient, inexact solve."""
    residual, weight = _table_sums(state, problem, new)
    gradient = lambda0 * state.theta[new.servers] + residual @ new.contexts

    def precondition(slope: Array) -> Array:
        return jnp.einsum("kji,kj->ki", roots, jnp.einsum("kji,ki->kj", roots, slope))

    step, moved = conjugate_gradient(
        new.contexts, weight, lambda0, precondition, -gradient, iterations
    )
    step, moved = jnp.where(new.valid, step, 0.0), jnp.where(new.valid, moved, 0.0)
    theta, scores = state.theta, state.scores
    for k in range(problem.assortment_size):
        theta = theta.at[new.servers[k]].add(step[k])
        scores = scores.at[new.servers[k]].add(moved[k])
    return State(theta, scores, state.history)


def conjugate_gradient(
    table: Array,
    weight: Array,
    lambda0: Array,
    precondition: Callable[[Array], Array],
    target: Array,
    iterations: int,
) -> tuple[Array, Array]:
    """Solve for a joint step of the K shown blocks by preconditioned conjugate gradients.

    The matrix has blocks (j = k) lambda0 I + X' diag(w_jk) X. X s comes for nothing with the
    curvature along each direction, so the caller's scores follow the step without another product,
    and the last iteration needs no product with X'.

    Args:
        table: [I, d] X.
        weight: [K, K, I] w.
        lambda0: [] regularisation.
        precondition: [K, d] -> [K, d], an approximate inverse.
        target: [K, d].
        iterations: a fixed number; a solved system stays where it is.

    Returns:
        s [K, d] and X s [K, I].
    """

    def ratio(above: Array, below: Array) -> Array:
        return jnp.where(below > 0, above / jnp.where(below > 0, below, 1.0), 0.0)

    step, left = jnp.zeros_like(target), target
    moved = jnp.zeros((target.shape[0], table.shape[0]), target.dtype)
    direction = precondition(left)
    size = jnp.sum(left * direction)
    for i in range(iterations):
        along = direction @ table.T
        bent = jnp.sum(weight * along, axis=1)
        length = ratio(size, lambda0 * jnp.sum(direction**2) + jnp.sum(along * bent))
        step, moved = step + length * direction, moved + length * along
        if i + 1 == iterations:
            break
        left = left - length * (lambda0 * direction + bent @ table)
        scaled = precondition(left)
        new_size = jnp.sum(left * scaled)
        direction = scaled + ratio(new_size, size) * direction
        size = new_size
    return step, moved


def _table_sums(state: State, problem: Problem, new: Row) -> tuple[Array, Array]:
    """Sum residual and curvature of the shown servers over each table row's rounds.

    Returns:
        residual [K, I], the sum of p_j - y_j, and curvature [K, K, I], the sum of the entries of
        diag(p) - p p' between the shown servers.
    """
    if isinstance(state.history, Counts):
        shown, chosen = state.history.shown[new.servers], state.history.chosen[new.servers]
        p = jax.nn.sigmoid(state.scores[new.servers])
        return shown * p - chosen, (shown * p * (1.0 - p))[None]
    return _row_sums(state.history, state.scores, problem, new)


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
