"""UMR (UniRoute, Jitkrittum et al.): cluster prompts, route by the cluster's error and cost."""

import dataclasses
from dataclasses import dataclass

import numpy as np

from cqbjax.offline.routers.base import (
    Floats,
    Indices,
    OfflineSplit,
    ScoringRouter,
    check_grid,
    cluster,
    cross_validate,
    warn_at_grid_end,
)


@dataclass(frozen=True)
class ClusterErrors:
    """Centres [C, d] and each server's mean error [C, N] in every cluster."""

    centres: Floats
    error: Floats

    def performance(self, embeddings: Floats) -> Floats:
        """Predict performance [P, N], one minus the error of the nearest centre."""
        half_squares = 0.5 * (self.centres**2).sum(axis=1)
        nearest = np.argmax(embeddings @ self.centres.T - half_squares, axis=1)
        return 1.0 - self.error[nearest]


def fit_cluster_errors(
    embeddings: Floats, performance: Floats, count: int, seed: int
) -> ClusterErrors:
    """Cluster embeddings [n, d] by k-means and average 1 - performance in each cluster."""
    model = cluster(embeddings, count, seed)
    members = np.eye(len(model.cluster_centers_))[model.labels_]
    size = members.sum(axis=0)[:, None]
    overall = 1.0 - performance.mean(axis=0)
    mean = (members.T @ (1.0 - performance)) / np.maximum(size, 1)
    return ClusterErrors(model.cluster_centers_, np.where(size > 0, mean, overall))


@dataclass(frozen=True)
class UMR:
    """Route by cluster-level error and model cost, argmin error_m(cluster) + rho * cost_m.

    Attributes:
        grid: Numbers of clusters to cross-validate; one value fixes it.
        fold_count: Folds of the cross-validation.
    """

    grid: tuple[int, ...] = (5, 10, 20, 50)
    fold_count: int = 3

    def __post_init__(self) -> None:
        """Check the grid."""
        check_grid("UMR grid", self.grid)

    def tune(self, split: OfflineSplit, *, rho: float, seed: int) -> "UMR":
        """Choose the number of clusters whose predicted performance has the least squared error."""
        split = split.sort_rows()
        x, y = split.embeddings, split.performance

        def error(count: int, train: Indices, held: Indices) -> float:
            predicted = fit_cluster_errors(x[train], y[train], count, seed).performance(x[held])
            return ((predicted - y[held]) ** 2).sum()

        count = cross_validate(self.grid, error, len(x), self.fold_count, seed)
        warn_at_grid_end("UMR's number of clusters", count, self.grid)
        return dataclasses.replace(self, grid=(count,))

    def fit(self, split: OfflineSplit, *, rho: float, seed: int) -> ScoringRouter:
        """Choose the number of clusters by squared error and cluster the whole split."""
        split = split.sort_rows()
        (count,) = self.tune(split, rho=rho, seed=seed).grid
        errors = fit_cluster_errors(split.embeddings, split.performance, count, seed)
        weighted_cost = rho * split.cost.mean(axis=0)
        return ScoringRouter(lambda x: errors.performance(x) - weighted_cost)
