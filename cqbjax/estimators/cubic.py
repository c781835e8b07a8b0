"""Cubic models of the loss: its gradient as a polynomial of second degree in the parameters.

The polynomial is kept about theta = 0, so that models of different rows add up whatever estimates
they were expanded about; `shift` moves it elsewhere exactly.
"""

import functools
import itertools
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import Array

from cqbjax import linalg
from cqbjax.types import Problem

# The third derivative is kept up to this dimension and this many numbers a block; beyond, models
# are quadratic (measured: docs/estimator.md).
MOST_DIM = 8
MOST_NUMBERS = 4096


class Cubic(NamedTuple):
    """The gradient of one block, offset + sum_m linear_m theta_m + 1/2 sum_ml third_ml[theta theta].

    Attributes:
        offset: [..., d].
        linear: [..., W, d, d] the Hessian's row of blocks.
        third: [..., E, Q] third derivatives: E triples i <= j <= k of coordinates, Q pairs m <= l
            of blocks; E = 0 for a quadratic model.
    """

    offset: Array
    linear: Array
    third: Array


def width(problem: Problem) -> int:
    """Return W: how many blocks one block's gradient can depend on (1 stands for itself)."""
    coupled = problem.parameters == "disjoint" and problem.assortment_size > 1
    return problem.num_servers if coupled else 1


@functools.cache
def block_pairs(wide: int) -> np.ndarray:
    """Return [Q, 2], the pairs m <= l of blocks."""
    return np.array(list(itertools.combinations_with_replacement(range(wide), 2)))


@functools.cache
def triples(problem: Problem) -> np.ndarray:
    """Return [E, 3], the triples of coordinates that a model keeps."""
    kept = np.array(list(itertools.combinations_with_replacement(range(problem.dim), 3))) \
        if problem.dim <= MOST_DIM else np.zeros((0, 3), int)
    numbers = len(kept) * len(block_pairs(width(problem)))
    return kept if numbers <= MOST_NUMBERS else kept[:0]


@functools.cache
def _triple_numbers(dim: int) -> dict[tuple[int, ...], int]:
    """Return the place of every sorted triple."""
    every = itertools.combinations_with_replacement(range(dim), 3)
    return {triple: number for number, triple in enumerate(every)}


def zeros(problem: Problem, *lead: int) -> Cubic:
    """Return models of no rows."""
    wide, dim = width(problem), problem.dim
    third = (len(triples(problem)), len(block_pairs(wide)))
    return Cubic(
        jnp.zeros((*lead, dim)), jnp.zeros((*lead, wide, dim, dim)), jnp.zeros((*lead, *third))
    )


def shift(model: Cubic, theta: Array) -> Cubic:
    """Write one block's model about theta [W, d]: its offset is then the gradient there."""
    linear = model.linear
    if model.third.shape[0]:
        linear = linalg.settle(linear + _third_times(model.third, theta))
    mean = 0.5 * (model.linear + linear)
    offset = model.offset + linalg.total(linalg.matvec(mean, theta), axis=0)
    return Cubic(offset, linear, model.third)


def _third_times(third: Array, theta: Array) -> Array:
    """Return sum_l third_ml theta_l: [E, Q], [W, d] -> [W, d, d]."""
    wide, dim = theta.shape
    first, second = block_pairs(wide).T
    number = _triple_numbers(dim)
    weights = linalg.settle(theta[second].T)  # [d, Q]
    mirrored = linalg.settle((theta[first] * (first != second)[:, None]).T)
    upper = list(itertools.combinations_with_replacement(range(dim), 2))

    def contract(weights: Array) -> Array:
        sums = [
            linalg.total(
                jnp.stack([third[number[tuple(sorted((i, j, k)))]] * weights[k] for k in range(dim)]), 0
            )
            for i, j in upper
        ]
        return linalg.settle(jnp.stack(sums))  # [d (d + 1) / 2, Q]

    if wide == 1:
        found = contract(weights).T
    else:
        numbers = np.arange(wide)
        into_first = (first[:, None] == numbers).astype(np.float32)
        into_second = (second[:, None] == numbers).astype(np.float32)
        found = (contract(weights) @ into_first + contract(mirrored) @ into_second).T
    place = {pair: at for at, pair in enumerate(upper)}
    full = np.array([[place[min(i, j), max(i, j)] for j in range(dim)] for i in range(dim)])
    return found[:, full]
