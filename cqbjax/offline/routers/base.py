"""The one interface of the offline-trained routers.

Axis letters: n offline prompts, P prompts to route, N servers (LLMs), d embedding dimension. A
router learns from an `OfflineSplit` alone, so that no evaluation prompt can reach it, and then
predicts the utility of every server for any embedding.
"""

import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:  # scikit-learn is slow to import, and needed only where one fits
    from sklearn.cluster import KMeans

Floats = NDArray[np.floating]
Indices = NDArray[np.integer]
T = TypeVar("T")


@dataclass(frozen=True)
class OfflineSplit:
    """What a router may learn from.

    Attributes:
        embeddings: [n, d] frozen encoder outputs of the offline prompts.
        performance: [n, N] scores in [0, 1].
        cost: [n, N] cost normalised to [0, 1].
        departure: [n, N] probability that the answer satisfies the user, which the log of a service
            shows as a share of departures; None where only scores are known.

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
        n = len(self.embeddings)
        given = () if self.departure is None else ("departure",)
        for name in ("embeddings", "performance", "cost", *given):
            if getattr(self, name).ndim != 2 or len(getattr(self, name)) != n:
                raise ValueError(
                    f"offline {name} has shape {getattr(self, name).shape}; it must have two axes "
                    f"and {n} rows, one a prompt."
                )
        for name in ("cost", *given):
            if self.performance.shape != getattr(self, name).shape:
                raise ValueError(
                    f"offline performance is {self.performance.shape} but {name} is "
                    f"{getattr(self, name).shape}; both must be [n, N]."
                )
        if n < 10:
            raise ValueError(f"the offline split has {n} prompts; a router needs at least 10.")
        _require(np.isfinite(self.embeddings), self.embeddings, "embeddings", "finite")
        for name in ("performance", "cost", *given):
            values = getattr(self, name)
            _require((values >= 0) & (values <= 1), values, name, "in [0, 1]")

    def utility(self, rho: float) -> Floats:
        """Return the training target perf - rho * cost, [n, N]."""
        return self.performance - rho * self.cost

    def sort_rows(self) -> "OfflineSplit":
        """Return the same rows in an order that follows from what they hold alone.

        Rows of one embedding are ordered by their sorted cells first: the order of the LLMs then
        hardly matters either.
        """
        cells = [self.performance, self.cost]
        if self.departure is not None:
            cells.append(self.departure)
        ascending = [np.sort(each, axis=1) for each in cells]
        order = np.argsort(row_bytes(np.hstack([self.embeddings, *ascending, *cells])))
        return OfflineSplit(self.embeddings[order], *(each[order] for each in cells))

    def labels(self) -> Floats:
        """Return the departures, [n, N].

        Raises:
            ValueError: If they are not known.
        """
        if self.departure is None:
            raise ValueError("the offline split has no departure probabilities to learn from.")
        return self.departure


class FittedRouter(Protocol):
    """A trained router."""

    def predict(self, embeddings: Floats) -> Floats:
        """Predict the utility [P, N] of every server for embeddings [P, d]; higher is better."""
        ...


@dataclass(frozen=True)
class Fitted:
    """A trained router: what predicts, and the dimension d that it was trained on."""

    score: Callable[[Floats], Floats]
    dimension: int

    def predict(self, embeddings: Floats) -> Floats:
        """Predict the utility [P, N] of every server for embeddings [P, d].

        Raises:
            ValueError: If they are not [P, d] or hold a value that is not finite.
        """
        if embeddings.ndim != 2 or embeddings.shape[1] != self.dimension:
            raise ValueError(
                f"embeddings to route have shape {embeddings.shape}; the router was trained on "
                f"[n, {self.dimension}]."
            )
        _require(np.isfinite(embeddings), embeddings, "query embeddings", "finite")
        return self.score(embeddings)


class Router(Protocol):
    """Settings of a router; a frozen dataclass.

    An attribute `on_departures = True` says that it learns from `OfflineSplit.departure` and
    predicts the log-odds of a departure, which `retry=posterior` needs.
    """

    def tune(self, split: OfflineSplit, *, rho: float, seed: int) -> "Router":
        """Choose the hyper-parameters by cross-validation on a split.

        Args:
            split: An offline split.
            rho: As in `fit`.
            seed: Seed of the folds and of what is trained on them.

        Returns:
            The same router with what was chosen fixed: its `fit` validates nothing more.
        """
        ...

    def fit(self, split: OfflineSplit, *, rho: float, seed: int) -> FittedRouter:
        """Train on the offline split alone.

        Args:
            split: The offline split.
            rho: Weight of the normalised cost in the utility perf - rho * cost; 0 is the
                performance-only reading.
            seed: Seed of everything random in training; the same seed gives the same router.
        """
        ...


def is_on_departures(router: Router) -> bool:
    """Tell whether a router learns from departures and predicts their log-odds."""
    return bool(getattr(router, "on_departures", False))


def row_bytes(rows: Floats) -> NDArray[np.void]:
    """Return each row [n, m] as one item [n], which NumPy sorts and compares whole."""
    exact = np.ascontiguousarray(rows, np.float64) + 0.0  # -0 is 0
    return exact.view(np.dtype((np.void, exact.itemsize * exact.shape[1]))).ravel()


def folds(n: int, count: int, seed: int) -> Iterator[tuple[Indices, Indices]]:
    """Yield shuffled (training rows, validation rows) of `count` folds, a function of the seed."""
    from sklearn.model_selection import KFold

    yield from KFold(min(count, n), shuffle=True, random_state=seed).split(np.zeros(n))


def k_means(embeddings: Floats, clusters: int, seed: int) -> "KMeans":
    """Cluster embeddings [n, d]: `labels_` [n] and `cluster_centers_` [C, d].

    Many prompts can share one embedding (a long common prefix): no more clusters than points.
    """
    from sklearn.cluster import KMeans

    count = min(clusters, len(np.unique(row_bytes(embeddings))))
    return KMeans(n_clusters=count, n_init=4, random_state=seed).fit(embeddings)


def of_least_loss(
    grid: Sequence[T], loss: Callable[[T, Indices, Indices], float], n: int, count: int, seed: int
) -> T:
    """Choose a hyper-parameter by cross-validation; the first of the grid where they tie.

    Args:
        grid: to choose from; one value is returned as it is.
        loss: of a value, the training rows and the held-out rows.
        n: rows in all.
        count: folds.
        seed: of the folds.
    """
    if len(grid) == 1:
        return grid[0]
    total = dict.fromkeys(grid, 0.0)
    for train, held in folds(n, count, seed):
        for value in total:
            total[value] += loss(value, train, held)
    return min(total, key=total.__getitem__)


def check_grid(name: str, values: tuple[int, ...]) -> None:
    """Check a grid of positive integers to validate over.

    Raises:
        ValueError: If it is empty or holds a value below 1.
    """
    if not values or min(values) < 1:
        raise ValueError(f"{name} is {values}; it must hold integers of at least 1.")


def warn_at_end(name: str, chosen: int, grid: tuple[int, ...]) -> None:
    """Warn where validation chose an end of its grid: beyond it may lie a better value.

    Of a grid of one or two values every choice is an end, and of that nothing is said.
    """
    if len(grid) > 2 and chosen in (min(grid), max(grid)):
        end = "least" if chosen == min(grid) else "greatest"
        warnings.warn(
            f"{name} = {chosen} is the {end} of its grid {grid}; give a wider one to see beyond.",
            stacklevel=2,
        )


def _require(good: NDArray[np.bool_], values: Floats, name: str, allowed: str) -> None:
    if not good.all():
        row, column = np.argwhere(~good)[0]
        raise ValueError(
            f"{name} row {row}, column {column} is {values[row, column]}; it must be {allowed}."
        )
