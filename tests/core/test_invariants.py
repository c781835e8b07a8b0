"""What holds in every run, whatever the policy, the scenario and the numbers."""

import collections
import dataclasses
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, assume, given, settings
from hypothesis import strategies as st
from tiers import cases

import cqbjax
from cqbjax import sources
from cqbjax.core import backend, rng, simulate
from cqbjax.engine import batches, programs
from cqbjax.engine.validation import build_spec
from cqbjax.policies import Acqb, OptimalPolicy, QueueingBandit, RandomRouting
from cqbjax.policies._template import EpsilonGreedy
from tests.reference import scenarios

HORIZON, CAPACITY = 48, 48
SYNTHETIC = sources.Synthetic(num_servers=3, dim=2, slackness=0.0)
SHARED = sources.Synthetic(num_servers=3, dim=2, slackness=0.0, parameters="shared")
POOL = scenarios.routing(np.random.default_rng(3).normal(0.5, 1.0, (6, 4)))
SCENARIOS = {
    "synthetic": (SYNTHETIC, SYNTHETIC.problem(1, HORIZON)),
    "pool": (POOL, POOL.problem(2, HORIZON)),
    "triples": (POOL, POOL.problem(3, HORIZON)),
    "shared": (SHARED, SHARED.problem(2, HORIZON)),
}
# Static settings come from this short list, so that few programs are compiled; floats are free.
CASES = {
    "acqb": ("synthetic", Acqb()),
    "acqb_pair": ("pool", Acqb(schedule="least_served", exploration="independent")),
    "acqb_triple": ("triples", Acqb()),
    "acqb_shared": ("shared", Acqb(optimism="ucb")),
    "acqb_fallback": ("pool", Acqb(retry="fallback", exploration="independent")),
    "random": ("pool", RandomRouting()),
    "rand_rout": ("synthetic", RandomRouting(schedule="oldest")),
    "q_ths": ("synthetic", QueueingBandit(index="thompson")),
    "optimal": ("pool", OptimalPolicy()),
}


def mark_slow(names):
    """Mark the cases that are slow: all but those of the smallest programs."""
    return cases(names, ("random", "optimal"))


# No shrinking: a fault that keeps a program from compiling would compile it hundreds of times.
QUICK = settings(
    max_examples=25, deadline=None, derandomize=True, phases=[Phase.explicit, Phase.generate],
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)  # fmt: skip


def run(case: str, seed: int = 0, rate: float = 0.5, horizon: int = HORIZON, **floats):
    scenario, policy = CASES[case]
    source, problem = SCENARIOS[scenario]
    if isinstance(policy, Acqb):
        policy = dataclasses.replace(policy, **floats)
    problem = problem._replace(horizon=horizon)
    if not problem.pooled:
        problem = problem._replace(num_rows=horizon)
    return scenarios.first(
        scenarios.play(policy, source, rate, problem, CAPACITY, seed, keep_all=True)
    )


@pytest.mark.parametrize("case", mark_slow(CASES))
@QUICK
@given(
    seed=st.integers(0, 2**31 - 1),
    rate=st.floats(0.0, 0.75),
    alpha_scale=st.floats(0.0, 3.0),
    c1=st.floats(0.0, 4.0),
)
def test_served_queries_wait_and_flows_balance(case, seed, rate, alpha_scale, c1):
    """Replay the recorded decisions on a plain list: whatever is served waits, K servers a time."""
    problem = SCENARIOS[CASES[case][0]][1]
    if case == "rand_rout" or not problem.pooled:
        rate = min(rate, 0.45)  # above it some seeds have no context that meets the slackness
    played = run(case, seed, rate, alpha_scale=alpha_scale, c1=c1)
    seen, waiting, shown, departures = played.decision, {}, {}, 0
    for t in range(1, HORIZON + 1):
        i = t - 1
        servers = seen.servers[i].tolist()
        assert len(servers) == problem.assortment_size
        assert servers == sorted(set(servers)) and servers[0] >= 0
        assert servers[-1] < problem.num_servers
        assert bool(seen.valid[i]) == bool(waiting)
        if waiting:
            query = int(seen.query[i])
            assert query in waiting, "the served query was not waiting"
            assert seen.row[i] == played.workload.arrival_rows[query - 1]
            waiting[query] += 1
            for server in servers:
                shown[query][server] += 1
            if seen.choice[i] < problem.assortment_size:
                del waiting[query]
                departures += 1
        else:
            assert seen.regret[i] == 0.0 and not seen.explored[i]
        if played.arrivals[i]:
            waiting[t] = 0
            shown[t] = [0] * problem.num_servers
        row, slots, served = (field[i] for field in played.queue[:3])
        here = slots > 0
        if played.queue.offer_counts is not None:
            counts = played.queue.offer_counts[i][here].tolist()
            assert counts == [shown[query] for query in slots[here]]
        assert dict(zip(slots[here], served[here], strict=True)) == waiting
        assert played.arrivals[: i + 1].sum() - departures == played.length[i] == len(waiting)
        assert (row[here] == played.workload.arrival_rows[slots[here] - 1]).all()
    assert played.overflow == 0
    assert (seen.regret >= 0.0).all() and (seen.regret <= 1.0).all()


@pytest.mark.slow
@pytest.mark.parametrize(
    "policy", [RandomRouting(), Acqb(estimator="running")], ids=["random", "acqb"]
)
@QUICK
@given(seed=st.integers(0, 2**31 - 1), rate=st.floats(0.1, 1.0))
def test_flows_balance_with_several_arrivals_per_round(policy, seed, rate):
    """Who waits is who came and has not left, row by row; nobody is lost in so many slots."""
    source = scenarios.BatchPool(source=POOL)
    problem = source.problem(2, HORIZON)
    played = scenarios.first(
        scenarios.play(policy, source, rate, problem, 2 * CAPACITY, seed, True)
    )
    seen, waiting = played.decision, collections.Counter()
    for i in range(HORIZON):
        assert bool(seen.valid[i]) == bool(waiting.total())
        query = int(seen.query[i]), int(seen.row[i])
        if seen.valid[i]:
            assert waiting[query] > 0, "the served query was not waiting"
            waiting[query] -= seen.choice[i] < problem.assortment_size
        for row in played.workload.arrival_rows[i][: played.arrivals[i]].tolist():
            waiting[i + 1, row] += 1
        here = played.queue.arrived[i] > 0
        slots = zip(played.queue.arrived[i][here], played.queue.row[i][here], strict=True)
        assert collections.Counter((int(t), int(row)) for t, row in slots) == +waiting
        assert played.length[i] == waiting.total()
    assert played.overflow == 0


def test_batch_source_draws_rounds_with_two_arrivals():
    drawn = prepare(
        3, scenarios.BatchPool(source=POOL), 0.8, POOL.problem(2, 4000)._replace(max_arrivals=2)
    )
    counts = np.bincount(drawn.arrivals, minlength=3)
    assert abs(counts @ np.arange(3) / 4000 - 0.8) < 0.06 and counts.min() > 500


@pytest.mark.slow
@pytest.mark.parametrize("policy", [RandomRouting(), Acqb()], ids=["random", "acqb"])
def test_single_arrivals_of_a_batch_source_equal_bernoulli_arrivals(policy):
    """A source that may bring two and never does, beside the source that brings one."""
    single = prepare(2, POOL, 0.6, POOL.problem(2, HORIZON))
    problem = POOL.problem(2, HORIZON)
    rows = jnp.stack([single.workload.arrival_rows, jnp.zeros(HORIZON, jnp.int32)], axis=-1)
    several = single._replace(
        workload=single.workload._replace(arrival_rows=rows),
        arrivals=single.arrivals.astype(jnp.int32),
    )
    both = [(single, problem), (several, problem._replace(max_arrivals=2))]
    seen = []
    for instance, shapes in both:
        carry = simulate.start(policy, shapes, instance, CAPACITY)
        carry, totals = jax.jit(simulate.advance, static_argnums=(1, 5))(
            policy, shapes, instance, carry, simulate.Segment(1, 1, HORIZON), HORIZON
        )
        seen.append((totals, carry.queue, carry.newest * carry.arrived, carry.overflow))
    for mine, theirs in zip(jax.tree.leaves(seen[0]), jax.tree.leaves(seen[1]), strict=True):
        np.testing.assert_array_equal(mine, theirs)
    assert seen[0][0]["departures"][-1] > 10


@pytest.mark.slow
def test_the_first_round_without_a_free_slot_is_reported():
    problem, seeds = SCENARIOS["pool"][1], range(4)
    roomy = [run("random", seed, 0.9) for seed in seeds]
    tight = scenarios.play(RandomRouting(), POOL, 0.9, problem, 3, np.array(seeds))
    full = np.stack([played.length > 3 for played in roomy])
    assert full.any(axis=1).all() and not any(played.overflow for played in roomy)
    # The rounds before are the same, from the same draws.
    np.testing.assert_array_equal(tight.overflow, full.argmax(axis=1) + 1)


def prepare(seed, source, rate, problem):
    return jax.tree.map(lambda leaf: leaf[0], scenarios.draw_instances(source, rate, problem, seed))


@QUICK
@given(seed=st.integers(0, 2**31 - 1), one=st.floats(0.0, 1.0), other=st.floats(0.0, 1.0))
def test_arrivals_at_a_lower_rate_are_a_subset_with_the_same_queries(seed, one, other):
    low, high = (
        prepare(seed, POOL, float(rate), SCENARIOS["pool"][1]) for rate in sorted((one, other))
    )
    assert not (low.arrivals & ~high.arrivals).any()
    assert (low.workload.arrival_rows == high.workload.arrival_rows).all()
    assert (low.workload.contexts == high.workload.contexts).all()
    assert (low.choice_uniforms == high.choice_uniforms).all()


@pytest.mark.parametrize("rate", [0.0, 0.3, 1.0])
def test_arrivals_come_at_their_rate(rate):
    problem = POOL.problem(1, 20_000)
    share = float(prepare(11, POOL, rate, problem).arrivals.mean())
    assert abs(share - rate) <= 5 * np.sqrt(rate * (1 - rate) / 20_000)


@pytest.mark.slow
@QUICK
@given(seed=st.integers(0, 2**31 - 1), rate=st.floats(0.3, 0.5), slackness=st.floats(0.0, 0.05))
def test_synthetic_queries_are_the_candidates_that_meet_the_slackness(seed, rate, slackness):
    """Two rates with the same threshold, rate + slackness, have the same queries."""
    source = sources.Synthetic(num_servers=3, dim=2, slackness=slackness)
    problem = SYNTHETIC.problem(1, 64)
    wanted = rate + slackness
    key = rng.run_key(seed)
    drawn = np.concatenate([source.candidates(key, block) for block in range(12)])
    best = jax.nn.sigmoid((drawn @ np.asarray(source.theta(key)).T).max(axis=-1))
    clear = np.abs(best - wanted).min() > 1e-5
    assume((best >= wanted).sum() >= 64 and clear)
    scenario = prepare(seed, source, rate, problem).workload
    np.testing.assert_array_equal(scenario.contexts, drawn[np.flatnonzero(best >= wanted)[:64]])
    other_slackness = sources.Synthetic(num_servers=3, dim=2, slackness=slackness + 0.1)
    other = prepare(seed, other_slackness, rate - 0.1, problem).workload
    np.testing.assert_array_equal(other.contexts, scenario.contexts)


@pytest.mark.slow
@pytest.mark.parametrize("case", ["acqb", "acqb_pair", "q_ths"])
def test_a_longer_horizon_has_the_same_first_rounds(case):
    short, long = run(case, 5, 0.4), run(case, 5, 0.4, horizon=3 * HORIZON)
    for name in ("query", "servers", "choice", "explored", "valid"):
        head = getattr(long.decision, name)[:HORIZON]
        np.testing.assert_array_equal(getattr(short.decision, name), head, err_msg=name)
    np.testing.assert_array_equal(short.queue.arrived, long.queue.arrived[:HORIZON])
    if case.startswith("acqb"):
        estimates = [
            played.decision.state.belief.estimate.theta[:HORIZON] for played in (short, long)
        ]
        np.testing.assert_allclose(*estimates, atol=1e-6)
    assert short.decision.valid.sum() > 10


@pytest.mark.slow
def test_extra_capacity_does_not_change_a_run():
    scenario, policy = CASES["acqb_pair"]
    source, problem = SCENARIOS[scenario]
    small, large = (
        scenarios.first(scenarios.play(policy, source, 0.45, problem, slots, 2, keep_all=True))
        for slots in (CAPACITY, 99)
    )
    for name in ("query", "servers", "choice", "explored"):
        np.testing.assert_array_equal(getattr(small.decision, name), getattr(large.decision, name))


@pytest.mark.slow
@pytest.mark.parametrize("rate", [0.75, 1.0])
def test_round_robin_shows_every_assortment_equally_and_in_order(rate):
    """With c1 huge every arrival explores, and the counter walks the subsets lexicographically."""
    problem = SCENARIOS["pool"][1]
    every = list(itertools.combinations(range(problem.num_servers), problem.assortment_size))
    played = run("acqb_pair", 1, rate, c1=1e6)
    seen = played.decision
    assert seen.explored[seen.valid].all()
    shown = [tuple(servers) for servers in seen.servers[seen.explored].tolist()]
    assert shown == [every[i % len(every)] for i in range(len(shown))]
    counts = [shown.count(one) for one in every]
    assert max(counts) - min(counts) <= 1 and min(counts) >= 4


@pytest.mark.slow
def test_exploration_on_arrivals_serves_the_query_that_just_came():
    played = run("acqb", 1, 0.4, c1=1e6)
    came = np.flatnonzero(played.arrivals[:-1]) + 1
    explored = played.decision.explored
    assert explored[came].all() and explored.sum() == len(came) >= 10
    np.testing.assert_array_equal(played.decision.query[came], came)
    counts = np.bincount(played.decision.servers[came, 0], minlength=3)
    assert counts.max() - counts.min() <= 1


@pytest.mark.slow
@QUICK
@given(seed=st.integers(0, 2**31 - 1), rate=st.floats(0.2, 0.45))
def test_without_bonus_and_exploration_acqb_is_greedy(seed, rate):
    """Each decision maximises x' theta over what waits, theta as after the round before."""
    played = run("acqb", seed, rate, alpha_scale=0.0, c1=0.0)
    theta = played.decision.state.belief.estimate.theta
    checked = 0
    for i in range(1, HORIZON):
        if not played.decision.valid[i]:
            continue
        waiting = played.queue.arrived[i - 1]
        waiting = waiting[waiting > 0]
        rows = played.workload.arrival_rows[waiting - 1]
        values = played.workload.contexts[rows] @ theta[i - 1].T
        mine = list(waiting).index(played.decision.query[i]), played.decision.servers[i, 0]
        assert values[mine] >= values.max() - 1e-6
        assert not played.decision.explored[i]
        checked += len(waiting) > 1
    assume(checked >= 3)  # rounds in which there was a choice of queries


# At K = 3 both are held to the reference (testing/test_against_reference.py).
@pytest.mark.slow
@pytest.mark.parametrize(("size", "parameters"), [(1, "disjoint"), (2, "disjoint"), (2, "shared")])
@QUICK
@given(seed=st.integers(0, 2**31 - 1), rate=st.floats(0.2, 0.45))
def test_with_the_true_theta_acqb_is_the_optimal_policy(size, parameters, seed, rate):
    source = sources.Synthetic(num_servers=4, dim=3, slackness=0.05, parameters=parameters)
    problem = source.problem(size, HORIZON)
    theta = jnp.atleast_2d(source.theta(rng.run_key(seed)))
    planted = scenarios.FixedThetaAcqb(policy=Acqb(alpha_scale=0.0, c1=0.0), theta=theta)
    mine, best = (
        scenarios.first(scenarios.play(policy, source, rate, problem, CAPACITY, seed)).decision
        for policy in (planted, OptimalPolicy())
    )
    for name in ("query", "servers", "choice"):
        valid = best.valid
        np.testing.assert_array_equal(getattr(mine, name)[valid], getattr(best, name)[valid])
    assert mine.regret.max() <= 1e-6 and best.valid.any()


@pytest.mark.slow
def test_float32_and_float64_runs_share_a_process():
    for wide in (True, False, True):
        with jax.enable_x64(wide):
            played = run("acqb", 0)
        assert played.decision.regret.dtype == (np.float64 if wide else np.float32)


# A sweep adds the optimal policy.
ONLY = "only"
TIMES = ["compile_seconds", "seconds_per_round"]
INTEGERS = ("queue_length", "departures", "explored", "optimal_queue_length")


def assert_same(one, two, exactly=INTEGERS):
    for name in exactly:
        np.testing.assert_array_equal(one[name].values, two[name].values, err_msg=name)
    np.testing.assert_allclose(one.regret.values, two.regret.values, atol=1e-4)


@pytest.mark.slow
def test_runs_of_a_batch_equal_separate_runs():
    """One sweep with other policies, rates and seeds beside it, one with a single run at a time."""
    low, high = Acqb(alpha_scale=0.2), Acqb(alpha_scale=2.0, c1=0.5)
    keys = {"horizon": 64, "record_every": 4}
    many = cqbjax.sweep(
        {"low": low, "high": high}, POOL, arrival_rate=[0.3, 0.6], seeds=[3, 4, 9], **keys
    )
    alone = cqbjax.sweep({"high": high}, POOL, arrival_rate=[0.6], seeds=[9, 3], chunk=1, **keys)
    alone = alone.sel(policy=["high"])
    mine = many.sel(policy=["high"], arrival_rate=[0.6], seed=[9, 3])
    assert_same(mine, alone, [name for name in INTEGERS if not name.startswith("optimal")])
    rounds = many["round"].values
    for rate, seed in itertools.product([0.3, 0.6], [3, 4, 9]):
        came = prepare(seed, POOL, rate, POOL.problem(1, 64)).arrivals.cumsum()[rounds - 1]
        left = many.sel(arrival_rate=rate, seed=seed)
        assert (left.departures + left.queue_length == np.asarray(came)).all()
    # The rows beside it do differ, so equality was not for want of variety.
    flat = many.departures.values.reshape(-1, 16)
    assert len(np.unique(flat, axis=0)) >= 10


@pytest.mark.slow
def test_growing_capacity_equals_large_initial_capacity(monkeypatch):
    learning = EpsilonGreedy(epsilon=0.3)
    keys = {"arrival_rate": [0.1, 0.45], "num_seeds": 4, "horizon": 64, "record_every": 1}
    large = cqbjax.sweep({ONLY: learning}, SYNTHETIC, capacity=64, **keys)
    compiled = []
    compile_ = programs.compile_one

    def spy(shape):
        compiled.append(shape.slots)
        return compile_(shape)

    monkeypatch.setattr(programs, "compile_one", spy)
    monkeypatch.setattr(batches, "START_CAPACITY", 2)
    grown = cqbjax.sweep({ONLY: learning}, SYNTHETIC, capacity="auto", **keys)
    assert_same(grown, large)
    longest = large.queue_length.max("round")
    assert (longest <= 2).any(), "no run stayed within the first capacity"
    assert (longest > 2).any(), "no run outgrew the first capacity"
    # The optimal policy, which comes second, begins with few slots again.
    own = compiled[: compiled.index(2, 1)]
    assert own == [2 * batches.GROWTH**i for i in range(len(own))] and len(own) >= 2


def batched_together(policies):
    """Return which labels a sweep batches together, the optimal policy's apart."""
    planned = batches.plan_sweep([build_spec(policies, SYNTHETIC, [0.3], range(2), 8)])
    return [group.labels for group in planned.batches if group.labels != ("optimal",)]


@pytest.mark.slow
def test_policies_that_differ_in_floats_share_a_batch_and_a_program():
    log = scenarios.Log()
    names = (ONLY, "b", "c")
    three = {name: scenarios.TraceCounter(weight=float(i), log=log) for i, name in enumerate(names)}
    assert batched_together(three) == [names]
    # An integer in a float's place is the same policy, another static field is another program.
    mixed = {"int": Acqb(c1=1), "float": Acqb(c1=1.0), "ucb": Acqb(optimism="ucb")}
    assert batched_together(mixed) == [("int", "float"), ("ucb",)]
    keys = {"arrival_rate": [0.3], "num_seeds": 2, "horizon": 8}
    cqbjax.sweep({ONLY: three[ONLY]}, POOL, **keys)
    alone = len(log.calls)
    programs.clear_cache()
    jax.clear_caches()
    cqbjax.sweep(three, POOL, **keys)
    assert len(log.calls) - alone == 1, "one program for three policies"


@pytest.mark.slow
def test_changing_floats_does_not_trace_the_run_again():
    log = scenarios.Log()
    for weight, rate, scale in ((0.0, 0.3, 1.0), (1.0, 0.6, 2.0), (2.0, 0.9, 0.5)):
        source = scenarios.routing(scale * POOL.utilities, POOL.contexts)
        policy = scenarios.TraceCounter(weight=weight, log=log)
        scenarios.play(policy, source, rate, SCENARIOS["pool"][1], CAPACITY, 0)
        calls = len(log.calls)
    assert calls == 1


@pytest.mark.slow
def test_a_second_sweep_that_differs_in_floats_compiles_nothing(monkeypatch):
    log = scenarios.Log()

    def play(weight, rate, seeds, scale):
        source = scenarios.routing(scale * POOL.utilities, POOL.contexts)
        policies = {ONLY: scenarios.TraceCounter(weight=weight, log=log)}
        return cqbjax.sweep(policies, source, arrival_rate=[rate], seeds=seeds, horizon=8, chunk=2)

    play(1.0, 0.3, [0, 1], 1.0)
    with monkeypatch.context() as patch:
        patch.setattr(backend, "compile_lowered", lambda *_, **__: pytest.fail("compiled"))
        again = play(2.0, 0.6, [4, 5, 6], 0.5)
    programs.clear_cache()
    assert again.drop_vars(TIMES).equals(play(2.0, 0.6, [4, 5, 6], 0.5).drop_vars(TIMES))
