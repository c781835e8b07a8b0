"""The rounds from which the bounds of the paper's two theorems are informative, in numbers.

Theorem 5, on queue-length regret: condition "cond:t" of the appendix requires t >= omega =
4 tau(t) / epsilon. tau(t) is the number of rounds after which exploration has made V so large that
the policy's error is below epsilon / 2. Theorem 6, on cumulative regret, holds for every t; its
bound is informative where it is less than t, which regret never exceeds.
"""

import math
from collections.abc import Callable

from reproduction.theory.bounds import Constants, radii, regret_bound

# Rounds beyond this are not searched: their numbers have no meaning.
FARTHEST = 1e60


def bad_rounds(of: Constants, t: float) -> float:
    """Return tau(t) of the appendix: the least u with u >= tau~(M~(u)), which falls with u."""
    (alpha, beta), log, c1, rate = radii(of, t), math.log(t), of.c1, of.arrival_rate

    def required_round(u: float) -> float:
        margin = of.slackness - 2 * min(1.0, c1 / math.sqrt(u + 1))
        if margin <= 0:
            return math.inf
        rounds = (of.dim + log) / of.sigma**2
        rounds += 8 * (alpha + 48 * beta) ** 2 / (of.sigma * margin**2)
        rounds *= of.c2
        linear = max(2 * rounds / rate, 16 * log / rate)
        return max(linear, (2 * rounds / (c1 * rate)) ** 2, (16 * log / (c1 * rate)) ** 2)

    return _least_number(lambda u: u >= required_round(u), 1.0)


def first_round(of: Constants) -> float:
    """Return the least t from which Theorem 5 holds: t >= 4 tau(t) / epsilon."""
    return _least_number(lambda t: t >= 4 * bad_rounds(of, t) / of.slackness, 2.0)


def earliest_round(of: Constants) -> tuple[float, float]:
    """Return the c1 with which Theorem 5 holds earliest, and the round from which it does.

    A larger c1 explores more and so needs fewer rounds, until eta(tau) itself must fall. A ternary
    search finds the minimum.
    """
    low, high = 0.0, math.log(FARTHEST) / 2
    while high - low > 1e-4:
        third = (high - low) / 3
        left, right = (
            first_round(of._replace(c1=math.exp(at))) for at in (low + third, high - third)
        )
        low, high = (low, high - third) if left <= right else (low + third, high)
    c1 = math.exp((low + high) / 2)
    return c1, first_round(of._replace(c1=c1))


def first_below_rounds(of: Constants) -> float:
    """Return the least t from which Theorem 6's bound is below t, which regret never exceeds."""
    return _least_number(lambda t: regret_bound(of, t) < t, 2.0)


def nu(of: Constants, at: float) -> float:
    """Return Lemma 11's bound on the mean of 1 / lambda_min(V) in round l = `at`."""
    explored = of.arrival_rate * min(at - 1, of.c1 * math.sqrt(at - 1))
    seldom = math.exp(-explored / 8) + of.dim * math.exp(-of.sigma * explored / 16)
    return 1 / (of.lambda0 + of.sigma * explored / 4) + seldom / of.lambda0


def squared_loss(of: Constants, at: float, t: float) -> float:
    """Return Lemma 11's bound on a round's mean squared loss, without c0 / t^2.

    2 lambda eta(l - 1) + (alpha + 48 beta)^2 nu(l), l = at; a loss is never above one.
    """
    alpha, beta = radii(of, t)
    explored = 2 * of.arrival_rate * min(1.0, of.c1 / math.sqrt(at))
    return explored + (alpha + 48 * beta) ** 2 * nu(of, at)


def first_small_loss(of: Constants) -> float:
    """Return the least l from which Lemma 11's bound is below one, the largest loss, at t = l.

    Its bound falls with l once exploration covers every direction, about as log(l)^2 / sqrt(l).
    """
    return _least_number(lambda at: squared_loss(of, at, at) < 1, 2.0)


def rounds_to_forget(slackness: float) -> float:
    """Return the remaining rounds for which Lemma 17 bounds psi below one, for an empty queue.

    2 exp(-(epsilon m + 1 - Q)^2 / (8 m)) < 1, m being t - i - 1 and Q = Q(i, i+1) at its least, 1.
    """
    return 8 * math.log(2) / slackness**2


def queries_beyond(slackness: float) -> float:
    """Return the b from which Lemma 18's tail, 17 / epsilon^2 exp(-epsilon b / 2), is below 1.

    It is the tail beyond a B(l - 1). With a above one this is above l - 1, and so above any queue,
    until round tau(t).
    """
    return 2 / slackness * math.log(17 / slackness**2)


def rounds_beyond(slackness: float) -> float:
    """Return the remaining rounds beyond omega for which Lemma 19's bound is below one.

    19 / epsilon^2 exp(-epsilon^2 m / 32) < 1.
    """
    return 32 / slackness**2 * math.log(19 / slackness**2)


def _least_number(enough: Callable[[float], bool], start: float) -> float:
    """Return the least number from `start` with `enough`, by bisection; all above it have it."""
    low, high = math.log(start), math.log(FARTHEST)
    while high - low > 1e-9:
        middle = (low + high) / 2
        low, high = (low, middle) if enough(math.exp(middle)) else (middle, high)
    return math.exp(high)
