"""Flows balance exactly in scenarios, with policies and recorders drawn at random."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flow_balance import OF_ANY, RECORDED, check_recorders, check_rows, check_time, runs

import cqbjax
from cqbjax import dynamics
from cqbjax.core import rng, simulate
from cqbjax.core.pytree import as_arrays
from cqbjax.core.scenario import with_dynamics
from cqbjax.dynamics import (
    DelayedFeedback,
    Impatience,
    LostFeedback,
    Orbit,
    Outages,
    PersistentUsers,
    Prices,
    ServiceChannels,
    ServiceTimes,
    SingleChannel,
)  # fmt: skip
from cqbjax.policies import Acqb, QueueingBandit, RandomRouting, RouterPolicy
from cqbjax.sources import (
    ArrivalWrapper,
    BatchArrivals,
    BurstyArrivals,
    Coin,
    DriftWrapper,
    PromptPool,
    Synthetic,
)
from cqbjax.sources.arrivals import convert_trace

HORIZON, SEEDS, NUM_SERVERS, PROMPTS = 80, 3, 3, 12
DRAW = np.random.default_rng(8)
UTILITIES = DRAW.normal(size=(PROMPTS, NUM_SERVERS))
SOURCES = (
    Coin(classes=[0.3, 0.8], num_servers=NUM_SERVERS),
    PromptPool(
        contexts=DRAW.normal(size=(PROMPTS, 2)) / 2, utilities=UTILITIES, pool_size=PROMPTS,
        dollars=DRAW.uniform(size=(PROMPTS, NUM_SERVERS)),
        scores=DRAW.uniform(size=(PROMPTS, NUM_SERVERS)),
    ),
    Synthetic(num_servers=NUM_SERVERS, dim=2),
    DriftWrapper(source=Synthetic(num_servers=NUM_SERVERS, dim=2), jump_at=40),
)  # fmt: skip
PROCESSES = (None, BatchArrivals(most=8), BurstyArrivals(burst=0.5), BatchArrivals(sizes=[2, 1]),
             convert_trace(
    np.cumsum(DRAW.exponential(size=50))
))  # fmt: skip
USERS = (
    (lambda draw: PersistentUsers()),
    (lambda draw: Orbit(return_rate=draw.uniform(0.1, 1))),
    (lambda draw: Orbit(delays=draw.integers(1, 12, size=3).tolist())),
    (lambda draw: Impatience(attempts=draw.integers(2, 5), pretends=draw.uniform())),
    (lambda draw: Impatience(give_up=draw.uniform(0, 0.4), leave=draw.uniform(0.01, 0.1))),
    (lambda draw: Impatience(patience=draw.integers(4, 12))),
)
SERVICES = (
    (lambda draw: SingleChannel()),
    (lambda draw: ServiceChannels(count=int(draw.integers(2, 4)))),
    (lambda draw: ServiceTimes(rounds=draw.integers(1, 4, size=NUM_SERVERS).tolist())),
    (lambda draw: ServiceTimes(rounds=draw.uniform(1, 3), law="geometric")),
    (lambda draw: Outages(share=draw.uniform(0.1, 0.4), length=5)),
    (lambda draw: LostFeedback(lost=draw.uniform(0.1, 0.9))),
    (lambda draw: DelayedFeedback(delay=int(draw.integers(1, 6)))),
)
# A scenario has one of them, beside the oracle, which every sweep runs.
POLICIES = {
    "acqb": Acqb(),
    "oldest": RandomRouting(schedule="oldest"),
    "ucb": Acqb(optimism="ucb"),
    "rand_fallback": RandomRouting(retry="fallback"),
    "posterior": Acqb(retry="posterior"),
    "routed": RouterPolicy(scores=UTILITIES, by="row", schedule="joint"),
    "random": RandomRouting(),
    "fallback": Acqb(retry="fallback"),
    "q_ucb": QueueingBandit(),
    "recall": Acqb(retry="recall"),
    "q_ths": QueueingBandit(index="thompson"),
    "acqb_rr": Acqb(schedule="least_served", exploration="independent"),
}
NUMBERS = range(len(POLICIES))


def draw_scenario(number):
    """Return a scenario and a policy: each kind in turn, and others beside it by chance."""
    draw = np.random.default_rng(number)
    source, process = SOURCES[number % len(SOURCES)], PROCESSES[number % len(PROCESSES)]
    source = source if process is None else ArrivalWrapper(source=source, process=process)
    chosen = {}
    for key, kinds in (("users", USERS), ("service", SERVICES)):
        own = draw.random(len(kinds)) < 0.3
        own[(number + (key == "service") * (number // len(kinds))) % len(kinds)] = True
        chosen[key] = [kind(draw) for kind, here in zip(kinds, own, strict=True) if here]
    if source.problem(1, HORIZON).has_costs:
        chosen["service"].append(Prices(spread=0.05))
    label = list(POLICIES)[number]
    policy = POLICIES[label]
    if label == "routed":
        scores = np.resize(UTILITIES, (source.problem(1, HORIZON).num_rows, NUM_SERVERS))
        policy = dataclasses.replace(policy, scores=scores)
    return source, chosen, {label: policy}, draw.uniform(0.4, 0.65)


def play(number):
    source, chosen, policy, rate = draw_scenario(number)
    billed = source.problem(1, HORIZON).has_costs
    data = cqbjax.sweep(
        policy, source, arrival_rate=[rate], num_seeds=SEEDS,
        horizon=HORIZON, record=RECORDED if billed else OF_ANY, queries=True, capacity=160,
        **chosen,
    )  # fmt: skip
    return data, arrivals(with_dynamics(source, **chosen), rate)


def arrivals(source, rate):
    """Return how many come in each round, by the instance that was drawn: [S, T]."""
    problem = source.problem(1, HORIZON)

    @jax.jit  # one operation after another is a compilation each
    @jax.vmap
    def of(seed):
        key = rng.run_key(seed)
        return simulate.draw_instance(key, as_arrays(source), jnp.float32(rate), problem).arrivals

    came = np.asarray(of(jnp.arange(SEEDS))).astype(int)
    return np.broadcast_to(came, (SEEDS, HORIZON))


@pytest.mark.slow
@pytest.mark.parametrize("number", NUMBERS)
def test_flows_of_a_random_scenario_balance(number):
    """What came is what left and what is there; time is sojourns and ages; recorders say so."""
    data, came = play(number)
    departed = satisfied = 0
    for run, rows in runs(data):
        counted = np.bincount(rows["arrival"].astype(int), minlength=HORIZON + 1)[1:]
        np.testing.assert_array_equal(counted, came[int(run.seed)])
        check_rows(run, rows)
        check_time(run, rows)
        check_recorders(run, rows, HORIZON)
        departed += len(rows["arrival"])
        satisfied += (rows["outcome"] == 1).sum()
    assert departed > 60 and satisfied > 15, "a run without departures proves nothing"


def test_random_scenarios_cover_every_model_policy_and_source():
    seen = set()
    for number in NUMBERS:
        source, chosen, policy, _ = draw_scenario(number)
        process = getattr(source, "process", None)
        parts = [getattr(source, "source", source), process, *policy.values()]
        parts += [*chosen["users"], *chosen["service"]]
        seen |= {type(one).__name__ for one in parts} | set(policy)
    kinds = {name for name in dynamics.__all__ if isinstance(getattr(dynamics, name), type)}
    every = kinds | {type(one).__name__ for one in (*SOURCES, *PROCESSES)}
    assert seen >= every.union(POLICIES)
