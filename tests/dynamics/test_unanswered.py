"""Queries that no LLM answers: no bill, no outcome, no update, and no attempt of their patience."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tiers import cases

import cqbjax
from cqbjax.core import queueing, rng, simulate
from cqbjax.core.pytree import as_arrays, pytree
from cqbjax.core.recorders import OPTIONAL, STANDARD
from cqbjax.core.scenario import with_dynamics
from cqbjax.core.types import Action, Needs, mask_unoffered
from cqbjax.dynamics import DelayedFeedback, Impatience, LostFeedback, Outages, ServiceTimes
from cqbjax.policies import LinearBandit, LlmRanking, RandomRouting
from cqbjax.sources import PromptPool

HORIZON, SINCE, SERVERS, PRICE = 60, 41, 3, 1e-3
DRAW = np.random.default_rng(0)
TABLE = PromptPool(
    contexts=DRAW.normal(size=(20, 4)), utilities=DRAW.normal(size=(20, SERVERS)), pool_size=20,
    dollars=np.full((20, SERVERS), PRICE), scores=np.ones((20, SERVERS)),
)  # fmt: skip
RECORDING = [*STANDARD, *(OPTIONAL[name] for name in ("traffic", "attempts", "gave_up", "queries"))]


@pytree
class FixedServersPolicy:
    """Show the oldest query the same servers in every round, and count what is learnt."""

    servers: jax.Array

    def init(self, problem, contexts):
        return jnp.zeros(problem.num_servers, jnp.int32)

    def select(self, key, state, observation):
        slot = queueing.pick("oldest", observation.queue, jnp.zeros(()))
        return Action(slot, self.servers, jnp.bool_(False))

    def update(self, state, observation, action, feedback):
        answered = jnp.broadcast_to(feedback.valid, action.servers.shape)
        return state.at[action.servers].add(mask_unoffered(action.offered, answered, False))


def play(policy, size, service, users=(), rate=0.5):
    """Return every record of one run, its last state and what each round decided."""
    source = as_arrays(with_dynamics(TABLE, list(users), list(service)))
    problem = source.problem(size, HORIZON)

    def run(policy):
        instance = simulate.draw_instance(rng.run_key(2), source, jnp.float32(rate), problem)
        carry = simulate.start(policy, problem, instance, 64, recording=RECORDING)

        def one(carry, t):
            carry, decision = simulate.run_round(policy, problem, instance, carry, t, RECORDING)
            return carry, (decision._replace(state=()), carry.length)

        rounds = jnp.arange(1, problem.horizon + 1, dtype=jnp.int32)
        carry, outputs = jax.lax.scan(one, carry, rounds)
        return carry, outputs

    return jax.jit(run)(as_arrays(policy))


@pytest.mark.parametrize("size", cases([1, 2], [1]))
@pytest.mark.parametrize("lasting", cases([False, True], [True]))
def test_queue_does_not_change_during_an_outage_of_all_llms(size, lasting):
    """Users make two attempts: those that came early would all give up if silence were one."""
    service = [Outages(since=[SINCE] * SERVERS), *([ServiceTimes(rounds=2)] if lasting else [])]
    service.append(LostFeedback(lost=0.0))  # whether feedback arrives is drawn, answer or not
    users = [Impatience(attempts=2)]
    policy = FixedServersPolicy(servers=jnp.arange(size, dtype=jnp.int32))
    carry, (decision, length) = play(policy, size, service, users)
    assert not decision.valid[: SINCE - 1].any() and decision.valid[SINCE - 1 :].any()
    assert float(decision.regret[: SINCE - 1].max()) == 0
    rows = np.asarray(carry.recorded["queries"])
    here = ~np.isnan(rows[:, 0])
    early = here & (rows[:, 0] < SINCE)
    # All that came while nobody answered wait together: each round's arrival is one more.
    assert int(length[SINCE - 2]) == early.sum() > 10
    assert np.nanmin(rows[here, 1]) == SINCE, "first served when LLMs answer"
    # Every attempt was paid for by every server shown, and every learnt answer was one of these.
    attempts = np.nansum(rows[:, 4])
    np.testing.assert_allclose(np.nansum(rows[:, 6]), attempts * size * PRICE, rtol=1e-5)
    traffic, learnt = carry.recorded["traffic"], carry.state
    assert int(jnp.sum(traffic)) == attempts * size == int(jnp.sum(learnt))
    gave_up = rows[rows[:, 3] == 2]
    assert (gave_up[:, 4] == 2).all(), "two answers each, neither one silence"
    assert len(gave_up) or size == 2


@pytest.mark.parametrize("late", cases([False, True], [True]))
def test_only_the_available_server_of_a_pair_is_counted_and_learnt(late):
    service = [Outages(until=[HORIZON, 20, HORIZON]), *([DelayedFeedback(delay=3)] if late else [])]
    carry, (decision, _) = play(
        FixedServersPolicy(servers=jnp.array([1, 2], jnp.int32)), 2, service
    )
    shown = np.asarray(decision.servers)[np.asarray(decision.valid)]
    rounds = np.flatnonzero(decision.valid) + 1
    assert (shown[rounds > 20] == [-1, 2]).all() and (shown[rounds <= 20] == [1, 2]).all()
    answers = [0, int((rounds <= 20).sum()), len(rounds)]
    np.testing.assert_array_equal(carry.recorded["traffic"], answers)
    feedback_count = [0, answers[1], int((rounds <= HORIZON - 3).sum()) if late else len(rounds)]
    np.testing.assert_array_equal(carry.state, feedback_count)
    rows = np.asarray(carry.recorded["queries"])
    np.testing.assert_allclose(np.nansum(rows[:, 6]), sum(answers) * PRICE, rtol=1e-5)


@pytree
class ReportedChoicePolicy:
    """Offer the oldest query the second server only, and count reported positions: [K + 1]."""

    needs = Needs(smaller_assortments=True)

    def init(self, problem, contexts):
        return jnp.zeros(problem.assortment_size + 1, jnp.int32)

    def select(self, key, state, observation):
        slot = queueing.pick("oldest", observation.queue, jnp.zeros(()))
        offered = jnp.array([False, True])
        return Action(slot, jnp.array([1, 2], jnp.int32), jnp.bool_(False), offered)

    def update(self, state, observation, action, feedback):
        return state.at[feedback.choice].add(feedback.valid)


def test_servers_that_are_not_offered_neither_satisfy_users_nor_prolong_attempts():
    """Users who abandon pretend that an answer satisfied them: that of the server offered."""
    users, service = [Impatience(attempts=1, pretends=1)], [ServiceTimes(rounds=[1, HORIZON, 1])]
    assert (TABLE.utilities[:, 1] > TABLE.utilities[:, 2]).any()
    carry, (decision, _) = play(ReportedChoicePolicy(), 2, service, users)
    np.testing.assert_array_equal(carry.state, [0, int(decision.valid.sum()), 0])
    assert int(carry.state[1]) > 10 and (decision.choice == 2)[decision.valid].any()


def test_offering_an_unavailable_llm_costs_regret_and_the_query_waits():
    carry, (decision, length) = play(
        FixedServersPolicy(servers=jnp.zeros(1, jnp.int32)), 1, [Outages(since=[HORIZON + 1, 1, 1])]
    )
    assert not decision.valid.any() and int(carry.recorded["departures"]) == 0
    picked = np.asarray(length)[:-1] > 0
    assert (np.asarray(decision.regret)[1:][picked] > 0.1).all()
    np.testing.assert_allclose(carry.recorded["regret"][0], np.sum(decision.regret), rtol=1e-5)


def test_unanswered_rounds_consume_patience():
    """Patience in rounds runs out while all LLMs are down, for who is picked as for the others."""
    service, users = [Outages(since=[HORIZON] * SERVERS)], [Impatience(patience=5)]
    _, (_, length) = play(
        FixedServersPolicy(servers=jnp.zeros(1, jnp.int32)), 1, service, users, rate=1.0
    )
    np.testing.assert_array_equal(length[:12], [1, 2, 3, 4, 5, 5, 5, 5, 5, 5, 5, 5])


@pytest.mark.slow
@pytest.mark.parametrize(
    "policy", [LlmRanking(index="thompson"), LinearBandit()], ids=["thompson", "linucb"]
)
def test_policies_do_not_learn_from_an_llm_that_is_down(policy):
    """With two of three LLMs down throughout, what is known of them is what was known at first."""
    source = as_arrays(with_dynamics(TABLE, [], [Outages(until=[HORIZON, 1, 1])]))
    problem = source.problem(2, HORIZON)
    begun = policy.init(problem, jnp.asarray(TABLE.contexts))
    decision, carry = simulate.run_rounds(
        rng.run_key(1), as_arrays(policy), source, 0.5, problem, 64, states=False
    )
    assert decision.valid.sum() > 10
    for before, after in zip(jax.tree.leaves(begun), jax.tree.leaves(carry.state), strict=True):
        np.testing.assert_array_equal(before[1:], after[1:])
        assert (np.asarray(before[0]) != np.asarray(after[0])).any()


@pytest.mark.slow
def test_best_llm_commits_where_an_llm_never_joins_or_leaves():
    never = Outages(since=[1, 1, 1, 1, 10**6])
    left = Outages(until=[10**6, 10**6, 10**6, 10**6, 20])
    for service in (never, left):
        data = cqbjax.sweep(
            {"best_llm": LlmRanking(tries=10.0)}, cqbjax.sources.Synthetic(), arrival_rate=[0.5],
            num_seeds=2, horizon=600, service=[service],
        )  # fmt: skip
        explored = data.explored.sel(policy="best_llm").isel(arrival_rate=0)
        assert explored.isel(round=-1).min() >= 40 and explored.isel(round=-1).max() <= 60


@pytest.mark.slow
def test_traffic_is_uniform_over_the_llms_that_answer():
    down = Outages(since=[1, 1, 10**6, 1, 1])
    data = cqbjax.sweep(
        {"random": RandomRouting(), "exploring": cqbjax.policies.Acqb(c1=1e4)},
        cqbjax.sources.Synthetic(), arrival_rate=[0.6], num_seeds=8, horizon=2500, service=[down],
        record=["traffic"],
    )  # fmt: skip
    shares = data.traffic.sel(policy=["random", "exploring"]).isel(round=-1, arrival_rate=0)
    np.testing.assert_allclose(shares.mean("seed").isel(llm=[0, 1, 3, 4]), 0.25, atol=0.02)
    assert float(shares.isel(llm=2).max()) == 0
