"""A user's own policies and sources: what of the contract a sweep itself holds them to."""

import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tiers import cases

import cqbjax
from cqbjax.core import conformance, rng, simulate
from cqbjax.core.conformance import find_faults
from cqbjax.core.contract import ContractError, is_third_party
from cqbjax.core.pytree import as_arrays, pytree, static
from cqbjax.core.queueing import QueueOverflow
from cqbjax.core.scenario import PAPER_REACTION, ServiceModel, UserModel, with_dynamics
from cqbjax.dynamics import Orbit
from cqbjax.engine import programs
from cqbjax.policies import Acqb, OptimalPolicy, RandomRouting
from cqbjax.sources import ArrivalWrapper, BurstyArrivals, PromptPool
from tests.reference import scenarios

POOL = scenarios.routing(np.linspace(-1, 1, 15).reshape(5, 3))
GOOD = {"arrival_rate": [0.3, 0.6], "seeds": [4, 9], "horizon": 40, "K": 2}


@pytree
class OneChangedPart:
    """Random routing of the oldest query, with one part exchanged."""

    act: Any = static(default=lambda action, seen: action)
    learn: Any = static(default=lambda state: state)

    def init(self, problem, contexts):
        return jnp.zeros(2)

    def select(self, key, state, seen):
        return self.act(RandomRouting(schedule="oldest").select(key, (), seen), seen)

    def update(self, state, seen, action, feedback):
        return self.learn(state)


@pytree
class AttemptNumberSum:
    """Random routing that adds up the numbers of the attempts."""

    def init(self, problem, contexts):
        return jnp.int32(0)

    def select(self, key, state, seen):
        return RandomRouting().select(key, (), seen)

    def update(self, state, seen, action, feedback):
        return state + feedback.number


@pytree
class Table:
    """The pool as a source, with one part exchanged."""

    pool: PromptPool
    made: Any = static(default=lambda workload: workload)
    own: Any = static(default=lambda arrives: arrives)

    def problem(self, size, horizon):
        return self.pool.problem(size, horizon)

    def check(self, seeds, rate, size):
        pass

    def uniform_service(self, seeds, rate, size):
        return 1.0

    def draw_workload(self, key, rate, problem):
        return self.made(self.pool.draw_workload(key, rate, problem))

    def draw_arrivals(self, key, rate, horizon):
        return self.own(jnp.arange(horizon) % 2 == 0)


def refusal_of(policies, source=POOL, **more):
    with pytest.raises(ContractError) as refusal:
        cqbjax.sweep(policies, source, **GOOD, **more)
    message = str(refusal.value)
    assert "\n" not in message and not re.search(r"[.!?]\s+[A-Z]", message), "two sentences"
    return message


def test_feedback_of_several_attempts_has_attempt_numbers():
    conformance.check_policy(AttemptNumberSum(), POOL.problem(2, 40)._replace(channels=2))
    with pytest.raises(TypeError):
        conformance.check_policy(AttemptNumberSum(), POOL.problem(2, 40))


@pytest.fixture
def nothing_compiles(monkeypatch, fresh_programs):
    """Fail the moment that a sweep compiles a program."""

    def refuse(*args, **kwargs):
        raise AssertionError("a program was compiled before the input was refused")

    monkeypatch.setattr(programs, "_map_over_runs", refuse)


TRACED = {
    "Action.slot must be int32[], and select returns float": dict(
        act=lambda a, o: a._replace(slot=a.slot * 1.0)
    ),
    "Action.servers must be int32[2], and select returns int32[1]": dict(
        act=lambda a, o: a._replace(servers=a.servers[:1])
    ),
    "Action.explored must be bool[], and select returns int32[]": dict(
        act=lambda a, o: a._replace(explored=jnp.int32(0))
    ),
    "select must return an Action, and it returns tuple": dict(act=lambda a, o: tuple(a)),
    "update must keep shapes and types, and state turns from float": dict(
        learn=lambda state: state.astype(jnp.int32)
    ),
    "update must return a state of the structure that init returns": dict(
        learn=lambda state: (state, state)
    ),
}


@pytest.mark.parametrize("message", TRACED)
def test_a_policy_of_the_wrong_shapes_is_refused_by_label_when_traced(message, nothing_compiles):
    error = refusal_of({"random": RandomRouting(), "mine": OneChangedPart(**TRACED[message])})
    assert error.startswith(f"policy mine: {message}"), error


def test_objects_that_are_not_policies_are_rejected(nothing_compiles):
    class PlainClass:
        pass

    @pytree
    class SilentPolicy(OneChangedPart):
        needs = None

    assert "policy mine: PlainClass must be registered as a pytree" in refusal_of(
        {"mine": PlainClass()}
    )
    assert "SilentPolicy.needs must be Needs of True and False, and it is None" in refusal_of(
        {"mine": SilentPolicy()}
    )


PLAYED = {
    r"select must return 2 distinct server numbers in 0\.\.2, increasing, and in round (\d+) it "
    r"returns \[0, 99\]": lambda a, o: a._replace(servers=jnp.asarray([0, 99], jnp.int32)),
    r"in round (\d+) it returns \[-1, 1\]": lambda a, o: a._replace(
        servers=jnp.asarray([-1, 1], jnp.int32)
    ),
    r"in round (\d+) it returns \[2, 1\]": lambda a, o: a._replace(
        servers=jnp.asarray([2, 1], jnp.int32)
    ),
    r"slot \d+ of round (\d+) holds none": lambda a, o: a._replace(
        slot=jnp.argmin(o.queue.arrived).astype(jnp.int32)
    ),
    r"slot -1 of round (\d+) holds none": lambda a, o: a._replace(slot=jnp.int32(-1)),
    r"slot 9999 of round (\d+) holds none": lambda a, o: a._replace(slot=jnp.int32(9999)),
}


def break_late(act):
    """Break the contract from round 13 on, so that the reported round must be found."""

    def change(action, seen):
        broken = act(action, seen)
        return jax.tree.map(lambda a, b: jnp.where(seen.round > 12, b, a), action, broken)

    return change


@pytest.mark.slow
@pytest.mark.parametrize("message", PLAYED)
def test_invalid_actions_are_reported_with_label_seed_and_round_after_the_run(message):
    error = refusal_of({"mine": OneChangedPart(act=break_late(PLAYED[message]))})
    named = re.match(rf"policy mine, seed (4|9), arrival_rate 0\.[36]: .*{message}$", error)
    assert named, error
    # The first round after the twelfth in which a query waits.
    assert 13 <= int(named[2]) <= 20


@pytest.mark.slow
def test_actions_for_an_empty_queue_are_not_checked():
    def ignore_empty(action, seen):
        empty = ~jnp.any(seen.queue.arrived > 0)
        return action._replace(slot=jnp.where(empty, 9999, action.slot))

    data = cqbjax.sweep({"mine": OneChangedPart(act=ignore_empty)}, POOL, **GOOD)
    plain = cqbjax.sweep({"mine": OneChangedPart()}, POOL, **GOOD)
    np.testing.assert_array_equal(data.queue_length, plain.queue_length)


def test_only_third_party_components_are_checked():
    """Policies of this package are not, and one of another's inside a wrapper of it is."""
    assert not is_third_party(RandomRouting()) and is_third_party(OneChangedPart())
    assert is_third_party(scenarios.FixedThetaAcqb(policy=OneChangedPart(), theta=jnp.zeros(1)))
    assert is_third_party(ArrivalWrapper(source=Table(pool=POOL), process=BurstyArrivals()))
    assert not is_third_party(ArrivalWrapper(source=POOL, process=BurstyArrivals()))


def poison(field, value):
    return lambda workload: workload._replace(
        **{field: getattr(workload, field).at[3].set(value)}  # of five rows, of forty rounds
    )


FAULTY_WORKLOADS = {
    "source Table: Workload.utilities must be float32[5, 3], "
    "and draw_workload returns float32[5, 2]": dict(
        made=lambda w: w._replace(utilities=w.utilities[:, :2])
    ),
    "source Table: Workload.contexts must be float32[5, 2], "
    "and draw_workload returns int32[5, 2]": dict(
        made=lambda w: w._replace(contexts=w.contexts.astype(jnp.int32))
    ),
    "source Table: Workload.arrival_rows must be int32[40], "
    "and draw_workload returns int32[39]": dict(
        made=lambda w: w._replace(arrival_rows=w.arrival_rows[1:])
    ),
    "source Table: draw_arrivals must return bool[40], and it returns bool[41]": dict(
        own=lambda a: jnp.append(a, True)
    ),
    "source Table: draw_workload must return a Workload, and it returns tuple": dict(made=tuple),
}


@pytest.mark.parametrize("message", FAULTY_WORKLOADS)
def test_a_source_of_the_wrong_shapes_is_refused_when_traced(message, nothing_compiles):
    for users in ([], [Orbit()]):
        own = Table(pool=POOL, **FAULTY_WORKLOADS[message])
        assert refusal_of({"random": RandomRouting()}, own, users=users) == message


@pytest.mark.slow
def test_draw_arrivals_of_a_source_works_with_an_orbit():
    several = scenarios.BatchPool(source=Table(pool=POOL))
    data = cqbjax.sweep({"mine": OneChangedPart()}, several, users=[Orbit()], **GOOD)
    assert (data.departures.isel(round=-1) > 0).all()


DRAWN = {
    "contexts must be finite numbers": poison("contexts", jnp.nan),
    "utilities must be finite numbers": poison("utilities", jnp.inf),
    "arrival_rows must be rows of the contexts": poison("arrival_rows", 5),
    "prompts must be numbers of the dataset's prompts": poison("prompts", -1),
}


@pytest.mark.slow
@pytest.mark.parametrize("message", DRAWN)
def test_invalid_instances_are_rejected(message):
    made = DRAWN[message]
    if "rows" in message:  # the third round has an arrival, the fourth none
        fine = Table(pool=POOL, made=made)
        cqbjax.sweep({"random": RandomRouting()}, fine, **GOOD)

        def made(workload):
            return workload._replace(arrival_rows=workload.arrival_rows.at[2].set(5))

    error = refusal_of({"random": RandomRouting()}, Table(pool=POOL, made=made))
    assert error.startswith(f"source Table: {message}"), error
    assert error.endswith("and those of seed 4, arrival_rate 0.6 do not"), error


@pytest.mark.parametrize(
    "labelled", [RandomRouting(), OneChangedPart(), cqbjax.PerSeed([OptimalPolicy()] * 2)]
)
def test_the_label_optimal_is_reserved_for_the_optimal_policy(labelled, nothing_compiles):
    with pytest.raises(
        ValueError, match="policy optimal must be cqbjax.policies.OptimalPolicy()"
    ) as no:
        cqbjax.sweep({"optimal": labelled}, POOL, **GOOD)
    assert type(labelled).__name__ in str(no.value)


PROBLEM = POOL.problem(2, 40)


@pytest.mark.slow
def test_a_traced_run_that_loses_a_query_is_refused():
    arguments = rng.run_key(0), RandomRouting(), POOL, 0.9, PROBLEM
    enough = simulate.trace(*arguments, capacity=64)
    with pytest.raises(QueueOverflow, match="capacity=2 overflowed in round [0-9]+"):
        simulate.trace(*arguments, capacity=2)
    assert enough.row.shape == (40,)


@pytest.mark.slow
def test_a_traced_run_that_breaks_the_contract_is_refused():
    act = PLAYED[r"slot -1 of round (\d+) holds none"]
    with pytest.raises(ContractError, match="slot -1 of round [0-9]+ holds none"):
        simulate.trace(rng.run_key(0), OneChangedPart(act=act), POOL, 0.9, PROBLEM, 64)


def test_trace_rejects_compilation():
    with pytest.raises(TypeError, match=r"use simulate\.run_rounds"):
        jax.jit(lambda key: simulate.trace(key, OneChangedPart(), POOL, 0.5, PROBLEM, 64))(
            rng.run_key(0)
        )


@pytest.mark.slow
def test_trace_without_states_returns_no_state():
    """At the shapes of a dataset of eleven LLMs the states alone would take 85 GB."""
    source = scenarios.unit_vectors(11, 384, 1000)
    policy = Acqb()
    problem = source.problem(1, 5000)

    def bytes_of(states):
        def play(key):
            return simulate.run_rounds(key, policy, source, 0.5, problem, 64, states)[0]

        made = jax.eval_shape(play, rng.run_key(0))
        return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(made))

    assert bytes_of(True) > 80e9 and bytes_of(False) < 1e6


@pytest.mark.slow
def test_trace_without_states_has_the_same_decisions():
    arguments = rng.run_key(3), Acqb(), POOL, 0.6, PROBLEM, 64
    whole, short = simulate.trace(*arguments), simulate.trace(*arguments, states=False)
    assert short.state == ()
    for name in ("query", "row", "servers", "choice", "regret"):
        np.testing.assert_array_equal(getattr(whole, name), getattr(short, name))


@pytree
class ZeroReturnDelay(UserModel):
    """Says that nobody is away, which is no round."""

    def draw(self, key, problem):
        return jnp.zeros((problem.horizon, problem.channels))

    def react(self, drawn, attempts):
        return PAPER_REACTION._replace(return_delay=jnp.int32(0))


@pytree
class ZeroServiceTime(ServiceModel):
    """Says that an attempt takes no round."""

    def draw(self, key, problem):
        return jnp.zeros(problem.horizon)

    def service_time(self, drawn, place, prompt, servers):
        return jnp.int32(0)


@pytest.mark.parametrize("kind", cases([ZeroReturnDelay, ZeroServiceTime], [ZeroServiceTime]))
def test_a_component_with_wrong_draws_is_named_by_its_group(kind):
    group = "users" if kind is ZeroReturnDelay else "service"
    kinds = {group: [kind()]}
    source = with_dynamics(POOL, kinds.get("users", []), kinds.get("service", []))
    problem = source.problem(1, 6)
    instance = simulate.draw_instance(rng.run_key(0), as_arrays(source), jnp.float32(0.5), problem)
    batch = jax.tree.map(lambda leaf: leaf[None], instance)
    ((component, error, number),) = find_faults(source, problem, batch)
    assert component == f"{group} {kind.__name__}" and number.tolist() == [
        3 if group == "users" else 4
    ]
    assert error[number[0] - 1].endswith("at least 1 round")
