"""The replay: every slot by its rule, the clairvoyant schedule optimal, contexts known."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cqbjax.chains import instance, linking, prepare, replay
from cqbjax.chains.instance import DIM, Run, Tables
from cqbjax.chains.linking import Rule
from cqbjax.chains.rules import Learning, Ranked
from cqbjax.chains.shards import LogError
from cqbjax.core import rng
from cqbjax.core.types import Queue
from cqbjax.policies import Acqb, Optimal

CHAINS, SLOTS, LONGEST = 5, 12, 4


def tables(lengths, tokens=None):
    """Return tables of chains of these lengths, padded so that all are of one shape."""
    lengths = np.asarray(lengths)
    first = np.concatenate([[0], np.cumsum(lengths)[:-1]])
    nodes = CHAINS * LONGEST
    tokens = np.zeros(nodes) if tokens is None else np.resize(tokens, nodes)
    return Tables(
        jnp.asarray(first, jnp.int32), jnp.asarray(lengths, jnp.int32),
        jnp.arange(nodes, dtype=jnp.int32), jnp.asarray(tokens, float), jnp.zeros(nodes),
        jnp.linspace(0, 1, nodes), jnp.zeros((nodes, instance.PROMPT_DIM)),
    )  # fmt: skip


def run(slots, seed=0):
    """Return a run in which chain i arrives in slots[i], which do not decrease."""
    until = np.searchsorted(np.asarray(slots), np.arange(SLOTS + 1), side="right")
    order = jnp.arange(CHAINS, dtype=jnp.int32)
    return Run(rng.run_key(seed), order, jnp.asarray(until, jnp.int32))


@functools.partial(jax.jit, static_argnames="capacity")
def traced(scheduler, tables, run, capacity=CHAINS):
    return replay.trace(scheduler, SLOTS, tables, run, capacity)


def shortest_queues(lengths, slots):
    """Return the least Q(t + 1) that any schedule has, for each slot by itself: exhaustive."""
    states = {tuple([-1] * CHAINS)}  # conversations left; -1 has not arrived
    least = []
    for t in range(1, SLOTS + 1):
        after = set()
        for state in states:
            waiting = [i for i, left in enumerate(state) if left > 0]
            for served in waiting or [None]:
                left = list(state)
                if served is not None:
                    left[served] -= 1
                arrived = [lengths[i] if slots[i] == t else left[i] for i in range(CHAINS)]
                after.add(tuple(arrived))
        states = after
        least.append(min(sum(left > 0 for left in state) for state in states))
    return least


INSTANCES = st.tuples(
    st.lists(st.integers(1, LONGEST), min_size=CHAINS, max_size=CHAINS),
    st.lists(st.integers(1, SLOTS), min_size=CHAINS, max_size=CHAINS).map(sorted),
)


@pytest.mark.slow
@settings(deadline=None, max_examples=60)
@given(INSTANCES)
def test_no_schedule_has_a_shorter_queue_than_the_clairvoyant_in_any_slot(drawn):
    lengths, slots = drawn
    made = traced(Ranked(by="clairvoyant"), tables(lengths), run(slots))
    assert made.queue_length.tolist() == shortest_queues(lengths, slots)


@pytest.mark.parametrize("by", ["fifo", "fifo_chain", "least_served", "random", "shortest"])
def test_every_other_rule_is_beaten_somewhere(by):
    lengths, slots = [4, 1, 3, 1, 1], [1, 2, 2, 2, 3]
    made = traced(Ranked(by=by), tables(lengths, np.arange(20) % 7), run(slots))
    best = shortest_queues(lengths, slots)
    assert (np.asarray(made.queue_length) >= best).all()
    assert made.queue_length.tolist() != best


def ranks(by, chain, lengths, arrived, served, entered, tokens):
    """Return by what a rule compares chains, in plain words."""
    first = int(np.sum(lengths[:chain]))
    return {
        "fifo": entered[chain], "fifo_chain": arrived[chain], "least_served": served[chain],
        "random": 0, "shortest": tokens[first + served[chain]],
        "clairvoyant": lengths[chain] - served[chain],
        "informed": -(first + served[chain]),
    }[by]  # fmt: skip


@settings(deadline=None, max_examples=25)
@given(
    INSTANCES, st.integers(0, 3),
    st.sampled_from(
        ["fifo", "fifo_chain", "least_served", "random", "shortest", "clairvoyant", "informed"]
    ),
)  # fmt: skip
def test_every_slot_serves_a_waiting_query_that_comes_first_by_the_rule(drawn, seed, by):
    lengths, slots = drawn
    tokens = np.random.default_rng(seed).integers(1, 5, CHAINS * LONGEST)
    made = traced(Ranked(by=by), tables(lengths, tokens), run(slots, seed))
    served, entered, waiting = [0] * CHAINS, list(slots), set()
    for t in range(1, SLOTS + 1):
        chain = int(made.chain[t - 1])
        assert (chain < 0) == (not waiting)
        if waiting:
            assert chain in waiting
            own = [ranks(by, i, lengths, slots, served, entered, tokens) for i in waiting]
            assert ranks(by, chain, lengths, slots, served, entered, tokens) == min(own)
            assert int(made.served[t - 1]) == served[chain]
            served[chain], entered[chain] = served[chain] + 1, t
            assert bool(made.departed[t - 1]) == (served[chain] == lengths[chain])
            waiting -= {chain} if served[chain] == lengths[chain] else set()
        waiting |= {i for i, slot in enumerate(slots) if slot == t}
        assert int(made.queue_length[t - 1]) == len(waiting)


def test_ties_are_broken_uniformly():
    """Of five that arrive together each is served first one time in five: 5 standard errors."""
    first = [
        int(traced(Ranked(by="random"), tables([1] * 5), run([1] * 5, seed)).chain[1])
        for seed in range(300)
    ]
    counts = np.bincount(first, minlength=5)
    assert (np.abs(counts - 60) < 5 * np.sqrt(300 * 0.2 * 0.8)).all(), counts


@pytest.mark.slow
def test_a_queue_without_a_free_place_says_in_which_slot():
    scheduler, made = Ranked(by="fifo"), (tables([4] * 5), run([1, 1, 2, 2, 3]))
    for capacity, expected in ((5, 0), (4, 3), (3, 2), (1, 1)):
        carry = replay.start(scheduler, SLOTS, capacity)
        step = jax.jit(functools.partial(replay.run_slot, scheduler, SLOTS))
        for t in range(1, SLOTS + 1):
            carry, _ = step(*made, carry, jnp.int32(t))
        assert int(carry.overflow) == expected


def test_what_a_policy_sees_is_what_a_scheduler_can_know():
    prompts = np.random.default_rng(0).normal(size=(20, instance.PROMPT_DIM))
    prompts /= np.linalg.norm(prompts, axis=1, keepdims=True)
    made = tables([3] * 5)._replace(
        prompts=jnp.asarray(prompts, float), prompt_length=jnp.full(20, 0.4)
    )
    queue = Queue(jnp.array([0, 1, 2]), jnp.array([3, 5, 99_999]), jnp.array([0, 1, 2], jnp.int32))
    node = made.first[queue.row] + queue.served
    seen = np.asarray(replay.features(made, node, queue, jnp.int32(7)))
    assert seen.shape == (3, DIM) and (np.linalg.norm(seen, axis=1) <= 1).all()
    np.testing.assert_allclose(seen[:, :32], np.sqrt(0.5) * prompts[[0, 4, 8]], rtol=1e-5)
    waited = np.log1p([4, 2, 0]) / np.log1p(1e5)
    state = np.stack([np.ones(3), [0, 1 / 2, 2 / 3], waited, [0.4] * 3], axis=1)
    np.testing.assert_allclose(seen[:, 32:], np.sqrt(0.5) / 2 * state, rtol=1e-5, atol=1e-7)


@pytest.mark.slow
def test_what_a_policy_sees_does_not_depend_on_how_long_chains_are():
    """Chains that differ only in what is still to come look the same."""
    seen = []
    for lengths in ([1, 2, 3, 4, 4], [4, 3, 2, 4, 4]):
        made = tables(lengths)._replace(text=jnp.zeros(20, jnp.int32))
        carry = replay.start(Ranked(by="fifo"), SLOTS, CHAINS)
        step = functools.partial(replay.run_slot, Ranked(by="fifo"), SLOTS)
        carry, _ = step(made, run([1] * 5), carry, jnp.int32(1))
        sight = replay.see(made, run([1] * 5), carry, jnp.int32(2), SLOTS)
        assert sight.left.tolist() == lengths
        seen.append(np.asarray(sight.observation.features))
        assert sight.observation.utilities is None
    np.testing.assert_array_equal(*seen)


def test_a_policy_that_knows_true_utilities_is_refused():
    with pytest.raises(ValueError, match="clairvoyant and informed are what knows more"):
        Learning(policy=Optimal()).check(replay.problem(10))
    with pytest.raises(ValueError, match="by=last must be one of fifo, fifo_chain"):
        Ranked(by="last").check(replay.problem(10))


def test_projection_keeps_the_leading_directions_and_no_vector_grows():
    draw = np.random.default_rng(0)
    basis = np.linalg.qr(draw.normal(size=(64, 64)))[0]
    made = draw.normal(size=(500, 64)) * np.geomspace(1, 0.01, 64)
    made = (made / np.linalg.norm(made, axis=1, keepdims=True)) @ basis.T
    shown = instance.project(made)
    assert shown.shape == (500, 32)
    assert (np.linalg.norm(shown, axis=1) <= 1 + 1e-9).all()
    # Inner products are those of the best approximation of rank 32.
    left, size, right = np.linalg.svd(made, full_matrices=False)
    best = left[:, :32] * size[:32] @ right[:32]
    np.testing.assert_allclose(shown @ shown.T, best @ best.T, atol=1e-9)
    narrow = instance.project(made[:, :5])
    assert narrow.shape == (500, 32) and not narrow[:, 5:].any()


def chains_of(lengths):
    lengths = np.asarray(lengths)
    first = np.concatenate([[0], np.cumsum(lengths)])
    return linking.Chains(np.arange(first[-1]), first, 0, 0, 0)


def test_roots_arrive_in_the_slots_of_their_times():
    chains = chains_of([2] * 50 + [1] * 200)
    times = np.sort(np.random.default_rng(3).uniform(0, 1e9, 250).astype(np.int64))
    made = instance.draw_run(0, times, chains, 0.5, 400, 0.8)
    assert made.chains[:250].tolist() == list(range(250)) and made.until.shape == (401,)
    slots = np.searchsorted(np.asarray(made.until), np.arange(250), side="right")
    wide = (times[-1] - times[0]) / 500
    inside = slots <= 400
    expected = np.minimum(1 + (times - times[0]) // wide, 500)
    np.testing.assert_array_equal(slots[inside], expected[inside])
    with pytest.raises(LogError, match=r"horizon=501 is too long: 250 chains .* are 500 slots"):
        instance.draw_run(0, times, chains, 0.5, 501, 0.8)
    with pytest.raises(LogError, match=r"arrival_rate=1.5 must lie in \(0, 1\]"):
        instance.draw_run(0, times, chains, 1.5, 10, 0.8)


def test_planted_chances_are_those_after_singletons_are_left_out(generated):
    """Of first conversations the share that is the only one is as the adjusted chances say."""
    log = prepare.load(generated)
    chains = prepare.link(log, Rule())
    made = instance.tables(log, chains, 0.8)
    kept = linking.subsample(chains.lengths, 0.8, np.random.default_rng(0))
    chance = np.asarray(made.planted)[np.asarray(made.first)[kept]]
    single = chains.lengths[kept] == 1
    spread = np.sqrt((chance * (1 - chance)).sum())
    assert abs(single.sum() - chance.sum()) < 5 * spread
    raw = np.asarray(instance.tables(log, chains).planted)[np.asarray(made.first)[kept]]
    assert raw.sum() - single.sum() > 5 * spread, "left as they were they would be too large"


@pytest.mark.slow
def test_acqb_learns_from_the_prompt_who_comes_back(as_in_a_study):
    """Paired over seeds its queue is shorter than with all prompts alike, and than under FIFO."""
    horizon, seeds = 500, 6
    draw = np.random.default_rng(0)
    lengths = np.where(draw.uniform(size=400) < 0.5, 1, 4)
    first = np.concatenate([[0], np.cumsum(lengths)[:-1]])
    nodes = int(lengths.sum())
    told = np.zeros((2, instance.PROMPT_DIM))
    told[0, 0] = told[1, 1] = 1.0
    made = Tables(
        jnp.asarray(first, jnp.int32), jnp.asarray(lengths, jnp.int32),
        jnp.asarray(np.repeat(lengths > 1, lengths), jnp.int32), jnp.zeros(nodes),
        jnp.zeros(nodes), jnp.zeros(nodes), jnp.asarray(told, float),
    )  # fmt: skip
    until = jnp.minimum(jnp.arange(horizon + 1) * 7 // 10, 400).astype(jnp.int32)
    order = jnp.asarray(draw.permutation(400), jnp.int32)
    runs = instance.stacked([Run(rng.run_key(s), order, until) for s in range(seeds)])

    @jax.jit
    def last_queue(scheduler, tables):
        one = functools.partial(replay.trace, scheduler, horizon, tables, capacity=400)
        return jax.vmap(lambda run: one(run).queue_length[-1])(runs)

    acqb = Learning(policy=Acqb(alpha_scale=0.1, c1=0.25, estimator="running"))
    seeing = last_queue(acqb, made)
    others = {
        "blind": last_queue(acqb, made._replace(text=jnp.zeros_like(made.text))),
        "fifo": last_queue(Ranked(by="fifo"), made),
    }
    best = last_queue(Ranked(by="clairvoyant"), made)
    assert (seeing >= best).all() and (seeing - best).mean() < 15
    for label, queue in others.items():
        ahead = np.asarray(queue - seeing)
        error = ahead.std(ddof=1) / np.sqrt(seeds)
        assert ahead.mean() > 10 + 5 * error, (label, ahead)
