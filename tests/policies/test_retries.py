"""What a query gets when it comes back: against plain words, and in scenarios of known answer."""

import functools
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cqbjax.core import simulate
from cqbjax.core.pytree import as_arrays
from cqbjax.core.types import Action, Feedback, Observation, Queue
from cqbjax.policies import (
    Acqb,
    ContextWrapper,
    OptimalPolicy,
    RandomRouting,
    ReplacedContexts,
    RouterPolicy,
    retries,
)
from tests.reference import scenarios

QUICK = settings(max_examples=40, deadline=None, derandomize=True)
SCORES = np.random.default_rng(4).permutation(40).reshape(8, 5) / 10.0


def make_hopeless(prompts=8, servers=5):
    """Nobody is ever satisfied, so that queries come back for ever."""
    return scenarios.routing(np.full((prompts, servers), -30.0))


def attempts(policy, size=1, horizon=60, rate=0.1, seed=0, source=None):
    """Return what was shown at each attempt of the query that arrived first, and its row."""
    source = source or make_hopeless()
    problem = source.problem(size, horizon)
    played = scenarios.first(scenarios.play(policy, source, rate, problem, horizon, seed))
    seen = played.decision
    first = int(seen.query[seen.valid][0])
    mine = seen.valid & (seen.query == first)
    return seen.servers[mine], int(played.workload.arrival_rows[first - 1])


@pytest.mark.slow
@pytest.mark.parametrize("size", [1, 2, 3])
def test_fallback_offers_the_nth_best_llm_at_attempt_n_and_then_restarts(size):
    shown, row = attempts(RouterPolicy(scores=SCORES, retry="fallback"), size)
    assert len(shown) >= 10
    order = np.argsort(-SCORES[row]).tolist()
    counts = dict.fromkeys(range(5), 0)
    for servers in shown.tolist():
        by_rule = sorted(range(5), key=lambda j: (counts[j], order.index(j)))[:size]
        assert servers == sorted(by_rule)
        for j in servers:
            counts[j] += 1
    if size == 1:
        assert shown[:10, 0].tolist() == order * 2
    if size == 2:
        assert {*shown[0], *shown[1]} == set(order[:4]) and order[4] in shown[2]


@pytest.mark.slow
def test_oracle_without_repeats_offers_every_llm_before_repeating():
    source = scenarios.routing(SCORES - 30.0)
    shown, row = attempts(OptimalPolicy(retry="fallback"), rate=0.03, source=source)
    assert shown[:10, 0].tolist() == np.argsort(-SCORES[row]).tolist() * 2
    same, row = attempts(OptimalPolicy(), rate=0.03, source=source)
    assert {*same[:, 0].tolist()} == {int(np.argmax(SCORES[row]))} and len(same) >= 10
    with pytest.raises(ValueError, match="retry=posterior"):
        OptimalPolicy(retry="posterior").check(source.problem(1, 60))


@pytest.mark.slow
def test_retries_without_fallback_offer_the_same_servers():
    shown, row = attempts(RouterPolicy(scores=SCORES), 2)
    assert {tuple(one) for one in shown.tolist()} == {tuple(sorted(np.argsort(-SCORES[row])[:2]))}


@pytest.mark.slow
@pytest.mark.parametrize("size", [1, 2])
def test_random_fallback_offers_every_server_before_repeating(size):
    firsts = set()
    for seed in range(12):
        shown, _ = attempts(RandomRouting(schedule="oldest", retry="fallback"), size, seed=seed)
        full = 5 // size
        for start in range(0, full * size, full):
            assert len({*shown[:full].ravel().tolist()}) == full * size, start
        firsts.add(tuple(shown[0].tolist()))
    assert len(firsts) >= 4, "the first choice is random"


@pytest.mark.slow
def test_joint_schedule_ranks_queries_by_their_next_choice():
    """The query with the best first choice is served once; its second choice is the worst."""
    scores = np.asarray([[9.0, 1.0], [8.0, 7.0]])
    utilities = np.full((2, 2), -30.0)
    source = scenarios.routing(utilities)
    policy = RouterPolicy(scores=scores, retry="fallback", schedule="joint")
    served = []
    for seed in range(30):
        problem = source.problem(1, 12)
        played = scenarios.first(scenarios.play(policy, source, 1.0, problem, 12, seed))
        rows = played.workload.arrival_rows
        if rows[0] == 0 and rows[1] == 0 and rows[2] == 1:
            served.append((played.decision.row[1:6], played.decision.servers[1:6, 0]))
    assert served
    for rows, servers in served:
        # Round 2 and 3: each of the two good queries once, then row 1's second choice (7).
        assert (rows[0], servers[0]) == (0, 0) and (rows[1], servers[1]) == (0, 0)
        assert (rows[2], servers[2]) == (1, 0)
    # In every other order of arrival it would be no test of priority.


@QUICK
@given(
    mean=st.floats(-8.0, 8.0),
    accepted=st.integers(0, 30),
    failed=st.integers(0, 30),
    precision=st.floats(1e-3, 1e3),
)
def test_conditioning_on_outcomes_matches_the_beta_posterior(mean, accepted, failed, precision):
    chance = 1.0 / (1.0 + np.exp(-mean))
    a, b = chance * precision + accepted, (1.0 - chance) * precision + failed
    counts = jnp.asarray([float(accepted)]), jnp.asarray([float(failed)])
    after = retries.condition_on_outcomes(jnp.asarray([mean]), *counts, precision)
    assert float(after[0]) == pytest.approx(np.log(a / b), rel=1e-4, abs=1e-4)


def test_conditioning_keeps_untried_servers_and_stays_finite():
    far, none, some = jnp.asarray([-90.0, 0.0, 90.0]), jnp.zeros(3), jnp.full(3, 4.0)
    np.testing.assert_array_equal(retries.condition_on_outcomes(far, none, none, 1.0), far)
    failed = retries.condition_on_outcomes(far, none, some, 0.1)
    assert np.isfinite(failed).all() and (np.diff(failed) >= 0).all() and (failed <= far).all()
    accepted = retries.condition_on_outcomes(far, some, none, 0.1)
    assert (
        np.isfinite(accepted).all() and (np.diff(accepted) >= 0).all() and (accepted >= far).all()
    )


@pytest.mark.slow
def test_outcomes_of_a_prompt_are_shared_between_queries():
    """Two prompts, each satisfied by one server that the scores put last: found once, kept."""
    good = np.asarray([2, 0])
    utilities = np.full((2, 3), -30.0)
    utilities[[0, 1], good] = 30.0
    scores = np.asarray([[1.0, 0.5, -1.0], [-1.0, 0.5, 1.0]])
    source = scenarios.routing(utilities)
    problem = source.problem(1, 80)
    for policy, repeats in (
        (RouterPolicy(scores=scores, retry="recall"), False),
        (RouterPolicy(scores=scores, retry="posterior"), True),
    ):
        seen = scenarios.first(scenarios.play(policy, source, 0.25, problem, 80, 1)).decision
        prompts = np.asarray(
            scenarios.first(scenarios.play(policy, source, 0.25, problem, 80, 1)).workload.prompts
        )
        for row in (0, 1):
            mine = seen.valid & (seen.row == row)
            answered = seen.servers[mine, 0] == good[prompts[row]]
            first = int(np.argmax(answered))
            assert answered.any() and len(answered) > first + 3
            assert answered[first:].all() != repeats


def test_tally_skips_rounds_won_by_another_server():
    """K = 2: a round in which the other server was chosen tells nothing of this one."""
    tally = retries.init_tally("recall", make_hopeless().problem(2, 4), jnp.zeros((8, 2)))
    queue = Queue(*(jnp.full(1, value, jnp.int32) for value in (3, 1, 0)))
    observation = Observation(
        make_hopeless().problem(2, 4), jnp.int32(1), queue, jnp.zeros((1, 2)), jnp.bool_(False),
        jnp.int32(0), jnp.zeros(1, jnp.int32), None,
    )  # fmt: skip
    action = Action(jnp.int32(0), jnp.asarray([1, 4], jnp.int32), jnp.bool_(False))
    for choice, valid in ((1, True), (2, True), (2, True), (0, False), (2, False)):
        feedback = Feedback(jnp.int32(choice), jnp.bool_(valid))
        tally = retries.update_tally(tally, observation, action, feedback)
    assert tally.accepted[3].tolist() == [0, 0, 0, 0, 1]
    assert tally.failed[3].tolist() == [0, 2, 0, 0, 2]
    assert tally.accepted.sum() == 1 and tally.failed.sum() == 4


def test_cache_prefers_an_accepted_llm_despite_later_failures():
    accepted = np.array([[0, 1, 0], [2, 0, 0]], np.float32)
    failed = np.array([[0, 5, 0], [0, 0, 3]], np.float32)
    tally = retries.Tally(jnp.asarray(accepted), jnp.asarray(failed), jnp.asarray([0, 1, 0]))
    seen = SimpleNamespace(queue=SimpleNamespace(row=jnp.asarray([2, 1])))
    utilities = np.array([[9.0, -9, 0], [0, 9, 8]], np.float32)
    made = retries.revise_utilities("cache", jnp.asarray(utilities), seen, tally, 1.0)
    np.testing.assert_allclose(made, utilities + retries.CACHED * np.array([[0, 1, 0], [1, 0, 0]]))


def test_only_equal_embeddings_share_an_index():
    find_rows = jax.jit(retries.find_first_equal_row)
    rows = np.random.default_rng(2).normal(size=(7, 3)).astype(np.float32)
    rows = rows[[4, 1, 4, 0, 1, 4, 6, 5]]
    assert find_rows(jnp.asarray(rows)).tolist() == [0, 1, 0, 3, 1, 0, 6, 7]
    rows[5, 1] = np.nextafter(rows[5, 1], np.float32(9))
    assert find_rows(jnp.asarray(rows)).tolist()[5] == 5, "one bit is another"
    # So many pairs, 2^33, that some rows have the same sum of 32 bits as another one.
    many = np.random.default_rng(3).normal(size=(2**17, 2)).astype(np.float32)
    first = find_rows(jnp.asarray(np.concatenate([many, many])))
    np.testing.assert_array_equal(first, np.tile(np.arange(2**17), 2))


@pytest.mark.slow
def test_cache_offers_the_accepted_llm_first_and_then_falls_back():
    """The server that answered is put first; where it fails, the best not yet shown is next."""
    utilities = np.full((1, 3), -30.0)
    utilities[0, 2] = 30.0
    source = scenarios.routing(utilities)
    policy = RouterPolicy(scores=np.asarray([[1.0, 0.5, -1.0]]), retry="cache")
    problem = source.problem(1, 60)
    seen = scenarios.first(scenarios.play(policy, source, 0.25, problem, 60, 1)).decision
    servers = seen.servers[seen.valid, 0].tolist()
    assert servers[:3] == [0, 1, 2] and set(servers[3:]) == {2} and len(servers) > 6
    shown, row = attempts(RouterPolicy(scores=SCORES, retry="cache"))
    order = np.argsort(-SCORES[row]).tolist()
    assert shown[:10, 0].tolist() == order * 2, "nobody has answered: it is the fallback"


@functools.partial(jax.jit, static_argnames="size")
def pick_both(utilities, shown, size):
    picks = retries.next_assortment(utilities, shown, size)
    return picks, retries.score_assortment(utilities, picks)


def pick_by_rule(utilities, shown, size):
    picks = sorted(range(len(shown)), key=lambda j: (shown[j], -utilities[j]))[:size]
    return picks, np.log(np.sum(np.exp(np.asarray(utilities, float)[picks])))


def test_batched_picks_match_the_rule_per_query():
    draw = np.random.default_rng(3)
    utilities, shown = draw.normal(size=(2, 3, 4)), draw.integers(3, size=(2, 3, 4))
    picks, score = pick_both(jnp.asarray(utilities), jnp.asarray(shown), 2)
    for at in np.ndindex(2, 3):
        wanted, total = pick_by_rule(utilities[at], shown[at], 2)
        assert [int(pick[at]) for pick in picks] == wanted
        assert float(score[at]) == pytest.approx(total, rel=1e-5, abs=1e-5)


@pytest.mark.slow
@QUICK
@given(st.data())
def test_next_picks_are_the_least_offered_and_then_the_best(data):
    # Few sizes, each compiled once; the last one is past where sums are written out.
    servers = data.draw(st.sampled_from([1, 2, 5, 12, 20]))
    size = data.draw(st.integers(1, min(4, servers)))
    utilities = data.draw(st.permutations(range(servers)))
    shown = data.draw(st.lists(st.integers(0, 3), min_size=servers, max_size=servers))
    picks, score = pick_both(jnp.asarray(utilities, float), jnp.asarray(shown), size)
    wanted, total = pick_by_rule(utilities, shown, size)
    assert [int(pick) for pick in picks] == wanted
    assert float(score) == pytest.approx(total, rel=1e-5, abs=1e-5)


@pytest.mark.slow
def test_acqb_with_fallback_offers_untried_servers_first():
    settings_ = {"c1": 0.0, "alpha_scale": 0.5}
    shown, _ = attempts(Acqb(retry="fallback", **settings_), 1, horizon=90)
    assert len(shown) >= 10
    assert sorted(shown[:5, 0].tolist()) == [0, 1, 2, 3, 4] == sorted(shown[5:10, 0].tolist())


@pytest.mark.slow
def test_posterior_retry_spans_the_paper_and_fallback_by_precision():
    chosen = {
        "same": RouterPolicy(scores=SCORES),
        "sure": RouterPolicy(scores=SCORES, retry="posterior", precision=1e9),
        "fallback": RouterPolicy(scores=SCORES, retry="fallback"),
        "unsure": RouterPolicy(scores=SCORES, retry="posterior", precision=1e-6),
    }
    shown = {label: attempts(policy)[0][:5].tolist() for label, policy in chosen.items()}
    assert shown["same"] == shown["sure"] != shown["fallback"] == shown["unsure"]


@pytest.mark.slow
def test_offer_counts_are_stored_only_for_policies_that_need_them():
    source = make_hopeless()
    problem = source.problem(1, 8)
    instance = jax.tree.map(
        lambda leaf: leaf[0], scenarios.draw_instances(source, 0.5, problem, [0])
    )

    def offers_at_start(policy):
        return simulate.start(as_arrays(policy), problem, instance, 4).queue.offer_counts

    assert offers_at_start(RouterPolicy(scores=SCORES)) is None and offers_at_start(Acqb()) is None
    assert offers_at_start(RandomRouting()) is None
    within = ReplacedContexts(contexts=np.zeros((8, 3)))
    for policy in (
        RouterPolicy(scores=SCORES, retry="posterior"),
        RandomRouting(retry="fallback"),
        ContextWrapper(policy=Acqb(retry="fallback"), view=within),
    ):
        assert offers_at_start(policy).shape == (4, 5)


@pytest.mark.parametrize(
    "policy, message",
    [
        (Acqb(precision=0.0), r"precision=0 must be a number in \(0, inf\)"),
        (RouterPolicy(scores=SCORES, precision="high"), "precision=high must be a number in"),
        (Acqb(offset=np.zeros((3, 5))), r"offset has shape \[3, 5\]; it must be finite"),
        (Acqb(offset=np.zeros((8, 5)), estimator="running"), "offset needs estimator=newton_cg"),
    ],
)
def test_invalid_retry_settings_are_rejected_in_one_sentence(policy, message):
    with pytest.raises(ValueError, match=message):
        policy.check(make_hopeless().problem(1, 8))
