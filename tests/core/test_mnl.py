"""The choice model against enumeration, against its definition, and at its edges."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tiers import cases

from cqbjax.core import mnl
from cqbjax.core.types import DOWN_UTILITY

QUICK = settings(max_examples=40, deadline=None, derandomize=True)
probabilities_of = jax.jit(mnl.choice_probabilities)
best_servers = jax.jit(mnl.best_servers, static_argnums=1)
best_score = jax.jit(mnl.best_score, static_argnums=1)
choose = jax.jit(mnl.choose)
curvature_columns = jax.jit(mnl.curvature_columns)
UTILITY = st.floats(-30.0, 30.0, width=32)


def rate(utilities, servers):
    weights = np.exp(np.asarray(utilities, float)[list(servers)])
    return weights.sum() / (1.0 + weights.sum())


@QUICK
@given(st.lists(UTILITY, min_size=3, max_size=3))
def test_choice_probabilities_match_the_definition(utilities):
    weights = np.exp(np.asarray(utilities, float))
    probabilities = probabilities_of(jnp.asarray(utilities, float))
    np.testing.assert_allclose(probabilities, weights / (1 + weights.sum()), rtol=2e-5, atol=1e-12)
    assert float(mnl.departure_rate(jnp.asarray(utilities, float))) <= 1.0 + 1e-6


@pytest.mark.parametrize("far", [-1e4, 1e4])
def test_probabilities_stay_finite_far_out(far):
    p = np.asarray(probabilities_of(jnp.asarray([far, far, 0.0])))
    assert np.isfinite(p).all() and 0.0 <= p.sum() <= 1.0
    assert p.sum() == pytest.approx(1.0 if far > 0 else 0.5)


@pytest.mark.parametrize("size", cases([1, 2, 3, 4, 5], [1, 2]))
def test_best_assortment_matches_enumeration(size):
    draw = np.random.default_rng(size)
    every = list(itertools.combinations(range(5), size))
    for utilities in draw.normal(scale=2.0, size=(30, 5)):
        best = max(every, key=lambda servers: rate(utilities, servers))
        assert best_servers(jnp.asarray(utilities), size).tolist() == list(best)
        score = float(best_score(jnp.asarray(utilities), size))
        assert 1 / (1 + np.exp(-score)) == pytest.approx(rate(utilities, best), rel=1e-5)


@pytest.mark.parametrize("size", [1, 2, 3])
def test_ties_go_to_the_lowest_servers(size):
    assert best_servers(jnp.zeros(4), size).tolist() == list(range(size))
    assert best_servers(jnp.asarray([0.0, 1.0, 0.0, 1.0]), 2).tolist() == [1, 3]


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(
    ("utilities", "of_one", "of_two"),
    [
        ([800.0, 800.0, 0.0], 2.5 / 3, 1.0),
        ([800.0, -800.0, 1.0], (1 + 1 / (1 + np.exp(-1))) / 3, (2 + 1 / (1 + np.exp(-1))) / 3),
        ([1e300, -1e300, np.inf], 2 / 3, 1.0),
    ],
)
def test_large_utilities_have_a_mean_departure_rate(utilities, of_one, of_two):
    rates = [float(mnl.mean_departure_rate(np.asarray([utilities]), size)[0]) for size in (1, 2)]
    assert rates == pytest.approx([of_one, of_two], rel=1e-12)


@pytest.mark.parametrize("size", [1, 2])
def test_mean_departure_rate_matches_enumeration(size):
    utilities = np.random.default_rng(0).normal(scale=3.0, size=(4, 5))
    every = list(itertools.combinations(range(5), size))
    expected = [np.mean([rate(one, servers) for servers in every]) for one in utilities]
    np.testing.assert_allclose(mnl.mean_departure_rate(utilities, size), expected, rtol=1e-12)


def test_scores_order_queries_as_departure_rates_do():
    utilities = np.random.default_rng(0).normal(size=(50, 5))
    for size in (1, 2, 5):
        scores = np.asarray(best_score(jnp.asarray(utilities), size))
        every = list(itertools.combinations(range(5), size))
        rates = [max(rate(one, servers) for servers in every) for one in utilities]
        np.testing.assert_array_equal(np.argsort(scores), np.argsort(rates))


@pytest.mark.parametrize(("number", "size"), [(1, 1), (4, 1), (5, 2), (6, 3), (5, 5), (9, 4)])
def test_unranking_is_the_lexicographic_list(number, size):
    every = list(itertools.combinations(range(number), size))
    assert mnl.num_assortments(number, size) == len(every)
    unrank = jax.jit(jax.vmap(lambda rank: mnl.unrank_assortment(rank, number, size)))
    unranked = unrank(jnp.arange(len(every), dtype=jnp.int32))
    assert [tuple(servers) for servers in unranked.tolist()] == every


def test_unranking_reaches_the_last_of_many_pairs():
    last = mnl.num_assortments(112, 2) - 1
    unrank = jax.jit(mnl.unrank_assortment, static_argnums=(1, 2))
    for rank, pair in ((last, [110, 111]), (110, [0, 111]), (111, [1, 2])):
        assert unrank(jnp.int32(rank), 112, 2).tolist() == pair


def test_choices_have_their_probabilities():
    """A fine grid of uniforms falls on each server in proportion to p, the rest on a retrial."""
    utilities = jnp.asarray([0.3, -1.0, 0.8])
    uniforms = (jnp.arange(20_000) + 0.5) / 20_000
    choices = np.asarray(jax.vmap(choose, (0, None))(uniforms, utilities))
    shares = np.bincount(choices, minlength=4) / len(choices)
    p = np.asarray(probabilities_of(utilities))
    np.testing.assert_allclose(shares, [*p, 1 - p.sum()], atol=1e-4)
    assert (np.diff(choices) >= 0).all(), "the cumulative p_j must be walked in server order"


@QUICK
@given(
    st.lists(UTILITY, min_size=2, max_size=2),
    st.floats(0.0, 1.0, width=32, exclude_max=True),
    UTILITY,
)
def test_a_better_server_never_turns_a_departure_into_a_retrial(utilities, uniform, raised):
    """The coupling is monotone: with the same uniform, more departs where R is larger."""
    low = sorted(utilities)
    high = [low[0], max(low[1], raised)]
    departs = [int(choose(jnp.float32(uniform), jnp.asarray(u, float))) < 2 for u in (low, high)]
    assert departs[1] >= departs[0]


@pytest.mark.parametrize("size", [1, 2, 4])
def test_curvature_columns_factor_the_hessian_of_a_choice(size):
    for utilities in np.random.default_rng(size).normal(scale=2.0, size=(10, size)):
        p = np.asarray(probabilities_of(jnp.asarray(utilities)))
        factor = np.asarray(curvature_columns(jnp.asarray(p)))
        np.testing.assert_allclose(factor @ factor.T, np.diag(p) - np.outer(p, p), atol=1e-6)
        np.testing.assert_array_equal(factor, np.tril(factor))


def test_curvature_columns_stay_finite_where_a_choice_is_certain():
    factor = np.asarray(curvature_columns(jnp.asarray([1.0, 0.0])))
    np.testing.assert_allclose(factor @ factor.T, 0.0, atol=1e-6)


def test_offered_and_chosen_servers_are_marked():
    servers = jnp.asarray([1, 4], jnp.int32)
    assert mnl.mark_servers(servers, 5).tolist() == [False, True, False, False, True]
    for choice, marked in ((0, [1]), (1, [4]), (2, [])):
        mask = mnl.mark_choice(servers, jnp.int32(choice), 5)
        assert np.flatnonzero(mask).tolist() == marked


def test_an_answer_of_probability_zero_is_never_chosen():
    """At U = 0, which is one draw in 2^23, an LLM that is down satisfied."""
    for utilities, wanted in (
        ([-np.inf, 1.0], 1),
        ([DOWN_UTILITY], 1), ([DOWN_UTILITY, DOWN_UTILITY], 2), ([1.0, DOWN_UTILITY], 0),
        ([DOWN_UTILITY, 1.0, 1.0], 1)
    ):  # fmt: skip
        assert int(choose(jnp.float32(0.0), jnp.asarray(utilities, jnp.float32))) == wanted
