"""ZERO: the best fixed model of the offline split."""

from dataclasses import dataclass

import numpy as np

from cqbjax.offline.routers.base import Floats, OfflineSplit, check_queries


@dataclass(frozen=True)
class FittedZero:
    """Mean utility [N] of each server on the offline split."""

    mean_utility: Floats
    dimension: int

    @property
    def choices(self) -> dict[str, float]:
        """Return the server chosen."""
        return {"server": int(np.argmax(self.mean_utility))}

    def predict(self, embeddings: Floats) -> Floats:
        """Predict the same mean utilities for every prompt."""
        queries = check_queries(embeddings, self.dimension)
        return np.tile(self.mean_utility, (len(queries), 1))


@dataclass(frozen=True)
class Zero:
    """Route every prompt to the server with the highest mean utility.

    For a linear utility the best point of RouterBench's cost-quality hull is a vertex, one model.
    """

    def tune(self, split: OfflineSplit, *, rho: float, seed: int) -> "Zero":
        """Choose nothing: there is no hyper-parameter."""
        del split, rho, seed
        return self

    def fit(self, split: OfflineSplit, *, rho: float, seed: int) -> FittedZero:
        """Average the utilities; nothing is random."""
        return FittedZero(split.utility(rho).mean(axis=0), split.embeddings.shape[1])
