"""UMR (UniRoute, Jitkrittum et al.): cluster prompts, route by the cluster's error and cost."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from cqbjax.offline.routers.base import Floats, PerformanceRouter, cluster


@dataclass(frozen=True)
class UMR(PerformanceRouter):
    """Route by cluster-level error and model cost, argmin error_m(cluster) + rho * cost_m.

    Attributes:
        grid: Numbers of clusters to cross-validate; one value fixes it.
        fold_count: Folds of the cross-validation.
    """

    grid: tuple[int, ...] = (5, 10, 20, 50)
    fold_count: int = 3

    def train(self, x: Floats, y: Floats, value: int, seed: int) -> Callable[[Floats], Floats]:
        """Average 1 - performance in each of `value` clusters; predict by the nearest centre."""
        model = cluster(x, value, seed)
        centres = model.cluster_centers_
        members = np.eye(len(centres))[model.labels_]
        size = members.sum(axis=0)[:, None]
        mean = (members.T @ (1.0 - y)) / np.maximum(size, 1)
        error = np.where(size > 0, mean, 1.0 - y.mean(axis=0))
        half_squares = 0.5 * (centres**2).sum(axis=1)
        return lambda x: 1.0 - error[np.argmax(x @ centres.T - half_squares, axis=1)]
