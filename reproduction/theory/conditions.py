"""From which round on the paper's two theorems say something, in numbers.

Theorem 5, on queue-length regret: condition "cond:t" of the appendix asks t >= omega = 4 tau(t) /
epsilon, tau(t) being the number of rounds after which exploration has made V so large that the
policy errs by less than epsilon / 2. Theorem 6, on cumulative regret, holds for every t; its bound
says something where it is less than t, which regret never exceeds.
"""

import math
from collections.abc import Callable
from typing import NamedTuple

from cqbjax.estimation.gaussian import num_samples

# Rounds beyond this are not looked at: no number of theirs means anything.
FARTHEST = 1e60


class Constants(NamedTuple):
    """What the theorem's bounds are made of.

    Attributes:
        dim: of the shared parameter; N d for N parameters of d numbers.
        assortment_size: K.
        arrival_rate: lambda.
        slackness: epsilon.
        sigma: sigma_0^2.
        kappa: of the radius. At least 4 by Assumption 2, since p_j p_0 is at most 1 / 4.
        lambda0: of the radius.
        c1: of eta(t).
        c2: the absolute constant of M(t), which the paper leaves open.
    """

    dim: int
    assortment_size: int
    arrival_rate: float
    slackness: float
    sigma: float
    kappa: float = 4.0
    lambda0: float = 1.0
    c1: float = 1.0
    c2: float = 1.0


def radii(one: Constants, t: float) -> tuple[float, float]:
    """Return alpha_t and beta_t of the appendix, with l = t."""
    grown = one.dim * math.log1p(t * one.assortment_size / (one.dim * one.lambda0))
    alpha = one.kappa * (math.sqrt(grown + 4 * math.log(t)) / 2 + math.sqrt(one.lambda0))
    samples = num_samples(one.assortment_size)
    several = math.sqrt(2 * math.log(2 * samples))
    several += math.sqrt(6 * math.log(one.assortment_size * t * t))
    return alpha, alpha * min(math.sqrt(6 * one.dim * math.log(samples * t)), several)


def bad_rounds(one: Constants, t: float) -> float:
    """Return tau(t) of the appendix: the least u with u >= tau~(M~(u)).

    tau~(M~(u)) falls with u, so that bisection finds where they meet.
    """
    alpha, beta = radii(one, t)
    log = math.log(t)

    def wanted(u: float) -> float:
        room = one.slackness - 2 * min(1.0, one.c1 / math.sqrt(u + 1))
        if room <= 0:
            return math.inf
        rounds = (one.dim + log) / one.sigma**2
        rounds += 8 * (alpha + 48 * beta) ** 2 / (one.sigma * room**2)
        rounds *= one.c2
        c1, rate = one.c1, one.arrival_rate
        return max(
            2 * rounds / rate, 16 * log / rate, (2 * rounds / (c1 * rate)) ** 2,
            (16 * log / (c1 * rate)) ** 2,
        )  # fmt: skip

    return _least(lambda u: u >= wanted(u), 1.0)


def first_round(one: Constants) -> float:
    """Return the least t from which on Theorem 5 holds: t >= 4 tau(t) / epsilon."""
    return _least(lambda t: t >= 4 * bad_rounds(one, t) / one.slackness, 2.0)


def earliest(one: Constants) -> tuple[float, float]:
    """Return the c1 with which Theorem 5 begins earliest, and that round.

    A larger c1 explores more and so needs fewer rounds, until eta(tau) itself is what must fall.
    """
    low, high = 0.0, math.log(FARTHEST) / 2
    while high - low > 1e-4:
        third = (high - low) / 3
        left, right = (
            first_round(one._replace(c1=math.exp(at))) for at in (low + third, high - third)
        )
        low, high = (low, high - third) if left <= right else (low + third, high)
    c1 = math.exp((low + high) / 2)
    return c1, first_round(one._replace(c1=c1))


def regret_bound(one: Constants, t: float) -> float:
    """Return what Theorem 6's proof bounds Regret_t by, but for c0 / t, of which c0 is left open.

    2 c1 sqrt(t) + 16 sqrt(e pi) beta (r + sqrt(8 t log(2 t) / lambda0) + 2 / sqrt(lambda0))
    + (alpha + beta) r, where r = sqrt(2 d t log(1 + t K / (d lambda0))).
    """
    alpha, beta = radii(one, t)
    grown = math.log1p(t * one.assortment_size / (one.dim * one.lambda0))
    root = math.sqrt(2 * one.dim * t * grown)
    martingale = math.sqrt(8 * t * math.log(2 * t) / one.lambda0) + 2 / math.sqrt(one.lambda0)
    sampling = 16 * math.sqrt(math.e * math.pi) * beta * (root + martingale)
    return 2 * one.c1 * math.sqrt(t) + sampling + (alpha + beta) * root


def first_below_rounds(one: Constants) -> float:
    """Return the least t from which on Theorem 6's bound is below t, which regret never exceeds."""
    return _least(lambda t: regret_bound(one, t) < t, 2.0)


def nu(one: Constants, at: float) -> float:
    """Return the mean of 1 / lambda_min(V) at most, as Lemma 11 has it in round l = `at`."""
    explored = one.arrival_rate * min(at - 1, one.c1 * math.sqrt(at - 1))
    seldom = math.exp(-explored / 8) + one.dim * math.exp(-one.sigma * explored / 16)
    return 1 / (one.lambda0 + one.sigma * explored / 4) + seldom / one.lambda0


def squared_loss(one: Constants, at: float, t: float) -> float:
    """Return what Lemma 11 bounds a round's mean squared loss by, but for c0 / t^2.

    2 lambda eta(l - 1) + (alpha + 48 beta)^2 nu(l), l = at; a loss is never above one.
    """
    alpha, beta = radii(one, t)
    explored = 2 * one.arrival_rate * min(1.0, one.c1 / math.sqrt(at))
    return explored + (alpha + 48 * beta) ** 2 * nu(one, at)


def first_small_loss(one: Constants) -> float:
    """Return the least l from which on Lemma 11 says more than that a loss is at most one, t = l.

    Its bound falls with l once exploration tells every direction, about as log(l)^2 / sqrt(l).
    """
    return _least(lambda at: squared_loss(one, at, at) < 1, 2.0)


def rounds_to_forget(slackness: float) -> float:
    """Return how many rounds must be left for Lemma 17 to bound psi below one, of an empty queue.

    2 exp(-(epsilon m + 1 - Q)^2 / (8 m)) < 1, m being t - i - 1 and Q = Q(i, i+1) at its least, 1.
    """
    return 8 * math.log(2) / slackness**2


def queries_beyond(slackness: float) -> float:
    """Return the b from which on Lemma 18's tail, 17 / epsilon^2 exp(-epsilon b / 2), is below 1.

    What it is the tail beyond, a B(l - 1) with a above one, is above l - 1, and so above any queue,
    until round tau(t).
    """
    return 2 / slackness * math.log(17 / slackness**2)


def rounds_beyond(slackness: float) -> float:
    """Return how many rounds beyond omega must be left for Lemma 19 to be below one.

    19 / epsilon^2 exp(-epsilon^2 m / 32) < 1.
    """
    return 32 / slackness**2 * math.log(19 / slackness**2)


def _least(enough: Callable[[float], bool], start: float) -> float:
    """Return the least number from `start` on that is enough, where all above it are, too."""
    low, high = math.log(start), math.log(FARTHEST)
    while high - low > 1e-9:
        middle = (low + high) / 2
        low, high = (low, middle) if enough(math.exp(middle)) else (middle, high)
    return math.exp(high)
