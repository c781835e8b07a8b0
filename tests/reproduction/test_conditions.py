"""The rounds from which the theorems are informative: by hand, and on the page."""

import math
import re

import numpy as np
import pytest
from composing import REPOSITORY

from reproduction.theory import bounds, slopes
from reproduction.theory.bounds import Constants
from tests.reference import theorem_bounds

# K = 1, kappa = 4, every other constant one; sigma_0^2 as measured.
SHARED = Constants(dim=5, assortment_size=1, arrival_rate=0.6, slackness=0.03, sigma=0.32)
DISJOINT = SHARED._replace(dim=25, arrival_rate=0.7, sigma=0.049)


def test_first_round_of_theorem_5_meets_its_condition():
    one = Constants(dim=5, assortment_size=1, arrival_rate=0.7, slackness=0.03, sigma=1 / 3)
    t = theorem_bounds.first_round(one)
    assert t == pytest.approx(4 * theorem_bounds.bad_rounds(one, t) / one.slackness, rel=1e-6)
    for further in (1.01, 10.0):
        assert further * t >= 4 * theorem_bounds.bad_rounds(one, further * t) / one.slackness
    assert 0.99 * t < 4 * theorem_bounds.bad_rounds(one, 0.99 * t) / one.slackness
    # tau grows with the square of M, and M with that of the radius.
    assert theorem_bounds.first_round(one._replace(kappa=1.0)) < t / 100
    assert theorem_bounds.first_round(one._replace(slackness=0.3)) < t / 1e4


def test_confidence_radii_match_the_appendix():
    one = Constants(dim=3, assortment_size=2, arrival_rate=0.5, slackness=0.1, sigma=0.2, kappa=2.0)
    alpha, beta = bounds.radii(one, 50.0)
    root = math.sqrt(3 * math.log(1 + 50 * 2 / 3) + 4 * math.log(50))
    assert alpha == pytest.approx(root + 2)
    samples = math.ceil(1 - math.log(2) / math.log(1 - 1 / (4 * math.sqrt(math.e * math.pi))))
    several = math.sqrt(2 * math.log(2 * samples)) + math.sqrt(6 * math.log(2 * 50 * 50))
    many = math.sqrt(18 * math.log(samples * 50))
    assert beta == pytest.approx(alpha * min(several, many))


def test_regret_bound_matches_the_last_lines_of_the_proof():
    one = Constants(
        dim=3, assortment_size=2, arrival_rate=0.5, slackness=0.1, sigma=0.2, lambda0=0.5, c1=7.0
    )
    alpha, beta = bounds.radii(one, 50.0)
    grown = math.log(1 + 50 * 2 / (3 * 0.5))
    explored = 2 * 7 * math.sqrt(50)
    third = math.sqrt(2 * 3 * 50 * grown) + math.sqrt(8 * 50 / 0.5 * math.log(100))
    third = 16 * math.sqrt(math.e * math.pi) * beta * (third + 2 / math.sqrt(0.5))
    fourth = (alpha + beta) * math.sqrt(2 * 3 * 50 * grown)
    assert bounds.regret_bound(one, 50.0) == pytest.approx(explored + third + fourth)


def test_regret_bound_is_informative_from_its_first_round():
    t = theorem_bounds.first_below_rounds(SHARED)
    assert bounds.regret_bound(SHARED, t) == pytest.approx(t, rel=1e-6)
    for further in (1.01, 10.0, 1e6):
        assert bounds.regret_bound(SHARED, further * t) < further * t
        assert bounds.regret_bound(SHARED, t / further) > t / further


@pytest.mark.slow
def test_optimal_c1_minimises_the_first_round():
    c1, t = theorem_bounds.earliest_round(SHARED)
    others = [theorem_bounds.first_round(SHARED._replace(c1=c1 * by)) for by in (0.1, 0.9, 1.1, 10)]
    assert min(others) > t and max(others) > 1.5 * t
    assert t < 1e-12 * theorem_bounds.first_round(SHARED)


def test_bound_slope_is_one_half_plus_logarithmic_terms():
    one = DISJOINT
    for first, last in ((1_000, 10_000), (10_000, 100_000)):
        rounds = np.arange(first + 1, last + 1, dtype=float)
        bound = np.array([bounds.regret_bound(one, t) for t in rounds[::7]])
        own = slopes.slope(*slopes.average_bins(rounds[::7], bound))
        assert slopes.bound_slope(one, first, last) == pytest.approx(own, abs=2e-3)
    # The theorem is short for sqrt(t) log(t)^(3/2), whose slope is this at the middle.
    middle = math.log(10**14.5)
    far = slopes.bound_slope(one, 10**14, 10**15)
    assert far == pytest.approx(0.5 + 1.5 / middle, abs=0.01)


@pytest.mark.slow
def test_theory_page_states_the_computed_numbers():
    page = (REPOSITORY / "docs" / "theory.md").read_text()
    rows = re.findall(r"^\| (shared|disjoint)\b([^|]*)\|(.+)\|$", page, re.MULTILINE)
    rows = [(kind, cells.split("|")) for kind, _, cells in rows if cells.count("|") == 4]
    assert len(rows) == 8
    for kind, cells in rows:
        sigma, kappa, c1, begins, below = (cell.split(",")[0].strip() for cell in cells)
        base = SHARED if kind == "shared" else DISJOINT
        one = base._replace(sigma=float(sigma), kappa=float(kappa), c1=float(c1))
        assert ("not admissible" in cells[1]) == (one.kappa < 4)
        assert theorem_bounds.first_round(one) == pytest.approx(float(begins), rel=0.03)
        assert theorem_bounds.first_below_rounds(one) == pytest.approx(float(below), rel=0.03)
        if one.c1 > 1:  # the best there is, to two digits
            assert theorem_bounds.earliest_round(one)[0] == pytest.approx(one.c1, rel=0.03)


def test_printed_eigenvalue_bound_is_too_small_for_proposition_14():
    """Proposition 13 and E_3 lack the square that Proposition 14 needs and tau's definition has."""
    t = theorem_bounds.first_round(SHARED)
    tau = theorem_bounds.bad_rounds(SHARED, t)
    margin = SHARED.slackness - 2 * SHARED.c1 / math.sqrt(tau + 1)
    alpha, beta = bounds.radii(SHARED, t)
    bonus = alpha + 48 * beta
    assert 0 < margin < 1
    for power, enough in ((1, False), (2, True)):
        eigenvalue = 4 * bonus**2 / margin**power
        assert (bonus / math.sqrt(eigenvalue) <= margin / 2 * (1 + 1e-12)) == enough
    # tau is made of the square: its leading part is c2 8 bonus^2 / (sigma_0^2 margin^2).
    explored = 8 * bonus**2 / (SHARED.sigma * margin**2)
    explored += (SHARED.dim + math.log(t)) / SHARED.sigma**2
    assert tau == pytest.approx((2 * explored / SHARED.arrival_rate) ** 2, rel=1e-6)


def test_squared_loss_bound_matches_lemma_11():
    # A radius so small that what exploration costs shows beside it.
    one = Constants(
        dim=3,
        assortment_size=2,
        arrival_rate=0.5,
        slackness=0.1,
        sigma=0.2,
        lambda0=0.5,
        c1=7.0,
        kappa=1e-4,
    )
    alpha, beta = bounds.radii(one, 900.0)
    explored = 0.5 * 7 * math.sqrt(399)
    nu = 1 / (0.5 + 0.2 * explored / 4)
    nu += (math.exp(-explored / 8) + 3 * math.exp(-0.2 * explored / 16)) / 0.5
    assert theorem_bounds.nu(one, 400.0) == pytest.approx(nu)
    assert theorem_bounds.nu(one, 1.0) == pytest.approx(2 + 4 / 0.5)
    loss = 2 * 0.5 * 7 / 20 + (alpha + 48 * beta) ** 2 * nu
    assert theorem_bounds.squared_loss(one, 400.0, 900.0) == pytest.approx(loss)


def test_lemma_11_is_informative_from_its_first_round():
    t = theorem_bounds.first_small_loss(SHARED)
    assert theorem_bounds.squared_loss(SHARED, t, t) == pytest.approx(1, rel=1e-6)
    for further in (1.01, 10.0, 1e6):
        assert theorem_bounds.squared_loss(SHARED, further * t, further * t) < 1
        assert theorem_bounds.squared_loss(SHARED, t / further, t / further) > 1


def test_queue_lemmas_are_informative_from_their_first_round():
    epsilon = 0.03
    m = theorem_bounds.rounds_to_forget(epsilon)
    assert 2 * math.exp(-((epsilon * m + 1 - 1) ** 2) / (8 * m)) == pytest.approx(1)
    b = theorem_bounds.queries_beyond(epsilon)
    assert 17 / epsilon**2 * math.exp(-epsilon / 2 * b) == pytest.approx(1)
    m = theorem_bounds.rounds_beyond(epsilon)
    assert 19 / epsilon**2 * math.exp(-(epsilon**2) / 32 * m) == pytest.approx(1)
