"""Worlds whose queues are known in closed form, or by a small chain, at any load.

A round: see Q; serve one, which leaves with probability m; then an arrival with probability l,
visible in the next round. EQ is the stationary mean of Q(t), who could be served at the start of a
round. S is the number of rounds that a query needs, and rho = l ES the load.
"""

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import numpy as np

from cqbjax.core.rules import Service, Users
from cqbjax.core.types import Policy, Source
from cqbjax.policies import Optimal, RandomRouting
from cqbjax.sources import Arriving, Batches, Coin
from cqbjax.worlds import Count, Impatient, Orbit, Rounds

OLDEST, NEWEST = RandomRouting(schedule="oldest"), RandomRouting(schedule="newest")
# Two classes of queries, and what is served of each.
CLASSES = np.array([0.4, 0.8])
# States of a truncated chain, and the doublings of its steps.
STATES, DOUBLINGS = 400, 16


@dataclasses.dataclass(frozen=True)
class Known:
    """A world and its answer.

    Attributes:
        name: what it is.
        success: m of each attempt, or of each class.
        rate: l at a load: arrivals a round.
        expected: EQ at l.
        policy: who serves.
        batches: whether several may arrive in a round, Poisson many.
        users: what one does who is not satisfied.
        service: what is served a round.
    """

    name: str
    success: Any
    rate: Callable[[float], float]
    expected: Callable[[float], float]
    policy: Policy = OLDEST
    batches: bool = False
    users: tuple[Users, ...] = ()
    service: tuple[Service, ...] = ()

    @property
    def source(self) -> Source:
        """Return where queries come from."""
        one = np.ndim(self.success) == 0
        coin: Any = Coin(success=self.success) if one else Coin(classes=self.success)
        return Arriving(source=coin, process=Batches(most=16)) if self.batches else coin


def geometric(m: float, rate: float) -> float:
    """Return EQ of Geo/Geo/1: l (1 - l) / (m - l)."""
    return rate * (1 - rate) / (m - rate)


def general(mean: float, second: float, rate: float) -> float:
    """Return EQ of Geo/G/1, first in first out: rho + l^2 E[S(S-1)] / (2 (1 - rho)).

    Args:
        mean: ES.
        second: E[S(S-1)].
        rate: l.
    """
    load = rate * mean
    return load + rate**2 * second / (2 * (1 - load))


def attempts(m: float, most: int) -> tuple[float, float]:
    """Return ES and E[S(S-1)] of at most n attempts."""
    q, n = 1 - m, most
    return (1 - q**n) / m, 2 * (q - n * q**n + (n - 1) * q ** (n + 1)) / m**2


def lasting(m: float, mean: float, variance: float) -> tuple[float, float]:
    """Return ES and E[S(S-1)] where an attempt takes H rounds, of this mean and variance."""
    first = mean / m
    second = variance / m + mean**2 * (1 - m) / m**2 + first**2
    return first, second - first


def classes() -> tuple[float, float]:
    """Return ES and E[S(S-1)] of `CLASSES`, as many of each."""
    return float(np.mean(1 / CLASSES)), float(np.mean(2 * (1 - CLASSES) / CLASSES**2))


def conserved(rate: float) -> float:
    """Return sum_i EQ_i / m_i of `CLASSES`: the same for every policy that never idles."""
    of_each = rate / len(CLASSES)
    load = float(np.sum(of_each / CLASSES))
    return load + float(np.sum(of_each * (1 - CLASSES) / CLASSES**2)) / (1 - load)


def priority(rate: float) -> float:
    """Return EQ of `CLASSES` where the larger success rate goes first, preemptively."""
    slow, fast = CLASSES
    first = geometric(fast, rate / 2)
    return first + slow * (conserved(rate) - first / fast)


def servers(m: float, places: int, rate: float) -> float:
    """Return EQ of Geo/Geo/c, by its chain."""
    leave = [_binomial(min(n, places), m) for n in range(STATES)]
    return _mean(leave, rate)


def leaving(m: float, leave: float, rate: float) -> float:
    """Return EQ where each unserved query leaves with a probability a round, by its chain."""
    gone = []
    for n in range(STATES):
        served = _binomial(min(n, 1), m)
        gone.append(np.convolve(served, _binomial(max(n - 1, 0), leave)))
    return _mean(gone, rate)


def _binomial(n: int, p: float) -> np.ndarray:
    """Return the probabilities of 0, ..., n successes."""
    return np.array([math.comb(n, k) * p**k * (1 - p) ** (n - k) for k in range(n + 1)])


def _mean(gone: list[np.ndarray], rate: float) -> float:
    """Return the stationary mean of a chain: from n, k leave with probability gone[n][k]."""
    step = np.zeros((STATES, STATES))
    for n, chances in enumerate(gone):
        for k, chance in enumerate(chances):
            step[n, n - k] += chance * (1 - rate)
            step[n, min(STATES - 1, n - k + 1)] += chance * rate
    for _ in range(DOUBLINGS):
        step = step @ step
    return float(step[0] @ np.arange(STATES))


def _waiting(m: float, mean: float, variance: float, rate: float) -> float:
    """Return EQ where attempts last: who is in service from before cannot be served."""
    return general(*lasting(m, mean, variance), rate) - rate * (mean - 1) / m


M, N, G, TH, C = 0.6, 3, 0.3, 0.05, 3
PLACES_M = 0.3

KNOWN = (
    Known("one success rate", M, lambda load: load * M, lambda rate: geometric(M, rate)),
    Known(
        "Poisson many a round", M, lambda load: load * M,
        lambda rate: rate * (2 - rate) / (2 * (M - rate)), batches=True,
    ),
    Known(
        "two classes, oldest first", CLASSES, lambda load: load / classes()[0],
        lambda rate: general(*classes(), rate),
    ),
    Known(
        "two classes, newest first", CLASSES, lambda load: load / classes()[0],
        lambda rate: rate * classes()[0] * (1 - rate) / (1 - rate * classes()[0]), NEWEST,
    ),
    Known(
        "two classes, likeliest first", CLASSES, lambda load: load / classes()[0], priority,
        Optimal(),
    ),
    Known(
        "at most three attempts", M, lambda load: load / attempts(M, N)[0],
        lambda rate: general(*attempts(M, N), rate), users=(Impatient(attempts=N),),
    ),
    Known(
        "giving up by chance", M, lambda load: load * (M + (1 - M) * G),
        lambda rate: geometric(M + (1 - M) * G, rate), users=(Impatient(give_up=G),),
    ),
    Known(
        "leaving unserved", M, lambda load: load * M, lambda rate: leaving(M, TH, rate),
        users=(Impatient(leave=TH),),
    ),
    Known(
        "attempts of two rounds", M, lambda load: load * M / 2,
        lambda rate: _waiting(M, 2, 0, rate), service=(Rounds(rounds=2),),
    ),
    Known(
        "attempts of two rounds on average", M, lambda load: load * M / 2,
        lambda rate: _waiting(M, 2, 2, rate), service=(Rounds(rounds=2, law="geometric"),),
    ),
    Known(
        "three served a round", PLACES_M, lambda load: load * C * PLACES_M,
        lambda rate: servers(PLACES_M, C, rate), service=(Count(count=C),),
    ),
    Known(
        "back in the next round", M, lambda load: load * M, lambda rate: geometric(M, rate),
        users=(Orbit(return_rate=1),),
    ),
)  # fmt: skip
