"""Scenarios whose queues are known (`testing.queues`), at any load, and `sweep` of them.

The letters are those of `testing.queues`.
"""

import dataclasses
import itertools
import math
from collections.abc import Callable, Sequence

import numpy as np

from cqbjax.core.labels import OPTIMAL
from cqbjax.core.scenario import ServiceModel, UserModel
from cqbjax.core.types import Policy, Source
from cqbjax.dynamics import Impatience, Orbit, ServiceChannels, ServiceTimes
from cqbjax.engine.batches import max_slots
from cqbjax.engine.progress import Reporter
from cqbjax.engine.sweep import sweep
from cqbjax.policies import OptimalPolicy, RandomRouting
from cqbjax.sources import ArrivalWrapper, BatchArrivals, Coin
from tests.reference import queues

OLDEST, NEWEST = RandomRouting(schedule="oldest"), RandomRouting(schedule="newest")
# Probabilities: of success, of two classes too, and where several are served; to give up, to leave,
# to return.
M, CLASSES, CHANNELS_M = 0.75, np.array([0.5, 0.9]), 0.3
GIVE_UP, LEAVE, BACK = 0.3, 0.05, 0.2
# Attempts at most, channels, shares of batches of one and of two.
MOST, CHANNELS, SIZES = 2, 3, np.array([2, 1]) / 3
# Records in a relaxation time, relaxation times that are left out at the start, and slots for each
# query of the mean queue, whose tail is geometric.
RECORDS, BURN_IN, TAIL = 20, 5, 16


def spread(mean: float, second: float) -> float:
    """Return Var S / ES + ES - 1: of the work that comes in a round at load 1, the variance.

    Args:
        mean: ES.
        second: E[S(S-1)].
    """
    return (second + mean - mean**2) / mean + mean - 1


COIN: Source = Coin(success=M)


@dataclasses.dataclass(frozen=True)
class KnownQueue:
    """A scenario and its answer.

    Attributes:
        name: what it is.
        formula: of EQ, or what gives it.
        capacity: queries a round that can be served at most, 1 / ES.
        expected: EQ at l.
        source: where queries come from.
        policy: who serves; any would do where none is named.
        users: what one does who is not satisfied.
        service: what is served a round.
        spread: of the work that comes in a round; it says how long the queue remembers.
    """

    name: str
    formula: str
    capacity: float
    expected: Callable[[float], float]
    source: Source = COIN
    policy: Policy = OptimalPolicy()
    users: tuple[UserModel, ...] = ()
    service: tuple[ServiceModel, ...] = ()
    spread: float = spread(1 / M, 2 * (1 - M) / M**2)

    @property
    def label(self) -> str:
        """Return what its policy is called in a sweep."""
        return OPTIMAL if isinstance(self.policy, OptimalPolicy) else self.name

    @property
    def setting(self) -> tuple[int, tuple[UserModel, ...], tuple[ServiceModel, ...]]:
        """Return what is the same where policies alone differ."""
        return id(self.source), self.users, self.service

    def rate(self, load: float) -> float:
        """Return l, queries a round."""
        return load * self.capacity

    def relaxation(self, load: float) -> float:
        """Return about how many rounds the queue remembers: 2 v / (1 - rho)^2, v the spread.

        That of the reflected Brownian motion of the same drift and variance. Of one success rate it
        is 1 / (sqrt(m (1 - l)) - sqrt(l (1 - m)))^2, to some percent near load 1, to a quarter at
        load 0.6. Where unserved queries leave at a rate th, it is no longer than 1 / th.
        """
        leave = sum(float(one.leave) for one in self.users if isinstance(one, Impatience))
        return 1 / ((1 - load) ** 2 / (2 * self.spread) + leave)


def simulated(
    known: Sequence[KnownQueue], load: float, seeds: int, relaxations: int,
    progress: Reporter | bool = False,
) -> dict[str, np.ndarray]:  # fmt: skip
    """Simulate scenarios at a load by `sweep`, those that differ in the policy alone together.

    Args:
        scenarios: of `KNOWN`.
        load: rho, in (0, 1).
        seeds: S, independent runs.
        relaxations: how many relaxation times are kept of each run, after five that are not.
        progress: as in `sweep`.

    Returns:
        Name of a scenario -> [S] mean queue length of each run.
    """
    made: dict[str, np.ndarray] = {}
    for _, together in itertools.groupby(known, key=lambda one: one.setting):
        same = list(together)
        one, rate = same[0], same[0].rate(load)
        every = math.ceil(one.relaxation(load) / RECORDS)
        most = TAIL * (1 + max(each.expected(rate) for each in same))
        data = sweep(
            {each.label: each.policy for each in same}, one.source, arrival_rate=[rate],
            num_seeds=seeds, horizon=every * RECORDS * (BURN_IN + relaxations), record_every=every,
            capacity=max_slots(math.ceil(most)), progress=progress, users=one.users,
            service=one.service,
        )  # fmt: skip
        measured = data.queue_length.isel(arrival_rate=0, round=slice(BURN_IN * RECORDS, None))
        means = measured.mean("round")
        made |= {each.name: means.sel(policy=each.label).values for each in same}
    return made


TWO: Source = Coin(classes=CLASSES)
POISSON: Source = ArrivalWrapper(source=COIN, process=BatchArrivals(most=7))
SIZED: Source = ArrivalWrapper(source=COIN, process=BatchArrivals(sizes=SIZES))
MIXED, TRIED = queues.mixed(CLASSES), queues.attempts(M, MOST)
FIXED, LONG = queues.lasting(M, 2, 0), queues.lasting(M, 2, 2)
SERVED = CHANNELS * CHANNELS_M
SPREAD_OF_CHANNELS = (1 - CHANNELS_M) / SERVED + (1 - SERVED) / SERVED
SIZE, SQUARE = (float(np.average(np.arange(1, len(SIZES) + 1) ** k, weights=SIZES)) for k in (1, 2))
OF_GENERAL = "ρ + λ² E[S(S-1)] / 2(1-ρ)"

KNOWN = (
    KnownQueue("one success rate", "λ(1-λ) / (m-λ)", M, lambda rate: queues.geometric(M, rate),
               COIN, OLDEST),
    KnownQueue("Poisson many a round", "λ(2-λ) / 2(m-λ)", M,
               lambda rate: queues.batches(rate, rate + rate**2, M), POISSON, spread=(2 - M) / M),
    KnownQueue("batches of one or two", "(λ - 2λ² + E[A²]) / 2(m-λ)", M,
               lambda rate: queues.batches(rate, rate * SQUARE / SIZE, M), SIZED,
               spread=(1 - M) / M + (SQUARE / SIZE - M) / M),
    KnownQueue("two classes, oldest first", OF_GENERAL, 1 / MIXED[0],
               lambda rate: queues.general(*MIXED, rate), TWO, OLDEST, spread=spread(*MIXED)),
    KnownQueue("two classes, newest first", "ρ(1-λ) / (1-ρ)", 1 / MIXED[0],
               lambda rate: queues.newest_first(MIXED[0], rate), TWO, NEWEST,
               spread=spread(*MIXED)),
    KnownQueue("two classes, likeliest first", "preemptive priority", 1 / MIXED[0],
               lambda rate: float(queues.preemptive(CLASSES, rate).sum()), TWO,
               spread=spread(*MIXED)),
    KnownQueue("at most two attempts", OF_GENERAL, 1 / TRIED[0],
               lambda rate: queues.general(*TRIED, rate), COIN, OLDEST,
               (Impatience(attempts=MOST),)),
    KnownQueue("giving up by chance", "λ(1-λ) / (m+(1-m)g-λ)", M + (1 - M) * GIVE_UP,
               lambda rate: queues.geometric(M + (1 - M) * GIVE_UP, rate),
               users=(Impatience(give_up=GIVE_UP),)),
    KnownQueue("leaving unserved", "its chain", M,
               lambda rate: queues.mean(queues.law_of_channels(M, 1, LEAVE, rate)),
               users=(Impatience(leave=LEAVE),)),
    KnownQueue("attempts of two rounds", f"{OF_GENERAL} - λ/m", M / 2,
               lambda rate: queues.lasting_waits(M, 2, 0, rate), service=(ServiceTimes(rounds=2),),
               spread=spread(*FIXED)),
    KnownQueue("attempts of two rounds on average", f"{OF_GENERAL} - λ/m", M / 2,
               lambda rate: queues.lasting_waits(M, 2, 2, rate),
               service=(ServiceTimes(rounds=2, law="geometric"),), spread=spread(*LONG)),
    KnownQueue("three served a round", "Geo/Geo/3", SERVED,
               lambda rate: queues.several(CHANNELS_M, CHANNELS, rate), Coin(success=CHANNELS_M),
               service=(ServiceChannels(count=CHANNELS),), spread=SPREAD_OF_CHANNELS),
    KnownQueue("three served, leaving unserved", "its chain", SERVED,
               lambda rate: queues.mean(queues.law_of_channels(CHANNELS_M, CHANNELS, LEAVE, rate)),
               Coin(success=CHANNELS_M), users=(Impatience(leave=LEAVE),),
               service=(ServiceChannels(count=CHANNELS),),
               spread=SPREAD_OF_CHANNELS),
    KnownQueue("back in the next round", "λ(1-λ) / (m-λ)", M,
               lambda rate: queues.geometric(M, rate), users=(Orbit(return_rate=1),)),
    KnownQueue("back after five rounds on average", "its chain", M,
               lambda rate: queues.orbiting(M, BACK, rate)[0], users=(Orbit(return_rate=BACK),)),
)  # fmt: skip
