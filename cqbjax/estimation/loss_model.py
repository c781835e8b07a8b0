"""A cubic model of the loss: its gradient as a polynomial of second degree in theta.

With c, H and T of docs/notebook/estimator.md, the gradient of the loss by theta_j is modelled as

    g_j(theta) = c_j + sum_m H_jm theta_m + 1/2 sum_lm T_jlm[theta_l, theta_m],

written about theta = 0, so that models of rows add up whatever estimates they were expanded about.
`recenter` writes a model about another point.
"""

from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import Array

from cqbjax.core import linalg
from cqbjax.core.types import Problem
from cqbjax.estimation import packed_matrices

# Models include T if it has at most this many numbers per block.
MOST_NUMBERS = 4096


class LossModel(NamedTuple):
    """The model of one block j; its gradient depends on the W blocks m that its rows couple.

    Symmetric matrices are stored as their P upper elements (`packed_matrices`).

    Attributes:
        value: [d] c_j, the gradient at theta = 0.
        first: [W, P] H_jm, its derivatives there by theta_m.
        second: [D, W, d, P] T_jlm, its second derivatives by theta_l and theta_m, l in 1 .. D = W;
            if a row couples two blocks, D = 2: T_jmm, and T_jjm (zero at m = j). D = 0 for a
            model without them.
    """

    value: Array
    first: Array
    second: Array

    def pack_vector(self) -> Array:
        """Return `value` and `first` as one vector, as they are stored: [G]."""
        return jnp.concatenate([self.value, self.first.reshape(-1)])


def unpack_vector(problem: Problem, vector: Array, second: Array) -> LossModel:
    """Return the model of a vector [G] and second derivatives."""
    dim = problem.dim
    return LossModel(vector[:dim], vector[dim:].reshape(width(problem), -1), second)


def width(problem: Problem) -> int:
    """Return W: how many blocks one block's gradient can depend on (1 stands for itself)."""
    coupled = problem.parameters == "disjoint" and problem.assortment_size > 1
    return problem.num_servers if coupled else 1


def couples_pairs(problem: Problem) -> bool:
    """Return whether each row couples exactly two blocks."""
    return problem.parameters == "disjoint" and problem.assortment_size == 2


def depth(problem: Problem) -> int:
    """Return D, the leading size of the second derivatives; 0 where they are too many numbers."""
    wide, dim = width(problem), problem.dim
    deep = 2 if couples_pairs(problem) else wide
    return deep if deep * wide * dim * packed_matrices.packed_size(dim) <= MOST_NUMBERS else 0


def vector_size(problem: Problem) -> int:
    """Return G, the numbers of `value` and `first` together."""
    return problem.dim + width(problem) * packed_matrices.packed_size(problem.dim)


def second_shape(problem: Problem) -> tuple[int, ...]:
    """Return the shape of `second`: [D, W, d, P]."""
    dim = problem.dim
    return depth(problem), width(problem), dim, packed_matrices.packed_size(dim)


def recenter(problem: Problem, model: LossModel, theta: Array, own: Array) -> LossModel:
    """Write the model of block j about another point, so that `value` is the gradient there.

    Args:
        problem: shapes.
        model: of block j.
        theta: [W, d] the point.
        own: [W] one at j, else zero.
    """
    change = jnp.zeros(())
    if depth(problem):
        change = linalg.add_barrier(_change(problem, model.second, theta, own))
    first = linalg.add_barrier(model.first + change)
    mean = 0.5 * (model.first + first)
    met = linalg.add_barrier(linalg.matmul(theta.T, mean))  # [d, P]
    rows, dim = np.arange(problem.dim), problem.dim
    diagonal = met[rows, packed_matrices.element_positions(dim)]
    return LossModel(model.value + linalg.total(diagonal, axis=1), first, model.second)


def _change(problem: Problem, second: Array, theta: Array, own: Array) -> Array:
    """Return sum_l T_jlm[theta_l, .], by which `first` differs between zero and theta: [W, P]."""
    if not couples_pairs(problem):
        return linalg.total(linalg.vecmat(theta[:, None], second), axis=0)
    here = linalg.add_barrier(linalg.vecmat(own, theta))
    both = jnp.stack([theta, jnp.broadcast_to(here, theta.shape)])
    change = linalg.add_barrier(linalg.total(linalg.vecmat(both, second), axis=0))
    met = linalg.add_barrier(linalg.total(linalg.vecmat(theta, second[1]), axis=0))
    return change + own[:, None] * met
