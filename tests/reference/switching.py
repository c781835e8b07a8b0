"""The proof's policy-switching queues, one process after another."""

import numpy as np

from tests.reference.choice import best_pair, choose
from tests.reference.records import Draws, Integers, Settings, Trajectory, WaitingQuery, Workload


def switching_lengths(
    played: Trajectory, workload: Workload, draws: Draws, settings: Settings
) -> tuple[Integers, Integers]:
    """Replay a policy's run up to round i, go on optimally, for every i.

    Args:
        played: the policy's run by itself.
        workload: that it met.
        draws: that it met.
        settings: of the run.

    Returns:
        Q(i, t) [T + 1, T + 1], i = 0 .. T and t = 1 .. T + 1, and D(i, t) [T + 1, T].
    """
    horizon = settings.horizon
    lengths = np.zeros((horizon + 1, horizon + 1), np.int64)
    departures = np.zeros((horizon + 1, horizon), np.int64)
    for i in range(horizon + 1):
        waiting: list[int] = []  # rounds of arrival; the query of round a is in row a - 1
        for t in range(1, horizon + 1):
            if waiting:
                query, leaves = int(played.query[t - 1]), bool(played.departed[t - 1])
                if t > i:
                    query, leaves = _optimal(waiting, draws.choice[t - 1], workload, settings)
                if leaves:
                    waiting.remove(query)
                    departures[i, t - 1] = 1
            if draws.arrival[t - 1] < settings.arrival_rate:
                waiting.append(t)
            lengths[i, t] = len(waiting)
    return lengths, departures


def _optimal(
    waiting: list[int], uniform: float, workload: Workload, settings: Settings
) -> tuple[int, bool]:
    """Return the query of the largest departure rate, and whether it leaves."""
    rows = [int(workload.arrival_index[arrival - 1]) for arrival in waiting]
    queries = [WaitingQuery(a, row, []) for a, row in zip(waiting, rows, strict=True)]
    index, servers = best_pair(queries, [workload.utilities[row] for row in rows], settings.K)
    utilities = workload.utilities[rows[index]][list(servers)]
    return waiting[index], choose(servers, utilities, uniform) >= 0
