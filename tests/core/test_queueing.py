"""The masked queue against a dictionary of slots, and its picking rules against their words."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cqbjax.core import queueing
from cqbjax.core.types import Queue

QUICK = settings(max_examples=30, deadline=None, derandomize=True)
CAPACITY = 4
push = jax.jit(queueing.push)
serve = jax.jit(queueing.serve)
nth_marked = jax.jit(queueing.pick_marked)
pick = jax.jit(queueing.pick, static_argnums=0)


@QUICK
@given(
    st.lists(
        st.tuples(
            st.booleans(), st.integers(0, CAPACITY - 1), st.booleans(),
            st.sampled_from([(0, 1), (0, 2), (1, 2)]),
        ),
        max_size=25,
    )
)  # fmt: skip
def test_the_queue_is_a_dictionary_of_slots(rounds):
    """Serve, then push, as a round does; a full queue loses the query and says so."""
    queue, model = queueing.empty_queue(CAPACITY, num_servers=3), {}
    for t, (arrives, slot, departs, shown) in enumerate(rounds, start=1):
        if slot in model:
            servers = jnp.asarray(shown, jnp.int32)
            queue = serve(queue, jnp.int32(slot), servers, jnp.bool_(departs), jnp.int32(t))
            model[slot][2] += 1
            for server in shown:
                model[slot][3][server] += 1
            if departs:
                del model[slot]
        queue, taken, came, lost = push(queue, jnp.int32(10 * t), jnp.int32(t), jnp.bool_(arrives))
        free = [c for c in range(CAPACITY) if c not in model]
        assert bool(lost) == (arrives and not free) == (arrives and not came)
        if arrives and free:
            assert int(taken) == free[0], "a new query takes the lowest free slot"
            model[free[0]] = [10 * t, t, 0, [0, 0, 0]]
        assert int(queueing.mark_waiting(queue).sum()) == len(model)
        waiting = np.asarray(queueing.mark_waiting(queue))
        assert {c for c in range(CAPACITY) if waiting[c]} == set(model)
        for c, (row, arrived, served, counts) in model.items():
            assert (queue.row[c], queue.arrived[c], queue.served[c]) == (row, arrived, served)
            assert queue.offer_counts[c].tolist() == counts


@QUICK
@given(
    st.lists(st.booleans(), min_size=CAPACITY, max_size=CAPACITY), st.integers(0, 3), st.booleans()
)
def test_pushing_several_queries_equals_pushing_them_in_order(taken, count, aware):
    """Each into the lowest free slot, in their order; those without one are lost."""
    arrived = jnp.asarray(taken, jnp.int32)
    counts = jnp.ones((CAPACITY, 2), jnp.int32) if aware else None
    entered = 7 * arrived if aware else None
    queue = Queue(arrived + 5, arrived, arrived + 3, counts, entered)
    rows, t = jnp.asarray([10, 20, 30], jnp.int32), jnp.int32(9)
    several, slot, came, lost = push(queue, rows, t, jnp.int32(count))
    expected, slots, found = queue, [], 0
    for row in rows[:count]:
        expected, last, one, _ = push(expected, row, t, jnp.bool_(True))
        found += int(one)
        slots += [int(last)] * int(one)
    for mine, theirs in zip(jax.tree.leaves(several), jax.tree.leaves(expected), strict=True):
        np.testing.assert_array_equal(mine, theirs)
    assert (int(came), bool(lost)) == (found, found < count)
    if slots:
        assert int(slot) == slots[-1]


def test_unserved_conversations_continue_with_their_next_prompt():
    queue = Queue(
        *(jnp.asarray(x, jnp.int32) for x in ([4, 6], [1, 2], [0, 0])), None, jnp.asarray([1, 2])
    )
    after = serve(
        queue, jnp.int32(1), jnp.zeros(1, jnp.int32), jnp.bool_(False), jnp.int32(8), jnp.int32(7)
    )
    assert [after.row.tolist(), after.entry_rounds.tolist()] == [[4, 7], [1, 8]]
    assert [after.arrived.tolist(), after.served.tolist()] == [[1, 2], [0, 1]]


def fill(arrived, served=None):
    arrived = jnp.asarray(arrived, jnp.int32)
    served = jnp.zeros_like(arrived) if served is None else jnp.asarray(served, jnp.int32)
    return Queue(row=jnp.zeros_like(arrived), arrived=arrived, served=served)


def test_full_queues_reject_arrivals_unchanged():
    queue = fill([3, 1, 2])
    after, _, _, lost = push(queue, jnp.int32(7), jnp.int32(9), jnp.bool_(True))
    assert bool(lost)
    for before, now in zip(queue[:3], after[:3], strict=True):
        np.testing.assert_array_equal(before, now)


def test_reused_slots_reset_their_service_count():
    queue, _, _, _ = push(fill([0, 4], [5, 1]), jnp.int32(7), jnp.int32(9), jnp.bool_(True))
    assert queue.served.tolist() == [0, 1]


@pytest.mark.parametrize(("rule", "slot"), [("oldest", 3), ("newest", 1)])
def test_oldest_and_newest_go_by_the_round_of_arrival(rule, slot):
    queue = fill([0, 9, 5, 2, 0])
    assert int(pick(rule, queue, jnp.float32(0.99))) == slot


def test_least_served_picks_among_the_queries_served_least_and_waiting():
    queue = fill([1, 2, 0, 4, 5], [3, 1, 0, 1, 2])
    uniforms = np.linspace(0.0, 0.999, 40)
    slots = [int(pick("least_served", queue, jnp.float32(u))) for u in uniforms]
    assert slots == sorted(slots) and slots.count(1) == slots.count(3) == 20


def test_random_picks_every_waiting_query_equally():
    queue = fill([0, 7, 3, 0, 1])
    uniforms = (np.arange(300, dtype=np.float32) + 0.5) / 300
    slots = [int(pick("random", queue, u)) for u in uniforms]
    assert np.bincount(slots, minlength=5).tolist() == [0, 100, 100, 0, 100]


# Sizes within a word of bits, of whole words, and of some and a part.
MASKS = st.sampled_from([1, 6, 32, 33, 160]).flatmap(
    lambda size: st.lists(st.booleans(), min_size=size, max_size=size)
)


@QUICK
@given(MASKS, st.floats(0.0, 1.0, width=32))
def test_nth_marked_is_the_floor_of_the_uniform_times_the_count(mask, uniform):
    slot = int(nth_marked(jnp.asarray(mask), jnp.float32(uniform)))
    marked = [c for c, here in enumerate(mask) if here]
    count = len(marked)
    wanted = min(int(np.float32(uniform) * np.float32(count)), count - 1)
    assert slot == (marked[wanted] if marked else 0)


@pytest.mark.parametrize("rule", ["oldest", "newest", "least_served", "random"])
def test_scheduling_rules_are_defined_on_an_empty_queue(rule):
    slot = int(pick(rule, queueing.empty_queue(5), jnp.float32(0.5)))
    assert 0 <= slot < 5
