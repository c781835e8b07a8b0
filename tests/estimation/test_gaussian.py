"""The Gaussian posterior against its definition: V summed in NumPy, and the paper's formulas."""

import itertools
import math

import jax.numpy as jnp
import numpy as np
import pytest
from tiers import cases

from cqbjax.core import linalg
from cqbjax.estimation import gaussian
from cqbjax.estimation.belief import Interaction
from cqbjax.sources import Synthetic

LAMBDA0 = 0.7


def test_confidence_radius_matches_the_paper(x64):
    problem = Synthetic(num_servers=4, dim=3).problem(2, 100)
    counts = np.array([0.0, 1.0, 5.0, 400.0])
    ours = gaussian.radius(problem, jnp.asarray(counts), 1.3, LAMBDA0, 0.4)
    theirs = [
        0.4 * (0.65 * math.sqrt(3 * math.log(1 + n * 2 / (3 * LAMBDA0)) + 4 * math.log(max(n, 1)))
               + 1.3 * math.sqrt(LAMBDA0))
        for n in counts
    ]  # fmt: skip
    np.testing.assert_allclose(ours, theirs, rtol=1e-12)


@pytest.mark.parametrize("size", range(1, 7))
def test_num_samples_is_the_least_that_makes_one_of_k_samples_optimistic(size):
    """The least M with K (1 - p)^(M - 1) <= 1, p = 1 / (4 sqrt(e pi))."""
    missed = 1 - 1 / (4 * math.sqrt(math.e * math.pi))
    least = next(m for m in itertools.count(1) if size * missed ** (m - 1) <= 1)
    assert gaussian.num_samples(size) == least


# Number by number takes long; of that test_plain_loops sees the same in small programs.
SHOWN = map("-".join, itertools.product(("disjoint-3", "disjoint-40", "shared-3"), ("all", "few")))


@pytest.mark.parametrize("name", cases(SHOWN, {"disjoint-40-few"}))
def test_posterior_sums_offered_rows_and_samples_match_its_covariance(name, x64, monkeypatch):
    parameters, dim, changed = name.split("-")
    dim = int(dim)
    if changed == "few":
        monkeypatch.setattr(gaussian, "MASKED_PASS_LIMIT", 0)
    assert (dim <= linalg.SMALL) == (dim == 3), "both ways of sampling"
    problem = Synthetic(num_servers=4, dim=dim, parameters=parameters).problem(2, 100)
    draw, shared = np.random.default_rng(0), parameters == "shared"
    posterior = gaussian.init(problem, jnp.asarray(LAMBDA0))
    design = np.stack([LAMBDA0 * np.eye(dim)] * problem.num_blocks)
    learnt = np.zeros(problem.num_blocks)
    for valid, servers in ((True, (0, 2)), (False, (0, 1)), (True, (2, 3)), (True, (0, 2))):
        rows = draw.normal(size=(2, dim) if shared else dim)
        fields = map(jnp.asarray, (0, 0, rows, servers, 0, valid))
        posterior = gaussian.observe(posterior, problem, Interaction(*fields))
        for row, server in zip(np.broadcast_to(rows, (2, dim)), servers, strict=True):
            design[0 if shared else server] += valid * np.outer(row, row)
        learnt[[0] if shared else list(servers)] += valid
    inverse, root = np.linalg.inv(design), np.asarray(posterior.root)
    np.testing.assert_allclose(np.swapaxes(root, 1, 2) @ root, inverse, atol=1e-9)
    np.testing.assert_array_equal(posterior.num_updates, learnt)

    theta, normal = (draw.normal(size=(*more, *learnt.shape, dim)) for more in ((), (5,)))
    alpha = draw.uniform(size=learnt.shape)
    drawn = gaussian.sample(posterior, *map(jnp.asarray, (theta, alpha, normal)))
    expected = theta + alpha[:, None] * np.einsum("bij,mbi->mbj", root, normal)
    np.testing.assert_allclose(drawn, expected, atol=1e-9)

    features = draw.normal(size=(6, 4, dim) if shared else (6, dim))
    each = features if shared else np.repeat(features[:, None], 4, axis=1)
    of = np.broadcast_to(inverse, (4, dim, dim))
    lengths = np.sqrt(np.einsum("cni,nij,cnj->cn", each, of, each))
    np.testing.assert_allclose(
        gaussian.spread(posterior, jnp.asarray(features)), lengths, atol=1e-9
    )
