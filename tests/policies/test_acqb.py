"""When ACQB explores, and whom it serves then, beside plain words."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from cqbjax.core import rng
from cqbjax.core.pytree import as_arrays
from cqbjax.core.types import Observation, Problem, Queue
from cqbjax.estimation import WindowedBeliefState
from cqbjax.policies import Acqb
from cqbjax.policies.acqb import AcqbState
from cqbjax.testing.instances import FAST_COMPILE_OPTIONS

ROUND, ATTEMPTS, TAU = 9, 3, 12
KEY = rng.round_key(rng.run_key(1), ROUND)
UNIFORM = float(rng.uniform(KEY, rng.Stream.EXPLORE))
# T^(-1/2) lies a little above the uniform, or below.
SHORT, LONG = int(0.999 * UNIFORM**-2), int(1.001 * UNIFORM**-2) + 1


@functools.partial(jax.jit, static_argnames="windowed", compiler_options=FAST_COMPILE_OPTIONS)
def decide(policy, arrived, t, windowed):
    """Return whether a round explores, which of two queries is served, and with which servers."""
    problem = Problem(5, 2, 2, 3, LONG if windowed else SHORT, "disjoint", True)
    numbers = ([0, 1, 2], [4, 8, 0], [0, 0, 0])
    queue = Queue(*(jnp.asarray(one, jnp.int32) for one in numbers))
    seen = Observation(problem, t, queue, jnp.zeros((3, 2)), arrived, jnp.int32(1), queue.row, None)
    belief = WindowedBeliefState((), (), jnp.int32(ATTEMPTS), None) if windowed else ()
    action = policy.select(KEY, AcqbState(belief, jnp.int32(5)), seen)
    return action.explored, action.slot, action.servers


@pytest.fixture
def explores(monkeypatch):
    """Return whether a round explores: of the youngest query, by the turn's assortment, if so."""
    best = np.zeros((3, 5), np.float32)
    best[0, 3:] = 4, 5
    monkeypatch.setattr(Acqb, "optimistic", lambda self, draws, state, seen: jnp.asarray(best))

    def made(policy, arrived=True, t=ROUND, windowed=False):
        decision = decide(as_arrays(policy), np.bool_(arrived), np.int32(t), windowed)
        explored, slot, servers = map(np.asarray, decision)
        assert (int(slot), servers.tolist()) == ((1, [1, 3]) if explored else (0, [3, 4]))
        return bool(explored)

    return made


@pytest.mark.parametrize(("windowed", "since"), [(False, ROUND), (True, ATTEMPTS + 1)])
def test_exploration_decays_with_the_root_of_the_rounds(windowed, since, explores):
    """With eta(t - 1) = c1 / sqrt(t), where a query has just come."""
    edge = UNIFORM * np.sqrt(since)
    for c1, known in ((1.001 * edge, True), (0.999 * edge, False)):
        assert explores(Acqb(c1=c1), windowed=windowed) == known
        assert not explores(Acqb(c1=c1), False, windowed=windowed)
        independent = Acqb(c1=c1, exploration="independent")
        assert explores(independent, False, windowed=windowed) == known


def test_phased_exploration_always_explores_up_to_tau_and_then_decays(explores):
    policy = Acqb(c1=0.0, exploration="phased", explore_rounds=TAU)
    for t, of_long in ((1, True), (TAU, True), (TAU + 1, False)):
        assert explores(policy, t=t, windowed=True) == of_long
        assert explores(policy, t=t)
        assert not explores(policy, False, t=t)
