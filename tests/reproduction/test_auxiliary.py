"""Lemmas that the proofs borrow, as the paper prints them, on random numbers."""

import math

import jax.numpy as jnp
import numpy as np
import pytest
from tiers import cases

from cqbjax.core import mnl

DRAWS = np.random.default_rng(0)


def test_chebyshevs_sum_inequality():
    for size in (2, 7, 40):
        rising, falling = np.sort(DRAWS.random((200, size))), -np.sort(-DRAWS.random((200, size)))
        bound = rising.sum(axis=1) * falling.sum(axis=1) / size
        assert ((rising * falling).sum(axis=1) <= bound + 1e-12).all()


@pytest.mark.parametrize("size", cases([1, 2, 5], [2]))
def test_departure_rates_are_monotone_and_1_lipschitz(size):
    """Lemmas 30 and 32."""
    low = 3 * DRAWS.normal(size=(2000, size))
    high = low + DRAWS.exponential(size=low.shape)
    rates = [np.asarray(mnl.departure_rate(jnp.asarray(u))) for u in (low, high)]
    assert (rates[1] >= rates[0] - 1e-6).all()
    assert (rates[1] - rates[0] <= (high - low).max(axis=1) + 1e-6).all()
    other = low + DRAWS.normal(size=low.shape)
    moved = np.abs(np.asarray(mnl.departure_rate(jnp.asarray(other))) - rates[0])
    assert (moved <= np.abs(other - low).max(axis=1) + 1e-6).all()
    # Tight: of one server at even odds a quarter of the move arrives, of several up to near all.
    assert moved.max() > 0.2


@pytest.mark.parametrize(("dim", "size"), [(2, 1), (5, 2)])
def test_sum_of_bonuses_satisfies_lemma_34(dim, size):
    rounds, lambda0 = 2000, 1.0
    design, total = lambda0 * np.eye(dim), 0.0
    for t in range(1, rounds + 1):
        shown = DRAWS.normal(size=(size, dim))
        shown /= np.linalg.norm(shown, axis=1, keepdims=True)
        bonuses = np.sqrt(np.einsum("kd,kd->k", shown, np.linalg.solve(design, shown.T).T))
        total += bonuses.max()
        design += shown.T @ shown
        assert total <= math.sqrt(2 * dim * t * math.log(1 + t * size / (dim * lambda0)))
    assert total > 0.3 * math.sqrt(2 * dim * rounds * math.log(1 + rounds * size / dim))


def test_maximum_of_gaussians_satisfies_lemma_36():
    for count, delta in ((1, 0.3), (6, 0.1), (100, 0.05)):
        largest = np.abs(DRAWS.normal(size=(20_000, count))).max(axis=1)
        bound = math.sqrt(2 * math.log(2 * count)) + math.sqrt(2 * math.log(1 / delta))
        assert (largest <= bound).mean() >= 1 - delta


def test_lemma_38_lower_bound_holds_and_upper_bound_fails_beyond_1_2():
    for z in np.linspace(1, 6, 51):
        tail = math.erfc(z / math.sqrt(2))  # P(|Z| > z)
        upper = math.exp(-z * z / 2) / (math.sqrt(math.pi) * z)
        assert upper / 2 <= tail
        # Mills' ratio has sqrt(2 / pi) where the paper prints 1 / sqrt(pi).
        assert tail <= math.sqrt(2) * upper
        assert (tail <= upper) == (z < 1.17)
    # Lemma 31 uses the lower half at one side: P(Z > 1) is at least 1 / (4 sqrt(e pi)).
    assert math.erfc(1 / math.sqrt(2)) / 2 >= 1 / (4 * math.sqrt(math.e * math.pi))
