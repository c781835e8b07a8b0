"""The policies by their labels."""

import dataclasses
import itertools
import math

import numpy as np

from tests.reference.choice import best_pair
from tests.reference.estimator import Estimator
from tests.reference.records import Assortment, Draws, Floats, Settings, WaitingQuery, Workload
from tests.reference.retries import Tally, answer, next_assortment, pick_query

BASELINE_POLICIES = ("optimal", "random", "rand_rout", "rand_rout_fallback", "q_ucb", "q_ths")
# What routers do with a retry, and how they schedule.
ROUTED = {
    "routed": ("same", "oldest"),
    "routed_priority": ("same", "joint"),
    "routed_fallback": ("fallback", "oldest"),
    "routed_fallback_rr": ("fallback", "least_served"),
    "routed_fallback_priority": ("fallback", "joint"),
    "routed_posterior_priority": ("posterior", "joint"),
    "routed_recall_priority": ("recall", "joint"),
    "routed_cache_priority": ("cache", "joint"),
}
RULES = {"fifo": "oldest", "lifo": "newest", "rr": "least_served", "random": "uniform"}
# How a variant of ACQB picks its query, in exploitation rounds or in exploration rounds.
EXPLOIT_QUERY = {f"acqb_{name}": RULES[name] for name in ("fifo", "rr", "random")}
EXPLORE_QUERY = {f"acqb_explore_{name}": rule for name, rule in RULES.items()}
RETRIES = {f"acqb_{retry}": retry for retry in ("fallback", "posterior", "recall")}
ACQB = ("acqb", "acqb_ucb", "acqb_windowed", "acqb_mixed", *RETRIES, *EXPLOIT_QUERY, *EXPLORE_QUERY)
POLICIES = (*BASELINE_POLICIES, *ROUTED, "cqb_eps", *ACQB)


def replace_down(servers: Assortment, down: np.ndarray, uniforms: Floats) -> Assortment:
    """Replace an assortment with a server that is down by the first K up, by their uniforms."""
    if not down[list(servers)].any():
        return servers
    up = sorted(np.flatnonzero(~down).tolist(), key=lambda j: -uniforms[j])
    return tuple(sorted([*up, *np.flatnonzero(down).tolist()][: len(servers)]))


class RoutedPolicy:
    """Act as a router trained beforehand, by its predictions of a row's utilities."""

    def __init__(self, label: str, workload: Workload, draws: Draws, settings: Settings) -> None:
        """Start with nothing to recall."""
        self.retry, self.rule = ROUTED[label]
        self.workload, self.draws, self.settings = workload, draws, settings
        self.tally = Tally(workload, settings)
        self.learn = self.tally.learn

    def select(self, t: int, waiting: list[WaitingQuery]) -> tuple[WaitingQuery, Assortment, bool]:
        """Return the query, the assortment and that the round does not explore."""
        assert self.workload.scores is not None
        scores = [self.workload.scores[query.row] for query in waiting]
        uniform = self.draws.query[t - 1]
        query, servers = answer(
            self.retry, self.rule, waiting, scores, uniform, self.settings, self.tally
        )
        return query, servers, False


class BaselinePolicy:
    """Act as optimal, random, rand_rout, Q-UCB or Q-ThS (appendix, "Baseline algorithms")."""

    def __init__(self, label: str, workload: Workload, draws: Draws, settings: Settings) -> None:
        """Start with no server played."""
        self.label, self.workload, self.draws, self.settings = label, workload, draws, settings
        servers = workload.utilities.shape[1]
        self.assortments = list(itertools.combinations(range(servers), settings.K))
        self.down = np.zeros(servers, bool)
        self.successes, self.plays = np.zeros(servers), np.zeros(servers)

    def select(self, t: int, waiting: list[WaitingQuery]) -> tuple[WaitingQuery, Assortment, bool]:
        """Return the query, the assortment and whether the round explores."""
        if self.label == "optimal":
            utilities = [self.workload.utilities[query.row] for query in waiting]
            index, servers = best_pair(waiting, utilities, self.settings.K)
            return waiting[index], servers, False
        rule = "uniform" if self.label == "random" else "oldest"
        # The queueing bandits draw nothing: of several oldest ones the first in slot order.
        lot = 0.0 if self.label.startswith("q_") else self.draws.query[t - 1]
        query = pick_query(rule, waiting, lot)
        if self.label == "rand_rout_fallback":
            tie_breaks = self.draws.tie_breaks[t - 1]
            return query, next_assortment(tie_breaks, query.shown, self.settings.K), False
        probability = min(1.0, 3 * len(self.plays) * math.log(t) ** 2 / t)
        explored = self.label.startswith("q_") and bool(self.draws.explore[t - 1] < probability)
        if explored or not self.label.startswith("q_"):
            servers = self.assortments[self.draws.assortment[t - 1]]
            return query, replace_down(servers, self.down, self.draws.replacement[t - 1]), explored
        indices = np.where(self.down, -np.inf, self.arm_indices(t))
        return query, (int(np.argmax(indices)),), False

    def arm_indices(self, t: int) -> Floats:
        """Return the upper confidence bound (Q-UCB) or the Beta draw (Q-ThS) of a server [N]."""
        if self.label == "q_ths" and self.draws.beta is not None:
            return self.draws.beta(t, self.successes + 1, self.plays - self.successes + 1)
        indices = np.full(len(self.plays), np.inf)
        for j in np.flatnonzero(self.plays):
            bonus = math.sqrt(math.log(t) ** 2 / (2 * self.plays[j]))
            indices[j] = self.successes[j] / self.plays[j] + bonus
        return indices

    def learn(self, row: int, servers: Assortment, choice: int) -> None:
        """Count the showings and the choice (-1: the outside option)."""
        self.plays[list(servers)] += 1
        self.successes[list(servers)] += np.array(servers) == choice


class OptimisticPolicy:
    """Act as ACQB (Algorithms 1 and 2), CQB-eps, or a variant of ACQB in one of its parts."""

    def __init__(self, label: str, workload: Workload, draws: Draws, settings: Settings) -> None:
        """Start with theta = 0 and the round-robin counter at 0."""
        self.label, self.workload, self.draws, self.settings = label, workload, draws, settings
        self.estimator, self.tally = Estimator(workload, settings), Tally(workload, settings)
        self.assortments = list(
            itertools.combinations(range(workload.utilities.shape[1]), settings.K)
        )
        self.counter = 0
        self.learnt: list[tuple[int, Assortment, int]] = []
        self.down = np.zeros(workload.utilities.shape[1], bool)
        self.newest_waits = True

    def explores(self, t: int) -> bool:
        """Return whether round t explores: E(t-1)=1 and, but for the variants, A(t-1)=1."""
        since = t
        if self.label == "acqb_windowed":
            # Exploration starts again with the forgetting.
            since = len(self.learnt) % (self.settings.window // 2) + 1
        probability = min(1.0, self.settings.c1 * since**-0.5)
        if self.label == "cqb_eps":
            probability = 1.0 if t <= self.settings.explore_rounds else self.settings.horizon**-0.5
        arrived = t > 1 and self.workload.arriving(
            t - 1, self.draws.arrival[t - 2], self.settings.arrival_rate
        )
        triggered = bool(self.draws.explore[t - 1] < probability)
        return triggered and (self.label in EXPLORE_QUERY or (bool(arrived) and self.newest_waits))

    def select(self, t: int, waiting: list[WaitingQuery]) -> tuple[WaitingQuery, Assortment, bool]:
        """Return the query, the assortment and whether the round explores."""
        uniform = self.draws.query[t - 1]
        if self.explores(t):
            # On arrivals the newest query is the one that arrived in round t-1.
            query = pick_query(EXPLORE_QUERY.get(self.label, "newest"), waiting, uniform)
            servers = self.assortments[self.counter]
            servers = replace_down(servers, self.down, self.draws.replacement[t - 1])
            self.counter = (self.counter + 1) % len(self.assortments)
            return query, servers, True
        rows = [query.row for query in waiting]
        if self.label == "acqb_ucb":
            utilities = [self.estimator.upper_utilities(row) for row in rows]
        else:
            samples = self.estimator.samples(self.draws.normal[t - 1])
            utilities = [self.estimator.sampled_utilities(row, samples) for row in rows]
        utilities = [np.where(self.down, -1e4, one) for one in utilities]
        rule, retry = EXPLOIT_QUERY.get(self.label, "joint"), RETRIES.get(self.label, "same")
        settings = self.settings
        if self.label == "acqb_mixed":
            settings = dataclasses.replace(settings, K=settings.exploit_size)
        query, servers = answer(retry, rule, waiting, utilities, uniform, settings, self.tally)
        return query, servers, False

    def learn(self, row: int, servers: Assortment, choice: int) -> None:
        """Update the estimate, and what is recalled of the row."""
        self.estimator.learn(row, servers, choice)
        self.tally.learn(row, servers, choice)
        self.learnt.append((row, servers, choice))
        half = self.settings.window // 2
        if self.label == "acqb_windowed" and len(self.learnt) % half == 0:
            # All is forgotten but the last W / 2 attempts, which are learnt again in their order.
            self.estimator = Estimator(self.workload, self.settings)
            for attempt in self.learnt[-half:]:
                self.estimator.learn(*attempt)


def make_policy(
    label: str, workload: Workload, draws: Draws, settings: Settings
) -> BaselinePolicy | RoutedPolicy | OptimisticPolicy:
    """Return the policy of a label, before its first round, or raise as `simulate` says."""
    if label not in POLICIES:
        raise ValueError(f"Unknown policy {label!r}: allowed are {', '.join(POLICIES)}.")
    if workload.features.ndim != {"disjoint": 2, "shared": 3}.get(settings.parameters):
        raise ValueError("parameters must be disjoint (features [I, d]) or shared ([I, N, d]).")
    if len(draws.arrival) != settings.horizon:
        raise ValueError(f"draws hold {len(draws.arrival)} rounds, not {settings.horizon}.")
    if label in ("q_ucb", "q_ths") and settings.K != 1:
        raise ValueError(f"{label} is defined for K=1 only, not K={settings.K}.")
    if label == "q_ths" and draws.beta is None:
        raise ValueError("q_ths needs draws.beta, which is None.")
    if label == "acqb_mixed" and settings.K == 1:
        raise ValueError("acqb_mixed is defined for K > 1 only.")
    if label in ROUTED:
        if workload.scores is None:
            raise ValueError(f"{label} needs workload.scores, which is None.")
        return RoutedPolicy(label, workload, draws, settings)
    if label in BASELINE_POLICIES:
        return BaselinePolicy(label, workload, draws, settings)
    return OptimisticPolicy(label, workload, draws, settings)
