"""Symmetric matrices as their upper elements: P numbers, d (d + 1) / 2 and a few more."""

import jax.numpy as jnp
import numpy as np
from jax import Array

from cqbjax.core import linalg

# Numbers that a processor takes at once: P is a multiple of it.
LANES = 8


def indices(dim: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the rows and columns of the upper elements: [P] each.

    P is rounded up to a multiple of `LANES`; the elements too many are element (0, 0) once more.
    Made anew each time: JAX remembers the dtype that it gave to an array, so one kept from a
    float64 trace would carry int64 into a float32 one.
    """
    row, column = np.triu_indices(dim)
    more = -len(row) % LANES
    return np.pad(row, (0, more)), np.pad(column, (0, more))


def count(dim: int) -> int:
    """Return P."""
    return len(indices(dim)[0])


def places(dim: int) -> np.ndarray:
    """Return where each element of a matrix is among the upper ones: [d, d]."""
    place = np.zeros((dim, dim), int)
    row, column = np.triu_indices(dim)
    place[row, column] = place[column, row] = np.arange(len(row))
    return place


def whole(upper: Array, dim: int) -> Array:
    """Return whole symmetric matrices: [..., P] -> [..., d, d]."""
    place = places(dim)
    if dim > linalg.SMALL:
        return upper[..., place]
    elements = jnp.stack([upper[..., at] for at in place.ravel()], axis=-1)
    return elements.reshape(*upper.shape[:-1], dim, dim)


def entries(between: Array, dim: int) -> list[list[Array]]:
    """Return the entries of a matrix of A x A blocks: [A, A, P] -> A d x A d numbers.

    Blocks (j, m) and (m, j) may differ by what two models left out; the lower one is taken for
    both, as `running.invert` does.
    """
    place, size = places(dim), len(between) * dim

    def entry(row: int, column: int) -> Array:
        return between[row // dim, column // dim, place[row % dim, column % dim]]

    return [[entry(max(i, j), min(i, j)) for j in range(size)] for i in range(size)]


def upper(matrix: Array) -> Array:
    """Return the upper elements of symmetric matrices: [..., d, d] -> [..., P]."""
    dim = matrix.shape[-1]
    if dim > linalg.SMALL:
        row, column = indices(dim)
        return matrix[..., row, column]
    parts = [matrix[..., i, i:] for i in range(dim)]
    more = count(dim) - dim * (dim + 1) // 2
    return jnp.concatenate([*parts, *[matrix[..., 0, :1]] * more], axis=-1)


def weighted(weights: Array, features: Array) -> Array:
    """Return the upper elements of sum_l w_ql x_l x_l': [Q, L], [d, L] -> [Q, P]."""
    dim = features.shape[0]
    if dim <= linalg.SMALL:
        row, column = indices(dim)
        return weights @ linalg.settle(features[row] * features[column]).T
    return upper((weights[:, None] * features) @ features.T)
