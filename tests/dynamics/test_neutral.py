"""Kinds that change only what is learnt or paid: late feedback, lost feedback, prices."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import cqbjax
from cqbjax.core import rng, simulate
from cqbjax.core.pytree import as_arrays
from cqbjax.core.scenario import with_dynamics
from cqbjax.dynamics import DelayedFeedback, LostFeedback, Orbit, Prices, ServiceTimes
from cqbjax.policies import Acqb, RandomRouting
from cqbjax.sources import PromptPool

HORIZON, SEEDS = 240, 3
DRAW = np.random.default_rng(4)
DOLLARS = DRAW.uniform(size=(30, 3))
POOL = PromptPool(
    contexts=DRAW.normal(size=(30, 4)) / 2, utilities=DRAW.normal(size=(30, 3)) + 0.3,
    pool_size=20, dollars=DOLLARS, scores=DRAW.uniform(size=(30, 3)),
)  # fmt: skip
CHANGED = Prices(factors=[1, 0, 2], since=100, spread=0.05)


def run_sweep(service, **more):
    return cqbjax.sweep(
        {"random": RandomRouting(), "acqb": Acqb()}, POOL, arrival_rate=[0.5], num_seeds=SEEDS,
        horizon=HORIZON, record_every=1, capacity=128, service=service, **more,
    ).isel(arrival_rate=0)  # fmt: skip


@pytest.fixture(scope="module")
def plain_sweep():
    return run_sweep([])


@pytest.mark.slow
@pytest.mark.parametrize(
    "kind", [DelayedFeedback(delay=5), LostFeedback(lost=0.5), CHANGED], ids=str
)
def test_feedback_delays_and_prices_change_only_policies_that_learn(kind, plain_sweep):
    """And ACQB's queue is another one but for prices, which it does not see."""
    other = run_sweep([kind])
    for name in ("queue_length", "regret", "departures"):
        for label in ("random", "optimal"):
            one, two = (data.sel(policy=label)[name].values for data in (plain_sweep, other))
            np.testing.assert_array_equal(one, two)
    same = np.array_equal(*(data.sel(policy="acqb").queue_length for data in (plain_sweep, other)))
    assert same == isinstance(kind, Prices)
    assert "yardstick" not in plain_sweep.attrs and "yardstick" not in other.attrs


def sum_costs(kind, users, service):
    """Return what each round's answers cost at the round's prices, by hand: [S, T]."""
    source = as_arrays(with_dynamics(POOL, users, [kind, *service]))
    problem = source.problem(1, HORIZON)

    @jax.jit
    def one(seed):
        key = rng.run_key(seed)
        instance = simulate.draw_instance(key, source, jnp.float32(0.5), problem)
        decision, _ = simulate.run_rounds(key, RandomRouting(), source, 0.5, problem, 128)
        return (
            instance.workload.prompts[decision.row],
            decision.servers,
            decision.valid,
            instance.dynamics,
        )

    sums = []
    for seed in range(SEEDS):
        prompts, servers, valid, rules = jax.tree.map(np.asarray, one(seed))
        factors = rules.service_draws[0]
        each = DOLLARS[prompts, servers[:, 0]] * factors[np.arange(HORIZON), servers[:, 0]]
        sums.append(np.where(valid, each, 0.0))
    return np.array(sums)


@pytest.mark.slow
def test_queries_are_billed_at_the_prices_of_the_round():
    users, service = (Orbit(return_rate=0.5),), (ServiceTimes(rounds=2),)
    data = run_sweep([CHANGED, *service], users=users, record=["dollars"], queries=True)
    data = data.sel(policy="random")
    total = sum_costs(CHANGED, users, service).cumsum(axis=1)
    some = data.departures.values > 0
    from_means = (data.dollars * data.departures).values[some]
    np.testing.assert_allclose(from_means, total[some], rtol=1e-4)
    rows = data.queries.isel(field=6).sum("query").values
    np.testing.assert_allclose(rows, total[:, -1], rtol=1e-4)


def test_prices_follow_independent_random_walks_per_server():
    problem, t = POOL.problem(1, 2000), np.arange(1, 2001)[:, None]
    one, twice = (np.log(Prices(spread=s).draw(rng.run_key(0), problem)) for s in (0.02, 0.04))
    # s W(t) - s^2 t / 2, of one walk W whatever s.
    np.testing.assert_allclose((2 * one - twice) / t, 0.02**2, rtol=0.01)
    steps = np.diff(one + 0.02**2 * t / 2, axis=0, prepend=0.0) / 0.02
    np.testing.assert_allclose(np.cov(steps.T), np.eye(3), atol=5 * np.sqrt(2 / 2000))


@pytest.mark.slow
def test_prices_are_factors_from_a_round_on_and_walk_about_one():
    problem = POOL.problem(1, 2000)
    step = np.asarray(Prices(factors=[1, 0, 2], since=100).draw(rng.run_key(0), problem))
    np.testing.assert_array_equal(step[:99], 1)
    np.testing.assert_array_equal(step[99:], np.broadcast_to([1, 0, 2], (1901, 3)))
    draw = jax.vmap(lambda seed: Prices(spread=0.02).draw(rng.run_key(seed), problem))
    walks = np.asarray(draw(jnp.arange(400)))[:, -1].ravel()
    # A log-normal of mean 1; its logarithm has variance 2000 * 0.02^2.
    error = walks.std(ddof=1) / np.sqrt(len(walks))
    assert abs(walks.mean() - 1) < 4 * error < 0.2
    assert np.log(walks).std() == pytest.approx(0.02 * np.sqrt(2000), rel=0.1)
