"""Servers that are down are left out of what is shown, at any assortment size."""

import jax
import numpy as np
import pytest

from cqbjax.core import rng, simulate
from cqbjax.core.pytree import as_arrays
from cqbjax.core.scenario import with_dynamics
from cqbjax.dynamics import Outages, ServiceChannels
from cqbjax.policies import Acqb, OptimalPolicy, RandomRouting, RouterPolicy
from cqbjax.sources import PromptPool

pytestmark = pytest.mark.slow

HORIZON, SERVERS = 120, 5
DRAW = np.random.default_rng(8)
POOL = PromptPool(
    contexts=DRAW.normal(size=(20, 3)), utilities=DRAW.normal(size=(20, SERVERS)), pool_size=16
)
SERVICE = [Outages(share=0.5, length=4, since=[1, 1, 1, 40, 1], until=[90, 120, 120, 120, 120])]
POLICIES = {
    "optimal": OptimalPolicy(),
    "acqb": Acqb(c1=3.0),
    "acqb_ucb": Acqb(optimism="ucb"),
    "acqb_fallback": Acqb(retry="fallback", schedule="oldest"),
    "acqb_recall": Acqb(retry="recall"),
    "random": RandomRouting(),
    "rand_rout_fallback": RandomRouting(retry="fallback"),
    "routed": RouterPolicy(scores=DRAW.normal(size=(20, SERVERS)), by="prompt", schedule="joint"),
}
# One server a query is the same code, and is held to the reference, decision for decision, in its
# scenario of outages (testing/test_scenarios_against_reference.py).
CASES = [(label, 2, 1) for label in POLICIES]
CASES += [("acqb", 2, 2), ("random", 1, 3)]


draw_instance = jax.jit(simulate.draw_instance, static_argnames="problem")


def run(policy, size, channels):
    """Return who was shown, where a query was served, and who was there."""
    source = as_arrays(with_dynamics(POOL, [], [*SERVICE, ServiceChannels(count=channels)]))
    problem = source.problem(size, HORIZON)
    key = rng.run_key(3)
    decision, _ = jax.jit(
        lambda policy: simulate.run_rounds(key, policy, source, 0.9, problem, 128, states=False)
    )(as_arrays(policy))
    rules = draw_instance(key, source, np.float32(0.9), problem=problem).dynamics
    shape = (HORIZON, channels)
    servers = np.asarray(decision.servers).reshape(*shape, size)
    return servers, np.asarray(decision.valid).reshape(shape), np.asarray(rules.service_draws[0])


@pytest.mark.parametrize("case", CASES, ids=str)
def test_policies_offer_only_available_servers_and_as_many_as_possible(case):
    label, size, channels = case
    servers, valid, there = run(POLICIES[label], size, channels)
    shown = servers >= 0
    up = np.take_along_axis(there[:, None, :], np.maximum(servers, 0), axis=-1)
    assert not (shown & ~up)[valid].any() and not valid[~there.any(axis=-1)].any()
    enough = np.broadcast_to(np.minimum(there.sum(axis=-1), size)[:, None], valid.shape)
    np.testing.assert_array_equal(shown.sum(axis=-1)[valid], enough[valid])
    # The test sees rounds of every kind, and every server that joins and leaves.
    assert {1, size} <= set(enough[valid]) and not there[:39, 3].any() and not there[90:, 0].any()
    assert not there.any(axis=-1).all()
    assert (servers[valid] == 3).any() and valid.sum() > HORIZON / 2
