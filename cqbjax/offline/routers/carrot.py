"""CARROT (Somerstep et al.): separate nearest-neighbour estimates of performance and of cost."""

import dataclasses
from dataclasses import dataclass

from cqbjax.offline.routers.base import Fitted, Floats, OfflineSplit, check_grid
from cqbjax.offline.routers.knn import choose_k, mean_of_nearest, squared_error

GRID = (2, 4, 8, 16, 32, 64, 128, 256, 512)


@dataclass(frozen=True)
class Carrot:
    """Route by plug-in estimates of performance and cost, argmax perf - rho * cost.

    Attributes:
        grid: Values of k, cross-validated for performance; one value fixes it.
        cost_grid: The same for cost; None is `grid`.
        fold_count: Folds of the cross-validation.
    """

    grid: tuple[int, ...] = GRID
    cost_grid: tuple[int, ...] | None = None
    fold_count: int = 5

    def __post_init__(self) -> None:
        """Check the grids."""
        check_grid("CARROT grid", self.grid)
        if self.cost_grid is not None:
            check_grid("CARROT cost_grid", self.cost_grid)

    def tune(self, split: OfflineSplit, *, rho: float, seed: int) -> "Carrot":
        """Fix both k of least squared error."""
        del rho
        performance, cost = self.choose(split, seed)
        return dataclasses.replace(self, grid=(performance,), cost_grid=(cost,))

    def choose(self, split: OfflineSplit, seed: int) -> tuple[int, int]:
        """Choose k for performance and for cost by cross-validation."""
        split = split.sort_rows()
        performance, cost = (
            choose_k(split.embeddings, values, squared_error(values), grid, self.fold_count, seed)
            for values, grid in (
                (split.performance, self.grid),
                (split.cost, self.cost_grid or self.grid),
            )
        )
        return performance, cost

    def fit(self, split: OfflineSplit, *, rho: float, seed: int) -> Fitted:
        """Choose both k on the split and store them."""
        split = split.sort_rows()
        x, (k, k_cost) = split.embeddings, self.choose(split, seed)

        def score(queries: Floats) -> Floats:
            performance = mean_of_nearest(x, split.performance, queries, (k,))[0]
            return performance - rho * mean_of_nearest(x, split.cost, queries, (k_cost,))[0]

        return Fitted(score, x.shape[1])
