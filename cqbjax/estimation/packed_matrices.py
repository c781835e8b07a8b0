"""Packed storage of symmetric matrices: P numbers, the d (d + 1) / 2 upper elements and padding."""

import jax.numpy as jnp
import numpy as np
from jax import Array

from cqbjax.core import linalg

# P is a multiple of the numbers that a processor handles at a time.
LANES = 8


def upper_indices(dim: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the rows and columns of the upper elements: [P] each.

    P is rounded up to a multiple of `LANES`; the padding repeats element (0, 0). Not cached: JAX
    stores the dtype that it gave to an array, and a float64 trace would carry int64 into float32.
    """
    row, column = np.triu_indices(dim)
    more = -len(row) % LANES
    return np.pad(row, (0, more)), np.pad(column, (0, more))


def packed_size(dim: int) -> int:
    """Return P."""
    return -(-dim * (dim + 1) // 2 // LANES) * LANES


def element_positions(dim: int) -> np.ndarray:
    """Return the position of each element of a matrix among the packed ones: [d, d]."""
    place = np.zeros((dim, dim), int)
    row, column = np.triu_indices(dim)
    place[row, column] = place[column, row] = np.arange(len(row))
    return place


def unpack(upper: Array, dim: int) -> Array:
    """Return the whole matrices: [..., P] -> [..., d, d]."""
    place = element_positions(dim)
    if dim > linalg.SMALL:
        return upper[..., place]
    elements = jnp.stack([upper[..., at] for at in place.ravel()], axis=-1)
    return elements.reshape(*upper.shape[:-1], dim, dim)


def block_entries(between: Array, dim: int) -> list[list[Array]]:
    """Return the entries of a matrix of A x A packed blocks: [A, A, P] -> A d x A d numbers.

    Blocks (j, m) and (m, j) of two truncated models may differ; both take the lower one, as
    `running_estimate.invert` does.
    """
    place, size = element_positions(dim), len(between) * dim

    def entry(row: int, column: int) -> Array:
        return between[row // dim, column // dim, place[row % dim, column % dim]]

    return [[entry(max(i, j), min(i, j)) for j in range(size)] for i in range(size)]


def pack(matrix: Array) -> Array:
    """Pack symmetric matrices: [..., d, d] -> [..., P]."""
    dim = matrix.shape[-1]
    if dim > linalg.SMALL:
        row, column = upper_indices(dim)
        return matrix[..., row, column]
    parts = [matrix[..., i, i:] for i in range(dim)]
    more = packed_size(dim) - dim * (dim + 1) // 2
    return jnp.concatenate([*parts, *[matrix[..., 0, :1]] * more], axis=-1)


def pack_weighted_sum(weights: Array, features: Array) -> Array:
    """Return sum_l w_ql x_l x_l', packed: [Q, L], [d, L] -> [Q, P]."""
    dim = features.shape[0]
    if dim <= linalg.SMALL:
        row, column = upper_indices(dim)
        return weights @ linalg.add_barrier(features[row] * features[column]).T
    return pack((weights[:, None] * features) @ features.T)
