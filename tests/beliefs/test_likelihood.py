"""The derivatives of the choice model beside JAX's own."""

import jax
import jax.numpy as jnp
import numpy as np

from cqbjax.beliefs import cubic, likelihood
from cqbjax.core import mnl
from cqbjax.core.types import Problem


def test_second_derivatives_are_those_of_the_own_servers_probability(x64):
    problem = Problem(3, 3, 2, 4, 10, "disjoint", False)
    assert cubic.depth(problem) == 3 and not cubic.paired(problem)
    drawn = np.random.default_rng(0).normal(size=3)

    @jax.jit
    def both(utilities):
        p = mnl.choice_probabilities(utilities)
        own = jnp.array([0.0, 1.0, 0.0])[:, None]
        expected = jax.hessian(lambda u: mnl.choice_probabilities(u)[1])(utilities)
        return likelihood._second_derivatives(problem, p[:, None], own)[..., 0], expected

    np.testing.assert_allclose(*both(drawn), atol=1e-12)
