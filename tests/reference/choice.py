"""The choice model and the best assortment, by enumeration."""

import itertools
import math

import numpy as np

from tests.reference.records import Assortment, Floats, WaitingQuery


def choice_probabilities(utilities: Floats) -> Floats:
    """Return p_j [..., K] of the MNL model for utilities [..., K]; p_0 is what is left."""
    shift = np.maximum(0.0, np.max(utilities, axis=-1, keepdims=True))
    weights = np.exp(utilities - shift)
    return weights / (np.exp(-shift) + np.sum(weights, axis=-1, keepdims=True))


def departure_rate(utilities: Floats, servers: Assortment) -> float:
    """Return R, the probability that an assortment satisfies the user, for utilities [N]."""
    return float(np.sum(choice_probabilities(utilities[list(servers)])))


def best_assortment(utilities: Floats, size: int) -> tuple[Assortment, float]:
    """Return the first K-subset in lexicographic order with the largest R, and its log-odds.

    log(R / (1 - R)) = log(sum of exp(u)) orders like R but does not saturate at 1; where rounding
    hides the smaller terms of the sum, they decide one by one, as in exact arithmetic.
    """

    def value(servers: Assortment) -> tuple[float, list[float]]:
        chosen = sorted(utilities[list(servers)].tolist(), reverse=True)
        return chosen[0] + math.log(math.fsum(math.exp(u - chosen[0]) for u in chosen)), chosen

    best = max(itertools.combinations(range(len(utilities)), size), key=value)
    return best, value(best)[0]


def best_pair(
    waiting: list[WaitingQuery], utilities: list[Floats], k: int
) -> tuple[int, Assortment]:
    """Return the index in `waiting` and the assortment of largest R; ties: the lowest slot."""
    candidates = [best_assortment(values, k) for values in utilities]
    winner = max(range(len(waiting)), key=lambda index: candidates[index][1])
    return winner, candidates[winner][0]


def choose(servers: Assortment, utilities: Floats, uniform: float) -> int:
    """Return the server whose stretch of the cumulative p_j holds the uniform, -1 for none."""
    cumulative = 0.0
    for server, p in zip(servers, choice_probabilities(utilities), strict=True):
        cumulative += p
        if uniform <= cumulative and cumulative > 0:
            return server
    return -1
