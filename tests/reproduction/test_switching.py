"""The switching queues against an independent NumPy version, and what is counted of them."""

import dataclasses
import functools

import jax.numpy as jnp
import numpy as np
import pytest
import recorded
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from recorded import Case

from cqbjax import sources
from cqbjax.core.pytree import as_arrays
from cqbjax.core.queueing import QueueOverflow
from cqbjax.policies import Acqb
from reproduction.theory import switching
from tests import reference

HORIZON = 20
SOURCE = sources.Synthetic(num_servers=3, dim=2, slackness=0.0)
CASES = {
    1: Case(SOURCE, 1, 0.45, HORIZON),
    2: Case(SOURCE, 2, 0.6, HORIZON),
}
QUICK = settings(
    max_examples=12, deadline=None, derandomize=True, phases=[Phase.explicit, Phase.generate],
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)  # fmt: skip
# The sentences of the proof, which hold on every path, and the two that do not as printed.
PRINTED = ("as printed", "sketch")


def simulate_ours(case: Case, label: str, capacity: int = HORIZON) -> switching.SwitchingQueues:
    policy = as_arrays(recorded.policy(label, case))
    return switching.run(
        policy, as_arrays(case.source), case.arrival_rate, case.problem, np.array([case.seed]),
        capacity,
    )  # fmt: skip


def simulate_theirs(case: Case, label: str, spoil=None) -> tuple[np.ndarray, np.ndarray]:
    instance, draws = recorded.record(case)
    played = reference.simulate(label, instance, draws, case.settings())
    if spoil is not None:
        draws = spoil(draws)
    return reference.switching_lengths(played, instance, draws, case.settings())


@pytest.mark.slow
@pytest.mark.parametrize("size", CASES)
@QUICK
@given(seed=st.integers(0, 2**31 - 1), label=st.sampled_from(["random", "rand_rout"]))
def test_switching_queues_match_the_plain_version(size, seed, label, x64):
    case = dataclasses.replace(CASES[size], seed=seed)
    made, (lengths, departures) = simulate_ours(case, label), simulate_theirs(case, label)
    np.testing.assert_array_equal(made.length[0], lengths)
    np.testing.assert_array_equal(made.departed[0], departures)
    counted = tabulate(made, lengths[None, -1], lengths[None, 0])
    held = counted.filter(~_starts(counted["rule"], PRINTED))
    assert held["failed"].sum() == 0 and held["checked"].min() >= 0


@pytest.mark.slow
def test_different_uniforms_after_the_switch_are_detected(x64):
    seen = 0
    for seed in range(6):
        case = dataclasses.replace(CASES[1], seed=seed)
        lengths, _ = simulate_theirs(case, "random", _other_choice)
        seen += (simulate_ours(case, "random").length[0] != lengths).any()
    assert seen >= 4


def _other_choice(draws: reference.Draws) -> reference.Draws:
    return dataclasses.replace(draws, choice=draws.choice[::-1])


def _starts(rules, words) -> "np.ndarray":
    return rules.map_elements(lambda rule: rule.startswith(words), return_dtype=bool)


@pytest.mark.slow
def test_an_overflowing_queue_is_named():
    with pytest.raises(QueueOverflow, match="capacity=1 overflowed in round [0-9]+"):
        for seed in range(4):
            simulate_ours(dataclasses.replace(CASES[1], seed=seed), "random", capacity=1)


@functools.cache
def make_by_hand() -> switching.SwitchingQueues:
    """Two processes of three rounds: a query comes in round 1, and Q_2 fails where Q_1 serves it.

    It is the least example of why the departures that decide the sign are those of round i = 2.
    """
    length = np.zeros((1, 4, 4), np.int16)
    length[:, :, 1] = 1  # Q(i, 2): it waits
    length[:, 2:, 2:] = 1  # Q_2 and Q_3 did not serve it, and nothing comes after it
    departed = np.zeros((1, 4, 3), bool)
    departed[:, :2, 1] = True
    state = np.zeros((1, 4, 4), np.int8)
    state[:, 2, 2:] = 1
    return switching.SwitchingQueues(length, departed, state, np.zeros((1, 3)), np.zeros(1))


def tabulate(made: switching.SwitchingQueues, queue, optimal):
    return switching.tabulate_rules(switching.count_failures(made, queue, optimal))


def counts(made: switching.SwitchingQueues, queue=None) -> dict[str, int]:
    queue = made.length[:, -1] if queue is None else queue
    counted = tabulate(made, queue, made.length[:, 0])
    return dict(zip(counted["rule"], counted["failed"], strict=True))


def test_minimal_example_violates_the_printed_lemma_but_not_the_proof():
    failed = counts(make_by_hand())
    # psi(2, 3) = 1 though D(2, 3) = D(1, 3) = 0, and Q_1 is empty where Q_2 is not.
    assert {rule: n for rule, n in failed.items() if n} == {
        "as printed, D(i, t) = D(i-1, t): psi is -1 or 0": 1,
        "sketch: parted, Q_{i-1} empty: Q_i empty": 2,
    }


def test_planted_violations_of_every_rule_are_counted():
    made = make_by_hand()
    longer = made.length.copy()
    longer[:, 3, 3] = 3
    assert counts(made._replace(length=longer))["psi(i, t) is -1, 0 or 1"] == 1
    off = made.length[:, -1] + np.array([0, 0, 0, 1])
    assert counts(made, off)["the sum of psi(i, t) over i is Q(t) - Q*(t)"] == 1
    swapped = made.departed.copy()
    swapped[:, 2, 1], swapped[:, 1, 1] = True, False
    against = counts(made._replace(departed=swapped))
    assert against["D(i, i) <= D(i-1, i)"] == 1
    assert against["D(i, i) = D(i-1, i): psi is -1 or 0"] == 2
    shorter = made.length.copy()
    shorter[:, 2, 2:], shorter[:, 1, 2:] = 0, 1
    assert counts(made._replace(length=shorter))["D(i, i) = 0, D(i-1, i) = 1: psi is 0 or 1"] == 2
    state = made.state.copy()
    state[:, 2, 2] = 5
    outside = counts(made._replace(state=state))
    assert outside["the pair is in a state of the proof"] == 1
    assert outside["D(i, i) = 0, D(i-1, i) = 1: S_0 or S_1"] == 1
    state[:, 1, 2] = 4
    assert counts(made._replace(state=state))["D(i, i) = D(i-1, i): S_0, S_2 or S_3"] == 1
    emptied = made.length.copy()
    emptied[:, 2, 2] = 0
    assert counts(made._replace(length=emptied))["parted, and Q_i was empty since: psi is 0"] == 1


def test_effects_of_switches_add_up_to_the_final_gap():
    made = make_by_hand()
    twice = switching.SwitchingQueues(*(np.concatenate([field, field]) for field in made))
    counted = switching.count_failures(twice, twice.length[:, -1], twice.length[:, 0])
    frame = switching.average_by_switch(counted, 2)
    assert frame["first"].to_list() == [1, 3] and frame["last"].to_list() == [2, 3]
    # Blocks of two rounds and of one: their means times their lengths are Q(4) - Q*(4) = 1.
    assert frame["psi"].to_list() == [0.5, 0.0] and frame["parted"].to_list() == [0.5, 0.0]
    assert frame["longer"].to_list() == [0.5, 0.0] and frame["shorter"].sum() == 0


@pytest.mark.slow
def test_gaps_predict_the_probability_of_diverging_processes(as_in_a_study):
    """Over many rounds and paths the gaps predict the partings, to five standard errors."""
    problem = SOURCE.problem(1, 40)
    policy = as_arrays(Acqb(alpha_scale=1.0))
    made = switching.run(policy, as_arrays(SOURCE), 0.45, problem, np.arange(200), 40)
    paths = switching.count_failures(made, made.length[:, -1], made.length[:, 0])
    difference = paths.parted.values.sum(axis=1) - made.gap.sum(axis=1)
    assert made.gap.min() > -1e-6 and made.gap.sum() > 50
    assert abs(difference.mean()) < 5 * difference.std(ddof=1) / np.sqrt(len(difference))
    counted = switching.tabulate_rules(paths)
    held = counted.filter(~_starts(counted["rule"], PRINTED))
    assert held["failed"].sum() == 0 and (held["checked"] > 0).all()
    assert jnp.issubdtype(made.state.dtype, jnp.int8)
