"""KNN (RouterBench): mean performance of the nearest offline prompts minus rho times mean cost.

The neighbours of a prompt are sorted once and running sums give every k of the grid.
"""

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from cqbjax.offline.routers.base import (
    Fitted,
    Floats,
    Indices,
    OfflineSplit,
    check_grid,
    folds,
    warn_at_end,
)

# RouterBench's k (5, 10, 40), 20 between them, CARROT's powers of two from 64 to 512, and 1024 as
# one step beyond, so that a best k of 512 would show as one.
GRID = (5, 10, 20, 40, 64, 128, 256, 512, 1024)
CRITERIA = ("utility", "error")

Loss = Callable[[Floats, Indices], Floats]


def neighbours(stored: Floats, queries: Floats, count: int) -> Indices:
    """Find the `count` nearest stored rows of each query by cosine, nearest first, [P, count]."""
    from sklearn.neighbors import NearestNeighbors

    index = NearestNeighbors(n_neighbors=count, metric="cosine", algorithm="brute")
    return index.fit(stored).kneighbors(queries, return_distance=False)


def mean_of_nearest(values: Floats, order: Indices, grid: tuple[int, ...]) -> Floats:
    """Average values [n, N] over the first k rows of order [P, k_max] for each k: [G, P, N].

    The grid ascends, each k once.
    """
    total, means = np.zeros((len(order), values.shape[1])), []
    for k, rows in enumerate(order.T[: grid[-1]], 1):
        total += values[rows]
        if k in grid:
            means.append(total / k)
    return np.stack(means)


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
    usable = tuple(sorted({k for k in grid if k <= smallest}))
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
        total += loss(mean_of_nearest(values[train], order, usable), held)
    chosen = usable[int(np.argmin(total))]
    warn_at_end("k", chosen, grid)
    return chosen


def regressor(stored: Floats, values: Floats, k: int) -> Callable[[Floats], Floats]:
    """Return what averages values [n, N] over the k rows of stored [n, d] nearest to a query."""

    def predict(queries: Floats) -> Floats:
        return np.stack([values[row].mean(axis=0) for row in neighbours(stored, queries, k)])

    return predict


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

    def fit(self, split: OfflineSplit, *, rho: float, seed: int) -> Fitted:
        """Choose k on the split and store it."""
        x, weighted_cost = split.embeddings, rho * split.cost.mean(axis=0)
        performance = regressor(x, split.performance, self.choose(split, rho, seed))
        return Fitted(lambda queries: performance(queries) - weighted_cost, x.shape[1])
