"""The router on types: its scores against plain loops, and a scenario of known answer."""

import jax.numpy as jnp
import numpy as np
import pytest

from cqbjax.offline.policies import TrainedRouter
from cqbjax.offline.routers import Conditional, OfflineSplit
from cqbjax.policies.router_policy import score_by_type
from tests.policies.test_retries import attempts, make_hopeless

# LLM 0 is the best and LLM 1 the second best on average. But if LLM 0 fails, the query is probably
# of type 1, which LLM 2 satisfies best.
TYPES = np.asarray([[0.95, 0.6, 0.05, 0.1], [0.3, 0.1, 0.6, 0.1]])


def plain_scores(weights, types, accepted, failed):
    """Return the log-odds of each server by Bayes' rule, a query at a time."""
    made = np.empty(failed.shape)
    for query in range(len(failed)):
        posterior = weights[query].astype(float).copy()
        for g, n in np.ndindex(types.shape):
            posterior[g] *= types[g, n] ** accepted[query, n]
            posterior[g] *= (1 - types[g, n]) ** failed[query, n]
        posterior /= posterior.sum()
        for n in range(types.shape[1]):
            mean = sum(posterior[g] * types[g, n] for g in range(len(types)))
            made[query, n] = np.log(mean / (1 - mean))
    return made


def test_scores_are_bayes_rule_and_each_fault_is_found():
    draw = np.random.default_rng(1)
    weights, types = draw.dirichlet(np.ones(6), 5), draw.uniform(0.05, 0.95, (6, 4))
    accepted, failed = draw.integers(3, size=(2, 5, 4))
    wanted = plain_scores(weights, types, accepted, failed)
    right = [np.log(weights), types, accepted, failed]
    faults = {
        "failures not counted": [*right[:3], 0 * failed],
        "successes not counted": [*right[:2], 0 * accepted, failed],
        "another row": [np.roll(right[0], 1, axis=0), *right[1:]],
        "servers permuted": [right[0], types[:, ::-1], accepted, failed],
    }
    score = lambda parts: np.asarray(score_by_type(*map(jnp.asarray, parts)))  # noqa: E731
    np.testing.assert_allclose(score(right), wanted, atol=1e-4)
    for name, parts in faults.items():
        assert np.abs(score(parts) - wanted).max() > 0.1, name


def make_split(n=60, seed=0):
    """Return prompts of two types, which their embeddings show only in part."""
    draw = np.random.default_rng(seed)
    kind = np.arange(n) % 2
    embeddings = draw.normal(size=(n, 5)) + kind[:, None]
    zeros = np.zeros((n, 4))
    return OfflineSplit(embeddings, zeros, zeros, TYPES[kind]), kind


def test_the_prior_is_an_average_over_near_prompts_and_a_floor():
    split, kind = make_split()
    router = Conditional(temperature=0.3, floor=0.2, num_types=7)
    fitted = router.fit(split, rho=1.0, seed=0)
    exported = fitted.predict_types(split.embeddings[:9])
    weights, types = np.exp(exported["scores"]), exported["types"]
    assert weights.shape == (9, 7) and types.shape == (7, 4)
    offline = split.embeddings / np.linalg.norm(split.embeddings, axis=1, keepdims=True)
    for row in range(9):
        near = np.exp(offline @ offline[row] / 0.3)
        for g in range(2):
            mine = kind == g
            wanted = 0.8 * near[mine].sum() / near.sum() + 0.2 * mine.mean()
            at = np.flatnonzero(np.abs(types - TYPES[g]).max(axis=1) < 1e-6)
            assert weights[row, at].sum() == pytest.approx(wanted)
            assert weights[row, at].sum() != pytest.approx((wanted - 0.1) / 0.8), "without a floor"
    np.testing.assert_allclose(weights.sum(axis=1), 1.0)
    np.testing.assert_allclose(
        fitted.predict(split.embeddings[:9]),
        plain_scores(weights, types, np.zeros((9, 4)), np.zeros((9, 4))),
    )


@pytest.mark.parametrize("retry", ["same", "fallback", "recall", "cache"])
def test_after_a_failure_the_next_llm_is_the_conditional_best(retry):
    """The second best of the marginal order is wrong, and the conditional one right."""
    source = make_hopeless(3, 4)
    log_prior = np.log(np.tile([0.5, 0.5], (3, 1)))
    policy = TrainedRouter(Conditional(num_types=2), retry=retry).make_policy(
        np.zeros((3, 4)), log_prior, TYPES
    )
    shown = attempts(policy, source=source)[0][:, 0].tolist()
    marginal = np.argsort(-TYPES.mean(axis=0)).tolist()
    assert marginal == [0, 1, 2, 3]
    expected, failed = [], np.zeros((1, 4), int)
    for _ in range(4):
        best = plain_scores(np.exp(log_prior[:1]), TYPES, 0 * failed, failed)[0]
        if retry in ("fallback", "cache"):
            best = np.where(failed[0] > 0, -np.inf, best)
        expected.append(int(best.argmax()))
        if retry != "same":
            failed[0, expected[-1]] += 1
    assert shown[:4] == expected
    assert expected[1] == (0 if retry == "same" else 2)


def test_settings_and_departures_are_checked():
    for wrong in ({"temperature": 0}, {"floor": 0}, {"floor": 2}, {"num_types": 0}):
        with pytest.raises(ValueError, match="needs temperature > 0"):
            Conditional(**wrong)
    split, _ = make_split()
    bare = OfflineSplit(split.embeddings, split.performance, split.cost)
    with pytest.raises(ValueError, match="no departure probabilities"):
        Conditional().fit(bare, rho=1.0, seed=0)
