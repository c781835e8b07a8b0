"""A policy that starts again: Page's test beside NumPy, and a run of ACQB without alarms."""

import dataclasses
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

import cqbjax
from cqbjax import policies, sources
from cqbjax.core.types import Action, Feedback, Observation, Problem, Queue
from cqbjax.policies.restarts import RestartingPolicy

SERVERS, CONTEXTS = 3, jnp.ones((6, 2))
UTILITIES = np.array([-1.0, 0.5, 2.0])
CHANCES = 1 / (1 + np.exp(-UTILITIES))


@dataclasses.dataclass(frozen=True)
class Fixed:
    """A policy whose predictions are fixed, and whose state counts what it has learnt."""

    def init(self, problem, contexts):
        return Learnt(jnp.zeros((), jnp.int32))

    def belief(self, problem):
        return self

    def optimistic_utilities(self, state, observation, alpha, normal=None):
        assert normal is None
        return jnp.asarray(UTILITIES, jnp.float32) + alpha + jnp.zeros((2, 1))

    def select(self, key, state, observation):
        return observation.round

    def update(self, state, observation, action, feedback):
        return Learnt(state.belief + 1)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Learnt:
    belief: jax.Array


def observe(now):
    """Two slots in round `now`."""
    problem = Problem(SERVERS, 1, 2, 6, 99, "disjoint", True)
    queue = Queue(*(jnp.zeros(2, jnp.int32),) * 3)
    false, none = jnp.bool_(False), jnp.int32(0)
    return Observation(problem, now, queue, CONTEXTS[:2], false, none, queue.row, None)


def play(policy, servers, departed, valid):
    """Return the states after each round: the sum, the last restart, and what has been learnt."""

    def one(state, told):
        now, server, choice, valid = told
        action = Action(jnp.int32(0), server[None], jnp.bool_(False))
        state = policy.update(state, observe(now), action, Feedback(choice, valid))
        return state, (state.excess, state.began, state.within.belief)

    rounds = jnp.arange(1, len(servers) + 1, dtype=jnp.int32)
    choices = jnp.where(departed, 0, 1).astype(jnp.int32)
    start = policy.init(observe(rounds[0]).problem, CONTEXTS)
    told = rounds, jnp.asarray(servers, jnp.int32), choices, jnp.asarray(valid)
    return jax.tree.map(np.asarray, jax.lax.scan(one, start, told)[1])


def test_the_sum_is_that_of_pages_test():
    draw = np.random.default_rng(4)
    servers, valid = draw.integers(SERVERS, size=80), draw.random(80) < 0.8
    departed = draw.random(80) < CHANCES[servers] - 0.3
    mine = play(
        RestartingPolicy(policy=Fixed(), threshold=2.0, slack=0.05), servers, departed, valid
    )
    excess, began, learnt, restarts = 0.0, 0, 0, 0
    for t, told in enumerate(zip(servers, departed, valid, strict=True)):
        server, left, heard = told
        learnt += 1
        if heard:
            excess = max(0.0, excess + CHANCES[server] - left - 0.05)
        if excess > 2.0:
            excess, began, learnt, restarts = 0.0, t + 1, 0, restarts + 1
        assert_allclose([one[t] for one in mine], [excess, began, learnt], atol=1e-5)
    assert restarts > 3


def test_failures_alone_raise_an_alarm_after_a_known_number():
    """S grows by p - k in each attempt."""
    for server, slack in ((0, 0.1), (1, 0.0), (2, 0.3)):
        policy = RestartingPolicy(policy=Fixed(), threshold=4.0, slack=slack)
        began = play(policy, np.full(60, server), np.zeros(60, bool), np.ones(60, bool))[1]
        assert began.max() > 0
        assert began[began > 0][0] == math.floor(4.0 / (CHANCES[server] - slack)) + 1
    # What is predicted rightly, within the slack, never adds up.
    policy = RestartingPolicy(policy=Fixed(), threshold=4.0, slack=CHANCES[0] + 0.01)
    assert not play(policy, np.zeros(60, int), np.zeros(60, bool), np.ones(60, bool))[1].any()


def test_the_rounds_of_the_policy_within_count_from_the_restart():
    policy = RestartingPolicy(policy=Fixed())
    state = policy.init(observe(jnp.int32(1)).problem, CONTEXTS)._replace(began=jnp.int32(30))
    assert policy.select(None, state, observe(jnp.int32(37))) == 7


@pytest.mark.parametrize("own", [{"threshold": -1.0}, {"slack": "x"}, {"policy": "c1"}])
def test_constants_out_of_range_are_rejected(own):
    if "policy" in own:
        own = {"policy": policies.Acqb(c1=-1.0)}
    policy = RestartingPolicy(**({"policy": policies.Acqb()} | own))
    with pytest.raises(ValueError, match=r"(threshold|slack|c1)=(-1|x) must"):
        policy.check(observe(jnp.int32(1)).problem)


@pytest.mark.slow
def test_without_an_alarm_it_is_acqb_and_with_alarms_it_adapts():
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
