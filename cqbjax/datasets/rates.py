"""What fixed routing serves when a failed answer comes back, and arrival rates chosen by it.

A query that is not served stays and is tried again, so that one which a fixed assortment S serves
with probability R(xi, S) takes 1 / R(xi, S) rounds on average, whatever the schedule. At most
1 / E[1 / R(xi, S)] queries a round can then be served for long: less than the mean of R, because
the hard prompts take most of the rounds.
"""

import itertools
import math
from typing import NamedTuple

import numpy as np

MAX_ASSORTMENTS = 100_000
# Where the rule puts the rates; with these the paper's own rates follow from its throughputs.
LOW_SHARE, HIGH_SHARE = 0.925, 0.25
STEPS = (0.05, 0.01, 0.001)


class Served(NamedTuple):
    """Queries a round that routing without learning can serve for long, retrials included.

    Attributes:
        random: a uniformly random assortment, drawn anew at every try.
        best_fixed: the best single assortment.
        best_assortment: its servers; the first in lexicographic order where several tie.
        oracle: the best assortment of every prompt.
    """

    random: float
    best_fixed: float
    best_assortment: tuple[int, ...]
    oracle: float


def served_rates(probabilities: np.ndarray, assortment_size: int = 1) -> Served:
    """Return what random, best fixed and per-prompt best routing can serve for long.

    Args:
        probabilities: [P, N] departure probabilities of single servers, in (0, 1); prompts arrive
            uniformly. An assortment's is its MNL departure rate R(xi, S) = sum / (1 + sum) of the
            odds u / (1 - u).
        assortment_size: K.

    Raises:
        ValueError: K outside 1..N, or too many assortments to go through.
    """
    servers = probabilities.shape[1]
    if not 1 <= assortment_size <= servers:
        raise ValueError(f"K={assortment_size} must lie in 1..N, and N={servers} servers")
    if not countable(servers, assortment_size):
        raise ValueError(
            f"K={assortment_size} of N={servers} servers gives assortments too many to "
            "choose arrival rates by rule: give arrival_rate as numbers"
        )
    odds = np.asarray(probabilities / (1.0 - probabilities), order="F")
    best, total = 0.0, np.zeros(len(odds))
    chosen: tuple[int, ...] = ()
    for assortment in itertools.combinations(range(servers), assortment_size):
        sums = odds[:, assortment].sum(axis=1)
        departs = sums / (1.0 + sums)
        total += departs
        rate = _for_long(departs)
        if rate > best:
            best, chosen = rate, assortment
    largest = np.sort(odds, axis=1)[:, -assortment_size:].sum(axis=1)
    uniform = total / math.comb(servers, assortment_size)
    oracle = largest / (1.0 + largest)
    return Served(_for_long(uniform), best, chosen, _for_long(oracle))


def countable(num_servers: int, assortment_size: int) -> bool:
    """Return whether there are few enough assortments to try each."""
    return math.comb(num_servers, assortment_size) <= MAX_ASSORTMENTS


def rates_by_rule(served: Served) -> tuple[float, float, float]:
    """Return the low, middle and high arrival rate: just under, between and above fixed routing.

    Low is 7.5% under what both random and the best fixed routing serve; middle is halfway between
    the two; high is a quarter of the way from them to the oracle. Each is the nearest multiple of
    0.05, or of a finer step where that would leave its interval.

    Args:
        served: from `served_rates`.

    Raises:
        ValueError: routing makes no difference.
    """
    first, second = sorted((served.random, served.best_fixed))
    quarter = second + HIGH_SHARE * (served.oracle - second)
    if not first < second < served.oracle:
        raise ValueError(
            "random, best fixed and per-prompt best routing serve the same here (K = N?), so there "
            "is no rule for arrival rates: give arrival_rate as numbers"
        )
    return (
        _round(LOW_SHARE * first, 0.0, first),
        _round((first + second) / 2, first, second),
        _round(quarter, second, served.oracle),
    )


def _for_long(departs: np.ndarray) -> float:
    """Return queries a round when a prompt departs with these probabilities [P] at each try."""
    return float(1.0 / np.mean(1.0 / departs))


def _round(target: float, low: float, high: float) -> float:
    """Return the multiple of the coarsest step that is nearest and strictly inside, or target."""
    for step in STEPS:
        nearest = round(round(target / step) * step, 3)
        if low < nearest < high:
            return nearest
    return target
