"""A policy that starts again: Page's test beside NumPy, and a run of ACQB without alarms."""

import dataclasses
import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

import cqbjax
from cqbjax import policies, sources
from cqbjax.core.types import Action, Feedback, Observation, Problem, Queue
from cqbjax.policies.restarts import MEMORY, RestartingPolicy

SERVERS, CONTEXTS = 3, jnp.ones((6, 2))
UTILITIES = np.array([-1.0, 0.5, 2.0])
CHANCES = 1 / (1 + np.exp(-UTILITIES))


@dataclasses.dataclass(frozen=True)
class FixedPredictions:
    """A policy whose predictions are fixed, and whose state counts what it has learnt."""

    def init(self, problem, contexts):
        return LearntCount(jnp.zeros((), jnp.int32))

    def belief(self, problem):
        return self

    def optimistic_utilities(self, state, observation, alpha, normal=None):
        assert normal is None
        return jnp.asarray(UTILITIES, jnp.float32) + alpha + jnp.zeros((2, 1))

    def select(self, key, state, observation):
        return observation.round

    def update(self, state, *feedback):
        """Learn an attempt: as a policy from a round, as an estimate from an attempt of before."""
        return (
            LearntCount(state.belief + 1)
            if len(feedback) == 3
            else state + 100 + feedback[0].servers[0]
        )


class LearntCount(NamedTuple):
    belief: jax.Array


def observe(now):
    """Two slots in round `now`."""
    problem = Problem(SERVERS, 1, 2, 6, 99, "disjoint", True)
    queue = Queue(*(jnp.zeros(2, jnp.int32),) * 3)
    false, none = jnp.bool_(False), jnp.int32(0)
    return Observation(problem, now, queue, CONTEXTS[:2], false, none, queue.row, None)


def play(policy, servers, departed, valid):
    """Return the states after each round: the sum, the last restart, and what has been learnt."""

    def one(state, feedback):
        now, server, choice, valid = feedback
        action = Action(jnp.int32(0), server[None], jnp.bool_(False))
        state = policy.update(state, observe(now), action, Feedback(choice, valid))
        return state, (state.excess, state.began, state.within.belief)

    rounds = jnp.arange(1, len(servers) + 1, dtype=jnp.int32)
    choices = jnp.where(departed, 0, 1).astype(jnp.int32)
    start = policy.init(observe(rounds[0]).problem, CONTEXTS)
    feedback = rounds, jnp.asarray(servers, jnp.int32), choices, jnp.asarray(valid)
    return jax.tree.map(np.asarray, jax.lax.scan(one, start, feedback)[1])


def test_statistic_matches_pages_test_and_recent_attempts_are_relearnt():
    draw = np.random.default_rng(4)
    servers, valid = draw.integers(SERVERS, size=200), draw.random(200) < 0.8
    departed = draw.random(200) < CHANCES[servers] - 0.3
    page = RestartingPolicy(policy=FixedPredictions(), threshold=2.0, slack=0.05, burn_in=3.0)
    mine = play(page, servers, departed, valid)
    excess, began, learnt, attempts, recent, restarts = 0.0, 0, 0, 0, [], []
    for t, feedback in enumerate(zip(servers, departed, valid, strict=True)):
        server, left, is_valid = feedback
        learnt += 1
        if is_valid:
            attempts += 1
            recent.append(server)
            excess = max(0.0, excess + CHANCES[server] - left - 0.05)
            excess = excess if attempts > 3 * SERVERS else 0.0
        if excess == 0:
            recent = []
        if excess > 2.0:
            restarts.append(len(recent))
            excess, began, learnt, attempts = 0.0, t + 1, sum(100 + one for one in recent), 0
            recent = []
        assert_allclose([one[t] for one in mine], [excess, began, learnt], atol=1e-5)
    assert len(restarts) > 3 and min(restarts) < max(restarts)


def test_restart_relearns_only_attempts_in_memory():
    """With more attempts since the sum was 0 than there is memory for."""
    policy = RestartingPolicy(policy=FixedPredictions(), threshold=150.0, slack=0.0, burn_in=0.0)
    count = math.floor(150 / CHANCES[1]) + 1
    assert count < MEMORY
    learnt = play(policy, np.full(count, 1), np.zeros(count, bool), np.ones(count, bool))[2]
    assert learnt[-1] == 101 * count
    policy, count = dataclasses.replace(policy, threshold=200.0), math.floor(200 / CHANCES[1]) + 1
    assert count > MEMORY
    servers = np.where(np.arange(count) < count - MEMORY, 0, 1)
    policy = dataclasses.replace(policy, threshold=CHANCES[servers[:-1]].sum())
    learnt = play(policy, servers, np.zeros(count, bool), np.ones(count, bool))[2]
    assert learnt[-1] == 101 * MEMORY


def test_consecutive_failures_raise_an_alarm_after_a_known_count():
    """S grows by p - k in each attempt."""
    for server, slack in ((0, 0.1), (1, 0.0), (2, 0.3)):
        policy = RestartingPolicy(
            policy=FixedPredictions(), threshold=4.0, slack=slack, burn_in=0.0
        )
        began = play(policy, np.full(60, server), np.zeros(60, bool), np.ones(60, bool))[1]
        assert began.max() > 0
        assert began[began > 0][0] == math.floor(4.0 / (CHANCES[server] - slack)) + 1
    # What is predicted rightly, within the slack, never adds up.
    policy = dataclasses.replace(policy, slack=CHANCES[0] + 0.01)
    assert not play(policy, np.zeros(60, int), np.zeros(60, bool), np.ones(60, bool))[1].any()


def test_inner_policy_counts_rounds_from_the_restart():
    policy = RestartingPolicy(policy=FixedPredictions())
    state = policy.init(observe(jnp.int32(1)).problem, CONTEXTS)._replace(began=jnp.int32(30))
    assert policy.select(None, state, observe(jnp.int32(37))) == 7


@pytest.mark.parametrize(
    "own", [{"threshold": -1.0}, {"slack": "x"}, {"burn_in": -1.0}, {"policy": "c1"}]
)
def test_constants_out_of_range_are_rejected(own):
    if "policy" in own:
        own = {"policy": policies.Acqb(c1=-1.0)}
    policy = RestartingPolicy(**({"policy": policies.Acqb()} | own))
    with pytest.raises(ValueError, match=r"(threshold|slack|burn_in|c1)=(-1|x) must"):
        policy.check(observe(jnp.int32(1)).problem)


@pytest.mark.slow
def test_restarting_policy_equals_acqb_without_alarms_and_adapts_with_them():
    acqb = policies.Acqb(alpha_scale=0.03, c1=0.25)
    source = sources.DriftWrapper(source=sources.Synthetic(), jump_at=500)
    runs = {
        "acqb": acqb, "never": RestartingPolicy(policy=acqb, threshold=1e9),
        "restarted": RestartingPolicy(policy=acqb),
    }  # fmt: skip
    data = cqbjax.sweep(runs, source, arrival_rate=[0.7], num_seeds=8, horizon=1000)
    for name in ("queue_length", "regret", "explored"):
        assert_array_equal(data[name].sel(policy="acqb"), data[name].sel(policy="never"))
    last = data.queue_length.isel(round=-1).mean("seed").squeeze()
    assert last.sel(policy="restarted") < 0.5 * last.sel(policy="acqb")
    # Learning again in each round, whether or not it restarts, takes a hundred times longer.
    seconds = data.seconds_per_round
    assert float(seconds.sel(policy="never")) < 15 * float(seconds.sel(policy="acqb"))
