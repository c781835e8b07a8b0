"""The choice model beside JAX's own derivatives, its sums over a history beside a loop."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tiers import cases

from cqbjax.core import mnl
from cqbjax.core.types import Problem
from cqbjax.estimation import (
    likelihood,
    loss_model,
    packed_matrices,
    running_estimate,
    table_history,
)
from cqbjax.estimation.belief import Interaction
from cqbjax.testing.instances import FAST_COMPILE_OPTIONS


def test_second_derivatives_of_the_choice_probability_match_jax(x64):
    problem = Problem(3, 3, 2, 4, 10, "disjoint", False)
    assert loss_model.depth(problem) == 3 and not loss_model.couples_pairs(problem)
    drawn = np.random.default_rng(0).normal(size=3)

    @jax.jit
    def second_derivatives(utilities):
        p = mnl.choice_probabilities(utilities)
        own = jnp.array([0.0, 1.0, 0.0])[:, None]
        expected = jax.hessian(lambda u: mnl.choice_probabilities(u)[1])(utilities)
        return likelihood._second_derivatives(problem, p[:, None], own)[..., 0], expected

    np.testing.assert_allclose(*second_derivatives(drawn), atol=1e-12)


@pytest.mark.parametrize("size", [1, 2, 3])
def test_gradient_and_hessian_sum_over_rounds_with_feedback(size, x64, monkeypatch):
    monkeypatch.setattr(table_history, "BLOCK", 4)
    servers, table, rounds = 4, 3, 10
    problem = Problem(servers, size, 2, table, rounds, "disjoint", True)
    draw = np.random.default_rng(size)
    shown = np.stack([np.sort(draw.permutation(servers)[:size]) for _ in range(rounds)])
    row, choice = draw.integers(table, size=rounds), draw.integers(size + 1, size=rounds)
    valid, scores = np.arange(rounds) % 3 != 1, draw.normal(size=(servers, table))
    numbers = np.arange(1, rounds + 1), row, shown, choice
    round_, row_, shown_, choice_ = (one.astype(np.int32) for one in numbers)
    interactions = Interaction(round_, row_, np.zeros((rounds, 2)), shown_, choice_, valid)

    def sum_all(interactions, scores):
        def one(record, new):
            return table_history.append(record, new), None

        record = jax.lax.scan(one, table_history.init(problem), interactions)[0]
        last = jax.tree.map(lambda leaf: leaf[-1], interactions)
        return table_history.sum_residuals(scores[last.servers], scores, record, problem, last)

    residual, curvature = jax.jit(sum_all, compiler_options=FAST_COMPILE_OPTIONS)(
        interactions, scores
    )
    slope, bend = np.zeros((size, table)), np.zeros((size, size, table))
    for t in np.flatnonzero(valid):
        weights = np.append(np.exp(scores[shown[t], row[t]]), 1.0)
        p, y = weights / weights.sum(), np.eye(size + 1)[choice[t]]
        of = [list(shown[t]).index(j) if j in shown[t] else None for j in shown[-1]]
        for k, a in enumerate(of):
            if a is not None:
                slope[k, row[t]] += p[a] - y[a]
            for m, b in enumerate(of):
                if a is not None and b is not None:
                    bend[k, m, row[t]] += p[a] * ((a == b) - p[b])
    np.testing.assert_allclose(residual, slope, atol=1e-12)
    np.testing.assert_allclose(curvature, bend, atol=1e-12)


@pytest.mark.parametrize("parameters", ["disjoint", "shared"])
@pytest.mark.parametrize("dim", cases([1, 3], [3]))
def test_gradient_and_hessian_without_rows_are_those_of_the_regulariser(dim, parameters):
    problem = Problem(3, 2, dim, 4, 10, parameters, False)
    begun = running_estimate.init(problem, jnp.asarray(0.7))
    for block, (vector, second) in enumerate(zip(begun.model, begun.second, strict=True)):
        model = loss_model.unpack_vector(problem, vector, second)
        own = np.eye(problem.num_blocks)[block][: loss_model.width(problem)]
        ridge = 0.7 * own[:, None, None] * np.eye(dim)
        np.testing.assert_allclose(packed_matrices.unpack(model.first, dim), ridge, rtol=1e-6)
        assert not model.value.any() and not model.second.any()
