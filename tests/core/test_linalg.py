"""Small products, sums, searches and writes are NumPy's, whichever way they are written."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cqbjax.core import linalg, platforms
from cqbjax.testing.instances import FAST_COMPILE_OPTIONS

QUICK = settings(max_examples=25, deadline=None, derandomize=True)
PLATFORMS = {"cpu": platforms.CPU, "gpu": platforms.GPU._replace(barriers=True)}
# Beyond so many numbers sums are not written out, and arrays are not masked whole.
SMALL, MASKED = 3, 14


def numbers(*shape):
    return np.random.default_rng(shape).normal(size=shape)


def short_and_long(size):
    """Return what sums over an axis make of it: ours, and NumPy's."""
    a, b, matrix, stack = numbers(2, size), numbers(size), numbers(4, size), numbers(3, 4, size)
    tied = np.array([[1.0, 7.0, 7.0, 2.0, 7.0], [3.0, 2.0, 1.0, 3.0, 0.0]])[:, :size]
    ours = {
        "dot": lambda: linalg.dot(a, b),
        "matvec": lambda: linalg.matvec(stack, b),
        "vecmat": lambda: linalg.vecmat(numbers(4), matrix),
        "vecmat, long": lambda: linalg.vecmat(a, matrix.T),
        "matmul": lambda: linalg.matmul(a, matrix.T),
        "total": lambda: linalg.total(stack, 2),
        "total, first": lambda: linalg.total(matrix.T, 0),
        "largest": lambda: linalg.maximum(stack, -1),
        "largest, first": lambda: linalg.maximum(matrix.T, 0),
        "first_argmax": lambda: linalg.first_argmax(tied),
    }
    theirs = {
        "dot": a @ b,
        "matvec": stack @ b,
        "vecmat": numbers(4) @ matrix,
        "vecmat, long": a @ matrix.T,
        "matmul": a @ matrix.T,
        "total": stack.sum(2),
        "total, first": matrix.sum(1),
        "largest": stack.max(-1),
        "largest, first": matrix.max(1),
        "first_argmax": tied.argmax(-1),
    }
    return ours, theirs


def systems():
    """Return solutions of small systems: ours, and NumPy's."""
    root, factor, right, two = (
        numbers(3, 3),
        np.tril(numbers(3, 4)[:, 1:]),
        numbers(3),
        numbers(2, 3),
    )
    matrix = root @ root.T + np.eye(3)
    shifted = np.eye(3) + factor @ factor.T @ matrix
    lower = np.where(np.tri(3, k=-1), np.nan, matrix)  # only the upper triangle is read

    def triangular(right):
        return linalg.solve_triangular(
            linalg.factor_triangular(jnp.asarray(lower)), jnp.asarray(right)
        )

    ours = {
        "shifted": lambda: linalg.solve_shifted(*map(jnp.asarray, (factor, matrix, right))),
        "positive": lambda: linalg.solve_positive(jnp.asarray(matrix), jnp.asarray(right)),
        "triangular": lambda: triangular(right),
        "triangular, two": lambda: triangular(two),
    }
    inverse = np.linalg.inv(matrix)
    theirs = {
        "shifted": np.linalg.solve(shifted, right),
        "positive": inverse @ right,
        "triangular": inverse @ right,
        "triangular, two": two @ inverse,
    }
    return ours, theirs


def reads_and_writes(rows):
    """Return what is read from and written to a table of few or many numbers: ours, and NumPy's."""
    table, row, at = numbers(rows, 3), numbers(rows), np.array([rows - 1, 1])
    values, lines = numbers(2), numbers(2, 3)
    beyond = np.array([2, 9])  # the second column is out of bounds: left out
    ours = {
        "put": lambda: linalg.put(jnp.asarray(row), (at,), values),
        "put, two axes": lambda: linalg.put(jnp.asarray(table), (at, beyond), values),
        "put_rows": lambda: linalg.put_rows(jnp.asarray(table), at, lines),
        "take": lambda: linalg.take(jnp.asarray(row), at),
        "take one": lambda: linalg.take(jnp.asarray(row), at[:1]),
        "take, two axes": lambda: linalg.take(jnp.asarray(table), at[1:], beyond[:1]),
    }
    written, changed, replaced = row.copy(), table.copy(), table.copy()
    written[at], changed[at[0], 2], replaced[at] = values, values[0], lines
    theirs = {
        "put": written,
        "put, two axes": changed,
        "put_rows": replaced,
        "take": row[at],
        "take one": row[at[:1]],
        "take, two axes": table[1:2, 2],
    }
    return ours, theirs


def arrangements():
    """Return what is put together: ours, and NumPy's."""
    one, other, third = numbers(2, 5), numbers(5, 2).T, numbers(5)
    counts = np.arange(11) ** 2 % 7
    ours = {
        "outer": lambda: linalg.outer(one, other),
        "sums": lambda: linalg.sum_terms([jnp.asarray(one), jnp.asarray(other)]),
        "side_by_side": lambda: linalg.stack_last([jnp.asarray(one), other, one + other]),
        "joined": lambda: linalg.concatenate(*map(jnp.asarray, (third[:2], third[2:3], third[3:]))),
        "joined, long": lambda: linalg.concatenate(jnp.asarray(third), jnp.asarray(one[0])),
        "running_sum": lambda: linalg.running_sum(jnp.asarray(counts)),
        "settle": lambda: linalg.add_barrier((jnp.asarray(one), jnp.asarray(third)))[1],
        "hold": lambda: linalg.force_barrier(jnp.asarray(one)),
    }
    theirs = {
        "outer": np.einsum("ki,kj->kij", one, other),
        "sums": np.stack([one.sum(-1), other.sum(-1)]),
        "side_by_side": np.stack([one, other, one + other], axis=-1),
        "joined": third,
        "joined, long": np.concatenate([third, one[0]]),
        "running_sum": np.cumsum(counts),
        "settle": third,
        "hold": one,
    }
    return ours, theirs


MADE = {
    "short": (short_and_long, SMALL),
    "long": (short_and_long, SMALL + 2),
    "systems": (systems,),
    "few": (reads_and_writes, 4),
    "many": (reads_and_writes, 15),
    "arrangements": (arrangements,),
}


@pytest.mark.parametrize("platform", PLATFORMS)
def test_unrolled_linear_algebra_matches_numpy(platform, x64, monkeypatch):
    monkeypatch.setattr(linalg, "SMALL", SMALL)
    monkeypatch.setattr(linalg, "MAX_MASKED", MASKED)
    made = {name: make(*size) for name, (make, *size) in MADE.items()}

    @functools.partial(jax.jit, compiler_options=FAST_COMPILE_OPTIONS)
    def together():
        return {
            name: {one: compute() for one, compute in ours.items()}
            for name, (ours, _) in made.items()
        }

    with platforms.use(PLATFORMS[platform]):
        computed = together()
    for name, (_, theirs) in made.items():
        for one, known in theirs.items():
            value = np.asarray(computed[name][one])
            assert value.shape == known.shape, (name, one)
            np.testing.assert_allclose(value, known, rtol=1e-9, atol=1e-12, err_msg=f"{name} {one}")


packed = jax.jit(linalg.pack_bits, compiler_options=FAST_COMPILE_OPTIONS)
nth_bit = jax.jit(linalg.nth_bit, compiler_options=FAST_COMPILE_OPTIONS)


@QUICK
@given(st.lists(st.booleans(), min_size=40, max_size=40))
def test_bit_masks_round_trip_through_packing(marks):
    words = np.asarray(packed(np.array(marks)))
    assert words.dtype == np.uint32 and len(words) == 2
    assert [bool(words[i // 32] >> (i % 32) & 1) for i in range(40)] == marks
    here = np.flatnonzero(marks[:32])
    found = [int(nth_bit(words[0], jnp.int32(rank))) for rank in range(len(here))]
    assert found == here.tolist()
    assert int(nth_bit(words[0], jnp.int32(-1))) == 0


@pytest.mark.parametrize(("each", "times"), [(0.1, 2_000_000), (1e-4, 2_000_000)])
def test_a_compensated_sum_does_not_drift(each, times):
    """Plain float32 is off by 0.4% here; with the sign turned the error doubles."""

    def one(_, sums):
        return linalg.add_compensated(*sums, jnp.float32(each))

    zero = jnp.zeros((), jnp.float32)
    total, _ = jax.jit(lambda: jax.lax.fori_loop(0, times, one, (zero, zero)))()
    np.testing.assert_allclose(total, np.float64(np.float32(each)) * times, rtol=2e-7)


def test_a_compensated_sum_counts_beyond_two_to_the_24():
    total, lost = jnp.float32(2**24), jnp.float32(0)
    for _ in range(11):
        total, lost = linalg.add_compensated(total, lost, jnp.float32(1))
    assert int(total) + int(lost) == 2**24 + 11
