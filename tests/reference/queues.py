"""What is known of queues: closed forms, and small chains that are solved.

A round: see Q; serve one, which leaves with probability m; then an arrival with probability l,
visible in the next round. EQ is the stationary mean of Q(t), who could be served at the start of a
round. S is the number of rounds that a query needs, rho = l ES the load, q = 1 - m.
"""

import math
from typing import Any

import numpy as np
import scipy.optimize
import scipy.sparse
import scipy.sparse.linalg
import scipy.special

# Queries that a truncated chain holds.
STATES = 400
# Those who are away that it has: so many standard deviations of a Poisson number above its mean.
FAR = 7


def geometric(m: float, rate: float) -> float:
    """Return EQ of Geo/Geo/1: l (1 - l) / (m - l)."""
    return rate * (1 - rate) / (m - rate)


def batches(mean: float, square: float, m: float) -> float:
    """Return EQ where A come in a round: (a - 2 a^2 + E[A^2]) / (2 (m - a)).

    Args:
        mean: a = EA.
        square: E[A^2].
        m: of each attempt.
    """
    return (mean - 2 * mean**2 + square) / (2 * (m - mean))


def general(mean: float, second: float, rate: float) -> float:
    """Return EQ of Geo/G/1, first in first out: rho + l^2 E[S(S-1)] / (2 (1 - rho)).

    Args:
        mean: ES.
        second: E[S(S-1)].
        rate: l.
    """
    load = rate * mean
    return load + rate**2 * second / (2 * (1 - load))


def newest_first(mean: float, rate: float) -> float:
    """Return EQ of Geo/G/1, newest first, whatever the law of S: rho (1 - l) / (1 - rho)."""
    return rate * mean * (1 - rate) / (1 - rate * mean)


def mixed(chances: np.ndarray) -> tuple[float, float]:
    """Return ES and E[S(S-1)] of classes that leave with probabilities m_i [I], as many of each."""
    return float(np.mean(1 / chances)), float(np.mean(2 * (1 - chances) / chances**2))


def attempts(m: float, most: int) -> tuple[float, float]:
    """Return ES and E[S(S-1)] of at most n attempts."""
    q, n = 1 - m, most
    return (1 - q**n) / m, 2 * (q - n * q**n + (n - 1) * q ** (n + 1)) / m**2


def lasting(m: float, mean: float, variance: float) -> tuple[float, float]:
    """Return ES and E[S(S-1)] where an attempt takes H rounds, of this mean and variance."""
    first = mean / m
    second = variance / m + mean**2 * (1 - m) / m**2 + first**2
    return first, second - first


def lasting_waits(m: float, mean: float, variance: float, rate: float) -> float:
    """Return EQ where attempts last: who is in service from before cannot be served."""
    return general(*lasting(m, mean, variance), rate) - rate * (mean - 1) / m


def conserved(chances: np.ndarray, rate: float) -> float:
    """Return sum_i EQ_i / m_i, which no order of service changes.

    That is rho + sum_i l_i (1 - m_i) / m_i^2 / (1 - rho), as many arriving of each class, for every
    policy that never idles.
    """
    of_each = rate / len(chances)
    load = float(np.sum(of_each / chances))
    return load + float(np.sum(of_each * (1 - chances) / chances**2)) / (1 - load)


def preemptive(chances: np.ndarray, rate: float) -> np.ndarray:
    """Return EQ_i [2] of two classes, the second of which goes first, preemptively."""
    slow, fast = chances
    first = geometric(float(fast), rate / 2)
    return np.array([slow * (conserved(chances, rate) - first / fast), first])


def several(m: float, channels: int, rate: float) -> float:
    """Return EQ of Geo/Geo/c: sum_{n<c} n pi_n + pi_c (c / (1 - s) + s / (1 - s)^2).

    Above c the law is geometric, pi_{c+k} = pi_c s^k, with s in (0, 1) such that
    (l + (1 - l) s) (1 - m + m s)^c = s; below it the balance equations and the sum say it.
    """
    c = channels

    def excess(s: float) -> float:
        return float((rate + (1 - rate) * s) * (1 - m + m * s) ** c - s)

    s = scipy.optimize.brentq(excess, 0.0, 1 - 1e-9)
    # Unknown are pi_0, ..., pi_c; what comes from above c comes from pi_c s^k.
    known = np.zeros((c + 1, c + 1))
    for n in range(c + STATES):
        weight = s ** max(0, n - c)
        for left, chance in enumerate(binomial(min(n, c), np.arange(c + 1), m)):
            for came, likely in ((0, 1 - rate), (1, rate)):
                if (to := n - left + came) <= c:
                    known[to, min(n, c)] += weight * chance * likely
    known -= np.eye(c + 1)
    known[0] = 1.0  # in place of one of the equations: the sum
    known[0, c] = 1 / (1 - s)
    law = np.linalg.solve(known, np.eye(c + 1)[0])
    return float(np.arange(c) @ law[:c] + law[c] * (c / (1 - s) + s / (1 - s) ** 2))


def binomial(trials: Any, successes: Any, p: float) -> np.ndarray:
    """Return the probability of so many successes: [...], zero of more than there are trials."""
    n, k = np.asarray(trials, float), np.asarray(successes, float)
    fails = np.maximum(n - k, 0)
    return np.asarray(scipy.special.binom(n, k) * p**k * (1 - p) ** fails * (k <= n))


def law_of_channels(m: float, channels: int, leave: float, rate: float) -> np.ndarray:
    """Return the stationary law of Q where c are served a round and who is not may leave.

    Args:
        m: of each attempt.
        channels: c.
        leave: th, the probability that a query leaves which was not served in the round.
        rate: l.

    Returns:
        [n] probabilities of 0, 1, ... queries, by the chain.
    """
    numbers = np.arange(STATES + 1)
    step = np.zeros((STATES, STATES))  # from, to
    for here in range(STATES):
        served = binomial(min(here, channels), numbers[: channels + 1], m)
        left = binomial(max(here - channels, 0), numbers[: max(here - channels, 0) + 1], leave)
        gone = np.convolve(served, left)[: here + 1]
        stays = here - np.arange(len(gone))
        step[here, stays] += gone * (1 - rate)
        step[here, np.minimum(stays + 1, STATES - 1)] += gone * rate
    return _stationary(scipy.sparse.csc_array(step.T))


def erlang_a(served: float, channels: int, leave: float, rate: float) -> np.ndarray:
    """Return the law of the queue M/M/c+M: pi_n ~ prod_{k<=n} l / (min(k, c) mu + (k - c)^+ th).

    Continuous time: `served` is mu, `leave` th and `rate` l, each a unit of time.
    """
    k = np.arange(1, STATES)
    down = np.minimum(k, channels) * served + np.maximum(k - channels, 0) * leave
    law = np.concatenate([[1.0], np.cumprod(rate / down)])
    return law / law.sum()


def orbiting(m: float, back: float, rate: float) -> tuple[float, float]:
    """Return EQ and the mean number away where a failure is away and each returns with h a round.

    By the chain of both numbers. A failure counts among those away in its own round, and may return
    at its end: h = 1 is the queue without an orbit.
    """
    in_orbit = rate * (1 - m) / m * (1 - back) / back
    most = math.ceil(in_orbit + FAR * math.sqrt(in_orbit) + FAR)
    n, o = (each.ravel() for each in np.mgrid[:STATES, : most + 1])
    moves = []
    for waits, tried, chance in (
        (n, o, np.where(n == 0, 1.0, 0.0)),
        (n - 1, o, np.where(n == 0, 0.0, m)),
        (n - 1, o + 1, np.where(n == 0, 0.0, 1 - m)),
    ):
        for k in range(most + 2):
            likely = chance * binomial(tried, k, back)
            stays = np.clip(tried - k, 0, most)
            for came, arrives in ((0, 1 - rate), (1, rate)):
                to = np.clip(waits + k + came, 0, STATES - 1)
                moves.append((to * (most + 1) + stays, likely * arrives))
    to, chances = (np.concatenate(each) for each in zip(*moves, strict=True))
    here = np.tile(np.arange(len(n)), len(moves))
    there = chances > 0
    step = scipy.sparse.coo_array((chances[there], (to[there], here[there])), shape=[len(n)] * 2)
    law = _stationary(step.tocsc())
    return float(law @ n), float(law @ o)


def slow_returns(m: float, rate: float) -> float:
    """Return the limit of EQ as h -> 0: (a - a^2 + l (1 - l) + v) / (2 (1 - a)).

    a = l / m is what comes in a round, new or back, and v = l (1 - m) / m who comes back.
    """
    a, v = rate / m, rate * (1 - m) / m
    return (a - a**2 + rate * (1 - rate) + v) / (2 * (1 - a))


def retrial(load: float, returns: float) -> float:
    """Return the mean orbit of M/M/1 with retrials: rho^2 / (1 - rho) (1 + mu / th).

    Nobody waits at the server: who finds it busy is away, and each tries again at rate th.

    Args:
        load: rho.
        returns: th / mu.
    """
    return load**2 / (1 - load) * (1 + 1 / returns)


def _stationary(step: Any) -> np.ndarray:
    """Return the stationary law [n] of a chain: step[to, from] is a sparse matrix."""
    balance = (step - scipy.sparse.eye_array(step.shape[0])).tocsc()
    # Up to a factor: that of the first state is one, and its equation follows from the others.
    others = scipy.sparse.linalg.spsolve(balance[1:, 1:], -balance[1:, [0]].toarray()[:, 0])
    law = np.concatenate([[1.0], others])
    return np.asarray(law / law.sum())


def mean(law: np.ndarray) -> float:
    """Return the mean of a law [n] of 0, 1, ..."""
    return float(np.arange(len(law)) @ law)
