"""Estimates against the exact minimiser, over whole float32 runs, and the linear algebra below."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import optimize

from cqbjax import mnl, posterior
from cqbjax.estimators import running
from cqbjax.policies import Acqb
from cqbjax.sources import Synthetic
from scripts import estimator_study as study
from tests import reference

# Percent of alpha: the bound that the estimator is held to.
LIMIT = 2.0


def worst(source, size, rate, horizon, scale=0.2, seed=0):
    run = study.play(source, size, rate, horizon, seed, Acqb(alpha_scale=scale, c1=0.25))
    found = study.measure(run, study.sampled(horizon, 30, 12))
    assert len(found) > 20
    return study.percent(found, scale).max()


@pytest.mark.parametrize("size", [1, 2])
@pytest.mark.parametrize("parameters", ["disjoint", "shared"])
def test_running_estimate_stays_within_two_percent_of_alpha(parameters, size):
    assert worst(Synthetic(parameters=parameters), size, 0.7, 400) < LIMIT


def test_without_corrections_it_would_not(monkeypatch):
    monkeypatch.setattr(running, "CORRECTIONS", 0)
    jax.clear_caches()
    try:
        assert worst(Synthetic(), 1, 0.7, 200) > LIMIT
    finally:
        jax.clear_caches()


@pytest.mark.parametrize(("size", "rate"), [(1, 0.8), (2, 0.9)])
def test_newton_cg_stays_within_two_percent_of_alpha_on_real_embeddings(shared_data, size, rate):
    source = study.routerbench(shared_data)
    run = study.play(source, size, rate, 200, 0, Acqb(alpha_scale=0.3, c1=0.25))
    found = study.measure(run, np.arange(20, 201, 20))
    assert study.percent(found, 0.3).max() < LIMIT


def test_the_exact_minimiser_is_what_scipy_finds():
    rng = np.random.default_rng(3)
    rows = rng.normal(size=(60, 2, 4)) / 2
    chosen = np.eye(3)[rng.integers(0, 3, 60)][:, :2]

    def loss(theta):
        utilities = rows @ theta
        total = np.log1p(np.exp(utilities).sum(axis=1))
        return 0.35 * theta @ theta + np.sum(total - (chosen * utilities).sum(axis=1))

    best = optimize.minimize(loss, np.zeros(4), method="BFGS", options={"gtol": 1e-9}).x
    ours = reference.minimise(rows, np.zeros((60, 2)), chosen, 0.7, np.zeros(4))
    np.testing.assert_allclose(ours, best, atol=1e-6)


def test_blocks_are_inverted():
    rng = np.random.default_rng(0)
    factors = rng.normal(size=(6, 5, 5))
    matrices = factors @ factors.transpose(0, 2, 1) + 0.5 * np.eye(5)
    found = np.asarray(running._invert(jnp.asarray(matrices)))
    np.testing.assert_allclose(found @ matrices, np.broadcast_to(np.eye(5), (6, 5, 5)), atol=1e-4)


@pytest.mark.parametrize("p", [[0.3], [0.2, 0.5], [0.1, 0.2, 0.6], [0.0, 0.4, 0.0]])
def test_curvature_columns_factor_the_hessian_of_one_choice(p):
    p = np.asarray(p)
    factor = np.asarray(mnl.curvature_columns(jnp.asarray(p, jnp.float32)))
    np.testing.assert_allclose(factor @ factor.T, np.diag(p) - np.outer(p, p), atol=1e-6)


@pytest.mark.parametrize(("dim", "rounds"), [(5, 1000), (384, 300)])
def test_the_root_stays_the_root_of_the_inverse_in_float32(dim, rounds):
    rng = np.random.default_rng(1)
    rows = rng.normal(size=(rounds, dim))
    rows = (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)
    root = jax.lax.scan(lambda w, x: (posterior.shrink(w, x), None), jnp.eye(dim), rows)[0]
    root = np.asarray(root, np.float64)
    design = np.eye(dim) + rows.T.astype(np.float64) @ rows
    assert np.abs(root.T @ root @ design - np.eye(dim)).max() < 1e-5
