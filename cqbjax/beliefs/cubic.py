"""Cubic models of the loss: its gradient as a polynomial of second degree in the parameters.

The polynomial is kept about theta = 0, so that models of different rows add up whatever estimates
they were expanded about; `shift` moves it elsewhere.
"""

from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import Array

from cqbjax import linalg
from cqbjax.types import Problem

# The third derivative is kept while it is no more numbers than this a block; beyond, models are
# quadratic.
MOST_NUMBERS = 4096
# Numbers that a processor takes at once: rows of third derivatives are a multiple of it long.
LANES = 8


class Cubic(NamedTuple):
    """The gradient of one block b, as it depends on the W blocks that its rows couple.

    Symmetric matrices are kept as their P upper elements (`upper`), d (d + 1) / 2 and a few more.

    Attributes:
        offset: [d] the gradient at theta = 0.
        linear: [W, P] its derivatives there with respect to theta_m.
        third: [D, W, d, P] second derivatives by theta_l and theta_m, l in 1 .. D = W; where a row
            couples two blocks, D = 2: by theta_m twice, and by theta_b and theta_m (zero at b). D =
            0 for a quadratic model.
    """

    offset: Array
    linear: Array
    third: Array


def width(problem: Problem) -> int:
    """Return W: how many blocks one block's gradient can depend on (1 stands for itself)."""
    coupled = problem.parameters == "disjoint" and problem.assortment_size > 1
    return problem.num_servers if coupled else 1


def paired(problem: Problem) -> bool:
    """Tell whether rows couple two blocks: others than those two never meet in one row."""
    return problem.parameters == "disjoint" and problem.assortment_size == 2


def directions(problem: Problem) -> int:
    """Return D, the leading size of the second derivatives that a model keeps."""
    wide, dim = width(problem), problem.dim
    kinds = 2 if paired(problem) else wide
    return kinds if kinds * wide * dim * len(upper(dim)[0]) <= MOST_NUMBERS else 0


def upper(dim: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the rows and columns of the upper elements: [P] each.

    P is rounded up to a multiple of `LANES`; the elements too many are element (0, 0) once more.
    Made anew each time: JAX remembers the dtype that it gave to an array, so one kept from a
    float64 trace would carry int64 into a float32 one.
    """
    row, column = np.triu_indices(dim)
    more = -len(row) % LANES
    return np.pad(row, (0, more)), np.pad(column, (0, more))


def places(dim: int) -> np.ndarray:
    """Return where each element of a matrix is among the upper ones: [d, d]."""
    place = np.zeros((dim, dim), int)
    row, column = np.triu_indices(dim)
    place[row, column] = place[column, row] = np.arange(len(row))
    return place


def full(packed: Array, dim: int) -> Array:
    """Return whole symmetric matrices: [..., P] -> [..., d, d]."""
    place = places(dim)
    if dim > linalg.SMALL:
        return packed[..., place]
    whole = jnp.stack([packed[..., at] for at in place.ravel()], axis=-1)
    return whole.reshape(*packed.shape[:-1], dim, dim)


def products(weights: Array, features: Array) -> Array:
    """Return the upper elements of sum_l w_ql x_l x_l': [Q, L], [d, L] -> [Q, P]."""
    dim = features.shape[0]
    if dim <= linalg.SMALL:
        row, column = upper(dim)
        return weights @ linalg.settle(features[row] * features[column]).T
    return packed((weights[:, None] * features) @ features.T)


def packed(whole: Array) -> Array:
    """Return the upper elements of symmetric matrices: [..., d, d] -> [..., P]."""
    dim = whole.shape[-1]
    if dim > linalg.SMALL:
        row, column = upper(dim)
        return whole[..., row, column]
    parts = [whole[..., i, i:] for i in range(dim)]
    more = len(upper(dim)[0]) - dim * (dim + 1) // 2
    return jnp.concatenate([*parts, *[whole[..., 0, :1]] * more], axis=-1)


def size(problem: Problem) -> int:
    """Return G, how many numbers `offset` and `linear` are together."""
    return problem.dim + width(problem) * len(upper(problem.dim)[0])


def pack(model: Cubic) -> Array:
    """Return `offset` and `linear` as one vector, which is how they are stored: [G]."""
    return jnp.concatenate([model.offset, model.linear.reshape(-1)])


def unpack(problem: Problem, packed: Array, third: Array) -> Cubic:
    """Return the model of a vector [G] and second derivatives."""
    dim = problem.dim
    return Cubic(packed[:dim], packed[dim:].reshape(width(problem), -1), third)


def shift(problem: Problem, model: Cubic, theta: Array, own: Array) -> Cubic:
    """Write one block's model about another point: its offset is then the gradient there.

    Args:
        problem: shapes.
        model: of one block b.
        theta: [W, d].
        own: [W] one at block b, else zero.
    """
    bend = jnp.zeros(())
    if directions(problem):
        bend = linalg.settle(bend_of(problem, model.third, theta, own))
    linear = linalg.settle(model.linear + bend)
    mean = 0.5 * (model.linear + linear)
    met = linalg.settle(linalg.matmul(theta.T, mean))  # [d, P]
    dim = problem.dim
    offset = model.offset + linalg.total(met[np.arange(dim), places(dim)], axis=1)
    return Cubic(offset, linear, model.third)


def bend_of(problem: Problem, third: Array, theta: Array, own: Array) -> Array:
    """Return how the derivatives by each block change from zero to theta.

    Args:
        problem: shapes.
        third: [D, W, d, P], as `Cubic.third`.
        theta: [W, d].
        own: [W].

    Returns:
        [W, P].
    """
    if not paired(problem):
        return linalg.total(linalg.vecmat(theta[:, None], third), axis=0)
    here = linalg.settle(linalg.vecmat(own, theta))
    both = jnp.stack([theta, jnp.broadcast_to(here, theta.shape)])
    bend = linalg.settle(linalg.total(linalg.vecmat(both, third), axis=0))
    met = linalg.settle(linalg.total(linalg.vecmat(theta, third[1]), axis=0))
    return bend + own[:, None] * met
