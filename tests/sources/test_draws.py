"""What sources draw and refuse, beside plain words: synthetic contexts, coins, pools and drifts."""

import functools
import itertools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.special
from tiers import cases

from cqbjax.core import rng
from cqbjax.core.pytree import as_arrays
from cqbjax.core.scenario import with_dynamics
from cqbjax.core.types import Problem
from cqbjax.dynamics import ServiceChannels
from cqbjax.sources import (
    ArrivalWrapper,
    BatchArrivals,
    Coin,
    DriftWrapper,
    PromptPool,
    Synthetic,
    convert_trace,
    synthetic,
)
from cqbjax.testing.fairness import permute_servers
from cqbjax.testing.instances import FAST_COMPILE_OPTIONS
from tests.reference import scenarios

ROUNDS, BLOCK = 20, 8


@functools.partial(jax.jit, static_argnames="problem", compiler_options=FAST_COMPILE_OPTIONS)
def workload_of(source, rate, problem, seed=3):
    return source.draw_workload(rng.run_key(seed), rate, problem)


def departs(utilities, size):
    """Return the departure probability of the best assortment: [..., N] -> [...]."""
    weights = np.sort(np.exp(np.asarray(utilities, float)), axis=-1)[..., -size:].sum(axis=-1)
    return weights / (1 + weights)


@pytest.mark.parametrize(
    ("parameters", "size", "rate"),
    cases([("disjoint", 2, 0.65), ("shared", 1, 0.5)], ["disjoint"], several=True),
)
def test_synthetic_queries_are_the_first_candidates_that_meet_the_slackness(
    parameters, size, rate, monkeypatch
):
    monkeypatch.setattr(synthetic, "BLOCK", BLOCK)
    source = Synthetic(num_servers=3, dim=2, slackness=0.1, parameters=parameters)
    problem, shared = source.problem(size, ROUNDS), parameters == "shared"

    @jax.jit
    def draw(keys):
        candidates = jax.vmap(lambda number: source.candidates(keys[0], number))(np.arange(9))
        return jax.vmap(source.theta)(keys), candidates

    theta, drawn = map(np.asarray, draw(jnp.stack([rng.run_key(seed) for seed in (3, *range(9))])))
    assert theta.shape[1:] == ((2,) if shared else (3, 2))
    assert problem.num_blocks == (1 if shared else 3)
    for known in (theta, drawn):
        assert -1 <= known.min() < -0.6 and 0.6 < known.max() <= 1
    theta, drawn = theta[0], drawn.reshape(9 * BLOCK, *problem.contexts_shape[1:])
    utilities = drawn @ theta if shared else drawn @ theta.T
    accepted = np.flatnonzero(departs(utilities, size) >= rate + 0.1)[:ROUNDS]
    assert len(accepted) == ROUNDS and accepted[-1] >= ROUNDS + 5, (
        "some are refused, in several blocks"
    )
    workload = workload_of(as_arrays(source), rate, problem)
    np.testing.assert_array_equal(workload.contexts, drawn[accepted])
    np.testing.assert_allclose(workload.utilities, utilities[accepted], rtol=1e-5, atol=1e-6)
    assert workload.arrival_rows.tolist() == workload.prompts.tolist() == list(range(ROUNDS))
    features = np.random.default_rng(5).uniform(-1, 1, (4000, *problem.contexts_shape[1:]))
    utilities = features @ theta if shared else features @ theta.T
    come = departs(utilities, size) >= rate + 0.1
    each = [
        departs(utilities[:, list(one)], size) for one in itertools.combinations(range(3), size)
    ]
    monkeypatch.undo()
    service = source.uniform_service(np.array([3]), rate, size)
    assert service == pytest.approx(1 / np.mean(1 / np.mean(each, axis=0)[come]), rel=0.03)


@pytest.mark.slow
def test_uniform_service_ignores_seeds_without_contexts():
    source = Synthetic(num_servers=2, dim=2, slackness=0.0)
    alone = source.uniform_service(np.array([3]), 0.5, 1)
    never = source.uniform_service(np.array([3]), 0.999, 1)
    both = source.uniform_service(np.array([3, 4]), 0.5, 1)
    other = source.uniform_service(np.array([4]), 0.5, 1)
    assert never == 1.0 and both == pytest.approx((alone + other) / 2) and alone != other


@pytest.mark.slow
def test_low_acceptance_of_contexts_is_rejected(monkeypatch):
    source, seeds = Synthetic(num_servers=2, dim=2, slackness=0.0), np.arange(3)
    source.check(seeds, 0.5, 1)
    monkeypatch.setattr(synthetic, "LEAST_ACCEPTANCE", 0.99)
    with pytest.raises(ValueError, match=r"fewer than 0.99 of the contexts of seed [012]"):
        source.check(seeds, 0.5, 1)


def test_log_odds_and_largest_scores_match_their_definitions():
    assert synthetic._log_odds(0.0) == synthetic._log_odds(-0.2) == -math.inf
    assert synthetic._log_odds(1.0) == math.inf
    assert synthetic._log_odds(0.8) == pytest.approx(math.log(4))
    draw = np.random.default_rng(0)
    theta = draw.uniform(-1, 1, (2, 3, 4))
    corners = np.array(list(itertools.product((-1, 1), repeat=4)))
    for size in (1, 2):
        source = Synthetic(num_servers=3, dim=4)
        found = source._largest_score(theta, size)
        best = departs(np.einsum("cd,snd->scn", corners, theta), size).max(axis=1)
        np.testing.assert_allclose(scipy.special.expit(found), best, rtol=1e-9)
    wide = Synthetic(num_servers=3, dim=20)._largest_score(np.ones((1, 3, 20)), 2)
    assert wide == pytest.approx(20 + math.log(2))
    ones = np.ones((1, 3, 200), np.float32)  # whose exponential float32 does not hold
    assert Synthetic(num_servers=3, dim=200)._largest_score(ones, 2) == pytest.approx(200.6931)
    one = Synthetic(num_servers=3, dim=2, parameters="shared")._largest_score(np.ones((1, 2)), 3)
    assert one == pytest.approx(2 + math.log(3))


def test_coin_success_does_not_depend_on_the_server_and_classes_have_their_shares():
    coin = Coin(classes=[0.2, 0.6, 0.5], shares=[3, 1, 0], num_servers=4)
    assert coin.problem(2, 8) == Problem(4, 2, 3, 3, 8, "disjoint", True)
    assert Coin().problem(1, 8) == Problem(2, 1, 1, 1, 8, "disjoint", True)
    for one in (coin, Coin(), Coin(num_servers=1)):
        one.check(np.arange(2), 0.3, 1)
    horizon = 4000
    workload = workload_of(as_arrays(coin), 0.3, coin.problem(2, horizon))
    np.testing.assert_array_equal(workload.contexts, np.eye(3))
    np.testing.assert_allclose(departs(workload.utilities, 2), [0.2, 0.6, 0.5], rtol=1e-5)
    assert workload.utilities.shape == (3, 4) and workload.prompts.tolist() == [0, 1, 2]
    counts = np.bincount(workload.arrival_rows, minlength=3) / horizon
    np.testing.assert_allclose(counts, [0.75, 0.25, 0.0], atol=5 * 0.5 / np.sqrt(horizon))
    assert counts[2] == 0
    mean = 0.75 / 0.2 + 0.25 / 0.6
    assert coin.uniform_service(None, 0.3, 1) == pytest.approx(1 / mean)
    assert Coin(classes=[0.2, 0.6]).uniform_service(None, 0.3, 1) == pytest.approx(0.3)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (dict(success=0.0), r"success=0 must be a number in \(0, 1\)"),
        (dict(success=-0.5), r"success=-0.5 must be a number in \(0, 1\)"),
        (
            dict(classes=[0.5, -1]),
            r"classes=\[0.5, -1.0\] must be 2 numbers in \(0, 1\), one for each class",
        ),
        (dict(success=[0.5]), r"success=\[0.5\] must be a number in"),
        (dict(classes=[0.5, 1.0]), r"classes=\[0.5, 1.0\] must be 2 numbers in"),
        (dict(classes=[[0.5]]), r"classes=\[\[0.5\]\] must be 1 numbers in"),
        (dict(shares=[1, 1]), r"shares=\[1.0, 1.0\] must be 1 numbers"),
        (dict(classes=[0.5, 0.5], shares=[1, -1]), r"must be 2 numbers in \[0, inf\)"),
        (dict(classes=[0.5, 0.5], shares=[0, 0]), "shares=.* must not all be 0"),
        (dict(num_servers=0), r"num_servers=0 must be a whole number in \[1, inf\)"),
    ],
)
def test_invalid_coins_are_rejected(wrong, message):
    with pytest.raises(ValueError, match=message):
        Coin(**wrong).check(np.arange(2), 0.3, 1)


def test_pool_tables_are_sampled_jointly_by_seed():
    draw = np.random.default_rng(1)
    tables = {name: draw.normal(size=(9, n)) for name, n in (("contexts", 2), ("utilities", 3))}
    tables |= {name: draw.uniform(size=(9, 3)) for name in ("dollars", "scores")}
    source = PromptPool(pool_size=5, **tables)
    problem = source.problem(1, 300)
    assert problem == Problem(3, 1, 2, 5, 300, "disjoint", True, num_prompts=9, has_costs=True)
    assert not PromptPool(pool_size=5, contexts=tables["contexts"], utilities=tables["utilities"],
                       dollars=tables["dollars"]).problem(1, 9).has_costs  # fmt: skip
    source.check(np.arange(2), 0.3, 1)
    workload, other = (workload_of(as_arrays(source), 0.3, problem, seed) for seed in (3, 4))
    pool = np.asarray(workload.prompts)
    assert len(set(pool.tolist())) == 5 and pool.min() >= 0 and pool.max() < 9
    assert pool.tolist() != other.prompts.tolist()
    arrays = (
        workload.contexts,
        workload.utilities,
        workload.answer_costs.dollars,
        workload.answer_costs.scores,
    )
    for ours, name in zip(arrays, ("contexts", "utilities", "dollars", "scores"), strict=True):
        np.testing.assert_allclose(ours, tables[name][pool], rtol=1e-6)
    counts = np.bincount(workload.arrival_rows, minlength=5)
    assert len(counts) == 5 and (np.abs(counts - 60) < 5 * np.sqrt(60)).all()
    chances = np.exp(tables["utilities"])
    leaves = (chances / (1 + chances)).mean(axis=1)
    assert source.uniform_service(None, 0.3, 1) == pytest.approx(1 / np.mean(1 / leaves))


def test_drift_turns_utilities_towards_the_neighbours():
    still = DriftWrapper(source=scenarios.constant(0.5))
    jumps = DriftWrapper(
        source=scenarios.routing(np.arange(12.0).reshape(4, 3)), jump_at=3, quarter=4
    )
    problem = jumps.problem(1, 6)
    drift = workload_of(as_arrays(jumps), 0.3, problem).drift
    angle = np.pi / 2 * (np.array([0, 0, 1, 1, 1, 1]) + np.arange(6) / 4)
    np.testing.assert_allclose(drift.cos, np.cos(angle), atol=1e-6)
    np.testing.assert_allclose(drift.sin, np.sin(angle), atol=1e-6)
    workload = workload_of(as_arrays(jumps), 0.3, problem)
    np.testing.assert_array_equal(drift.other, np.asarray(workload.utilities)[:, [2, 0, 1]])
    assert (
        np.asarray(workload_of(as_arrays(still), 0.3, still.problem(1, 6)).drift.sin) == 0
    ).all()
    assert jumps.uniform_service(None, 0.3, 1) == jumps.source.uniform_service(None, 0.3, 1)
    jumps.check(np.arange(2), 0.3, 1)
    for wrong, message in (
        (dict(jump_at=0), "jump_at=0 must be"),
        (dict(quarter=0.5), "quarter=0.5"),
    ):
        with pytest.raises(ValueError, match=message):
            DriftWrapper(source=still.source, **wrong).check(np.arange(2), 0.3, 1)
    with pytest.raises(ValueError, match="drift goes inside"):
        DriftWrapper(source=scenarios.BatchPool(source=still.source)).check(np.arange(2), 0.3, 1)


@functools.partial(jax.jit, static_argnames="horizon")
def counts_of(process, rate, horizon):
    return process.draw_arrivals(rng.run_key(5), rate, horizon)


def test_batch_sizes_and_poisson_counts_have_their_distribution():
    horizon = 4000
    error = 5 * 0.5 / np.sqrt(horizon)
    sized = BatchArrivals(sizes=[2, 1, 1])
    assert sized.most == 3 and BatchArrivals().most == 12
    counts = np.bincount(counts_of(sized, 0.7, horizon), minlength=4) / horizon
    batch = 0.7 / 1.75
    np.testing.assert_allclose(counts, [1 - batch, batch / 2, batch / 4, batch / 4], atol=error)
    poisson = np.bincount(counts_of(BatchArrivals(most=9), 0.7, horizon), minlength=4)[:4] / horizon
    known = [math.exp(-0.7) * 0.7**n / math.factorial(n) for n in range(4)]
    np.testing.assert_allclose(poisson, known, atol=error)
    assert not np.asarray(counts_of(sized, 0.0, 50)).any()
    # Somebody comes in the rounds 1..T that their own uniforms say.
    own = rng.round_uniforms(rng.run_key(5), jnp.arange(1, 51), rng.Stream.ARRIVAL)
    np.testing.assert_array_equal(counts_of(sized, 0.7, 50) > 0, own >= 1 - batch)
    # Batches of one query each are arrivals as any source's that has at most one a round.
    alone = ArrivalWrapper(source=Coin(), process=BatchArrivals(sizes=[3]))
    arrives = np.asarray(counts_of(alone, 0.7, 50))
    assert arrives.dtype == bool and arrives.tolist() == (own >= 1 - 0.7).tolist()


@pytest.mark.parametrize(
    ("wrong", "rate", "message"),
    [
        (dict(most=0), 0.5, r"most=0 must be a whole number in \[1, 256\]"),
        (dict(most=257), 0.5, "most=257 must be a whole number"),
        (dict(most=2.0), 0.5, "most=2.0 must be a whole number"),
        (dict(most=2), 0.5, "most=2 cuts 0.014 of the rounds at arrival_rate=0.5"),
        (dict(sizes=[1, -1, 3]), 0.5, "sizes must be the shares"),
        (dict(sizes=[0, 0]), 0.5, "sizes must be the shares"),
        (dict(sizes=[1, 1]), 1.6, "arrival_rate=1.6 must be at most 1.5, a batch"),
    ],
)
def test_invalid_batch_arrivals_are_rejected(wrong, rate, message):
    with pytest.raises(ValueError, match=message):
        BatchArrivals(**wrong).check(rate)
    BatchArrivals(most=12).check(0.5)
    BatchArrivals(sizes=[1, 1]).check(1.5)


def test_a_trace_is_scaled_to_mean_intervals():
    np.testing.assert_allclose(convert_trace(np.array([10.0, 14.0, 16.0])).times, [0, 4 / 3, 2])
    np.testing.assert_allclose(convert_trace(np.array([7.0])).times, [0])
    trace = convert_trace(np.array([10.0, 14.0, 16.0]))
    for rate in (0.2, 1.0):
        trace.check(rate)
    for rate in (0.0, 1.1):
        with pytest.raises(ValueError, match=r"must lie in \(0, 1\] for a trace"):
            trace.check(rate)
    assert jnp.sum(counts_of(trace, 1.0, 50)) == 50


def test_prompts_without_repeats_arrive_once():
    table = {"contexts": np.zeros((30, 2)), "utilities": np.zeros((30, 3))}
    again = PromptPool(pool_size=25, **table)
    once = PromptPool(pool_size=25, repeats=False, **table)
    rows, others = (
        np.asarray(workload_of(as_arrays(one), 0.5, one.problem(1, ROUNDS)).arrival_rows)
        for one in (once, again)
    )
    assert len(set(rows.tolist())) == ROUNDS > len(set(others.tolist()))
    with pytest.raises(ValueError, match="pool_size=25 must be at least the 26 rounds"):
        once.problem(1, 26)
    # Of two that may come in a round the first has the earlier row.
    two = ArrivalWrapper(source=once, process=BatchArrivals(sizes=[1, 1]))
    rows = workload_of(as_arrays(two), 0.5, two.problem(1, ROUNDS // 2)).arrival_rows
    assert rows.tolist() == np.arange(ROUNDS).reshape(-1, 2).tolist()


def test_fixed_outcomes_need_one_server_and_single_arrivals():
    table = {"contexts": np.zeros((30, 2)), "utilities": np.zeros((30, 3)), "pool_size": 9}
    by_query, seeds = PromptPool(outcome="query", **table), np.arange(2)
    by_query.check(seeds, 0.5, 1)
    with pytest.raises(ValueError, match="outcome=query needs K=1"):
        by_query.check(seeds, 0.5, 2)
    with pytest.raises(ValueError, match="outcome=user must be one of attempt, query, prompt"):
        PromptPool(outcome="user", **table).check(seeds, 0.5, 1)
    several = ArrivalWrapper(source=by_query, process=BatchArrivals(most=8))
    at_once = with_dynamics(several, [], [ServiceChannels(count=2)])
    for source in (several, at_once, permute_servers(at_once, (1, 0, 2))):
        with pytest.raises(ValueError, match="outcome=query needs one arrival a round"):
            source.check(seeds, 0.5, 1)
    ArrivalWrapper(
        source=PromptPool(outcome="prompt", **table), process=BatchArrivals(most=8)
    ).check(seeds, 0.5, 1)
