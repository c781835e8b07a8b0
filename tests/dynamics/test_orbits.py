"""Users who go away and come back: orbits and retrial queues with known answers."""

from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
import pytest
from jax import Array
from stationary import close, sweep_stationary

from cqbjax.core import queueing
from cqbjax.core.pytree import pytree
from cqbjax.core.types import Action, Feedback, Observation
from cqbjax.dynamics import Orbit, ServiceChannels, ServiceTimes
from cqbjax.policies import OptimalPolicy
from cqbjax.sources import PromptPool
from tests.reference import known_queues, queues

LOAD = 0.6
M, RATE = known_queues.M, LOAD * known_queues.M
ANY = {"optimal": OptimalPolicy()}
# Server 0 satisfies everybody, server 1 nobody.
BUSY = PromptPool(contexts=np.ones((1, 1)), utilities=np.array([[14.0, -40.0]]), pool_size=1)

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("all_as_in_a_study")]


@pytest.mark.parametrize("back", [0.2, 0.05, 0.01])
def test_orbit_size_and_idle_share_match_closed_forms(back):
    data = sweep_stationary(
        ANY, known_queues.COIN, RATE, seeds=100, horizon=4000, burn_in=600, record=["away"],
        users=[Orbit(return_rate=back)], capacity=96,
    ).isel(policy=0)  # fmt: skip
    failures = RATE * (1 - M) / M
    close(data.away.mean("round").values, failures * (1 - back) / back)
    close((data.queue_length == 0).mean("round").values, 1 - RATE / M)
    waits = data.queue_length.mean("round").values
    close(waits, queues.orbiting(M, back, RATE)[0])
    if back == 0.01:
        close(waits, queues.slow_returns(M, RATE))


class BusyState(NamedTuple):
    """Whether the server is: [] bool."""

    busy: Array


@pytree
class OneServer:
    """Serve one query at a time by server 0, and send all others to server 1, which fails them.

    Of two places one is the server's, and the other is where who finds it busy hears so.
    """

    def init(self, problem: Any, contexts: Array) -> BusyState:
        return BusyState(jnp.bool_(False))

    def select(self, key: Array, state: BusyState, observation: Observation) -> Action:
        waits = jnp.any(queueing.mark_waiting(observation.queue))
        server = jnp.where(waits & ~state.busy, 0, 1).astype(jnp.int32)
        slot = queueing.pick("oldest", observation.queue, jnp.zeros(()))
        return Action(slot, server[None], jnp.bool_(False))

    def update(
        self, state: BusyState, observation: Observation, action: Action, feedback: Feedback
    ) -> BusyState:
        goes_on = (action.servers[0] == 0) & ~feedback.valid
        first = feedback.number % 2 == 1
        return BusyState(goes_on | (state.busy & ~first))


def test_short_rounds_approach_the_classical_retrial_queue():
    """M/M/1 with retrials at a linear rate: who finds the server busy tries again at rate th.

    The constant rate, at which the orbit as a whole returns, is no kind of users here.
    """
    load, returns, short, horizon = 0.5, 0.5, 0.02, 42_000
    rate = load * short
    data = sweep_stationary(
        {"one": OneServer()}, BUSY, rate, seeds=128, horizon=horizon,
        burn_in=2000, every=100, users=[Orbit(return_rate=returns * short)],
        service=[ServiceChannels(count=2), ServiceTimes(rounds=[1 / short, 1], law="geometric")],
        record=["away", "in_service"], capacity=32,
    ).sel(policy="one")  # fmt: skip
    close(data.away.mean("round").values, queues.retrial(load, returns))
    # Who leaves in a round is not in service after it.
    close((data.in_service.mean("round") + rate).values, load)
