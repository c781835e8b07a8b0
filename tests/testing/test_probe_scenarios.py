"""Scenarios in which the answer is known: theory, or a comparison that must come out one way.

Seeds are the units of every statistical statement, and its tolerance is five standard errors. All
scenarios have the same shapes, so that each policy is compiled once.
"""

import functools

import jax.numpy as jnp
import numpy as np
import pytest
from scipy.stats import sem

from cqbjax.policies import (
    Acqb,
    ContextWrapper,
    Intercept,
    OptimalPolicy,
    QueueingBandit,
    RandomRouting,
)
from tests.reference import scenarios

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("all_as_in_a_study")]
HORIZON, SEEDS, CAPACITY = 600, np.arange(64), 256
POLICIES = {
    "random": RandomRouting(),
    "rand_rout": RandomRouting(schedule="oldest"),
    "acqb": Acqb(alpha_scale=0.5),
    "q_ucb": QueueingBandit(),
    "optimal": OptimalPolicy(),
}
MIXED = np.tile(np.linspace(0.2, 0.9, 8)[:, None], (1, 3))
SOURCES = {
    "mu = 0.6": scenarios.constant(0.6),
    "mu = 0.5": scenarios.constant(0.5),
    "identical": scenarios.identical_servers(),
    "one best": scenarios.one_best(),
    "mixed": scenarios.routing(scenarios.log_odds(MIXED)),
}


@functools.cache
def play(label, scenario, rate):
    source = SOURCES[scenario]
    problem = source.problem(1, HORIZON)
    played = scenarios.play(POLICIES[label], source, rate, problem, CAPACITY, SEEDS)
    assert not played.overflow.any()
    return played


def stationary_mean(arrival, service, states=400):
    """Return the mean of Q' = Q - D 1{Q > 0} + A by balancing the flows between n and n + 1.

    From n = 0 the chain goes up with probability `arrival`; from n >= 1 up with
    arrival (1 - service) and down with service (1 - arrival).
    """
    up = np.full(states, arrival * (1 - service))
    up[0], up[-1] = arrival, 0.0
    down = np.full(states, service * (1 - arrival))
    down[0] = 0.0
    share = np.cumprod(np.concatenate([[1.0], up[:-1] / down[1:]]))
    share /= share.sum()
    return float(share @ np.arange(states))


def test_stationary_mean_by_flow_balance_matches_the_closed_form():
    for arrival, service in ((0.4, 0.6), (0.1, 0.9), (0.5, 0.55)):
        closed = arrival * (1 - arrival) / (service - arrival)
        assert stationary_mean(arrival, service, 4000) == pytest.approx(closed, rel=1e-9)


@pytest.mark.parametrize("label", POLICIES)
def test_a_constant_service_probability_is_a_birth_death_chain(label):
    played = play(label, "mu = 0.6", 0.4)
    lengths = played.length
    means = lengths[:, 100:].mean(axis=1)
    theory = stationary_mean(0.4, 0.6)
    assert theory == pytest.approx(1.2)
    assert abs(means.mean() - theory) < 5 * sem(means)
    assert sem(means) < 0.06, "the test could not tell theory from a tenth more"
    idle = (lengths[:, 100:] == 0).mean(axis=1)
    assert abs(idle.mean() - (1 - 0.4 / 0.6)) < 5 * sem(idle)
    assert played.decision.regret.max() == 0.0


def test_schedules_are_equal_at_constant_service_probability():
    """By shared arrivals and choice uniforms the queue is the same in every round."""
    lengths = [play(label, "mu = 0.6", 0.4).length for label in POLICIES]
    for other in lengths[1:]:
        np.testing.assert_array_equal(lengths[0], other)


@pytest.mark.parametrize("label", POLICIES)
def test_identical_servers_have_zero_regret(label):
    played = play(label, "identical", 0.4)
    assert played.decision.regret.max() == 0.0
    assert played.decision.valid.any(axis=1).all()


@pytest.mark.parametrize("label", POLICIES)
def test_overloaded_queue_grows_at_the_excess_rate(label):
    lengths = play(label, "mu = 0.5", 0.75).length
    growth = (lengths[:, -1] - lengths[:, 99]) / (HORIZON - 100)
    assert abs(growth.mean() - 0.25) < 5 * sem(growth)
    assert sem(growth) < 0.006


def test_acqb_learns_the_dominant_server():
    labels = ("acqb", "random", "optimal")
    played = {label: play(label, "one best", 0.4).decision for label in labels}
    half = HORIZON // 2

    def share(decision, rounds):
        valid = decision.valid[:, rounds]
        return ((decision.servers[:, rounds, 0] == 1) & valid).sum(axis=1) / valid.sum(axis=1)

    early, late = (share(played["acqb"], part) for part in (slice(0, half), slice(half, None)))
    assert (late - early).mean() > 5 * sem(late - early)
    assert late.mean() > 0.8
    random = share(played["random"], slice(half, None))
    assert abs(random.mean() - 1 / 3) < 5 * sem(random)
    assert (share(played["optimal"], slice(None)) == 1.0).all()
    saved = (played["random"].regret - played["acqb"].regret)[:, half:].sum(axis=1)
    assert saved.mean() > 20 * sem(saved)
    assert played["optimal"].regret.max() == 0.0


def test_intercept_is_needed_for_a_server_best_on_opposite_contexts():
    """Contexts come in pairs: what favours a server on x, x'theta undoes on -x."""
    mu = np.full((8, 3), 0.35)
    mu[:, 1] = 0.9
    half = np.random.default_rng(7).normal(size=(4, 2))
    half /= np.linalg.norm(half, axis=1, keepdims=True)
    scenario = scenarios.routing(scenarios.log_odds(mu), np.concatenate([half, -half]))
    plain = Acqb(alpha_scale=0.5)

    def late_regret(policy):
        problem = scenario.problem(1, HORIZON)
        played = scenarios.play(policy, scenario, 0.4, problem, CAPACITY, SEEDS)
        return played.decision.regret[:, HORIZON // 2 :].sum(axis=1)

    without, with_one = (
        late_regret(plain),
        late_regret(ContextWrapper(policy=plain, view=Intercept())),
    )
    saved = without - with_one
    assert saved.mean() > 20 * sem(saved)
    assert with_one.mean() < without.mean() / 3


@pytest.mark.parametrize("label", ["random", "acqb", "optimal"])
def test_single_assortment_has_zero_regret(label):
    """With K = N there is a single assortment."""
    source = scenarios.routing(np.random.default_rng(1).normal(size=(8, 2)))
    problem = source.problem(2, 100)
    played = scenarios.play(POLICIES[label], source, 0.5, problem, 100, [0, 1])
    assert played.decision.valid.sum() > 50
    assert (played.decision.servers == jnp.arange(2)).all()
    assert played.decision.regret.max() == 0.0


def test_joint_schedule_shortens_the_queue_of_heterogeneous_queries():
    """Serving the query most likely to leave beats the oldest one near the limit of stability."""
    lengths = {label: play(label, "mixed", 0.5).length for label in ("optimal", "rand_rout")}
    shorter = (lengths["rand_rout"] - lengths["optimal"]).mean(axis=1)
    assert shorter.mean() > 10 * sem(shorter)
