"""Parts of a round by themselves: what slots keep of contexts, and what waiting makes of them."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from cqbjax.core import attempts, observations, platforms, queueing, rng, simulate
from cqbjax.core.carry import PendingFeedback
from cqbjax.core.instances import Instance, choice_uniform
from cqbjax.core.pytree import pytree
from cqbjax.core.types import (
    DOWN_UTILITY,
    LONG_WAIT,
    Action,
    Observation,
    PreferenceDrift,
    Problem,
    Queue,
    Workload,
)
from cqbjax.testing.instances import PROBLEM, draw_instances

PLATFORMS = {"cpu": platforms.CPU, "gpu": platforms.GPU}
DRAW = np.random.default_rng(0)


@pytest.mark.parametrize("platform", PLATFORMS)
@pytest.mark.parametrize("shape", [(2,), (3, 2)], ids=["disjoint", "shared"])
def test_a_slot_keeps_the_context_of_the_query_that_came(platform, shape):
    slots, contexts = DRAW.normal(size=(*shape, 5)), DRAW.normal(size=(4, *shape))

    @jax.jit
    def store(here):
        return simulate._store_features(
            jnp.asarray(slots), jnp.asarray(contexts), 3, jnp.int32(1), here
        )

    with platforms.use(PLATFORMS[platform]):
        stored, came = np.asarray(store(False)), np.asarray(store(True))
    np.testing.assert_allclose(stored, slots, rtol=1e-6)
    expected = slots.copy()
    expected[..., 1] = contexts[3]
    np.testing.assert_allclose(came, expected, rtol=1e-6)
    assert simulate._store_features(None, contexts, 0, 0, True) is None


@pytest.mark.parametrize("shape", [(3,), (2, 3)], ids=["disjoint", "shared"])
def test_one_column_grows_with_the_rounds_of_waiting(shape):
    features, waited = DRAW.normal(size=(4, *shape)), np.array([-5, 0, 7, 10**6])
    aged = jax.jit(
        lambda: observations._grow_age_column(jnp.asarray(features), 1, jnp.asarray(waited))
    )()
    expected = features.copy()
    age = np.log1p([0, 0, 7, LONG_WAIT]) / np.log1p(LONG_WAIT)
    expected[..., 1] *= age.reshape(4, *(1,) * (len(shape) - 1))
    np.testing.assert_allclose(aged, expected, rtol=1e-6)


class AvailabilityRules:
    """Rules by which some servers answer, from the second round on."""

    def combine(self, method, round_):
        return jnp.asarray([True, False, True]) | (round_ < 2)


def test_utilities_drift_and_unavailable_servers_are_masked():
    utilities, other = DRAW.normal(size=(2, 4, 3))
    cos, sin = np.array([1.0, 0.6, 0.0]), np.array([0.0, 0.8, 1.0])
    still = Workload(jnp.zeros((4, 1)), jnp.asarray(utilities), None, None)
    turned = still._replace(
        drift=PreferenceDrift(jnp.asarray(other), jnp.asarray(cos), jnp.asarray(sin))
    )
    rows = jnp.asarray([2, 0])

    def utilities_seen(workload, rules, t):
        return np.asarray(
            simulate.true_utilities(Instance(None, workload, None, None, rules), rows, jnp.int32(t))
        )

    for t in (1, 2, 3):
        mixed = cos[t - 1] * utilities[[2, 0]] + sin[t - 1] * other[[2, 0]]
        np.testing.assert_allclose(utilities_seen(still, None, t), utilities[[2, 0]], rtol=1e-6)
        np.testing.assert_allclose(utilities_seen(turned, None, t), mixed, rtol=1e-5)
        if t > 1:
            mixed[:, 1] = DOWN_UTILITY
        np.testing.assert_allclose(utilities_seen(turned, AvailabilityRules(), t), mixed, rtol=1e-5)


def test_a_fixed_outcome_belongs_to_a_server_and_a_query_or_a_prompt():
    """Whichever row of which pool the prompt is in, and whichever slot the query has."""
    rows, arrived = np.array([0, 1, 0, 2], np.int32), np.array([3, 4, 4, 9], np.int32)

    @functools.partial(jax.jit, static_argnums=0)
    def verdicts(outcome, prompts):
        workload = Workload(None, None, None, prompts)
        instance = Instance(rng.run_key(5), workload, None, None)
        queue = Queue(jnp.asarray(rows), jnp.asarray(arrived), jnp.zeros(4, jnp.int32))
        problem = Problem(3, 1, 1, 3, 9, "disjoint", True, outcome=outcome)

        def one(slot, server):
            action = Action(slot, server[None], jnp.bool_(False))
            return choice_uniform(problem, instance, queue, action, jnp.float32(0.5))

        each = jax.vmap(jax.vmap(one, (None, 0)), (0, None))
        return each(jnp.arange(4), jnp.arange(2))

    asked, again = np.array([7, 8, 9], np.int32), np.array([8, 9, 7], np.int32)
    drawn = np.asarray(verdicts("prompt", asked))
    assert len(np.unique(drawn)) == 6 and (drawn[0] == drawn[2]).all()
    np.testing.assert_array_equal(
        np.asarray(verdicts("prompt", again))[[3, 0, 1]], drawn[[0, 1, 3]]
    )
    drawn = np.asarray(verdicts("query", asked))
    assert len(np.unique(drawn)) == 6 and (drawn[1] == drawn[2]).all()
    np.testing.assert_array_equal(verdicts("query", again), drawn)
    assert (np.asarray(verdicts("attempt", asked)) == 0.5).all()


def test_delayed_feedback_belongs_to_the_attempted_query():
    """Another one may have its slot by now; the others are shown as they are."""
    contexts, prompts = DRAW.normal(size=(5, 2)), 10 * np.arange(5)
    now = Queue(*map(jnp.asarray, ([4, 1], [7, 9], [0, 0])))
    seen = Observation(
        None, 9, now, jnp.asarray(contexts[[4, 1]]), True, 1, jnp.asarray(prompts[[4, 1]]), None
    )
    action = Action(0, jnp.asarray([1]), False)
    feedback = PendingFeedback(Queue(*map(jnp.asarray, (2, 3, 1))), action, 0, True)
    workload = Workload(jnp.asarray(contexts), None, None, jnp.asarray(prompts))
    shown = attempts._restore_query(seen, Instance(None, workload, None, None), feedback)
    for field, known in (("row", [2, 1]), ("arrived", [3, 9]), ("served", [1, 0])):
        assert getattr(shown.queue, field).tolist() == known
    np.testing.assert_allclose(shown.features, contexts[[2, 1]], rtol=1e-6)
    assert shown.prompts.tolist() == [20, 10]


@pytree
class AlwaysExploring:
    """A policy that explores in every round."""

    def init(self, problem, contexts):
        return ()

    def select(self, key, state, observation):
        slot = jnp.argmax(queueing.mark_waiting(observation.queue)).astype(jnp.int32)
        return Action(slot, jnp.asarray([0, 2], jnp.int32), jnp.bool_(True))

    def update(self, state, observation, action, feedback):
        return state


def test_empty_queues_have_invalid_decisions():
    instance = jax.tree.map(lambda leaf: leaf[0], draw_instances(PROBLEM, 0, 1))
    carry, decisions = simulate.start(AlwaysExploring(), PROBLEM, instance, 48), []
    step = jax.jit(functools.partial(simulate.run_round, AlwaysExploring(), PROBLEM, instance))
    for t in range(1, 20):
        waiting = np.flatnonzero(carry.queue.arrived)
        slot = waiting[0] if waiting.size else 0
        arrived, row = carry.queue.arrived[slot], carry.queue.row[slot]
        carry, made = step(carry, jnp.int32(t))
        assert (bool(made.valid), bool(made.explored)) == (bool(waiting.size),) * 2
        assert (int(made.query), int(made.row)) == (int(arrived), int(row))
        assert made.servers.tolist() == [0, 2]
        decisions.append(bool(made.valid))
    assert any(decisions) and not all(decisions)
