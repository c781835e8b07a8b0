"""Which query is served, and what a policy does with one that comes back."""

import numpy as np

from tests.reference.choice import best_pair
from tests.reference.records import Assortment, Floats, Settings, WaitingQuery, Workload


def pick_query(rule: str, waiting: list[WaitingQuery], uniform: float) -> WaitingQuery:
    """Return the query that a scheduling rule serves, uniformly among several that it leaves.

    `waiting` is in slot order.
    """
    if rule in ("oldest", "newest"):
        rounds = [query.arrival_round for query in waiting]
        first = min(rounds) if rule == "oldest" else max(rounds)
        waiting = [query for query in waiting if query.arrival_round == first]
    if rule == "least_served":
        fewest = min(query.served for query in waiting)
        waiting = [query for query in waiting if query.served == fewest]
    return waiting[min(int(uniform * len(waiting)), len(waiting) - 1)]


def next_assortment(utilities: Floats, shown: list[int], size: int) -> Assortment:
    """Return the K servers shown least often, the best of them first where not all can be had."""
    order = sorted(range(len(utilities)), key=lambda j: (shown[j], -utilities[j]))
    return tuple(sorted(order[:size]))


class Tally:
    """Count what became of every row's attempts."""

    def __init__(self, workload: Workload, settings: Settings) -> None:
        """Start at nothing."""
        known: dict[bytes, int] = {}
        by_embedding = settings.recall_by == "embedding"
        self.place = [
            known.setdefault(features.tobytes(), row) if by_embedding else row
            for row, features in enumerate(workload.features)
        ]
        self.accepted = np.zeros(workload.utilities.shape)
        self.failed = np.zeros(workload.utilities.shape)

    def learn(self, row: int, servers: Assortment, choice: int) -> None:
        """Count one round; where another server was chosen it tells nothing of the rest."""
        row = self.place[row]
        if choice >= 0:
            self.accepted[row, choice] += 1
        else:
            self.failed[row, list(servers)] += 1


def beta_log_odds(utilities: Floats, accepted: Floats, failed: Floats, precision: float) -> Floats:
    """Return the log-odds [N] of a Beta distribution's mean after acceptances and failures."""
    mean = 1 / (1 + np.exp(-utilities))
    return np.log((mean * precision + accepted) / ((1 - mean) * precision + failed))


def revise(
    retry: str, query: WaitingQuery, utilities: Floats, tally: Tally, precision: float
) -> Floats:
    """Return the utilities [N] of a query, given what its own or its row's attempts showed."""
    if retry == "posterior":
        failed = np.array(query.shown, float)
        return beta_log_odds(utilities, np.zeros_like(failed), failed, precision)
    place = tally.place[query.row]
    if retry == "cache":
        # Who satisfied the prompt comes first, among themselves in the order of their utilities.
        return utilities + 100.0 * (tally.accepted[place] > 0)
    if retry == "recall":
        counts = tally.accepted[place], tally.failed[place]
        return beta_log_odds(utilities, *counts, precision)
    return utilities


def answer(
    retry: str, rule: str, waiting: list[WaitingQuery], utilities: list[Floats], uniform: float,
    settings: Settings, tally: Tally,
) -> tuple[WaitingQuery, Assortment]:  # fmt: skip
    """Return the query that a rule picks and its assortment, given what a retry changes."""
    utilities = [
        revise(retry, query, u, tally, settings.precision)
        for query, u in zip(waiting, utilities, strict=True)
    ]
    if rule != "joint":
        query = pick_query(rule, waiting, uniform)
        index = next(i for i, one in enumerate(waiting) if one is query)
        waiting, utilities = [query], [utilities[index]]
    if retry not in ("fallback", "cache"):
        index, servers = best_pair(waiting, utilities, settings.K)
        return waiting[index], servers
    choices = [
        next_assortment(u, query.shown, settings.K)
        for u, query in zip(utilities, waiting, strict=True)
    ]
    score = [np.logaddexp.reduce(u[list(s)]) for u, s in zip(utilities, choices, strict=True)]
    index = int(np.argmax(score))
    return waiting[index], choices[index]
