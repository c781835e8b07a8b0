"""The contract of sources: those of the package keep it, and planted faults are found."""

import itertools
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from tiers import cases

from cqbjax import sources
from cqbjax.core import rng, simulate
from cqbjax.core.pytree import pytree, static
from cqbjax.core.world import Logged
from cqbjax.policies import Acqb, RandomRouting
from cqbjax.testing.contract import PROBLEM, ContractError, check_policy, check_source
from tests.reference import scenarios

POOL = scenarios.routing(np.random.default_rng(3).normal(0.5, 1.0, (6, 4)))
SYNTHETIC = sources.Synthetic(num_servers=3, dim=2, slackness=0.0)


@pytest.mark.slow
@pytest.mark.parametrize(
    "source",
    [
        POOL,
        SYNTHETIC,
        sources.Synthetic(num_servers=3, dim=2, slackness=0.0, parameters="shared"),
        sources.Arriving(source=POOL, process=sources.Bursty()),
        sources.Arriving(source=POOL, process=sources.traced(np.arange(20.0))),
        scenarios.Batches(source=POOL),
    ],
    ids=["pool", "synthetic", "shared", "bursty", "traced", "batches"],
)
def test_contract_of_the_source(source):
    check_source(source)


@pytest.mark.slow
@pytest.mark.parametrize("policy", [RandomRouting(), Acqb()], ids=["random", "acqb"])
def test_a_policy_keeps_its_contract_where_several_arrive(policy):
    check_policy(policy, PROBLEM._replace(arrivals_a_round=2), uncompiled=False)


CALLS = itertools.count()


@pytree
class Faulty:
    """The pool in batches with one part exchanged.

    Attributes:
        shape: changes the problem.
        draw: changes the world.
        come: changes who arrives.
    """

    shape: Any = static(default=lambda problem: problem)
    draw: Any = static(default=lambda world: world)
    come: Any = static(default=lambda arrives: arrives)

    good = scenarios.Batches(source=POOL)
    check = good.check
    uniform_service = good.uniform_service

    def problem(self, K, horizon):
        return self.shape(self.good.problem(K, horizon))

    def world(self, key, arrival_rate, problem):
        return self.draw(self.good.world(key, arrival_rate, problem))

    def arrives(self, key, arrival_rate, horizon):
        return self.come(self.good.arrives(key, arrival_rate, horizon))


def logged(world, following):
    rows = world.utilities.shape[0]
    return world._replace(logged=Logged(jnp.zeros(rows, bool), jnp.arange(rows) + following))


FAULTS = {
    "World.contexts must be float32[6, 2], and world returns float32[5, 2]": dict(
        draw=lambda world: world._replace(contexts=world.contexts[:5])
    ),
    "World.utilities must be float32[6, 4], and world returns float32[6, 3]": dict(
        draw=lambda world: world._replace(utilities=world.utilities[:, :3])
    ),
    "World.arrival_rows must be int32[48, 2], and world returns int32[48]": dict(
        draw=lambda world: world._replace(arrival_rows=world.arrival_rows[:, 0])
    ),
    "arrival_rows must be rows of the contexts": dict(
        draw=lambda world: world._replace(arrival_rows=world.arrival_rows + 1)
    ),
    "World.prompts must be int32[6], and world returns float32[6]": dict(
        draw=lambda world: world._replace(prompts=world.prompts * 1.0)
    ),
    "utilities must be finite": dict(
        draw=lambda world: world._replace(utilities=world.utilities * jnp.nan)
    ),
    "logged.next must be rows of the contexts": dict(draw=lambda world: logged(world, 1)),
    "World.logged.satisfied must be bool[6]": dict(
        draw=lambda world: world._replace(logged=Logged(world.prompts, world.prompts))
    ),
    "arrives must return int32[48], and it returns int32[47]": dict(
        come=lambda arrives: arrives[1:]
    ),
    "arrives must return int32[48], and it returns bool[48]": dict(
        come=lambda arrives: arrives > 0
    ),
    "arrives must lie in 0 .. arrivals_a_round": dict(come=lambda arrives: 2 * arrives),
    "arrivals_a_round=0 must be 1": dict(shape=lambda p: p._replace(arrivals_a_round=0)),
    "age_column=2 must lie in 0..1": dict(shape=lambda p: p._replace(age_column=2)),
    "the same key must give the same draws": dict(
        draw=lambda world: world._replace(utilities=world.utilities + next(CALLS))
    ),
    "any horizon, and arrives differ": dict(come=lambda arrives: arrives[::-1]),
    "any horizon, and queries differ": dict(
        draw=lambda world: world._replace(arrival_rows=world.arrival_rows[::-1])
    ),
}


# What another horizon changes takes long to find; rows are found as other numbers are.
LONG = ("any horizon", "must be rows of the contexts")
QUICK = [message for message in FAULTS if not any(one in message for one in LONG)]


@pytest.mark.parametrize("message", cases(FAULTS, QUICK))
def test_a_planted_fault_is_found(message):
    with pytest.raises(ContractError) as refusal:
        check_source(Faulty(**FAULTS[message]))
    assert message in str(refusal.value) and "\n" not in str(refusal.value)


def test_without_a_fault_nothing_is_found():
    check_source(Faulty(draw=lambda world: logged(world, 0)))


def test_several_arrivals_must_be_the_sources_own():
    @pytree
    class Silent:
        good = scenarios.Batches(source=POOL)
        problem, world = good.problem, good.world
        check, uniform_service = good.check, good.uniform_service

    with pytest.raises(ContractError, match="arrivals_a_round=2 must be 1, or more with a method"):
        check_source(Silent())
    with pytest.raises(ValueError, match="arrivals_a_round=2 needs a source with a method"):
        simulate.draw_instance(rng.run_key(0), Silent(), jnp.float32(0.4), Silent().problem(1, 8))
