"""Products with small trailing dimensions, unrolled.

XLA turns a sum over five numbers into a scalar loop; the same sum written as five products is
vectorised over the batch and is several times faster on a CPU (docs/notebook/performance.md). Above
`SMALL` the ordinary contraction is used.
"""

from collections.abc import Sequence
from functools import reduce
from typing import TypeVar, cast

import jax
import jax.numpy as jnp
from jax import Array

from cqbjax.core import platforms

SMALL = 16
# The most elements of an array that is updated by a mask rather than a scatter.
MAX_MASKED = 256
# The most numbers that are concatenated by masks; more are worth a separate kernel.
MAX_CONCATENATED = 8
# Bits in a word.
WORD = 32

Arrays = TypeVar("Arrays", Array, tuple[Array, Array], tuple[Array, ...])


def dot(a: Array, b: Array) -> Array:
    """Return sum_i a_i b_i over the last axis: [..., d], [..., d] -> [...], with broadcasting."""
    size = a.shape[-1]
    if size > SMALL:
        return jnp.sum(a * b, axis=-1)
    return reduce(jnp.add, [a[..., i] * b[..., i] for i in range(size)])


def matvec(matrix: Array, vector: Array) -> Array:
    """Return A v: [..., p, q], [..., q] -> [..., p]."""
    size = matrix.shape[-1]
    if size > SMALL:
        return jnp.einsum("...ij,...j->...i", matrix, vector)
    return reduce(jnp.add, [matrix[..., j] * vector[..., j, None] for j in range(size)])


def vecmat(vector: Array, matrix: Array) -> Array:
    """Return v' A: [..., p], [..., p, q] -> [..., q]."""
    size = matrix.shape[-2]
    if size > SMALL:
        return jnp.einsum("...i,...ij->...j", vector, matrix)
    return reduce(jnp.add, [matrix[..., i, :] * vector[..., i, None] for i in range(size)])


def matmul(a: Array, b: Array) -> Array:
    """Return A B: [p, q], [q, r] -> [p, r]."""
    return vecmat(a, b[None])


def solve_shifted(factor: Array, gram: Array, right: Array) -> Array:
    """Solve (I + L L' G) v = r for a few equations, by elimination on the symmetric form.

    (I + L L' G)^-1 = I - L (I + L' G L)^-1 L' G, and I + L' G L is positive definite, so
    elimination needs no pivoting.

    Args:
        factor: [K, K] L.
        gram: [K, K] G, symmetric positive semi-definite.
        right: [K] r.

    Returns:
        [K] v.
    """
    size = right.shape[0]
    core = matmul(matmul(factor.T, gram), factor)
    system = [[core[i, j] + (1.0 if i == j else 0.0) for j in range(size)] for i in range(size)]
    values = list(vecmat(matvec(gram, right), factor))
    return right - matvec(factor, _eliminate(system, values))


def solve_positive(matrix: Array, right: Array) -> Array:
    """Solve A v = r for a few equations, A positive definite: elimination without pivoting.

    Args:
        matrix: [K, K] A.
        right: [K] r.

    Returns:
        [K] v.
    """
    size = len(right)
    system = [[matrix[i, j] for j in range(size)] for i in range(size)]
    return _eliminate(system, [right[i] for i in range(size)])


def _eliminate(system: list[list[Array]], values: list[Array]) -> Array:
    """Solve a positive definite system given by its entries, in place."""
    size = len(values)
    for i in range(size):
        for k in range(i + 1, size):
            ratio = system[k][i] / system[i][i]
            system[k] = [a - ratio * b for a, b in zip(system[k], system[i], strict=True)]
            values[k] = values[k] - ratio * values[i]
    return jnp.stack(_substitute(system, values))


def _substitute(upper: Sequence[Sequence[Array]], values: list[Array]) -> list[Array]:
    """Solve U v = r by back substitution, in place, U upper triangular."""
    for i in reversed(range(len(values))):
        for j in range(i + 1, len(values)):
            values[i] = values[i] - upper[i][j] * values[j]
        values[i] = values[i] / upper[i][i]
    return values


def factor_triangular(entries: Sequence[Sequence[Array]]) -> list[list[Array]]:
    """Return U with A = U' diag(U)^-1 U for a symmetric positive definite A, element by element.

    Args:
        entries: n x n entries [] of A; only the upper triangle is read.
    """
    upper = [list(row) for row in entries]
    for i in range(len(upper)):
        for k in range(i + 1, len(upper)):
            ratio = upper[i][k] / upper[i][i]
            for j in range(k, len(upper)):
                upper[k][j] = upper[k][j] - ratio * upper[i][j]
        upper = [list(add_barrier(tuple(row))) for row in upper]
    return upper


def solve_triangular(upper: Sequence[Sequence[Array]], right: Array) -> Array:
    """Solve A v = r with U = `factor_triangular` of A: r [..., n] -> v [..., n]."""
    if right.ndim > 1:
        return jnp.stack([solve_triangular(upper, one) for one in right])
    values = list(right)
    for i in range(len(values)):
        for k in range(i + 1, len(values)):
            values[k] = values[k] - upper[i][k] / upper[i][i] * values[i]
        values = list(add_barrier(tuple(values)))
    return stack_last(_substitute(upper, values))


def put(array: Array, at: tuple[Array, ...], values: Array) -> Array:
    """Write values [A] at A distinct positions, except positions out of bounds.

    If the platform is `fused` (`platforms.Platform`), small arrays are updated by masks, which XLA
    fuses into other kernels.

    Args:
        array: [n] or [n, m].
        at: indices of the positions, [A] for each axis.
        values: [A].
    """
    if not platforms.get_current().fused or array.size > MAX_MASKED:
        return array.at[at].set(values, mode="drop")
    for one, value in zip(zip(*at, strict=True), values, strict=True):
        marks = [jnp.arange(n) == i for n, i in zip(array.shape, one, strict=True)]
        here = marks[0] if len(marks) == 1 else marks[0][:, None] & marks[1]
        array = jnp.where(here, value, array)
    return array


def put_rows(array: Array, at: Array, rows: Array) -> Array:
    """Write A rows at distinct positions, as `put` does: [n, m], [A], [A, m]."""
    if not platforms.get_current().fused or array.size > MAX_MASKED:
        return array.at[at].set(rows)
    for i, row in zip(at, rows, strict=True):
        array = jnp.where((jnp.arange(len(array)) == i)[:, None], row, array)
    return array


def take(array: Array, *at: Array) -> Array:
    """Read A numbers: [n] or [n, m], indices [A] for each axis -> [A].

    Masks as in `put` read a single number; several are worth a separate kernel on all platforms.
    """
    if not platforms.get_current().fused or array.size > MAX_MASKED or len(at[0]) > 1:
        return array[at]
    return jnp.stack([reduce(_entry, [index[0] for index in at], array)])


def _entry(array: Array, index: Array) -> Array:
    """Return the entry at an index of the first axis, by masks: [n, ...], [] -> [...]."""
    entry = array[-1]
    for place in range(len(array) - 1):
        entry = jnp.where(index == place, array[place], entry)
    return entry


def outer(a: Array, b: Array) -> Array:
    """Return a b': [..., p], [..., q] -> [..., p, q]."""
    return a[..., :, None] * b[..., None, :]


def total(array: Array, axis: int) -> Array:
    """Sum over one axis, unrolled if the axis is short."""
    size = array.shape[axis]
    if size > SMALL:
        return jnp.sum(array, axis=axis)
    return reduce(
        jnp.add, [jax.lax.index_in_dim(array, i, axis, keepdims=False) for i in range(size)]
    )


def sum_terms(terms: Sequence[Array]) -> Array:
    """Sum several arrays over their last axis in one reduction: S x [..., L] -> [S, ...].

    The terms are read or computed once, together, and none of them is stored in memory.
    """
    zeros = tuple(jnp.zeros((), term.dtype) for term in terms)

    def add(a: tuple[Array, ...], b: tuple[Array, ...]) -> tuple[Array, ...]:
        return tuple(x + y for x, y in zip(a, b, strict=True))

    totals = jax.lax.reduce(tuple(terms), zeros, add, (terms[0].ndim - 1,))
    return jnp.moveaxis(stack_last(totals), -1, 0)


def stack_last(numbers: Sequence[Array]) -> Array:
    """Stack arrays along a new last axis: S x [...] -> [..., S].

    On a fused platform this uses masks, without a separate kernel.
    """
    if not platforms.get_current().fused:
        return jnp.stack(numbers, axis=-1)
    at = jnp.arange(len(numbers))
    row = numbers[-1][..., None]
    for i, number in enumerate(numbers[:-1]):
        row = jnp.where(at == i, number[..., None], row)
    return row


def concatenate(*parts: Array) -> Array:
    """Concatenate vectors, short ones by `stack_last`: S x [n_s] -> [n]."""
    numbers = [part[i] for part in parts for i in range(len(part))]
    return stack_last(numbers) if len(numbers) <= MAX_CONCATENATED else jnp.concatenate(parts)


def maximum(array: Array, axis: int) -> Array:
    """Return the maximum over one axis, unrolled if the axis is short."""
    size = array.shape[axis]
    if size > SMALL:
        return jnp.max(array, axis=axis)
    return reduce(
        jnp.maximum, [jax.lax.index_in_dim(array, i, axis, keepdims=False) for i in range(size)]
    )


def first_argmax(values: Array) -> Array:
    """Return the first position of the largest value over the last axis: [..., n] -> [...] int32.

    For a long axis this takes two plain reductions; XLA's argmax is a scalar loop on a CPU.
    """
    size = values.shape[-1]
    if size <= SMALL:
        best, position = values[..., 0], jnp.zeros(values.shape[:-1], jnp.int32)
        for i in range(1, size):
            better = values[..., i] > best
            best = jnp.where(better, values[..., i], best)
            position = jnp.where(better, jnp.int32(i), position)
        return position
    best = jnp.max(values, axis=-1, keepdims=True)
    positions = jnp.arange(size, dtype=jnp.int32)
    return jnp.min(jnp.where(values == best, positions, jnp.int32(size - 1)), axis=-1)


def add_compensated(total: Array, lost: Array, value: Array) -> tuple[Array, Array]:
    """Add to sums by Kahan's algorithm; the relative error does not grow with the number of terms.

    Args:
        total: [...] the sums.
        lost: [...] the rounding error that is still to be added; zero at first.
        value: [...] the values to add.

    Returns:
        The new `total` and `lost`.
    """
    more = lost + value
    after = add_barrier(total + more)
    return after, more - (after - total)


def pack_bits(mask: Array) -> Array:
    """Pack marks into words, the first mark as the lowest bit: [n] bool -> [w] uint32."""
    size = mask.shape[0]
    words = -(-size // WORD)
    lanes = jnp.pad(mask, (0, words * WORD - size)).reshape(words, WORD)
    bits = jnp.uint32(1) << jnp.arange(WORD, dtype=jnp.uint32)
    return jnp.sum(jnp.where(lanes, bits, jnp.uint32(0)), axis=-1, dtype=jnp.uint32)


def nth_bit(word: Array, rank: Array) -> Array:
    """Return the position of the rank-th 1 bit of a word: [] uint32, [] int32 -> [].

    Position and rank count from 0. The search is by bisection; the result is 0 if the rank is
    negative.
    """
    place = jnp.zeros((), jnp.int32)
    half = WORD // 2
    while half:
        low = jax.lax.population_count(word & jnp.uint32(2**half - 1)).astype(jnp.int32)
        above = rank >= low
        place = jnp.where(above, place + half, place)
        word = jnp.where(above, word >> half, word)
        rank = jnp.where(above, rank - low, rank)
        half //= 2
    return place


def running_sum(counts: Array) -> Array:
    """Return the cumulative sum of [n] int32, computed with shifts that double.

    XLA's cumulative sum is a windowed reduction, which is several times slower on a CPU.
    """
    shift = 1
    while shift < counts.shape[0]:
        counts = counts + jnp.pad(counts[:-shift], (shift, 0))
        shift *= 2
    return counts


def add_barrier(arrays: Arrays) -> Arrays:
    """Return an array or a tuple of arrays that XLA does not recompute inside each consumer.

    On a platform without `platforms.Platform.barriers`, where a barrier costs more than it saves,
    the arrays are returned unchanged.
    """
    return force_barrier(arrays) if platforms.get_current().barriers else arrays


def force_barrier(arrays: Arrays) -> Arrays:
    """Add a barrier on every platform, for arrays that are read before a write."""
    return cast(Arrays, jax.lax.optimization_barrier(arrays))
