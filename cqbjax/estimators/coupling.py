"""The running model where an assortment couples K parameter blocks (disjoint parameters, K > 1)."""

from typing import NamedTuple

import jax.numpy as jnp
from jax import Array

from cqbjax import linalg, mnl
from cqbjax.estimators.history import Row
from cqbjax.types import Problem

# Passes of the block iteration on the K shown blocks, their off-diagonal blocks taken from the
# last pass; what is left stays in the gradient and is taken up when the block is next shown.
PASSES = 4


class Model(NamedTuple):
    """The quadratic model about the current estimate.

    Attributes:
        theta: [N, d].
        gradient: [N, d].
        hessian: [N, N, d, d].
        inverse: [N, d, d] inverses of the diagonal blocks.
    """

    theta: Array
    gradient: Array
    hessian: Array
    inverse: Array


def add_column(inverse: Array, column: Array) -> Array:
    """Add z z' to a matrix by the Sherman-Morrison update of its inverse.

    Args:
        inverse: [..., d, d].
        column: [..., d] z; zero changes nothing.
    """
    pushed = linalg.settle(linalg.matvec(inverse, column))
    size = 1.0 + linalg.dot(pushed, column)
    return inverse - linalg.outer(pushed, pushed / size[..., None])


def absorb(model: Model, problem: Problem, new: Row) -> Model:
    """Minimise model + new row over the shown blocks jointly, then fold the row into the model."""
    features = jnp.where(new.valid, new.features, 0.0)
    chosen = (jnp.arange(problem.assortment_size) == new.choice).astype(features.dtype)
    between = linalg.settle(model.hessian[new.servers[:, None], new.servers])  # [K, K, d, d]
    gradient = model.gradient[new.servers]
    inverse = model.inverse[new.servers]
    start = linalg.dot(model.theta[new.servers], features)
    p = mnl.choice_probabilities(start)
    ahead = linalg.settle(_add_row(inverse, features, p))
    step = jnp.zeros_like(gradient)
    for _ in range(PASSES):
        slope = gradient + _apply(between, step) + (p - chosen)[:, None] * features
        step = linalg.settle(step - linalg.matvec(ahead, linalg.settle(slope)))
        p = linalg.settle(mnl.choice_probabilities(start + linalg.dot(step, features)))
    step = jnp.where(new.valid, step, 0.0)
    spread = _spread(problem, new)
    gradient = _moved_gradient(model, new, step)
    inverse = _put(model.inverse, spread, _add_row(inverse, features, p))
    shown = linalg.vecmat(p, spread)
    weight = jnp.eye(problem.num_servers) * shown - linalg.outer(shown, shown)
    square = linalg.outer(features, features)
    return Model(
        model.theta + linalg.total(spread[..., None] * step[:, None], axis=0),
        gradient + linalg.vecmat(p - chosen, spread)[:, None] * features,
        model.hessian + weight[:, :, None, None] * square,
        jnp.where(new.valid, inverse, model.inverse),
    )


def solve(model: Model, problem: Problem, new: Row) -> Model:
    """Minimise the model over the shown blocks jointly."""
    between = model.hessian[new.servers[:, None], new.servers]
    gradient, inverse = model.gradient[new.servers], model.inverse[new.servers]
    step = jnp.zeros_like(gradient)
    for _ in range(PASSES):
        step = step - linalg.matvec(inverse, gradient + _apply(between, step))
    step = jnp.where(new.valid, step, 0.0)
    spread = _spread(problem, new)
    return model._replace(
        theta=model.theta + linalg.total(spread[..., None] * step[:, None], axis=0),
        gradient=_moved_gradient(model, new, step),
    )


def _spread(problem: Problem, new: Row) -> Array:
    """Return [K, N], one at each shown server."""
    numbers = jnp.arange(problem.num_servers)
    return (new.servers[:, None] == numbers).astype(new.features.dtype)


def _apply(between: Array, step: Array) -> Array:
    """Multiply [A, K, d, d] with [K, d]: [A, d]."""
    return linalg.total(linalg.matvec(between, step), axis=-2)


def _moved_gradient(model: Model, new: Row, step: Array) -> Array:
    """Return the model's gradient of every block after a step of the shown ones: [N, d]."""
    columns = linalg.settle(model.hessian[:, new.servers])
    return model.gradient + _apply(columns, step)


def _add_row(inverse: Array, features: Array, p: Array) -> Array:
    """Add the row's own curvature p (1 - p) x x' to each shown diagonal block: [K, d, d]."""
    return add_column(inverse, jnp.sqrt(p * (1.0 - p))[:, None] * features)


def _put(blocks: Array, spread: Array, values: Array) -> Array:
    """Write [K, d, d] into the shown ones of [N, d, d]."""
    kept = (1.0 - linalg.total(spread, axis=0))[:, None, None] * blocks
    return kept + linalg.total(spread[:, :, None, None] * values[:, None], axis=0)
