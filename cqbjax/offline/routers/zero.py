"""ZERO: the best fixed model of the offline split."""

from dataclasses import dataclass

import numpy as np

from cqbjax.offline.routers.base import OfflineSplit, Router, ScoringRouter


@dataclass(frozen=True)
class Zero(Router):
    """Route every prompt to the server with the highest mean utility.

    RouterBench's router of this name mixes models on the convex hull of their mean costs and
    qualities. If the utility is linear in both, the best point of the hull is a single model.
    """

    def fit(self, split: OfflineSplit, *, rho: float, seed: int) -> ScoringRouter:
        """Average the utilities; nothing is random."""
        mean = split.utility(rho).mean(axis=0)
        return ScoringRouter(lambda x: np.tile(mean, (len(x), 1)))
