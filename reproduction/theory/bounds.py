"""The bound of Theorem 6 on cumulative regret, and the radii of both theorems, in numbers."""

import math
from typing import NamedTuple

from cqbjax.estimation.gaussian import num_samples


class Constants(NamedTuple):
    """The constants of the theorems' bounds.

    Attributes:
        dim: of the shared parameter; N d for N parameters of d numbers.
        assortment_size: K.
        arrival_rate: lambda.
        slackness: epsilon.
        sigma: sigma_0^2.
        kappa: of the radius. At least 4 by Assumption 2, since p_j p_0 is at most 1 / 4.
        lambda0: of the radius.
        c1: of eta(t).
        c2: the absolute constant of M(t), which the paper does not specify.
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


def radii(of: Constants, t: float) -> tuple[float, float]:
    """Return alpha_t and beta_t of the appendix, with l = t."""
    grown = of.dim * math.log1p(t * of.assortment_size / (of.dim * of.lambda0))
    alpha = of.kappa * (math.sqrt(grown + 4 * math.log(t)) / 2 + math.sqrt(of.lambda0))
    samples = num_samples(of.assortment_size)
    several = math.sqrt(2 * math.log(2 * samples))
    several += math.sqrt(6 * math.log(of.assortment_size * t * t))
    return alpha, alpha * min(math.sqrt(6 * of.dim * math.log(samples * t)), several)


def regret_bound(of: Constants, t: float) -> float:
    """Return the bound on Regret_t in Theorem 6's proof, without c0 / t (c0 is unspecified).

    2 c1 sqrt(t) + 16 sqrt(e pi) beta (r + sqrt(8 t log(2 t) / lambda0) + 2 / sqrt(lambda0))
    + (alpha + beta) r, where r = sqrt(2 d t log(1 + t K / (d lambda0))).
    """
    alpha, beta = radii(of, t)
    grown = math.log1p(t * of.assortment_size / (of.dim * of.lambda0))
    root = math.sqrt(2 * of.dim * t * grown)
    martingale = math.sqrt(8 * t * math.log(2 * t) / of.lambda0) + 2 / math.sqrt(of.lambda0)
    sampling = 16 * math.sqrt(math.e * math.pi) * beta * (root + martingale)
    return 2 * of.c1 * math.sqrt(t) + sampling + (alpha + beta) * root
