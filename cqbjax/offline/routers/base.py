"""The interface of routers that are trained offline, and the helpers that they share.

Axis letters: n offline prompts, P prompts to route, N servers (LLMs), d embedding dimension. A
router learns from an `OfflineSplit` alone, so that no evaluation prompt can reach it, and then
predicts the utility of every server for any embedding.
"""

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, Self, TypeVar

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:  # scikit-learn is slow to import
    from sklearn.cluster import KMeans

Floats = NDArray[np.floating]
Indices = NDArray[np.integer]
T = TypeVar("T")
LEAST_PROMPTS = 10  # of an offline split


@dataclass(frozen=True)
class OfflineSplit:
    """The training data of a router.

    Attributes:
        embeddings: [n, d] frozen encoder outputs of the offline prompts.
        performance: [n, N] scores in [0, 1].
        cost: [n, N] cost normalised to [0, 1].
        departure: [n, N] probability that the answer satisfies the user, which the log of a service
            shows as a share of departures; None if only scores are known.

    Raises:
        ValueError: If shapes differ, there are fewer than 10 prompts, a value is missing or
            infinite, or a score or cost lies outside [0, 1]; the sentence names row and column.
    """

    embeddings: Floats
    performance: Floats
    cost: Floats
    departure: Floats | None = None

    def __post_init__(self) -> None:
        """Check every value before any training starts."""
        n, servers = len(self.embeddings), self.performance.shape[-1]
        if n < LEAST_PROMPTS:
            raise ValueError(
                f"the offline split has {n} prompts; a router needs at least {LEAST_PROMPTS}."
            )
        for name, values in {"embeddings": self.embeddings, **self.cells}.items():
            scored = name != "embeddings"
            shape = (n, servers if scored else values.shape[-1])
            if values.shape != shape:
                raise ValueError(
                    f"offline {name} has shape {values.shape}; it must be {shape}, a row a prompt."
                )
            valid = (values >= 0) & (values <= 1) if scored else np.isfinite(values)
            if not valid.all():
                row, column = np.argwhere(~valid)[0]
                raise ValueError(
                    f"{name} row {row}, column {column} is {values[row, column]}; it must be "
                    f"{'in [0, 1]' if scored else 'finite'}."
                )

    @property
    def cells(self) -> dict[str, Floats]:
        """The known numbers of each prompt and server, by name."""
        cells = {"performance": self.performance, "cost": self.cost}
        return cells if self.departure is None else cells | {"departure": self.departure}

    def utility(self, rho: float) -> Floats:
        """Return the training target perf - rho * cost, [n, N]."""
        return self.performance - rho * self.cost

    def sort_rows(self) -> "OfflineSplit":
        """Return the same rows in an order that depends on their content alone.

        Rows with equal embeddings are compared by their sorted cells, and if these are equal too,
        by their cells in the order of the LLMs. The order of the LLMs thus hardly matters.
        """
        cells = self.cells.values()
        ascending = [np.sort(each, axis=1) for each in cells]
        order = np.argsort(view_rows(np.hstack([self.embeddings, *ascending, *cells])))
        return OfflineSplit(self.embeddings[order], *(each[order] for each in cells))


class FittedRouter(Protocol):
    """A trained router."""

    def predict(self, embeddings: Floats) -> Floats:
        """Predict the utility [P, N] of every server for embeddings [P, d]; higher is better."""
        ...


@dataclass(frozen=True)
class ScoringRouter:
    """A trained router, by the function that predicts [P, N] from embeddings [P, d]."""

    predict: Callable[[Floats], Floats]


class Router(Protocol):
    """Settings of a router; a frozen dataclass.

    A router with the attribute `on_departures = True` learns from `OfflineSplit.departure` and
    predicts the log-odds of a departure, which `retry=posterior` needs. One with `num_types` G
    distinguishes G types of prompts, and what it fits also has `predict_types`.
    """

    def tune(self, split: OfflineSplit, *, rho: float, seed: int) -> "Router":
        """Choose the hyper-parameters by cross-validation on a split.

        Args:
            split: An offline split.
            rho: As in `fit`.
            seed: Seed of the folds and of the training on them.

        Returns:
            The same router with fixed hyper-parameters: its `fit` cross-validates nothing. A
            subclass without hyper-parameters returns itself.
        """
        return self

    def fit(self, split: OfflineSplit, *, rho: float, seed: int) -> FittedRouter:
        """Train on the offline split alone.

        Args:
            split: The offline split.
            rho: Weight of the normalised cost in the utility perf - rho * cost; 0 is performance
                alone.
            seed: Seed of everything random in training; the same seed gives the same router.
        """
        ...


class PerformanceRouter:
    """A router on its prediction of performance: that minus rho times each server's mean cost.

    Attributes:
        grid: Values of a hyper-parameter to cross-validate; one value fixes it.
        fold_count: Folds of the cross-validation.
    """

    grid: tuple[Any, ...]
    fold_count: int

    def __post_init__(self) -> None:
        """Check the grid."""
        check_grid(f"{type(self).__name__} grid", self.grid)

    def train(self, x: Floats, y: Floats, value: Any, seed: int) -> Callable[[Floats], Floats]:
        """Train on embeddings [n, d] and performance [n, N]; return the prediction function.

        Args:
            x: Embeddings.
            y: Performance.
            value: One of the grid.
            seed: As in `Router.fit`.
        """
        raise NotImplementedError

    def tune(self, split: OfflineSplit, *, rho: float, seed: int) -> Self:
        """Fix the value whose predicted performance has the least squared error."""
        split = split.sort_rows()
        x, y = split.embeddings, split.performance

        def errors(grid: Sequence[Any], train: Indices, held: Indices) -> Iterator[float]:
            for value in grid:
                predict = self.train(x[train], y[train], value, seed)
                yield ((predict(x[held]) - y[held]) ** 2).sum()

        chosen = cross_validate(self.grid, errors, len(x), self.fold_count, seed)
        return dataclasses.replace(self, grid=(chosen,))  # type: ignore[type-var]

    def fit(self, split: OfflineSplit, *, rho: float, seed: int) -> ScoringRouter:
        """Choose the value on the split and train on all of it."""
        split = split.sort_rows()
        (chosen,) = self.tune(split, rho=rho, seed=seed).grid
        predict = self.train(split.embeddings, split.performance, chosen, seed)
        weighted_cost = rho * split.cost.mean(axis=0)
        return ScoringRouter(lambda x: predict(x) - weighted_cost)


def view_rows(rows: Floats) -> NDArray[np.void]:
    """Return each row [n, m] as one item [n], which NumPy sorts and compares whole."""
    exact = np.ascontiguousarray(rows, np.float64) + 0.0  # -0 is 0
    return exact.view(np.dtype((np.void, exact.itemsize * exact.shape[1]))).ravel()


def cluster(embeddings: Floats, clusters: int, seed: int) -> "KMeans":
    """Cluster embeddings [n, d] by k-means: `labels_` [n] and `cluster_centers_` [C, d].

    Many prompts can share one embedding, for example if they have a long common prefix. The number
    of clusters is therefore at most the number of distinct embeddings.
    """
    from sklearn.cluster import KMeans

    count = min(clusters, len(np.unique(view_rows(embeddings))))
    return KMeans(n_clusters=count, n_init=4, random_state=seed).fit(embeddings)


def cross_validate(
    grid: Sequence[T], losses: Callable[[Sequence[T], Indices, Indices], Iterable[float]], n: int,
    count: int, seed: int,
) -> T:  # fmt: skip
    """Choose a hyper-parameter by cross-validation; the first of the grid where they tie.

    Args:
        grid: values; a single one is returned without validation.
        losses: function (values, training rows, held-out rows) -> loss of each value.
        n: number of rows.
        count: number of folds.
        seed: seed of the folds.
    """
    if len(grid) == 1:
        return grid[0]
    from sklearn.model_selection import KFold

    folds = KFold(min(count, n), shuffle=True, random_state=seed).split(np.zeros(n))
    total = np.sum([list(losses(grid, train, held)) for train, held in folds], axis=0)
    return grid[int(np.argmin(total))]


def check_grid(name: str, values: tuple[int, ...]) -> None:
    """Raise a `ValueError` for a grid that is empty or holds a value below 1."""
    if not values or min(values) < 1:
        raise ValueError(f"{name} is {values}; it must hold integers of at least 1.")
