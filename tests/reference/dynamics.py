"""One run in another scenario than the paper's: orbit, abandonment, channels, outages."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from tests.reference.choice import best_assortment, choose, departure_rate
from tests.reference.policies import BaselinePolicy, OptimisticPolicy, make_policy
from tests.reference.records import (
    Assortment,
    Draws,
    Floats,
    Integers,
    Settings,
    WaitingQuery,
    Workload,
    padded,
)

# The utility of a server that does not answer, and showings that put it last.
DOWN, NEVER_AGAIN = -1e4, 10**6


@dataclasses.dataclass(frozen=True)
class Rules:
    """What users and the service do, as it was drawn; entry t-1 belongs to round t.

    The defaults are the paper's.
    """

    channels: int = 1
    return_delay: Integers | None = None  # [T, c] rounds until a failed query waits again
    most_attempts: float = float("inf")
    gives_up: npt.NDArray[np.bool_] | None = None  # [T, c]
    pretends: npt.NDArray[np.bool_] | None = None  # [T, c]
    patience: Integers | None = None  # [T, A] rounds that an arriving user waits at most
    service_time: Integers | None = None  # [T, c, I, N] rounds of an attempt, by row and server
    available: npt.NDArray[np.bool_] | None = None  # [T, N]
    feedback_arrives: npt.NDArray[np.bool_] | None = None  # [T, c]
    delay: int = 0  # rounds after an attempt's last one until it is learnt from
    other: Floats | None = None  # [I, N] utilities at a right angle
    angle: Floats | None = None  # [T] radians


@dataclasses.dataclass
class Query(WaitingQuery):
    """Hold one query, wherever it is."""

    back: int = 0  # the round from which it waits
    patience: float = float("inf")
    in_service: bool = False


@dataclasses.dataclass
class Attempt:
    """Hold one query in service."""

    query: Query
    servers: Assortment
    chosen: int  # -1: none
    explored: bool
    utilities: Floats
    last: int


@dataclasses.dataclass(frozen=True)
class PlayedRun:
    """Hold what one run did; entry t-1 belongs to round t, and c is its channels."""

    query: Integers  # [T, c] arrival round of the query whose attempt ended; -1: none
    assortment: Integers  # [T, c, K]; -1: none
    choice: Integers  # [T, c] accepted server; -1: none
    explored: npt.NDArray[np.bool_]  # [T, c]
    regret: Floats  # [T, c]
    queue_length: Integers  # [T] Q(t+1): who could be served in round t+1


def simulate_scenario(
    policy: str, workload: Workload, draws: Sequence[Draws], settings: Settings, rules: Rules
) -> PlayedRun:
    """Play one policy for T rounds on recorded draws, separate for each channel.

    Raises:
        ValueError: the policy is unknown, or does not fit the settings, the scenario or the draws.
    """
    agent = make_policy(policy, workload, draws[0], settings)
    run = _Run(agent, workload, draws, settings, rules)
    rounds = [run.round(t) for t in range(1, settings.horizon + 1)]
    return PlayedRun(*(np.array(column) for column in zip(*rounds, strict=True)))


class _Run:
    """One run, a round at a time."""

    def __init__(
        self,
        agent: Any,
        workload: Workload,
        draws: Sequence[Draws],
        settings: Settings,
        rules: Rules,
    ) -> None:
        """Start with nobody."""
        self.agent, self.workload, self.draws = agent, workload, draws
        self.settings, self.rules = settings, rules
        self.slots: list[Query | None] = []
        self.channels: list[Attempt | None] = [None] * rules.channels
        self.newest: Query | None = None
        self.feedback: list[list[tuple[Any, ...]]] = []  # of each round so far

    def round(self, t: int) -> tuple[Any, ...]:
        """Play round t and return what is kept of it."""
        here = self.waiting(t)
        taken = self.begin(t, here)
        ended, feedback = self.end(t)
        self.feedback.append(feedback)
        if t > self.rules.delay:
            for row, servers, chosen, explored in self.feedback[t - 1 - self.rules.delay]:
                self.learn(row, servers, chosen, explored)
        for query in here:
            if query not in taken:
                query.patience -= 1
                if query.patience <= 0:
                    self.slots[self.slots.index(query)] = None
        self.arrive(t)
        return (*ended, len(self.waiting(t + 1)))

    def waiting(self, t: int) -> list[Query]:
        """Return who could be served in round t, in slot order."""
        return [q for q in self.slots if q is not None and q.back <= t and not q.in_service]

    def utilities(self, t: int) -> Floats:
        """Return the utilities of all rows in round t [I, N]."""
        utilities = self.workload.utilities
        if self.rules.other is not None and self.rules.angle is not None:
            angle = self.rules.angle[t - 1]
            utilities = np.cos(angle) * utilities + np.sin(angle) * self.rules.other
        return np.where(self.available(t), utilities, DOWN)

    def available(self, t: int) -> npt.NDArray[np.bool_]:
        """Return which servers answer in round t [N]."""
        if self.rules.available is None:
            return np.ones(self.workload.utilities.shape[1], bool)
        return self.rules.available[t - 1]

    def begin(self, t: int, here: list[Query]) -> list[Query]:
        """Let every free channel take a query, each without those taken; return these."""
        taken: list[Query] = []
        truth = self.utilities(t)
        for channel, running in enumerate(self.channels):
            left = [query for query in here if query not in taken]
            if running is not None or not left:
                continue
            query, servers, explored = self.select(t, channel, left, truth)
            servers = tuple(j for j in servers if self.available(t)[j])
            if not servers:
                continue  # nobody answers: nothing happens
            utilities = truth[query.row]
            uniform = self.draws[channel].uniform(t, query, servers[0])
            chosen = choose(servers, utilities[list(servers)], uniform)
            rounds = 1
            if self.rules.service_time is not None:
                rounds = max(
                    int(self.rules.service_time[t - 1, channel, query.row, j]) for j in servers
                )
            last = t + rounds - 1
            self.channels[channel] = Attempt(query, servers, chosen, explored, utilities, last)
            query.in_service = True
            taken.append(query)
        return taken

    def select(
        self, t: int, channel: int, left: list[Query], truth: Floats
    ) -> tuple[Query, Assortment, bool]:
        """Ask the policy, with what is down left out."""
        agent, there = self.agent, self.available(t)
        agent.draws = self.draws[channel]
        agent.newest_waits = self.newest is not None and any(q is self.newest for q in left)
        agent.down = ~there
        if isinstance(agent, BaselinePolicy):
            agent.workload = dataclasses.replace(self.workload, utilities=truth)
        shown = [query.shown for query in left]
        for query in left:
            query.shown = np.where(there, query.shown, NEVER_AGAIN).tolist()
        turn = getattr(agent, "counter", 0)
        picked, servers, explored = agent.select(t, left)
        agent.counter = turn  # it goes on when the attempt is learnt from
        for query, counts in zip(left, shown, strict=True):
            query.shown = counts
        return picked, servers, explored

    def end(self, t: int) -> tuple[tuple[Any, ...], list[tuple[Any, ...]]]:
        """End the attempts whose last round this is; return the outcomes and the feedback."""
        size = self.settings.K
        ended = [(-1, (-1,) * size, -1, False, 0.0) for _ in self.channels]
        feedback = []
        for channel, attempt in enumerate(self.channels):
            if attempt is None or attempt.last > t:
                continue
            self.channels[channel] = None
            query, servers, chosen = attempt.query, attempt.servers, attempt.chosen
            query.in_service = False
            query.served += 1
            for j in servers:
                query.shown[j] += 1
            best, _ = best_assortment(attempt.utilities, size)
            lost = departure_rate(attempt.utilities, best) - departure_rate(
                attempt.utilities, servers
            )
            shown = padded(servers, size)
            ended[channel] = (query.arrival_round, shown, chosen, attempt.explored, lost)
            observed, gave_up = chosen, chosen < 0 and self.gives_up(t, channel, query)
            if chosen >= 0 or gave_up:
                self.slots[self.slots.index(query)] = None
            else:
                return_delay = (
                    1
                    if self.rules.return_delay is None
                    else int(self.rules.return_delay[t - 1, channel])
                )
                query.back = t + return_delay
            if gave_up and self.rules.pretends is not None and self.rules.pretends[t - 1, channel]:
                observed = max(servers, key=lambda j: (attempt.utilities[j], -j))
            if self.rules.feedback_arrives is None or self.rules.feedback_arrives[t - 1, channel]:
                feedback.append((query.row, servers, observed, attempt.explored))
        return tuple(zip(*ended, strict=True)), feedback

    def gives_up(self, t: int, channel: int, query: Query) -> bool:
        """Return whether a user leaves whose attempt failed."""
        by_chance = self.rules.gives_up is not None and self.rules.gives_up[t - 1, channel]
        return bool(by_chance) or query.served >= self.rules.most_attempts

    def learn(self, row: int, servers: Assortment, chosen: int, explored: bool) -> None:
        """Tell the policy of one attempt; the round-robin goes on after one that explored."""
        self.agent.learn(row, servers, chosen)
        if explored and isinstance(self.agent, OptimisticPolicy):
            self.agent.counter = (self.agent.counter + 1) % len(self.agent.assortments)

    def arrive(self, t: int) -> None:
        """Let queries arrive in the lowest free slots."""
        self.newest = None
        rows = self.workload.arriving(t, self.draws[0].arrival[t - 1], self.settings.arrival_rate)
        for number, row in enumerate(rows):
            max_wait = (
                float("inf") if self.rules.patience is None else self.rules.patience[t - 1, number]
            )
            if None not in self.slots:
                self.slots.append(None)
            shown = [0] * self.workload.utilities.shape[1]
            self.newest = Query(t, row, shown, patience=max_wait)
            self.slots[self.slots.index(None)] = self.newest
