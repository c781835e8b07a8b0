"""The replay: every round by its rule, the clairvoyant schedule optimal, contexts known."""

import dataclasses
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cqbjax.core import rng, simulate
from cqbjax.core.types import Queue
from cqbjax.logs import linking, prepare
from cqbjax.logs import replay as replaying
from cqbjax.logs.linking import LinkingRule
from cqbjax.logs.replay import DIM, ReplaySource, make_replay
from cqbjax.logs.schedules import RankedSchedule, make_schedule, true_satisfaction
from cqbjax.logs.shards import LogError
from cqbjax.policies import Acqb, OptimalPolicy, RandomRouting
from cqbjax.testing import check_source
from tests.reference import scenarios

CHAINS, ROUNDS, LONGEST, RATE = 5, 12, 4, 0.5
ROWS = CHAINS * LONGEST


def source(lengths, rounds, seeds=(0,), contexts=None):
    """Return chains of these lengths, of one shape, of which the i-th arrives in rounds[i]."""
    lengths = np.asarray(lengths)
    first = np.concatenate([[0], np.cumsum(lengths)[:-1]])
    left = np.ones(ROWS)
    for root, length in zip(first, lengths, strict=True):
        left[root : root + length] = np.arange(length, 0, -1)
    roots, counts = replaying.place_arrivals(first, np.asarray(rounds), ROUNDS, CHAINS)
    return ReplaySource(
        contexts=jnp.zeros((ROWS, DIM)) if contexts is None else contexts,
        left=jnp.asarray(left, float), seeds=jnp.asarray(seeds, jnp.int32),
        roots=jnp.asarray(np.stack([roots] * len(seeds)), jnp.int32),
        counts=jnp.asarray(np.stack([counts] * len(seeds)), jnp.int32), rate=RATE,
    )  # fmt: skip


def policy(by, tokens=()):
    """Return the policy of a rule; `tokens` of the conversations, and chances in falling order."""
    words = {"fifo_chain": "oldest", "least_served": "least_served", "random": "random"}
    if by in words:
        return RandomRouting(schedule=words[by])
    tables = {"shortest": np.resize(tokens, ROWS), "informed": -np.linspace(0, 1, ROWS)}
    return {"fifo": RankedSchedule(), "clairvoyant": OptimalPolicy()}.get(by) or RankedSchedule(
        order=jnp.asarray(tables[by], float)
    )


def played(policy, source, seeds=0, capacity=CHAINS):
    problem = source.problem(1, ROUNDS)
    return scenarios.play(policy, source, RATE, problem, capacity, seeds, keep_all=True)


def traced(policy, source, seed=0, capacity=CHAINS):
    return scenarios.first(played(policy, source, seed, capacity))


def shortest_queues(lengths, rounds):
    """Return the least Q(t + 1) that any schedule has, for each round by itself: exhaustive."""
    states = {tuple([-1] * CHAINS)}  # conversations left; -1 has not arrived
    least = []
    for t in range(1, ROUNDS + 1):
        after = set()
        for state in states:
            waiting = [i for i, left in enumerate(state) if left > 0]
            for served in waiting or [None]:
                left = list(state)
                if served is not None:
                    left[served] -= 1
                arrived = [lengths[i] if rounds[i] == t else left[i] for i in range(CHAINS)]
                after.add(tuple(arrived))
        states = after
        least.append(min(sum(left > 0 for left in state) for state in states))
    return least


INSTANCES = st.tuples(
    st.lists(st.integers(1, LONGEST), min_size=CHAINS, max_size=CHAINS),
    st.lists(st.integers(1, ROUNDS), min_size=CHAINS, max_size=CHAINS).map(sorted),
)


@pytest.mark.slow
@settings(deadline=None, max_examples=60)
@given(INSTANCES)
def test_clairvoyant_schedule_minimises_the_queue_in_every_round(drawn):
    lengths, rounds = drawn
    made = traced(OptimalPolicy(), source(lengths, rounds))
    assert made.length.tolist() == shortest_queues(lengths, rounds)


BEATEN = ("fifo", "fifo_chain", "least_served", "random", "shortest")


@pytest.mark.slow
@pytest.mark.parametrize("by", BEATEN)
def test_clairvoyant_schedule_beats_every_other_rule(by):
    lengths, rounds = [4, 1, 3, 1, 1], [1, 2, 2, 2, 3]
    made = traced(policy(by, np.arange(20) % 7), source(lengths, rounds))
    best = shortest_queues(lengths, rounds)
    assert (made.length >= best).all() and made.length.tolist() != best


def ranks(by, chain, lengths, arrived, served, entered, tokens):
    """Return by what a rule compares chains, in plain words."""
    first = int(np.sum(lengths[:chain]))
    return {
        "fifo": entered[chain], "fifo_chain": arrived[chain], "least_served": served[chain],
        "random": 0, "shortest": tokens[first + served[chain]],
        "clairvoyant": lengths[chain] - served[chain],
        "informed": -(first + served[chain]),
    }[by]  # fmt: skip


@pytest.mark.slow
@settings(deadline=None, max_examples=25)
@given(
    INSTANCES, st.integers(0, 3),
    st.sampled_from(
        ["fifo", "fifo_chain", "least_served", "random", "shortest", "clairvoyant", "informed"]
    ),
)  # fmt: skip
def test_every_round_serves_a_waiting_query_that_comes_first_by_the_rule(drawn, seed, by):
    lengths, rounds = drawn
    tokens = np.random.default_rng(seed).integers(1, 5, ROWS)
    made = traced(policy(by, tokens), source(lengths, rounds, range(4)), seed)
    root = np.repeat(np.arange(CHAINS), lengths)
    served, entered, waiting = [0] * CHAINS, list(rounds), set()
    for t in range(1, ROUNDS + 1):
        assert bool(made.decision.valid[t - 1]) == bool(waiting)
        if waiting:
            chain = int(root[made.decision.row[t - 1]])
            assert chain in waiting
            own = [ranks(by, i, lengths, rounds, served, entered, tokens) for i in waiting]
            assert ranks(by, chain, lengths, rounds, served, entered, tokens) == min(own)
            assert made.decision.row[t - 1] == sum(lengths[:chain]) + served[chain]
            served[chain], entered[chain] = served[chain] + 1, t
            assert (made.decision.choice[t - 1] == 0) == (served[chain] == lengths[chain])
            waiting -= {chain} if served[chain] == lengths[chain] else set()
        waiting |= {i for i, arrival in enumerate(rounds) if arrival == t}
        assert made.length[t - 1] == len(waiting)
    assert not made.decision.regret.any() and made.overflow == 0


@pytest.mark.slow
def test_ties_are_broken_uniformly():
    """Of five that arrive together each is served first one time in five: 5 standard errors."""
    seeds = np.arange(300)
    made = played(policy("random"), source([1] * 5, [1] * 5, seeds), seeds)
    counts = np.bincount(made.decision.row[:, 1], minlength=5)
    assert (np.abs(counts - 60) < 5 * np.sqrt(300 * 0.2 * 0.8)).all(), counts


@pytest.mark.slow
@pytest.mark.parametrize(("capacity", "expected"), [(5, 0), (4, 3), (3, 2), (1, 1)])
def test_an_overflow_names_its_round(capacity, expected):
    made = traced(RankedSchedule(), source([4] * 5, [1, 1, 2, 2, 3]), capacity=capacity)
    assert made.overflow == expected


draw_instance = jax.jit(simulate.draw_instance, static_argnames="problem")


@jax.jit
def seen(source, queue, round_):
    """Return what a policy sees of a queue."""
    problem, policy = source.problem(1, ROUNDS), RandomRouting()
    drawn = simulate.draw_instance(rng.run_key(0), source, RATE, problem)
    carry = simulate.start(policy, problem, drawn, queue.row.shape[0])._replace(queue=queue)
    assert carry.slot_features is None
    seen = simulate.observe(policy, problem, drawn, carry, round_)
    return seen.features, seen.utilities, seen.prompts


def test_replay_policies_observe_only_known_quantities(generated):
    log = prepare.load_log(generated)
    chains = prepare.link(log, LinkingRule())
    made = make_replay(log, chains, [0], 0.7, ROUNDS, 0.8)
    root = int(chains.first[np.argmax(chains.lengths)])
    row = jnp.asarray([root, root + 1, root + 2], jnp.int32)
    queue = Queue(row, jnp.array([3, 5, 99_999], jnp.int32), jnp.array([0, 1, 2], jnp.int32))
    features, utilities, prompts_shown = seen(made, queue, 7)
    features = np.asarray(features)
    assert features.shape == (3, DIM) and (np.linalg.norm(features, axis=1) <= 1).all()
    frame = log.frame[chains.members[np.asarray(row)]]
    prompts = replaying.project(log.embeddings)[frame["text"].to_numpy()]
    np.testing.assert_allclose(features[:, :32], np.sqrt(0.5) * prompts, rtol=1e-5, atol=1e-7)
    waited = np.log1p([4, 2, 0]) / np.log1p(1e5)
    asked = np.log1p(frame["prompt_tokens"].to_numpy()) / np.log1p(1e5)
    state = np.stack([np.ones(3), [0, 1 / 2, 2 / 3], waited, asked], axis=1)
    np.testing.assert_allclose(features[:, 32:], np.sqrt(0.5) / 2 * state, rtol=1e-5, atol=1e-7)
    assert utilities is None and prompts_shown.tolist() == row.tolist()
    # Nor does it depend on what is still to come.
    ending, _, _ = seen(
        dataclasses.replace(made, left=np.ones(made.left.shape, np.float32)), queue, 7
    )
    np.testing.assert_array_equal(ending, features)


def test_undefined_replay_options_are_rejected(generated):
    log = prepare.load_log(generated)
    chains = prepare.link(log, LinkingRule())
    with pytest.raises(ValueError, match="schedule last must be one of fifo, fifo_chain"):
        make_schedule("last", log, chains, 0.8)
    made = source([1] * 5, [1] * 5)
    with pytest.raises(ValueError, match="seed 3 is none of those"):
        made.check(np.array([0, 3]), RATE, 1)
    with pytest.raises(ValueError, match="arrival_rate=0.7 must be 0.5 chains a round"):
        made.check(np.array([0]), 0.7, 1)
    with pytest.raises(ValueError, match="K=2 must be 1"):
        made.check(np.array([0]), RATE, 2)
    with pytest.raises(ValueError, match="newton_cg needs features that stay"):
        Acqb(estimator="newton_cg").check(made.problem(1, ROUNDS))


def test_runs_of_a_log_are_determined_by_their_seeds(generated):
    log = prepare.load_log(generated)
    chains = prepare.link(log, LinkingRule())
    made = make_replay(log, chains, [4, 7], 0.7, 120, 0.8)
    arrivals = log.frame["arrival"].to_numpy()[chains.members[chains.first[:-1]]]
    for seed in (7, 4):
        subset, rounds = replaying.draw_arrivals(seed, arrivals, chains, 0.7, 120, 0.8)
        drawn = draw_instance(rng.run_key(seed), made, 0.7, problem=made.problem(1, 120))
        rows, arrives = np.asarray(drawn.workload.arrival_rows), np.asarray(drawn.arrivals)
        here = np.arange(rows.shape[1]) < arrives[:, None]
        assert rows[here].tolist() == chains.first[subset].tolist()
        np.testing.assert_array_equal(drawn.arrivals, np.bincount(rounds, minlength=121)[1:])
    assert (np.asarray(made.roots[0]) != np.asarray(made.roots[1])).any()
    lengths = np.diff(chains.first)
    come = [lengths[replaying.draw_arrivals(s, arrivals, chains, 0.7, 120, 0.8)[0]] for s in (4, 7)]
    assert np.isclose(made.uniform_service(None, 0.7, 1), 1 / np.concatenate(come).mean())


@pytest.mark.slow
def test_log_replay_keeps_the_contract_of_sources(generated):
    log = prepare.load_log(generated)
    made = make_replay(log, prepare.link(log, LinkingRule()), [4, 7], 0.7, 120, 0.8)
    check_source(made, arrival_rate=0.7, seed=7, horizon=120)


def test_projection_keeps_leading_directions_and_bounds_norms():
    draw = np.random.default_rng(0)
    basis = np.linalg.qr(draw.normal(size=(64, 64)))[0]
    made = draw.normal(size=(500, 64)) * np.geomspace(1, 0.01, 64)
    made = (made / np.linalg.norm(made, axis=1, keepdims=True)) @ basis.T
    shown = replaying.project(made)
    assert shown.shape == (500, 32)
    assert (np.linalg.norm(shown, axis=1) <= 1 + 1e-9).all()
    # Inner products are those of the best approximation of rank 32.
    left, size, right = np.linalg.svd(made, full_matrices=False)
    best = left[:, :32] * size[:32] @ right[:32]
    np.testing.assert_allclose(shown @ shown.T, best @ best.T, atol=1e-9)
    narrow = replaying.project(made[:, :5])
    assert narrow.shape == (500, 32) and not narrow[:, 5:].any()


def chains_of(lengths):
    lengths = np.asarray(lengths)
    first = np.concatenate([[0], np.cumsum(lengths)])
    return linking.Chains(np.arange(first[-1]), first, 0, 0, 0)


def test_roots_arrive_in_the_rounds_of_their_times():
    chains = chains_of([2] * 50 + [1] * 200)
    times = np.sort(np.random.default_rng(3).uniform(0, 1e9, 250).astype(np.int64))
    subset, rounds = replaying.draw_arrivals(0, times, chains, 0.5, 400, 0.8)
    wide = (times[-1] - times[0]) / 500
    expected = np.minimum(1 + (times - times[0]) // wide, 500)
    assert subset.tolist() == list(range(int((expected <= 400).sum())))
    np.testing.assert_array_equal(rounds, expected[expected <= 400])
    rows, counts = replaying.place_arrivals(subset + 1000, rounds, 400, 8)
    assert rows.shape == (400, 8) and counts.max() > 1
    for t in range(1, 401):
        assert rows[t - 1, : counts[t - 1]].tolist() == (subset[rounds == t] + 1000).tolist()
    with pytest.raises(LogError, match=r"horizon=501 is too long: 250 chains .* are 500 rounds"):
        replaying.draw_arrivals(0, times, chains, 0.5, 501, 0.8)
    with pytest.raises(LogError, match=r"arrival_rate=1.5 must lie in \(0, 1\]"):
        replaying.draw_arrivals(0, times, chains, 1.5, 10, 0.8)


def test_adjusted_ground_truth_matches_the_filtered_log(generated):
    """Of first conversations the share that is the only one is as the adjusted chances say."""
    log = prepare.load_log(generated)
    chains = prepare.link(log, LinkingRule())
    subset = linking.subsample(chains.lengths, 0.8, np.random.default_rng(0))
    chance = true_satisfaction(log, chains, 0.8)[chains.first[subset]]
    single = chains.lengths[subset] == 1
    spread = np.sqrt((chance * (1 - chance)).sum())
    assert abs(single.sum() - chance.sum()) < 5 * spread
    raw = true_satisfaction(log, chains)[chains.first[subset]]
    assert raw.sum() - single.sum() > 5 * spread, "left as they were they would be too large"


def test_only_first_conversations_get_adjusted_probabilities():
    """By Bayes' rule: a chain of one is kept with probability r, a longer one always."""
    lengths, planted = [1, 3, 1, 1, 2, 1], np.linspace(0.1, 0.9, 9)
    chains = chains_of(lengths)
    log = SimpleNamespace(frame=pl.DataFrame({"satisfaction": planted}))
    np.testing.assert_array_equal(true_satisfaction(log, chains), planted)
    adjusted = true_satisfaction(log, chains, 0.5)
    # Two longer chains, so that two of four singletons are drawn.
    roots, subset = chains.first[:-1], 2 / 4
    others = np.setdiff1d(np.arange(9), roots)
    np.testing.assert_array_equal(adjusted[others], planted[others])
    once = planted[roots]
    np.testing.assert_allclose(adjusted[roots], subset * once / (subset * once + 1 - once))


def test_replay_load_is_the_number_of_conversations_per_round():
    """Of the chains that come: here five, of eleven conversations, in each of two runs."""
    made = source([4, 1, 3, 1, 2], [1, 2, 2, 2, 3], (0, 7))
    assert made.load == pytest.approx(11 / ROUNDS) and made.first_equal_run == [0, 0]
    assert made.uniform_service(None, RATE, 1) == pytest.approx(5 / 11)
    counts = jnp.asarray(made.counts).at[1, 0].set(0)
    assert dataclasses.replace(made, counts=counts).first_equal_run == [0, 1]
    assert dataclasses.replace(made, counts=counts).load == pytest.approx((11 + 7) / 2 / ROUNDS)


def test_replay_rules_rank_conversations_by_tokens_or_probability():
    """By the tokens of the answer, the fewest first; by the chance to leave, the largest first."""
    chains = chains_of([2, 1])._replace(members=np.array([2, 0, 1]))
    columns = {"tokens": [30, 50, 40], "prompt_tokens": [1, 2, 3], "satisfaction": [0.9, 0.6, 0.2]}
    log = SimpleNamespace(frame=pl.DataFrame(columns))
    assert make_schedule("shortest", log, chains, 0.5).order.tolist() == [40, 30, 50]
    informed = -np.asarray(make_schedule("informed", log, chains, 0.5).order)
    np.testing.assert_allclose(informed, true_satisfaction(log, chains, 0.5), rtol=1e-6)
    assert informed[1] == np.float32(0.9)
    for rule, schedule in (("fifo_chain", "oldest"), ("least_served",) * 2, ("random",) * 2):
        assert make_schedule(rule, log, chains, 0.5) == RandomRouting(schedule=schedule)
    assert make_schedule("fifo", log, chains, 0.5).needs.entry_rounds
    assert make_schedule("clairvoyant", log, chains, 0.5) == OptimalPolicy()


@pytest.mark.slow
def test_acqb_learns_return_probabilities_from_prompts(as_in_a_study):
    """Paired over seeds its queue is shorter than with all prompts alike, and than under FIFO."""
    horizon, seeds = 500, 6
    draw = np.random.default_rng(0)
    lengths = np.where(draw.uniform(size=400) < 0.5, 1, 4)
    first = np.concatenate([[0], np.cumsum(lengths)[:-1]])
    attempts = np.arange(lengths.sum()) - np.repeat(first, lengths)
    rows_seen = np.zeros((lengths.sum(), DIM))
    rows_seen[np.arange(len(rows_seen)), np.repeat(lengths > 1, lengths).astype(int)] = np.sqrt(0.5)
    state = (
        np.sqrt(0.5)
        / 2
        * np.stack(
            [
                np.ones(len(rows_seen)),
                attempts / (1 + attempts),
                np.ones(len(rows_seen)),
                np.zeros(len(rows_seen)),
            ],
            1,
        )
    )
    rows_seen[:, replaying.PROMPT_DIM :] = state
    until = np.minimum(np.arange(horizon + 1) * 7 // 10, 400)
    rounds = np.repeat(np.arange(1, horizon + 1), np.diff(until))
    roots, counts = replaying.place_arrivals(
        first[draw.permutation(400)[: len(rounds)]], rounds, horizon, 2
    )
    made = ReplaySource(
        contexts=jnp.asarray(rows_seen, float),
        left=jnp.asarray(np.repeat(lengths, lengths) - attempts, float),
        seeds=jnp.arange(seeds, dtype=jnp.int32),
        roots=jnp.asarray(np.stack([roots] * seeds), jnp.int32),
        counts=jnp.asarray(np.stack([counts] * seeds), jnp.int32), rate=0.7,
    )  # fmt: skip

    def last_queue(policy, source):
        played = scenarios.play(
            policy, source, 0.7, source.problem(1, horizon), 400, np.arange(seeds)
        )
        return played.length[:, -1]

    acqb = Acqb(alpha_scale=0.1, c1=0.25)
    seeing = last_queue(acqb, made)
    flat = np.array(rows_seen)
    flat[:, :2] = [np.sqrt(0.5), 0]
    others = {
        "blind": last_queue(acqb, dataclasses.replace(made, contexts=jnp.asarray(flat, float))),
        "fifo": last_queue(RankedSchedule(), made),
    }
    best = last_queue(OptimalPolicy(), made)
    assert (seeing >= best).all() and (seeing - best).mean() < 15
    for label, queue in others.items():
        ahead = np.asarray(queue - seeing)
        error = ahead.std(ddof=1) / np.sqrt(seeds)
        assert ahead.mean() > 10 + 5 * error, (label, ahead)
