"""Scenarios with known answers, by the public path: stationary means within 3.5 standard errors."""

import numpy as np
import pytest
from stationary import close
from tiers import cases

from tests.reference import known_queues, queues
from tests.reference.known_queues import KNOWN

LOAD, M = 0.6, known_queues.M
QUICK = ("two classes, likeliest first",)


@pytest.mark.parametrize(
    "scenario", cases(KNOWN, [one for one in KNOWN if one.name in QUICK]), ids=lambda one: one.name
)
def test_mean_queue_matches_the_closed_form(scenario):
    means = known_queues.simulated([scenario], LOAD, seeds=100, relaxations=60)
    close(means[scenario.name], scenario.expected(scenario.rate(LOAD)))


@pytest.mark.parametrize(("load", "within"), [(0.6, 0.25), (0.95, 0.07)])
def test_relaxation_time_approximates_the_closed_form(load, within):
    """The longer it remembers, the closer: five such times are left out before anything counts."""
    rate = load * M
    root = np.sqrt(M * (1 - rate)) - np.sqrt(rate * (1 - M))
    assert known_queues.KNOWN[0].relaxation(load) == pytest.approx(1 / root**2, rel=within)


@pytest.mark.parametrize("load", [0.6, 0.95])
def test_closed_forms_agree_where_scenarios_coincide(load):
    """One attempt a round, one class, one place: each formula is another's special case."""
    rate = load * M
    plain = queues.geometric(M, rate)
    many = queues.attempts(M, 200)
    assert queues.general(*many, rate) == pytest.approx(plain)
    assert queues.general(*queues.lasting(M, 1, 0), rate) == pytest.approx(plain)
    assert queues.lasting_waits(M, 1, 0, rate) == pytest.approx(plain)
    assert queues.newest_first(1 / M, rate) == pytest.approx(plain)
    assert queues.batches(rate, rate, M) == pytest.approx(plain)
    assert M * queues.conserved(np.array([M, M]), rate) == pytest.approx(plain)
    assert queues.preemptive(np.array([M, M]), rate).sum() == pytest.approx(plain)
    assert queues.several(M, 1, rate) == pytest.approx(plain)
    assert queues.mean(queues.law_of_channels(M, 1, 0.0, rate)) == pytest.approx(plain)
    assert queues.orbiting(M, 1.0, rate)[0] == pytest.approx(plain)


@pytest.mark.slow
def test_chains_agree_with_their_closed_forms():
    c, m = known_queues.CHANNELS, known_queues.CHANNELS_M
    for load in (0.6, 0.95):
        chain = queues.law_of_channels(m, c, 0.0, load * c * m)
        assert queues.mean(chain) == pytest.approx(queues.several(m, c, load * c * m))
    rate = 0.2 * M
    small = [queues.orbiting(M, back, rate)[0] for back in (0.04, 0.02)]
    # What is left falls with h, and below with the length of a round.
    assert 2 * small[1] - small[0] == pytest.approx(queues.slow_returns(M, rate), rel=1e-3)
    served, leave, rate = 1.0, 0.6, 2.7
    laws = [queues.law_of_channels(served * s, c, leave * s, rate * s) for s in (0.004, 0.002)]
    limit = 2 * laws[1] - laws[0]
    assert limit == pytest.approx(queues.erlang_a(served, c, leave, rate), abs=1e-5)
    poisson = np.exp(-2.5) * np.array([1, 2.5, 2.5**2 / 2, 2.5**3 / 6])
    assert queues.erlang_a(1.0, c, 1.0, 2.5)[:4] == pytest.approx(poisson)
