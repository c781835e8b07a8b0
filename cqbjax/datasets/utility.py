"""Departure probabilities, MNL utilities and arrival rates, computed from scores and costs.

Follows the paper's appendix "Modeling departure and choice probabilities for offline routing
dataset experiments". The paper normalises the cost to [0, 1] and does not say how; the rule is
therefore an argument, and docs/notebook/datasets.md compares the rules.

A query that is not served is tried again. A fixed assortment S that serves it with probability
R(xi, S) needs 1 / R(xi, S) rounds on average, whatever the schedule. In the long run at most
1 / E[1 / R(xi, S)] queries per round can then be served: less than the mean of R, because the hard
prompts take most of the rounds.
"""

import itertools
import math
from typing import NamedTuple

import numpy as np

COST_RULES = ("global_max", "prompt_max", "none")
DEFAULT_COST_RULE = "global_max"
MAX_ASSORTMENTS = 100_000
# Shares that set the low and the high rate; the paper's rates follow from its throughputs.
LOW_SHARE, HIGH_SHARE = 0.925, 0.25
STEPS = (0.05, 0.01, 0.001)


def normalise_cost(cost: np.ndarray, rule: str = DEFAULT_COST_RULE) -> np.ndarray:
    """Scale costs to [0, 1] by one of `COST_RULES`.

    Args:
        cost: [P, N] USD per query, not negative.
        rule: `global_max` divides each cell by the largest cell, `prompt_max` by the largest cell
            of its prompt. `none` returns the costs in USD, which must be at most 1.

    Returns:
        [P, N] float64 in [0, 1]; 0 if all costs are 0.

    Raises:
        ValueError: an unknown rule, a cost that is negative or not finite, or USD above 1 under
            `none`.
    """
    cost = np.asarray(cost, np.float64)
    if not np.isfinite(cost).all() or (cost < 0).any():
        raise ValueError("cost must be finite and not negative in every cell.")
    if rule not in COST_RULES:
        raise ValueError(f"cost_rule must be one of {', '.join(COST_RULES)}, got {rule!r}.")
    if rule == "none":
        if cost.max() > 1:
            raise ValueError(f"cost_rule=none needs costs in [0, 1] USD a query, got {cost.max()}.")
        return cost.copy()
    largest = cost.max(axis=1 if rule == "prompt_max" else None, keepdims=True)
    return np.divide(cost, largest, out=np.zeros(cost.shape), where=largest > 0)


def raw_utility(performance: np.ndarray, cost: np.ndarray, rho: float = 5.0) -> np.ndarray:
    """Return perf - rho * cost, the appendix's raw utility.

    Args:
        performance: [P, N] in [0, 1].
        cost: [P, N] normalised, in [0, 1].
        rho: weight of the normalised cost.

    Returns:
        [P, N].

    Raises:
        ValueError: rho is negative or not finite, or the shapes differ.
    """
    if not (np.isfinite(rho) and rho >= 0):
        raise ValueError(f"rho must be finite and not negative, got {rho}.")
    if np.shape(performance) != np.shape(cost):
        raise ValueError(
            f"performance {np.shape(performance)} and cost {np.shape(cost)} differ in shape."
        )
    return np.asarray(performance, np.float64) - rho * np.asarray(cost, np.float64)


def departure_probabilities(
    performance: np.ndarray, cost: np.ndarray, rho: float = 5.0, low: float = 0.1,
    high: float = 0.99, cost_rule: str = DEFAULT_COST_RULE, equal_rows: float = 0.5,
    min_max: bool = True,
) -> np.ndarray:  # fmt: skip
    """Return departure probabilities p_j(xi) = low + (high - low) * s_j.

    s_j is perf - rho * cost, scaled so that a prompt's worst server has 0 and its best server 1.
    The best server of every prompt thus satisfies with probability `high`, even if no answer is
    right.

    Args:
        performance: [P, N] in [0, 1].
        cost: [P, N] USD per query; normalised here by `cost_rule`.
        rho: weight of the cost.
        low: departure probability of a prompt's worst server, r_lo.
        high: departure probability of a prompt's best server, r_hi.
        cost_rule: one of `COST_RULES`.
        equal_rows: s_j, in [0, 1], for a prompt whose servers all have the same utility, for which
            the paper's formula is 0/0. The default .5 neither rewards nor punishes a router for a
            prompt on which routing cannot matter.
        min_max: True in the paper; False: s_j is perf - rho * cost, cut to [0, 1], so that a prompt
            without a right answer has no good server.

    Returns:
        [P, N] in [low, high].

    Raises:
        ValueError: not 0 < low < high < 1, equal_rows outside [0, 1], or a missing score.
    """
    if not 0 < low < 1:
        raise ValueError(f"low={low} must lie between 0 and 1.")
    if not low < high < 1:
        raise ValueError(f"high={high} must lie between low={low} and 1.")
    if not 0 <= equal_rows <= 1:
        raise ValueError(f"equal_rows must be in [0, 1], got {equal_rows}.")
    utility = raw_utility(performance, normalise_cost(cost, cost_rule), rho)
    if not np.isfinite(utility).all():
        raise ValueError("performance must be finite in every cell: drop missing scores first.")
    if not min_max:
        return low + (high - low) * np.clip(utility, 0.0, 1.0)
    worst = utility.min(axis=1, keepdims=True)
    spread = utility.max(axis=1, keepdims=True) - worst
    # Equality up to rounding: perf - rho * cost of equal servers may differ in the last bits.
    differ = spread > 1e-12 * np.maximum(1.0, np.abs(worst))
    normalised = np.where(differ, (utility - worst) / np.where(differ, spread, 1.0), equal_rows)
    return low + (high - low) * normalised


def mnl_utilities(probabilities: np.ndarray) -> np.ndarray:
    """Return log(p / (1 - p)), the utility x'theta_j whose logistic is p (appendix).

    Args:
        probabilities: [P, N] in (0, 1).

    Raises:
        ValueError: a probability is not strictly between 0 and 1.
    """
    probabilities = np.asarray(probabilities, np.float64)
    if not ((probabilities > 0) & (probabilities < 1)).all():
        raise ValueError("probabilities must lie strictly between 0 and 1.")
    return np.log(probabilities) - np.log1p(-probabilities)


class ServedRates(NamedTuple):
    """Long-run departures per round of routing without learning, if each failed query is retried.

    Attributes:
        random: a uniformly random assortment, drawn at every attempt.
        best_fixed: the best single assortment.
        best_assortment: its servers; the first in lexicographic order if several tie.
        oracle: the best assortment of every prompt.
    """

    random: float
    best_fixed: float
    best_assortment: tuple[int, ...]
    oracle: float


def served_rates(probabilities: np.ndarray, K: int = 1) -> ServedRates:
    """Return the long-run rates of random, best fixed and per-prompt best routing.

    Args:
        probabilities: [P, N] departure probabilities p of single servers, in (0, 1); prompts arrive
            uniformly. The departure probability of an assortment S is R(xi, S) = s / (1 + s), where
            s is the sum of the odds p / (1 - p) over S.
        K: servers offered per query.

    Raises:
        ValueError: K outside 1..N, or more than `MAX_ASSORTMENTS` assortments.
    """
    servers = probabilities.shape[1]
    if not 1 <= K <= servers:
        raise ValueError(f"K={K} must lie in 1..N, and N={servers} servers")
    if math.comb(servers, K) > MAX_ASSORTMENTS:
        raise ValueError(
            f"K={K} of N={servers} servers gives assortments too many to "
            "choose arrival rates by rule: give arrival_rate as numbers"
        )
    odds = np.asarray(probabilities / (1.0 - probabilities), order="F")
    best, total = 0.0, np.zeros(len(odds))
    chosen: tuple[int, ...] = ()
    for assortment in itertools.combinations(range(servers), K):
        sums = odds[:, assortment].sum(axis=1)
        departs = sums / (1.0 + sums)
        total += departs
        rate = _harmonic_mean(departs)
        if rate > best:
            best, chosen = rate, assortment
    largest = np.sort(odds, axis=1)[:, -K:].sum(axis=1)
    uniform = total / math.comb(servers, K)
    oracle = largest / (1.0 + largest)
    return ServedRates(_harmonic_mean(uniform), best, chosen, _harmonic_mean(oracle))


def _harmonic_mean(values: np.ndarray) -> float:
    return float(1.0 / np.mean(1.0 / values))


def choose_arrival_rates(served: ServedRates) -> tuple[float, float, float]:
    """Choose a low, a middle and a high arrival rate, relative to random and best fixed routing.

    Low is 7.5% below the lesser of random and best fixed routing; middle is halfway between the
    two; high is a quarter of the way from the greater to the oracle. Each rate is rounded to a
    multiple of 0.05. The step is finer where necessary to keep the order: low < lesser < middle <
    greater < high < oracle.

    Raises:
        ValueError: routing makes no difference.
    """
    first, second = sorted((served.random, served.best_fixed))
    if not first < second < served.oracle:
        raise ValueError(
            "random, best fixed and per-prompt best routing serve the same here (K = N?), so there "
            "is no rule for arrival rates: give arrival_rate as numbers"
        )
    quarter = second + HIGH_SHARE * (served.oracle - second)
    return (
        _round_inside(LOW_SHARE * first, 0.0, first),
        _round_inside((first + second) / 2, first, second),
        _round_inside(quarter, second, served.oracle),
    )


def _round_inside(target: float, low: float, high: float) -> float:
    """Round to the coarsest step whose nearest multiple lies strictly between low and high."""
    for step in STEPS:
        nearest = round(round(target / step) * step, 3)
        if low < nearest < high:
            return nearest
    return target
