"""The condition of Theorem 1, in numbers: from which round on it says something.

Condition "cond:t" of the appendix asks t >= omega = 4 tau(t) / epsilon, tau(t) being the number of
rounds after which exploration has made V so large that the policy errs by less than epsilon / 2.
"""

import math
from typing import NamedTuple

from cqbjax.beliefs.gaussian import num_samples

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
        kappa: of the radius.
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

    low, high = 0.0, math.log(FARTHEST)
    while high - low > 1e-9:
        middle = (low + high) / 2
        low, high = (
            (low, middle) if math.exp(middle) >= wanted(math.exp(middle)) else (middle, high)
        )
    return math.exp(high)


def first_round(one: Constants) -> float:
    """Return the least t from which on Theorem 1 holds: t >= 4 tau(t) / epsilon."""
    low, high = math.log(2.0), math.log(FARTHEST)
    while high - low > 1e-9:
        middle = (low + high) / 2
        t = math.exp(middle)
        enough = t >= 4 * bad_rounds(one, t) / one.slackness
        low, high = (low, middle) if enough else (middle, high)
    return math.exp(high)
