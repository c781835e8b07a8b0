"""Nearest-neighbour routers: KNN (RouterBench) and CARROT (Somerstep et al.).

KNN predicts the mean performance of the nearest offline prompts minus rho times the mean cost;
CARROT estimates performance and cost separately. The neighbours of a prompt are sorted once, and
running sums give every k of the grid. Where predictions tie, the LLM of the lower number is routed
to.
"""

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from cqbjax.offline.routers.base import (
    Floats,
    Indices,
    OfflineSplit,
    PerformanceRouter,
    ScoringRouter,
    check_grid,
    cross_validate,
    view_rows,
)

# RouterBench's k (5, 10, 40), 20 between them, CARROT's powers of two from 64 to 512, and 1024 as
# one step beyond, so that a best k of 512 would show as one.
GRID = (5, 10, 20, 40, 64, 128, 256, 512, 1024)
# Cosines, and predictions, that differ by no more than rounding are equal.
TIED = 1e-12
CARROT_GRID = (2, 4, 8, 16, 32, 64, 128, 256, 512)
# Queries whose cosines with all embeddings are in memory at once.
AT_ONCE = 256

Loss = Callable[[Floats, Indices], Floats]


def mean_of_nearest(stored: Floats, values: Floats, queries: Floats, grid: Sequence[int]) -> Floats:
    """Average values over the k rows nearest to each query by cosine, for each k: [G, P, N].

    Rows as far as the k-th share the remaining weight equally, so that ties do not depend on the
    order of rows. Rows of one embedding count as one point.

    Args:
        stored: [n, d] embeddings.
        values: [n, N].
        queries: [P, d].
        grid: Values of k, at most n; it ascends, each k once.
    """
    _, first, group, count = np.unique(
        view_rows(stored), return_index=True, return_inverse=True, return_counts=True
    )
    points, sums = _scale_to_unit(stored[first]), np.zeros((len(first), values.shape[1]))
    np.add.at(sums, group, values)
    most, ks = min(grid[-1], len(points)), np.asarray(grid)
    means = np.empty((len(grid), len(queries), values.shape[1]))
    for start in range(0, len(queries), AT_ONCE):
        cosine = _scale_to_unit(queries[start : start + AT_ONCE]) @ points.T
        furthest = np.partition(cosine, -most, axis=1)[:, -most] - TIED
        for row, (to_each, least) in enumerate(zip(cosine, furthest, strict=True), start):
            near = np.flatnonzero(to_each >= least)
            near = near[np.argsort(-to_each[near], kind="stable")]
            distance, rows = -to_each[near], np.cumsum(np.r_[0, count[near]])
            total = np.cumsum(np.vstack([np.zeros(sums.shape[1]), sums[near]]), axis=0)
            kth = distance[np.searchsorted(rows[1:], ks)]
            before = np.searchsorted(distance, kth - TIED)
            until = np.searchsorted(distance, kth + TIED, side="right")
            share = ((ks - rows[before]) / (rows[until] - rows[before]))[:, None]
            part = total[before] + share * (total[until] - total[before])
            means[:, row] = np.where(share == 1, total[until], part) / ks[:, None]
    return means


def _scale_to_unit(embeddings: Floats) -> Floats:
    """Scale embeddings to length one in float64; a zero vector has no direction and stays zero."""
    exact = embeddings.astype(np.float64)
    length = np.linalg.norm(exact, axis=1, keepdims=True)
    return exact / np.where(length > 0, length, 1.0)


def squared_error(values: Floats) -> Loss:
    """Return the loss that sums squared errors of predicted values [G, B, N] of the rows [B]."""
    return lambda predicted, rows: ((predicted - values[rows]) ** 2).sum(axis=(1, 2))


def lost_utility(utility: Floats, weighted_cost: Floats) -> Loss:
    """Return the loss that sums minus the utility [n, N] of the server that would be routed to.

    Of servers that tie it is the mean.
    """

    def loss(predicted: Floats, rows: Indices) -> Floats:
        score = predicted - weighted_cost
        best = score >= score.max(axis=2, keepdims=True) - TIED
        return -((utility[rows] * best).sum(axis=2) / best.sum(axis=2)).sum(axis=1)

    return loss


def choose_k(
    embeddings: Floats, values: Floats, loss: Loss, grid: tuple[int, ...], fold_count: int,
    seed: int,
) -> int:  # fmt: skip
    """Choose k by cross-validation.

    A k larger than a training fold is left out.

    Args:
        embeddings: [n, d].
        values: [n, N] to predict (performance, or cost).
        loss: Loss of predictions on held-out rows, a number for each k.
        grid: Values of k.
        fold_count: Folds.
        seed: Seed of the folds.

    Returns:
        The k with the least loss; the smallest one if several tie.

    Raises:
        ValueError: If no k of the grid fits in a training fold.
    """
    prompts = len(embeddings)
    smallest = prompts - -(-prompts // min(fold_count, prompts))
    usable = tuple(sorted({k for k in grid if k <= smallest}))
    if not usable:
        raise ValueError(
            f"every k of {grid} exceeds the {smallest} prompts of a training fold; give a "
            "smaller k."
        )

    def losses(grid: Sequence[int], train: Indices, held: Indices) -> Floats:
        predicted = mean_of_nearest(embeddings[train], values[train], embeddings[held], grid)
        return loss(predicted, held)

    return cross_validate(usable, losses, prompts, fold_count, seed)


@dataclass(frozen=True)
class KNN(PerformanceRouter):
    """Route by the performance of similar prompts.

    Attributes:
        grid: Values of k to cross-validate; one value fixes it.
        fold_count: Folds of the cross-validation.
    """

    grid: tuple[int, ...] = GRID
    fold_count: int = 5

    def tune(self, split: OfflineSplit, *, rho: float, seed: int) -> "KNN":
        """Fix the k whose routing earns most on held-out prompts."""
        split = split.sort_rows()
        x, y = split.embeddings, split.performance
        loss = lost_utility(split.utility(rho), rho * split.cost.mean(axis=0))
        k = choose_k(x, y, loss, self.grid, self.fold_count, seed)
        return dataclasses.replace(self, grid=(k,))

    def train(self, x: Floats, y: Floats, value: int, seed: int) -> Callable[[Floats], Floats]:
        """Store the split; `value` is k."""
        return lambda queries: mean_of_nearest(x, y, queries, (value,))[0]


@dataclass(frozen=True)
class Carrot:
    """Route by plug-in estimates of performance and cost, argmax perf - rho * cost.

    Attributes:
        grid: Values of k, cross-validated for performance; one value fixes it.
        cost_grid: The same for cost; None is `grid`.
        fold_count: Folds of the cross-validation.
    """

    grid: tuple[int, ...] = CARROT_GRID
    cost_grid: tuple[int, ...] | None = None
    fold_count: int = 5

    def __post_init__(self) -> None:
        """Check the grids."""
        check_grid("CARROT grid", self.grid)
        if self.cost_grid is not None:
            check_grid("CARROT cost_grid", self.cost_grid)

    def tune(self, split: OfflineSplit, *, rho: float, seed: int) -> "Carrot":
        """Choose both k with the least squared error."""
        split = split.sort_rows()
        grids = (split.performance, self.grid), (split.cost, self.cost_grid or self.grid)
        k, k_cost = (
            choose_k(split.embeddings, values, squared_error(values), grid, self.fold_count, seed)
            for values, grid in grids
        )
        return dataclasses.replace(self, grid=(k,), cost_grid=(k_cost,))

    def fit(self, split: OfflineSplit, *, rho: float, seed: int) -> ScoringRouter:
        """Choose both k on the split and store them."""
        split = split.sort_rows()
        x, tuned = split.embeddings, self.tune(split, rho=rho, seed=seed)
        k, k_cost = tuned.grid, tuned.cost_grid or tuned.grid

        def score(queries: Floats) -> Floats:
            performance = mean_of_nearest(x, split.performance, queries, k)[0]
            return performance - rho * mean_of_nearest(x, split.cost, queries, k_cost)[0]

        return ScoringRouter(score)
