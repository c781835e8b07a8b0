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
from cqbjax.core.types import LoggedOutcomes
from cqbjax.policies import Acqb, RandomRouting
from cqbjax.testing import PROBLEM, ContractError, check_policy, check_source
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
        sources.ArrivalWrapper(source=POOL, process=sources.BurstyArrivals()),
        sources.ArrivalWrapper(source=POOL, process=sources.convert_trace(np.arange(20.0))),
        scenarios.BatchPool(source=POOL),
    ],
    ids=["pool", "synthetic", "shared", "bursty", "traced", "batches"],
)
def test_contract_of_the_source(source):
    check_source(source)


@pytest.mark.slow
@pytest.mark.parametrize("policy", [RandomRouting(), Acqb()], ids=["random", "acqb"])
def test_a_policy_keeps_its_contract_where_several_arrive(policy):
    check_policy(policy, PROBLEM._replace(max_arrivals=2))


CALLS = itertools.count()


@pytree
class FaultySource:
    """The pool in batches with one part exchanged.

    Attributes:
        shape: changes the problem.
        draw: changes the workload.
        come: changes who arrives.
    """

    shape: Any = static(default=lambda problem: problem)
    draw: Any = static(default=lambda workload: workload)
    come: Any = static(default=lambda arrives: arrives)

    good = scenarios.BatchPool(source=POOL)
    check = good.check
    uniform_service = good.uniform_service

    def problem(self, K, horizon):
        return self.shape(self.good.problem(K, horizon))

    def draw_workload(self, key, arrival_rate, problem):
        return self.draw(self.good.draw_workload(key, arrival_rate, problem))

    def draw_arrivals(self, key, arrival_rate, horizon):
        return self.come(self.good.draw_arrivals(key, arrival_rate, horizon))


def with_log(workload, following):
    rows = workload.utilities.shape[0]
    return workload._replace(
        log=LoggedOutcomes(jnp.zeros(rows, bool), jnp.arange(rows) + following)
    )


FAULTS = {
    "Workload.contexts must be float32[6, 2], and draw_workload returns float32[5, 2]": dict(
        draw=lambda workload: workload._replace(contexts=workload.contexts[:5])
    ),
    "Workload.utilities must be float32[6, 4], and draw_workload returns float32[6, 3]": dict(
        draw=lambda workload: workload._replace(utilities=workload.utilities[:, :3])
    ),
    "Workload.arrival_rows must be int32[48, 2], and draw_workload returns int32[48]": dict(
        draw=lambda workload: workload._replace(arrival_rows=workload.arrival_rows[:, 0])
    ),
    "arrival_rows must be rows of the contexts": dict(
        draw=lambda workload: workload._replace(arrival_rows=workload.arrival_rows + 1)
    ),
    "Workload.prompts must be int32[6], and draw_workload returns float32[6]": dict(
        draw=lambda workload: workload._replace(prompts=workload.prompts * 1.0)
    ),
    "utilities must be finite": dict(
        draw=lambda workload: workload._replace(utilities=workload.utilities * jnp.nan)
    ),
    "log.next must be rows of the contexts": dict(draw=lambda workload: with_log(workload, 1)),
    "Workload.log.satisfied must be bool[6]": dict(
        draw=lambda workload: workload._replace(
            log=LoggedOutcomes(workload.prompts, workload.prompts)
        )
    ),
    "draw_arrivals must return int32[48], and it returns int32[47]": dict(
        come=lambda arrives: arrives[1:]
    ),
    "draw_arrivals must return int32[48], and it returns bool[48]": dict(
        come=lambda arrives: arrives > 0
    ),
    "draw_arrivals must lie in 0 .. max_arrivals": dict(come=lambda arrives: 2 * arrives),
    "max_arrivals=0 must be 1": dict(shape=lambda p: p._replace(max_arrivals=0)),
    "age_column=2 must lie in 0..1": dict(shape=lambda p: p._replace(age_column=2)),
    "the same key must give the same draws": dict(
        draw=lambda workload: workload._replace(utilities=workload.utilities + next(CALLS))
    ),
    "any horizon, and arrivals differ": dict(come=lambda arrives: arrives[::-1]),
    "any horizon, and queries differ": dict(
        draw=lambda workload: workload._replace(arrival_rows=workload.arrival_rows[::-1])
    ),
}


# What another horizon changes takes long to find; rows are found as other numbers are.
LONG = ("any horizon", "must be rows of the contexts")
QUICK = [message for message in FAULTS if not any(one in message for one in LONG)]


@pytest.mark.parametrize("message", cases(FAULTS, QUICK))
def test_a_planted_fault_is_found(message):
    with pytest.raises(ContractError) as refusal:
        check_source(FaultySource(**FAULTS[message]))
    assert message in str(refusal.value) and "\n" not in str(refusal.value)


def test_without_a_fault_nothing_is_found():
    check_source(FaultySource(draw=lambda workload: with_log(workload, 0)))


def test_several_arrivals_must_be_the_sources_own():
    @pytree
    class SilentSource:
        good = scenarios.BatchPool(source=POOL)
        problem, draw_workload = good.problem, good.draw_workload
        check, uniform_service = good.check, good.uniform_service

    with pytest.raises(ContractError, match="max_arrivals=2 must be 1, or more with a method"):
        check_source(SilentSource())
    with pytest.raises(ValueError, match="max_arrivals=2 needs a source with a method"):
        simulate.draw_instance(
            rng.run_key(0), SilentSource(), jnp.float32(0.4), SilentSource().problem(1, 8)
        )
