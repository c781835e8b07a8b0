"""Q-UCB and Q-ThS late in a run, when they exploit: whole runs of a test only explore."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from cqbjax.core import rng
from cqbjax.core.types import Action, Feedback, Observation, Problem, Queue
from cqbjax.policies import QueueingBandit, context_free_bandits
from cqbjax.policies.context_free_bandits import LlmCounts
from cqbjax.testing.instances import FAST_COMPILE_OPTIONS

PROBLEM = Problem(4, 1, 2, 5, 9, "disjoint", True)
PLAYED, ACCEPTED = np.array([40.0, 30.0, 20.0, 10.0]), np.array([20.0, 21.0, 11.0, 2.0])
LATE = 10**6
KEYS = jax.vmap(rng.run_key)(np.arange(300))


def observed(round_, available=None):
    queue = Queue(*(jnp.asarray(one, jnp.int32) for one in ([3, 1, 4], [5, 0, 2], [0, 0, 1])))
    features, false, none = jnp.zeros((3, 2)), jnp.bool_(False), jnp.int32(0)
    return Observation(PROBLEM, round_, queue, features, false, none, queue.row, None, available)


@functools.partial(jax.jit, compiler_options=FAST_COMPILE_OPTIONS)
def decided(state, round_, available):
    """Return what is decided with each of some keys."""
    seen = observed(round_, available)
    return jax.vmap(lambda key: QueueingBandit().select(key, state, seen))(KEYS)


def ucb(played=PLAYED, accepted=ACCEPTED, round_=LATE):
    return accepted / played + np.sqrt(np.log(round_) ** 2 / (2 * played))


def exploited(played, accepted, there):
    action = decided(LlmCounts(jnp.asarray(played), jnp.asarray(accepted)), jnp.int32(LATE), there)
    assert (np.asarray(action.slot) == 2).all(), "the oldest query"
    servers = np.asarray(action.servers)[~np.asarray(action.explored)]
    assert len(servers) > 290 and len(set(servers[:, 0].tolist())) == 1
    return int(servers[0, 0])


def test_bandit_plays_the_available_llm_of_highest_index():
    every = jnp.ones(4, bool)
    order = np.argsort(-ucb())
    assert order.tolist() == [3, 2, 1, 0]
    assert exploited(PLAYED, ACCEPTED, every) == 3
    # Without the best, the best of the others: not the one that comes after it.
    assert exploited(PLAYED, ACCEPTED, every.at[3].set(False)) == 2
    assert exploited(PLAYED, ACCEPTED, jnp.asarray([True, True, False, False])) == 1
    # Of those played as often the one that was accepted more often.
    assert exploited(np.array([40.0, 30.0, 10.0, 10.0]), np.array([20.0, 21, 9, 2]), every) == 2
    assert exploited(np.array([40.0, 0.0, 20.0, 10.0]), np.array([20.0, 0, 11, 2]), every) == 1
    # Who was never played, before who was played once and accepted.
    assert exploited(np.array([40.0, 1.0, 20.0, 0.0]), np.array([20.0, 1, 11, 0]), every) == 3


@pytest.mark.parametrize("round_", [1, 2, 3000, 20_000])
def test_exploration_probability_of_bandits_decays(round_):
    state = LlmCounts(jnp.asarray(PLAYED), jnp.asarray(ACCEPTED))
    action = decided(state, jnp.int32(round_), jnp.ones(4, bool))
    uniform = np.asarray(jax.vmap(lambda key: rng.uniform(key, rng.Stream.EXPLORE))(KEYS))
    rate = min(1.0, 3 * 4 * np.log(round_) ** 2 / round_)
    np.testing.assert_array_equal(action.explored, uniform < rate)
    drawn = np.asarray(action.servers)[np.asarray(action.explored), 0]
    assert rate == 0 or set(drawn.tolist()) == {0, 1, 2, 3}


def test_thompson_posterior_counts_acceptances_and_rejections(monkeypatch):
    """Of gamma variables that are their means X / (X + Y) is the mean of the Beta distribution."""
    monkeypatch.setattr(
        context_free_bandits, "draw_log_gammas", lambda _, *shapes: jnp.log(jnp.stack(shapes))
    )
    state = LlmCounts(jnp.asarray(PLAYED), jnp.asarray(ACCEPTED))
    mean = QueueingBandit(index="thompson").sample(KEYS[0], state)
    np.testing.assert_allclose(mean, (ACCEPTED + 1) / (PLAYED + 2), rtol=1e-5)


@pytest.mark.slow
def test_thompson_sample_is_a_beta_draw():
    def sample_both(key):
        state = LlmCounts(jnp.asarray(PLAYED), jnp.asarray(ACCEPTED))
        at = rng.stream_key(key, rng.Stream.BETA)
        own = jax.random.beta(at, jnp.asarray(ACCEPTED + 1), jnp.asarray(PLAYED - ACCEPTED + 1))
        return QueueingBandit(index="thompson").sample(key, state), own

    ours, theirs = jax.jit(sample_both, compiler_options=FAST_COMPILE_OPTIONS)(rng.run_key(3))
    np.testing.assert_array_equal(ours, theirs)


def test_bandit_update_counts_plays_and_successes():
    bandit, seen = QueueingBandit(), observed(jnp.int32(1))
    state = bandit.init(PROBLEM, jnp.zeros((5, 2)))
    for choice, valid in ((0, True), (1, True), (0, False)):
        action = Action(jnp.int32(0), jnp.asarray([2], jnp.int32), jnp.bool_(False))
        state = bandit.update(state, seen, action, Feedback(jnp.int32(choice), jnp.bool_(valid)))
    assert (state.offered.tolist(), state.accepted.tolist()) == ([0, 0, 2, 0], [0, 0, 1, 0])


def test_queueing_bandits_reject_k_2():
    with pytest.raises(ValueError, match="q_ucb and q_ths are defined for K=1 only, and K=2"):
        QueueingBandit().check(PROBLEM._replace(assortment_size=2))
    QueueingBandit().check(PROBLEM)
