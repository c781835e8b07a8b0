"""One run, round by round."""

import numpy as np

from tests.reference.choice import best_assortment, choose, departure_rate
from tests.reference.estimator import Estimator
from tests.reference.policies import OptimisticPolicy, make_policy
from tests.reference.records import Draws, Settings, Trajectory, WaitingQuery, Workload, padded


def simulate(policy: str, workload: Workload, draws: Draws, settings: Settings) -> Trajectory:
    """Play one policy for T rounds on recorded draws (section 2 and Algorithms 1 and 2).

    Raises:
        ValueError: the policy is unknown, or does not fit the settings, the scenario or the draws.
    """
    agent = make_policy(policy, workload, draws, settings)
    theta = Estimator(workload, settings).theta
    slots: list[WaitingQuery | None] = []
    records = []  # one a round, in the order of Trajectory's fields
    for t in range(1, settings.horizon + 1):
        waiting = [query for query in slots if query is not None]
        served, servers, chosen, regret, explored = -1, (-1,) * settings.K, -1, 0.0, False
        if waiting:
            query, servers, explored = agent.select(t, waiting)
            utilities = workload.utilities[query.row]
            chosen = choose(servers, utilities[list(servers)], draws.uniform(t, query, servers[0]))
            served = query.arrival_round
            query.served += 1
            for j in servers:
                query.shown[j] += 1
            if chosen >= 0:
                slots[slots.index(query)] = None
            agent.learn(query.row, servers, chosen)
            best, _ = best_assortment(utilities, settings.K)
            regret = departure_rate(utilities, best) - departure_rate(utilities, servers)
        for row in workload.arriving(t, draws.arrival[t - 1], settings.arrival_rate):
            if None not in slots:
                slots.append(None)
            slots[slots.index(None)] = WaitingQuery(t, row, [0] * workload.utilities.shape[1])
        length = sum(query is not None for query in slots)
        if isinstance(agent, OptimisticPolicy):
            theta = agent.estimator.theta.copy()
        shown = padded(servers, settings.K)
        records.append((served, shown, chosen, chosen >= 0, length, regret, explored, theta))
    return Trajectory(*(np.array(column) for column in zip(*records, strict=True)))
