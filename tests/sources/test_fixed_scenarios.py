"""Scenarios that a user writes down: a matrix of probabilities, one instance at several loads."""

import jax
import numpy as np
import pytest
from composing import compose_config
from hydra.utils import instantiate
from stationary import close, sweep_stationary

import cqbjax
from cqbjax import mnl, policies, rng
from cqbjax.sources import (
    Coin,
    PartlyLinear,
    SuccessProbabilities,
    Synthetic,
    rejection_sampling,
)
from tests.reference import queues


def draw(source, K=1, rate=0.3, horizon=50, seed=0):
    problem = source.problem(K, horizon)
    return source.draw_workload(rng.run_key(seed), np.float32(rate), problem)


def test_attempts_succeed_with_the_probability_of_the_matrix():
    matrix = np.array([[0.9, 0.2, 0.0], [0.5, 0.6, 1.0]])
    drawn = draw(SuccessProbabilities(matrix=matrix.tolist()))
    single = np.asarray(mnl.departure_rate(drawn.utilities[..., None]))
    np.testing.assert_allclose(single, matrix.T, atol=2e-6)
    np.testing.assert_array_equal(drawn.contexts, np.eye(3))
    odds = matrix[:, :2] / (1 - matrix[:, :2])
    both = mnl.departure_rate(drawn.utilities[:2])
    np.testing.assert_allclose(both, odds.sum(axis=0) / (1 + odds.sum(axis=0)), rtol=1e-5)
    # Uniform routing takes 1 / .7 and 1 / .4 rounds, three kinds of four the first.
    source = SuccessProbabilities(matrix=matrix[:, :2].tolist(), weights=[3, 1])
    rounds = 0.75 / matrix[:, 0].mean() + 0.25 / matrix[:, 1].mean()
    assert source.uniform_service([], 0.3, 1) == pytest.approx(1 / rounds)


@pytest.mark.parametrize("share", [0.0, 0.36, 1.0])
def test_contexts_explain_their_share_of_the_utilities(share):
    source = PartlyLinear(share=share, scale=1.5, level=0.5, spread=0.0, num_servers=4, dim=3)
    drawn = draw(source, horizon=4000)
    x, u = np.asarray(drawn.contexts, float), np.asarray(drawn.utilities, float)
    np.testing.assert_allclose(np.linalg.norm(x, axis=1), 1, rtol=1e-5)
    np.testing.assert_allclose(x[:, -1], np.sqrt(0.5), rtol=1e-6)
    theta, *_ = np.linalg.lstsq(x, u, rcond=None)
    left = (u - x @ theta).std(axis=0)
    assert left == pytest.approx(np.full(4, 1.5 * np.sqrt(1 - share)), rel=0.05, abs=1e-4)
    # x'theta_j is level + scale sqrt(s) z'theta_j: over many LLMs theta_j has variance 1.
    assert theta[-1] * np.sqrt(0.5) == pytest.approx(np.full(4, 0.5), abs=0.15)
    many = PartlyLinear(share=share, scale=1.5, spread=0.0, num_servers=400, dim=3)
    some = np.asarray(draw(many, horizon=8).utilities, float)
    assert some.std(axis=1) == pytest.approx(np.full(8, 1.5), rel=0.15)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"share": 1.5}, r"share=1.5 must be a number in \[0, 1\]"),
        ({"scale": -1}, r"scale=-1 must be a number in \[0, inf\)"),
        ({"level": "x"}, "level=x must be a number"),
        ({"dim": 1}, r"dim=1 must be a whole number in \[2, inf\)"),
    ],
)
def test_invalid_partly_linear_sources_are_rejected(settings, message):
    with pytest.raises(ValueError, match=message):
        source = PartlyLinear(**settings)
        source.problem(1, 10)
        source.check([], 0.5, 1)


@pytest.mark.slow
def test_query_types_arrive_by_weight_and_one_llm_equals_a_coin():
    source = SuccessProbabilities(matrix=[[0.4, 0.8]], weights=[3, 1])
    share = (draw(source, horizon=4000).arrival_rows == 0).mean()
    assert abs(share - 0.75) < 4 * np.sqrt(0.75 * 0.25 / 4000)
    coin = Coin(classes=[0.4, 0.8], shares=[3, 1], num_servers=1)
    assert source.uniform_service([0], 0.3, 1) == pytest.approx(coin.uniform_service([0], 0.3, 1))
    for one, other in zip(jax.tree.leaves(draw(source)), jax.tree.leaves(draw(coin)), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-6)


def test_invalid_matrices_are_rejected_in_one_sentence():
    for matrix, weights, error_text in (
        ([[0.9, 1.2]], None, r"matrix: LLM 0, kind 1 must be a probability in \[0, 1\], got 1.2"),
        ([[0.9, float("nan")]], None, "LLM 0, kind 1 must be a probability"),
        ([0.9, 0.2], None, "matrix must have a row for each LLM"),
        ([[0.9, 0.2]], [1, 2, 3], "weights=.* must be 2 numbers in .*, one for each kind"),
        ([[0.9, 0.2]], [0, 0], "weights=.* must not all be 0"),
    ):
        source = SuccessProbabilities(matrix=matrix, weights=weights)
        with pytest.raises(ValueError, match=error_text):
            cqbjax.sweep(["random"], source, arrival_rate=[0.3], num_seeds=1, horizon=4)
    with pytest.raises(ValueError, match="must be a list of numbers"):
        SuccessProbabilities(matrix=[[0.9], [0.1, 0.2]])


@pytest.mark.slow
def test_the_command_line_takes_a_matrix():
    words = "source=success_probabilities", "source.matrix=[[0.9,0.2,0.1],[0.5,0.6,0.2]]"
    source = instantiate(dict(compose_config(*words).source), _convert_="all")
    assert source.problem(1, 10)[:3] == (2, 1, 3) and source.weights is None


@pytest.mark.slow
def test_mean_queues_of_one_query_type_match_geo_geo_1():
    """RAND serves with the mean probability, and the oracle with the largest: two Geo/Geo/1."""
    source, rate = SuccessProbabilities(matrix=[[0.8], [0.4]]), 0.35
    chosen = {"random": policies.RandomRouting()}
    data = sweep_stationary(chosen, source, rate, seeds=300, horizon=6000)
    for label, chance in (("random", 0.6), ("optimal", 0.8)):
        queue = data.queue_length.sel(policy=label).mean("round")
        close(queue, queues.geometric(chance, rate))


def test_slackness_is_relative_to_the_reference_rate_or_else_to_the_arrival_rate(monkeypatch):
    monkeypatch.setattr(
        rejection_sampling, "draw_accepted", lambda draw, utilities, least, *_: (least, None)
    )
    for reference, rate, wanted in ((0.6, 0.2, 0.7), (None, 0.2, 0.3)):
        source = Synthetic(slackness=0.1, reference_rate=reference)
        least = float(draw(source, rate=rate).contexts)
        assert 1 / (1 + np.exp(-least)) == pytest.approx(wanted)


@pytest.mark.slow
def test_reference_rate_fixes_llms_and_queries_at_every_load():
    held, paper = Synthetic(reference_rate=0.6), Synthetic()
    low, high = (draw(held, rate=rate) for rate in (0.2, 0.6))
    for one, other in zip(jax.tree.leaves(low), jax.tree.leaves(high), strict=True):
        np.testing.assert_array_equal(one, other)
    for one, other in zip(
        jax.tree.leaves(high), jax.tree.leaves(draw(paper, rate=0.6)), strict=True
    ):
        np.testing.assert_array_equal(one, other)
    assert (draw(paper, rate=0.2).contexts != low.contexts).any()
    assert (draw(held, seed=1).utilities != low.utilities).any()
    with pytest.raises(ValueError, match="slackness=0.03 with reference_rate=0.98 asks for"):
        Synthetic(reference_rate=0.98).check(np.arange(2), 0.3, 1)


@pytest.mark.slow
def test_the_queue_grows_with_the_load():
    source = Synthetic(reference_rate=0.6, num_servers=3, dim=2)
    data = cqbjax.sweep(["random"], source, arrival_rate=[0.2, 0.4, 0.6], num_seeds=20, horizon=300)
    queue = data.queue_length.mean(("round", "seed"))
    assert (queue.diff("arrival_rate") > 0).all()
