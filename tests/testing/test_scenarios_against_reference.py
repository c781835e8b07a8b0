"""Every kind of scenario against the independent NumPy one: same draws, float64, same decisions."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import recorded
from recorded import Case
from recorded.draws import floats, instance_of, scores
from tiers import cases

from cqbjax import sources
from cqbjax.core import rng, simulate
from cqbjax.core.pytree import as_arrays
from cqbjax.core.scenario import with_dynamics
from cqbjax.dynamics import (
    DelayedFeedback,
    Impatience,
    LostFeedback,
    Orbit,
    Outages,
    ServiceChannels,
    ServiceTimes,
)
from cqbjax.policies import Acqb
from cqbjax.policies.assortments import (
    draw_assortment_rank,
    draw_server_priorities,
)
from cqbjax.sources import ArrivalWrapper, BatchArrivals, DriftWrapper
from cqbjax.testing.instances import FAST_COMPILE_OPTIONS
from tests import reference

HORIZON, SLOTS = 90, 96
SOURCE = sources.Synthetic(num_servers=4, dim=3)
DRAW = np.random.default_rng(5)
POOL = sources.PromptPool(
    contexts=DRAW.normal(size=(14, 3)), utilities=DRAW.normal(size=(14, 4)), pool_size=9
)
SEVERAL = ArrivalWrapper(source=SOURCE, process=BatchArrivals(sizes=[2, 1]))
SCENARIOS = {
    "one channel": (
        SOURCE, [Orbit(return_rate=0.3), Impatience(attempts=3, give_up=0.2, pretends=0.6)],
        [LostFeedback(lost=0.4)],
    ),
    "patience": (SEVERAL, [Impatience(leave=0.2, patience=9)], []),
    "channels": (SEVERAL, [], [ServiceChannels(count=3)]),
    "lasting": (SOURCE, [], [ServiceTimes(rounds=[1, 2, 3, 2])]),
    "outages": (SOURCE, [], [Outages(share=0.5, length=5)]),  # in some rounds nobody is up
    # Of two servers that are shown one may be down, or both.
    "pairs down": (
        SOURCE, [Impatience(attempts=3, patience=15)],
        [Outages(share=0.6, length=5), ServiceTimes(rounds=[1, 2, 1, 3])],
    ),
    "joins": (SOURCE, [], [Outages(since=[1, 40, 1, 1], until=[60, 90, 90, 20])]),
    "late": (SOURCE, [], [DelayedFeedback(delay=7)]),
    "by prompt": (POOL, [], [ServiceTimes(rounds=1 + np.arange(56).reshape(14, 4) % 3)]),
    "drift": (DriftWrapper(source=SOURCE, jump_at=45, quarter=200), [], []),
    "unheard": (
        SEVERAL, [Orbit(delays=[1, 3]), Impatience(attempts=4, pretends=0.5)],
        [ServiceChannels(count=2), LostFeedback(lost=0.4)],
    ),
    "everything": (
        ArrivalWrapper(source=DriftWrapper(source=SOURCE, jump_at=45),
                       process=BatchArrivals(sizes=[2, 1])),
        [Orbit(delays=[1, 3, 8]), Impatience(attempts=5, leave=0.05, pretends=0.5)],
        [ServiceChannels(count=2), ServiceTimes(rounds=2, law="geometric"),
         Outages(share=0.2, length=6), LostFeedback()],
    ),
    "late everything": (
        ArrivalWrapper(source=SOURCE, process=BatchArrivals(sizes=[2, 1])),
        [Orbit(return_rate=0.4), Impatience(give_up=0.1, pretends=0.5)],
        [ServiceChannels(count=2), ServiceTimes(rounds=[1, 2, 3, 1]), DelayedFeedback(delay=4),
         LostFeedback(lost=0.2)],
    ),
}  # fmt: skip
POLICIES = ("acqb", "optimal", "random", "acqb_fallback", "acqb_rr", "rand_rout_fallback", "q_ucb")
RUNS = [
    # Without "lasting", because `by prompt` lasts too.
    *((scenario, "acqb") for scenario in SCENARIOS if scenario != "lasting"),
    *((scenario, label) for scenario in ("outages", "everything") for label in POLICIES[1:]),
    *(("pairs down", label) for label in ("optimal", "random", "acqb_fallback", "acqb_mixed")),
    ("everything", "acqb_windowed"),
    ("channels", "optimal"), ("channels", "acqb_recall"), ("lasting", "random"),
    ("late", "acqb_fallback"), ("late", "q_ucb"), ("late", "acqb_rr"), ("by prompt", "acqb_recall"),
    ("late everything", "acqb_rr"), ("late everything", "q_ucb"),
    ("unheard", "routed_recall_priority"),
    ("lasting", "acqb_mixed"), ("late everything", "acqb_mixed"),
]  # fmt: skip
# Where everything is otherwise, a policy that learns and is a small program.
QUICK = [("late everything", "q_ucb")]


def case_of(scenario, label=""):
    source, users, service = SCENARIOS[scenario]
    rate = 1.0 if any(isinstance(one, ServiceChannels) for one in service) else 0.55
    size = 2 if label in recorded.MIXED or scenario == "pairs down" else 1
    return Case(with_dynamics(source, users, service), size, rate, HORIZON, seed=3)


def takes_of(kind, drawn, prompts, problem):
    """Return how long each attempt would take: [T, c, I, N]."""
    shape = (HORIZON, problem.channels, problem.num_rows, problem.num_servers)
    if kind.law == "geometric":
        servers = jnp.zeros(1, jnp.int32)
        channels = jnp.arange(problem.channels)
        drawn_times = jax.vmap(
            lambda now: jax.vmap(lambda c: kind.service_time(now, c, jnp.int32(0), servers))(
                channels
            )
        )(drawn)
        return np.broadcast_to(np.asarray(drawn_times)[..., None, None], shape)
    own = np.asarray(kind.rounds, int)
    return np.broadcast_to(own[np.asarray(prompts)] if own.ndim == 2 else own, shape)


def rules_of(case):
    """Return what a run's kinds drew, in the reference's terms."""
    instance, problem = instance_of(case), case.problem
    rules = {"channels": problem.channels}
    drift = instance.workload.drift
    if drift is not None:
        rules |= {
            "other": floats(drift.other),
            "angle": np.arctan2(floats(drift.sin), floats(drift.cos)),
        }
    if instance.dynamics is None:
        return reference.Rules(**rules)
    kinds = zip(instance.dynamics.users, instance.dynamics.user_draws, strict=True)
    for kind, drawn in kinds:
        if isinstance(kind, Orbit):
            rules["return_delay"] = np.asarray(drawn)
        else:
            rules["most_attempts"] = float(kind.attempts)
            rules["gives_up"] = np.asarray(drawn)[..., 0] < float(kind.give_up)
            rules["pretends"] = np.asarray(drawn)[..., 1] < float(kind.pretends)
    for kind, drawn in zip(instance.dynamics.service, instance.dynamics.service_draws, strict=True):
        if isinstance(kind, ServiceTimes):
            rules["service_time"] = takes_of(kind, drawn, instance.workload.prompts, problem)
        elif isinstance(kind, Outages):
            rules["available"] = np.asarray(drawn)
        elif isinstance(kind, LostFeedback):
            rules["feedback_arrives"] = np.asarray(drawn)
        elif isinstance(kind, DelayedFeedback):
            rules["delay"] = kind.delay
    if instance.dynamics.patience is not None:
        rules["patience"] = np.asarray(instance.dynamics.patience)
    return reference.Rules(**rules)


@functools.partial(jax.jit, static_argnames="problem", compiler_options=FAST_COMPILE_OPTIONS)
def draw_channel(key, channel, problem):
    """Draw every round's randomness at a channel's address."""

    def at(t):
        own = rng.round_key(key, t)
        if problem.channels > 1:
            own = jax.random.fold_in(rng.stream_key(own, rng.Stream.CHANNELS), channel)
        return (
            Acqb().draws(own, problem),
            draw_assortment_rank(own, problem),
            draw_server_priorities(own, problem, rng.Stream.ASSORTMENT),
            draw_server_priorities(own, problem, rng.Stream.REPLACEMENT),
        )

    return jax.vmap(at)(jnp.arange(1, problem.horizon + 1))


def draws_of(case, plain):
    """Return the draws of each channel."""
    choice = floats(instance_of(case).choice_uniforms).reshape(HORIZON, -1)
    for channel in range(case.problem.channels):
        draws, ranks, tie_breaks, others = draw_channel(
            rng.run_key(case.seed), channel, case.problem
        )
        yield dataclasses.replace(
            plain, choice=choice[:, channel], explore=floats(draws.explore),
            normal=floats(draws.normal), query=floats(draws.query),
            assortment=np.asarray(ranks, np.int64), tie_breaks=floats(tie_breaks),
            replacement=floats(others),
        )  # fmt: skip


@functools.partial(jax.jit, static_argnames="problem", compiler_options=FAST_COMPILE_OPTIONS)
def play(key, policy, source, rate, problem):
    instance = simulate.draw_instance(key, source, rate, problem)
    carry = simulate.start(policy, problem, instance, SLOTS)

    def one(carry, t):
        carry, decision = simulate.run_round(policy, problem, instance, carry, t)
        return carry, (decision._replace(state=()), carry.length)

    carry, rules = jax.lax.scan(one, carry, jnp.arange(1, problem.horizon + 1, dtype=jnp.int32))
    return rules, carry.overflow


def policy_of(scenario, label, case):
    """Return the policy; policies of a scenario with equal states share one program."""
    own = {"estimator": "running", "exact_steps": 8} if label.startswith("acqb") else {}
    kind = next(every for every in recorded.KINDS if label in every)
    together = [other for other in kind if (scenario, other) in RUNS]
    if len(together) > 1:
        return recorded.switched(case, together, **own)[label]
    return recorded.policy(label, case, scores(case), **own)


def play_case(case, policy):
    """Return the simulator's run in the reference's terms."""
    rate, key = jnp.asarray(case.arrival_rate, float), rng.run_key(case.seed)
    (decision, length), overflow = play(
        key, as_arrays(policy), as_arrays(case.source), rate, case.problem
    )
    assert not overflow
    shape = (HORIZON, case.problem.channels)
    servers = np.asarray(decision.servers).reshape(*shape, -1)
    one_each = jax.tree.map(
        lambda leaf: np.asarray(leaf).reshape(shape), decision._replace(servers=())
    )
    return one_each._replace(servers=servers), np.asarray(length)


@pytest.mark.parametrize("run", cases(RUNS, QUICK), ids="-".join)
def test_scenario_runs_decide_like_the_reference(run, x64):
    scenario, label = run
    case = case_of(scenario, label)
    plain_scenario, plain = recorded.record(case)
    theirs = reference.simulate_scenario(
        label, plain_scenario, list(draws_of(case, plain)), case.settings(), rules_of(case)
    )
    decision, length = play_case(case, policy_of(scenario, label, case))
    valid, servers = decision.valid, decision.servers
    size = servers.shape[-1]
    satisfied = valid & (decision.choice < size)
    chosen = np.take_along_axis(servers, np.minimum(decision.choice, size - 1)[..., None], -1)
    ours = {
        "query": np.where(valid, decision.query, -1),
        "assortment": np.where(valid[..., None], recorded.shown_first(servers), -1),
        "choice": np.where(satisfied, chosen[..., 0], -1),
        "explored": decision.explored,
        "queue_length": length,
    }
    for field, values in ours.items():
        known = getattr(theirs, field)
        assert values.shape == known.shape, field
        difference = np.flatnonzero((values != known).reshape(HORIZON, -1).any(axis=1))
        assert not len(difference), f"{field} differs first in round {difference[0] + 1}"
    np.testing.assert_allclose(decision.regret, theirs.regret, atol=1e-9)
    served = theirs.query[theirs.query >= 0]
    assert len(np.unique(served)) > 20 and (theirs.choice[theirs.query >= 0] < 0).any()
    assert theirs.explored.any() or not label.startswith("acqb")
