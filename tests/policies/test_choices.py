"""What a policy serves, does on a retry and explores: three choices beside what it learns."""

import dataclasses

import hydra
import jax.numpy as jnp
import pytest
from composing import compose_config
from numpy.testing import assert_array_equal

import cqbjax
from cqbjax import policies, sources
from cqbjax.cli._compose import initialize_hydra, list_bases
from cqbjax.core import rng
from cqbjax.core.labels import split_label
from cqbjax.core.types import Action, Feedback, Observation, Problem, Queue
from cqbjax.experiments.configs import from_omegaconf
from cqbjax.experiments.grid import compose
from cqbjax.policies.context_free_bandits import LlmCounts
from cqbjax.policies.exploration import ForcedState
from cqbjax.policies.linear_bandit import Ridge
from cqbjax.policies.retries import Tally

KEY = rng.round_key(rng.run_key(3), 7)
SMALL = {"arrival_rate": [0.5], "num_seeds": 3, "horizon": 60}
LEARNERS = {
    "thompson": policies.LlmRanking(index="thompson"),
    "greedy": policies.LlmRanking(index="greedy"), "ucb": policies.LlmRanking(index="ucb"),
    "q_ucb": policies.QueueingBandit(exploration="none"), "lints": policies.LinearBandit(),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("exploration", ["decaying", "phased", "independent"])
def test_forced_exploration_around_acqb_reproduces_acqb(exploration):
    own = {"exploration": exploration, "c1": 2.0, "explore_rounds": 9.0}
    whole = policies.Acqb(**own)
    within = policies.ForcedExploration(policy=policies.Acqb(exploration="none"), **own)
    data = cqbjax.sweep({"whole": whole, "within": within}, sources.Synthetic(), **SMALL)
    assert data.explored.sel(policy="whole").sum() > 0
    for name in ("queue_length", "regret", "explored"):
        assert_array_equal(data[name].sel(policy="whole"), data[name].sel(policy="within"))


@dataclasses.dataclass(frozen=True)
class LastFeedback:
    """A policy whose state is the feedback that it was given last."""

    def update(self, state, observation, action, feedback):
        return feedback


@pytest.mark.parametrize("explored", [True, False])
@pytest.mark.parametrize("valid", [True, False])
def test_policies_learn_from_rounds_of_forced_exploration(explored, valid):
    policy, state = (
        policies.ForcedExploration(policy=LastFeedback()),
        ForcedState(None, jnp.int32(0)),
    )
    action = Action(jnp.int32(1), jnp.asarray([2]), jnp.bool_(explored))
    new_feedback = Feedback(jnp.int32(1), jnp.bool_(valid))
    after = policy.update(state, observe(None), action, new_feedback)
    assert (int(after.within.choice), bool(after.within.valid)) == (1, valid)
    assert int(after.turn) == (explored and valid)


def observe(counts):
    """Three slots, which differ in arrival, in attempts, and in the LLMs already offered."""
    problem = Problem(SERVERS, 1, 2, 6, 9, "disjoint", True)
    numbers = ([0, 1, 2], [5, 1, 3], [3, 2, 0])
    queue = Queue(*(jnp.asarray(one, jnp.int32) for one in numbers), offer_counts=counts)
    false, none = jnp.bool_(False), jnp.int32(0)
    return Observation(problem, jnp.int32(7), queue, FEATURES, false, none, queue.row, None)


SERVERS = 3
FEATURES = jnp.asarray([[0.1, 0.5], [0.1, 1.0], [0.5, 0.6]])
COUNTS = jnp.asarray([[1, 1, 1], [0, 1, 1], [0, 0, 0]], jnp.int32)
LEARNT = {
    "thompson": LlmCounts(jnp.asarray([900, 900, 900]), jnp.asarray([100, 800, 500])),
    "lints": Ridge(
        jnp.broadcast_to(1e-4 * jnp.eye(2), (3, 2, 2)), 1e4 * jnp.asarray([[0, 0], [0, 1], [1, 0]])
    ),
}
STATES = {label: LEARNT["lints" if label == "lints" else "thompson"] for label in LEARNERS}


@pytest.mark.parametrize("label", LEARNERS)
def test_learners_follow_every_schedule(label):
    for schedule, slot in (("oldest", 1), ("newest", 0), ("least_served", 2)):
        policy = dataclasses.replace(LEARNERS[label], schedule=schedule)
        action = policy.select(KEY, STATES[label], observe(None))
        assert int(action.slot) == slot, schedule
        assert action.servers.tolist() == [1], "the best LLM of a query that may get any"


@pytest.mark.parametrize("label", LEARNERS)
def test_fallback_offers_the_least_offered_llm_first(label):
    for schedule, server in (("oldest", 0), ("newest", 1), ("least_served", 1)):
        policy = dataclasses.replace(LEARNERS[label], schedule=schedule, retry="fallback")
        assert policy.select(KEY, STATES[label], observe(COUNTS)).servers.tolist() == [server]


@pytest.mark.parametrize("label", LEARNERS)
def test_joint_schedule_serves_the_query_with_the_best_next_llm(label):
    policy = dataclasses.replace(LEARNERS[label], schedule="joint", retry="fallback")
    # The best LLM was offered to all but the last query; for LinTS it suits the second one best.
    counts = COUNTS.at[0].set(jnp.asarray([0, 1, 1]))
    assert int(policy.select(KEY, STATES[label], observe(counts)).slot) == 2
    alone = dataclasses.replace(policy, retry="same")
    action = alone.select(KEY, STATES[label], observe(None))
    assert int(action.slot) == (1 if label == "lints" else 0)


@pytest.mark.parametrize("label", LEARNERS)
def test_cache_offers_the_accepted_llm_of_the_prompt_first(label):
    tally = Tally(jnp.zeros((6, SERVERS), jnp.int32).at[1, 0].set(1), jnp.zeros((6, SERVERS)))
    policy = dataclasses.replace(LEARNERS[label], retry="cache")
    counts = jnp.zeros((3, SERVERS), jnp.int32)
    action = policy.select(KEY, STATES[label]._replace(tally=tally), observe(counts))
    assert (int(action.slot), action.servers.tolist()) == (1, [0])


@pytest.mark.parametrize("label", ["q_ucb", "lints"])
def test_retry_rules_that_need_log_odds_are_rejected(label):
    with pytest.raises(ValueError, match="retry=recall must be one of same, fallback, cache"):
        dataclasses.replace(LEARNERS[label], retry="recall")


LABELS = {
    "acqb_explore_random": ("acqb_explore_random", {}),
    "acqb_random": ("acqb", {"schedule": "random"}),
    "lints_fallback_least_served": ("lints", {"retry": "fallback", "schedule": "least_served"}),
    "acqb_cl_posterior": ("acqb_cl", {"retry": "posterior"}),
    "random": ("random", {}),
}


@pytest.mark.parametrize("label", LABELS)
def test_labels_combine_base_retry_rule_and_schedule(label):
    assert split_label(label, list_bases()) == LABELS[label]


def policies_of(*words):
    (point,) = compose(compose_config(*words, "num_seeds=2"))
    return point.config.policy


def test_constants_of_unselected_policies_are_ignored():
    words = ["arena=slice", "policy=[acqb, acqb_fallback, random]"]
    with initialize_hydra():  # a single run, as Hydra composes it
        single = from_omegaconf(hydra.compose("config", words))
    for chosen in (compose_config(*words).policy, single.policy):
        assert chosen.keys() == {"acqb", "acqb_fallback", "random"}
        assert (chosen.acqb.c1, chosen.acqb_fallback.c1) == (0.25, 0.05)


def test_policy_keys_change_every_policy_except_random_and_optimal():
    words = ("policy=[optimal,random,acqb,acqb_intercept,thompson,q_ucb]", "c1=0.5")
    made = policies_of(*words, "schedule=oldest", "retry=fallback", "exploration=decaying")
    plain = policies_of(*words)
    assert made["optimal"] == plain["optimal"] and made["random"] == plain["random"]
    chosen = {"schedule": "oldest", "retry": "fallback"}
    for learner in (made["acqb"], made["acqb_intercept"]["policy"]):
        assert learner.items() >= {**chosen, "exploration": "decaying", "c1": 0.5}.items()
    for label in ("thompson", "q_ucb"):
        outer = made[label]
        assert outer["_target_"] == "cqbjax.policies.ForcedExploration" and outer["c1"] == 0.5
        assert outer["policy"].items() >= {**plain[label], **chosen}.items()
    assert made["q_ucb"]["policy"]["exploration"] == "none"
    with pytest.raises(ValueError, match="schedule=oldest changes no policy: optimal and random"):
        policies_of("policy=[optimal,random]", "schedule=oldest")
