"""What is run today: one order of the LLMs, and linear bandits, beside NumPy."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats
from tiers import cases

from cqbjax.core import rng
from cqbjax.core.types import Action, Feedback, Observation, Problem, Queue
from cqbjax.policies import LinearBandit, LlmRanking
from cqbjax.policies.context_free_bandits import LlmCounts
from cqbjax.policies.retries import Tally

SERVERS, DIM = 4, 3
DRAW = np.random.default_rng(5)
CONTEXTS = DRAW.normal(size=(6, DIM))
FEATURES = DRAW.normal(size=(6, SERVERS, DIM))
KEY = rng.round_key(rng.run_key(3), 7)


def observe(parameters="disjoint", size=1, shown=None):
    """Three slots: the oldest query is in the last one, of row 4."""
    problem = Problem(SERVERS, size, DIM, 6, 9, parameters, True)
    numbers = ([3, 1, 4], [5, 0, 2], [0, 0, 1])
    queue = Queue(*(jnp.asarray(one, jnp.int32) for one in numbers), offer_counts=shown)
    table = jnp.asarray(CONTEXTS if parameters == "disjoint" else FEATURES, float)
    false, none = jnp.bool_(False), jnp.int32(0)
    return Observation(problem, jnp.int32(7), queue, table[queue.row], false, none, queue.row, None)


def make_feedback(servers, choice, valid=True):
    action = Action(jnp.int32(2), jnp.asarray(servers, jnp.int32), jnp.bool_(False))
    return action, Feedback(jnp.int32(choice), jnp.bool_(valid))


FEEDBACK = {
    1: [([2], 0), ([2], 1), ([0], 0), ([3], 1), ([2], 0)],
    2: [([0, 2], 1), ([1, 2], 2), ([2, 3], 0), ([0, 3], 1)],
}


@pytest.mark.parametrize("parameters", ["disjoint", "shared"])
@pytest.mark.parametrize("size", cases([1, 2], [1]))
def test_linear_bandit_matches_ridge_regression(parameters, size):
    seen = observe(parameters, size)
    policy = LinearBandit(alpha=0.7, lambda0=2.0)
    blocks = seen.problem.num_blocks
    state = policy.init(seen.problem, jnp.zeros(seen.problem.contexts_shape))
    gram, target = np.tile(2.0 * np.eye(DIM), (blocks, 1, 1)), np.zeros((blocks, DIM))
    x_of = [CONTEXTS[4]] * SERVERS if parameters == "disjoint" else FEATURES[4]
    for servers, choice in FEEDBACK[size]:
        # What is not heard teaches nothing.
        state = policy.update(state, seen, *make_feedback(servers, 0, valid=False))
        state = policy.update(state, seen, *make_feedback(servers, choice))
        for place, server in enumerate(servers):
            block = server if parameters == "disjoint" else 0
            gram[block] += np.outer(x_of[server], x_of[server])
            target[block] += x_of[server] * (choice == place)
    np.testing.assert_allclose(state.inverse, np.linalg.inv(gram), rtol=2e-4, atol=1e-5)
    np.testing.assert_allclose(state.target, target, rtol=1e-5, atol=1e-6)
    inverse = np.linalg.inv(gram)
    of = range(SERVERS) if blocks > 1 else [0] * SERVERS
    mean = np.array([x @ inverse[b] @ target[b] for x, b in zip(x_of, of, strict=True)])
    width = np.sqrt([x @ inverse[b] @ x for x, b in zip(x_of, of, strict=True)])
    drawn = np.asarray(rng.normals(KEY, rng.Stream.NORMAL, (SERVERS,))) * width
    if parameters == "shared":  # one theta for all servers
        normal = np.asarray(rng.normals(KEY, rng.Stream.NORMAL, (DIM,)))
        drawn = FEATURES[4] @ (np.linalg.cholesky(inverse[0]) @ normal)
    for kind, hope in (("ucb", width), ("thompson", drawn)):
        action = dataclasses.replace(policy, index=kind).select(KEY, state, seen)
        assert int(action.slot) == 2
        best = np.argsort(-(mean + 0.7 * hope))[:size]
        assert sorted(best) == action.servers.tolist()


@pytest.mark.slow
def test_lints_samples_match_the_posterior_of_the_ridge_regression():
    """The server of the highest draw is as often the one as normal draws say."""
    seen, policy = observe(), LinearBandit(index="thompson", alpha=1.0)
    state = policy.init(seen.problem, None)._replace(target=jnp.asarray(DRAW.normal(size=(4, 3))))
    keys = jax.vmap(rng.run_key)(np.arange(4000))
    picks = jax.vmap(lambda key: policy.select(key, state, seen))(keys).servers[:, 0]
    x = CONTEXTS[4]
    mean, width = np.asarray(state.target) @ x, np.linalg.norm(x)
    drawn = mean + width * np.random.default_rng(0).normal(size=(200_000, SERVERS))
    shares = np.bincount(drawn.argmax(axis=1), minlength=SERVERS) / len(drawn)
    mine = np.bincount(picks, minlength=SERVERS) / len(picks)
    error = np.sqrt(shares * (1 - shares) / len(picks))
    assert (np.abs(mine - shares) < 5 * error + 0.005).all()


COUNTS = LlmCounts(jnp.asarray([30.0, 20, 40, 10]), jnp.asarray([15.0, 14, 10, 6]), None)


def test_ranking_commits_to_the_llm_accepted_most_after_its_tries():
    policy = LlmRanking(tries=10.0)
    action = policy.select(KEY, COUNTS, observe())
    assert (int(action.slot), action.servers.tolist(), bool(action.explored)) == (2, [1], False)
    # The order is for good: nothing is counted any more.
    after = policy.update(COUNTS, observe(), *make_feedback([1], 1))
    assert after.offered.tolist() == COUNTS.offered.tolist()
    trying = LlmRanking(tries=11.0)
    # In round 6 it is the turn of server 6 mod 4.
    action = trying.select(KEY, COUNTS, observe()._replace(round=jnp.int32(6)))
    assert (bool(action.explored), action.servers.tolist()) == (True, [2])
    after = trying.update(COUNTS, observe(), *make_feedback([3], 0, valid=False))
    assert after.offered[3] == 10 and after.accepted[3] == 6
    after = trying.update(COUNTS, observe(), *make_feedback([3], 0))
    assert after.offered[3] == 11 and after.accepted[3] == 7


def test_ranking_commits_without_the_tries_of_an_unavailable_llm():
    policy = LlmRanking(tries=20.0)
    available = observe()._replace(available=jnp.asarray([True, True, True, False]))
    action = policy.select(KEY, COUNTS, available)
    assert (bool(action.explored), action.servers.tolist()) == (False, [1])
    assert bool(policy.select(KEY, COUNTS, observe()).explored)


@pytest.mark.parametrize("width", [0.0, 1.0, 2.5])
def test_ucb_ranking_adds_standard_deviations_to_the_beta_mean(width):
    policy, draw = LlmRanking(index="ucb", width=width), np.random.default_rng(6)
    for _ in range(20):
        shown = draw.integers(0, 30, SERVERS)
        accepted = draw.binomial(shown, 0.5)
        posterior = stats.beta(1 + accepted, 1 + shown - accepted)
        index = posterior.mean() + width * posterior.std()
        counts = LlmCounts(jnp.asarray(shown), jnp.asarray(accepted), None)
        action = policy.select(KEY, counts, observe(size=2))
        assert (int(action.slot), bool(action.explored)) == (2, False)
        assert sorted(index[action.servers]) == pytest.approx(np.sort(index)[-2:], rel=1e-6)


@pytest.mark.parametrize("discount", [1.0, 0.5])
def test_each_attempt_with_feedback_discounts_all_earlier_counts(discount):
    policy, seen = LlmRanking(index="ucb", discount=discount), observe()
    state = policy.init(seen.problem, jnp.zeros((6, DIM)))._replace(
        offered=jnp.asarray([8.0, 2.0, 0.0, 4.0]), accepted=jnp.asarray([4.0, 2.0, 0.0, 0.0])
    )
    action, feedback = make_feedback([1], 0)
    after = policy.update(state, seen, action, feedback)
    assert after.offered.tolist() == [8 * discount, 2 * discount + 1, 0, 4 * discount]
    assert after.accepted.tolist() == [4 * discount, 2 * discount + 1, 0, 0]
    lost = policy.update(state, seen, action, feedback._replace(valid=jnp.bool_(False)))
    assert lost.offered.tolist() == state.offered.tolist()


def test_fallback_offers_the_next_ranked_llm_on_a_retrial():
    shown = jnp.zeros((3, SERVERS), jnp.int32).at[2, 1].set(1)
    policy = LlmRanking(retry="fallback")
    assert policy.needs.offer_counts
    assert policy.select(KEY, COUNTS, observe(shown=shown)).servers.tolist() == [3]


def test_cached_llm_of_a_prompt_is_offered_first():
    policy, seen = LlmRanking(retry="cache"), observe(shown=jnp.zeros((3, SERVERS), jnp.int32))
    state = policy.init(seen.problem, jnp.zeros((6, DIM)))._replace(
        offered=COUNTS.offered, accepted=COUNTS.accepted
    )
    assert policy.select(KEY, state, seen).servers.tolist() == [1]
    state = policy.update(state, seen, *make_feedback([2], 0))
    assert policy.select(KEY, state, seen).servers.tolist() == [2]


@pytest.mark.parametrize("retry", ["posterior", "recall"])
@pytest.mark.parametrize("index", ["greedy", "ucb"])
def test_ranking_conditions_success_probabilities_on_outcomes(index, retry):
    """By the mean of a Beta posterior: (m s + a) / (s + a + f)."""
    draw, policy = np.random.default_rng(8), LlmRanking(index=index, retry=retry, precision=2.0)
    policy = dataclasses.replace(policy, schedule="joint")
    for _ in range(20):
        offered = draw.integers(5, 30, SERVERS)
        accepted = draw.binomial(offered, 0.4)
        posterior = stats.beta(1 + accepted, 1 + offered - accepted)
        mean = posterior.mean() + (index == "ucb") * posterior.std()
        shown = draw.integers(0, 4, (3, SERVERS))
        outcomes = draw.integers(0, 4, (2, 6, SERVERS))
        seen = observe(shown=jnp.asarray(shown, jnp.int32))
        successes, failures = np.zeros_like(shown), shown
        if retry == "recall":
            successes, failures = outcomes[:, np.asarray(seen.queue.row)]
        chances = (2 * mean + successes) / (2 + successes + failures)
        chances[np.asarray(seen.queue.arrived) == 0] = -1
        tally = Tally(*map(jnp.asarray, outcomes)) if retry == "recall" else None
        action = policy.select(KEY, LlmCounts(*map(jnp.asarray, (offered, accepted)), tally), seen)
        best = chances[int(action.slot), action.servers[0]]
        assert best == pytest.approx(chances.max(), rel=1e-5)


@pytest.mark.slow
def test_thompson_ranking_draws_from_the_beta_posteriors():
    policy, seen = LlmRanking(index="thompson"), observe()
    keys = jax.vmap(rng.run_key)(np.arange(4000))
    picks = jax.vmap(lambda key: policy.select(key, COUNTS, seen))(keys).servers[:, 0]
    accepted, shown = np.asarray(COUNTS.accepted), np.asarray(COUNTS.offered)
    drawn = np.random.default_rng(0).beta(accepted + 1, shown - accepted + 1, (200_000, SERVERS))
    shares = np.bincount(drawn.argmax(axis=1), minlength=SERVERS) / len(drawn)
    mine = np.bincount(picks, minlength=SERVERS) / len(picks)
    error = np.sqrt(shares * (1 - shares) / len(picks))
    assert (np.abs(mine - shares) < 5 * error + 0.005).all()


@pytest.mark.parametrize(
    ("policy", "message"),
    [(LlmRanking(tries=0.0), "tries=0 must"),
     (LlmRanking(index="ucb", width=-1.0), "width=-1 must"),
     (LlmRanking(discount=0.0), "discount=0 must"),
     (LinearBandit(alpha=-1.0), "alpha=-1 must"), (LinearBandit(lambda0=0.0), "lambda0=0 must")],
)  # fmt: skip
def test_settings_out_of_range_are_refused(policy, message):
    with pytest.raises(ValueError, match=message):
        policy.check(observe().problem)
