"""KNN (RouterBench): mean performance of the nearest offline prompts minus rho times mean cost.

The neighbours of a prompt are sorted once and cumulative means give every k of the grid at once.
"""

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from sklearn.neighbors import NearestNeighbors

from cqbjax.offline.routers.base import (
    Floats,
    Indices,
    OfflineSplit,
    check_grid,
    check_queries,
    folds,
    warn_at_end,
)

# RouterBench's k (5, 10, 40), 20 between them, CARROT's powers of two from 64 to 512, and 1024 as
# one step beyond, so that a best k of 512 would show as one.
GRID = (5, 10, 20, 40, 64, 128, 256, 512, 1024)
CRITERIA = ("utility", "error")
# Bounds the [rows, k, N] block of cumulative sums: 256 MB at k = 1024 and N = 112 in float64.
ROWS_AT_ONCE = 256

Loss = Callable[[Floats, Indices], Floats]


def neighbours(stored: Floats, queries: Floats, count: int) -> Indices:
    """Find the `count` nearest stored rows of each query by cosine, nearest first, [P, count]."""
    index = NearestNeighbors(n_neighbors=count, metric="cosine", algorithm="brute")
    return index.fit(stored).kneighbors(queries, return_distance=False)


def mean_of_nearest(values: Floats, order: Indices, grid: tuple[int, ...]) -> Floats:
    """Average values [n, N] over the first k rows of order [P, k_max] for each k: [G, P, N]."""
    cumulative = np.cumsum(values[order], axis=1)
    return np.stack([cumulative[:, k - 1] / k for k in grid])


def squared_error(values: Floats) -> Loss:
    """Make the loss that sums squared errors of predicted values [G, B, N] of the rows [B]."""
    return lambda predicted, rows: ((predicted - values[rows]) ** 2).sum(axis=(1, 2))


def lost_utility(utility: Floats, weighted_cost: Floats) -> Loss:
    """Make the loss that sums minus the utility [n, N] of the server that would be routed to."""

    def loss(predicted: Floats, rows: Indices) -> Floats:
        chosen = (predicted - weighted_cost).argmax(axis=2)
        return -utility[rows[None, :], chosen].sum(axis=1)

    return loss


def choose_k(
    embeddings: Floats,
    values: Floats,
    loss: Loss,
    grid: tuple[int, ...],
    fold_count: int,
    seed: int,
) -> int:
    """Choose k by cross-validation.

    A k larger than a training fold is left out. A choice at an end of the grid is warned of.

    Args:
        embeddings: [n, d].
        values: [n, N] what is predicted (performance, or cost).
        loss: Loss of predictions on held-out rows, a number for each k.
        grid: Values of k.
        fold_count: Folds.
        seed: Seed of the folds.

    Returns:
        The k of the least loss; the smaller one where they tie.

    Raises:
        ValueError: If no k of the grid fits in a training fold.
    """
    smallest = min(len(train) for train, _ in folds(len(embeddings), fold_count, seed))
    usable = tuple(sorted(k for k in grid if k <= smallest))
    if not usable:
        raise ValueError(
            f"every k of {grid} exceeds the {smallest} prompts of a training fold; give a "
            "smaller k."
        )
    if len(usable) == 1:
        return usable[0]
    total = np.zeros(len(usable))
    for train, held in folds(len(embeddings), fold_count, seed):
        order = neighbours(embeddings[train], embeddings[held], usable[-1])
        for start in range(0, len(held), ROWS_AT_ONCE):
            part = slice(start, start + ROWS_AT_ONCE)
            total += loss(mean_of_nearest(values[train], order[part], usable), held[part])
    chosen = usable[int(np.argmin(total))]
    warn_at_end("k", chosen, grid)
    return chosen


@dataclass(frozen=True)
class Neighbourhood:
    """A k-nearest-neighbour regressor from embeddings [P, d] to the mean of values [n, N]."""

    embeddings: Floats
    values: Floats
    k: int

    def predict(self, embeddings: Floats) -> Floats:
        """Average the k nearest rows of values, [P, N]."""
        queries = check_queries(embeddings, self.embeddings.shape[1])
        order = neighbours(self.embeddings, queries, self.k)
        return np.stack([self.values[row].mean(axis=0) for row in order])


@dataclass(frozen=True)
class FittedKNN:
    """Performance by neighbours and each server's weighted mean cost [N]."""

    performance: Neighbourhood
    weighted_cost: Floats

    @property
    def choices(self) -> dict[str, float]:
        """Return the k chosen."""
        return {"k": self.performance.k}

    def predict(self, embeddings: Floats) -> Floats:
        """Predict performance minus rho times the server's mean cost."""
        return self.performance.predict(embeddings) - self.weighted_cost


@dataclass(frozen=True)
class KNN:
    """Route by the performance of similar prompts.

    Attributes:
        grid: Values of k to cross-validate; one value fixes it.
        fold_count: Folds of the cross-validation.
        criterion: "utility" chooses the k whose routing earns most on held-out prompts; "error"
            the k of least squared error of performance, as `Carrot` does.
    """

    grid: tuple[int, ...] = GRID
    fold_count: int = 5
    criterion: str = "utility"

    def __post_init__(self) -> None:
        """Check the settings."""
        check_grid("KNN grid", self.grid)
        if self.criterion not in CRITERIA:
            raise ValueError(
                f"KNN criterion is {self.criterion!r}; allowed: {', '.join(CRITERIA)}."
            )

    def tune(self, split: OfflineSplit, *, rho: float, seed: int) -> "KNN":
        """Fix the k that the criterion prefers."""
        return dataclasses.replace(self, grid=(self.choose(split, rho, seed),))

    def choose(self, split: OfflineSplit, rho: float, seed: int) -> int:
        """Choose k by cross-validation."""
        loss = squared_error(split.performance)
        if self.criterion == "utility":
            loss = lost_utility(split.utility(rho), rho * split.cost.mean(axis=0))
        return choose_k(split.embeddings, split.performance, loss, self.grid, self.fold_count, seed)

    def fit(self, split: OfflineSplit, *, rho: float, seed: int) -> FittedKNN:
        """Choose k on the split and store it."""
        stored = Neighbourhood(split.embeddings, split.performance, self.choose(split, rho, seed))
        return FittedKNN(stored, rho * split.cost.mean(axis=0))
