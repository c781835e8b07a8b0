"""CARROT (Somerstep et al.): separate nearest-neighbour estimates of performance and of cost."""

from dataclasses import dataclass

from cqbjax.routers.base import Floats, OfflineSplit, check_grid
from cqbjax.routers.knn import Neighbourhood, choose_k, squared_error

GRID = (2, 4, 8, 16, 32, 64, 128, 256, 512)


@dataclass(frozen=True)
class FittedCarrot:
    """The two plug-in estimators."""

    performance: Neighbourhood
    cost: Neighbourhood
    rho: float

    @property
    def choices(self) -> dict[str, float]:
        """Return the k chosen for each."""
        return {"k_performance": self.performance.k, "k_cost": self.cost.k}

    def predict(self, embeddings: Floats) -> Floats:
        """Predict performance minus rho times predicted cost."""
        return self.performance.predict(embeddings) - self.rho * self.cost.predict(embeddings)


@dataclass(frozen=True)
class Carrot:
    """Route by plug-in estimates of performance and cost, argmax perf - rho * cost.

    Attributes:
        grid: Values of k, cross-validated for performance and for cost apart; one value fixes both.
        fold_count: Folds of the cross-validation.
    """

    grid: tuple[int, ...] = GRID
    fold_count: int = 5

    def __post_init__(self) -> None:
        """Check the grid."""
        check_grid("CARROT grid", self.grid)

    def fit(self, split: OfflineSplit, *, rho: float, seed: int) -> FittedCarrot:
        """Choose both k on the split and store them."""
        x = split.embeddings
        performance, cost = (
            Neighbourhood(x, y, choose_k(x, y, squared_error(y), self.grid, self.fold_count, seed))
            for y in (split.performance, split.cost)
        )
        return FittedCarrot(performance, cost, rho)
