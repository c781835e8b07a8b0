"""MLP (RouterBench): networks from embedding to performance, minus rho times mean cost."""

import dataclasses
import warnings
from dataclasses import dataclass

import numpy as np
from sklearn.exceptions import ConvergenceWarning
from sklearn.neural_network import MLPRegressor

from cqbjax.offline.routers.base import Floats, OfflineSplit, check_queries, folds


@dataclass(frozen=True)
class FittedMLP:
    """Networks (one for all servers, or one each) and each server's weighted mean cost [N]."""

    networks: tuple[MLPRegressor, ...]
    weighted_cost: Floats
    dimension: int

    @property
    def choices(self) -> dict[str, float]:
        """Return the number and the width of the hidden layers."""
        sizes = self.networks[0].hidden_layer_sizes
        return {"layers": len(sizes), "width": sizes[0]}

    def predict(self, embeddings: Floats) -> Floats:
        """Predict performance minus rho times the server's mean cost."""
        queries = check_queries(embeddings, self.dimension).astype(np.float32)
        columns = [network.predict(queries).reshape(len(queries), -1) for network in self.networks]
        return np.concatenate(columns, axis=1) - self.weighted_cost


@dataclass(frozen=True)
class MLP:
    """Route by a small neural regressor.

    Attributes:
        grid: Hidden layers to cross-validate; one entry fixes them.
        max_iter: Most passes over the split.
        learning_rate: Adam's step.
        early_stopping: Hold out a tenth and stop when its score no longer rises; False is
            RouterBench's own setting, which trains on to max_iter.
        per_model: One network a server, as RouterBench's own code has it; False: one network with N
            outputs, N times cheaper.
        fold_count: Folds of the cross-validation.
    """

    grid: tuple[tuple[int, ...], ...] = ((100,), (100, 100))
    max_iter: int = 200
    learning_rate: float = 1e-3
    early_stopping: bool = True
    per_model: bool = False
    fold_count: int = 3

    def __post_init__(self) -> None:
        """Check the grid."""
        if not self.grid or any(not sizes or min(sizes) < 1 for sizes in self.grid):
            raise ValueError(f"MLP grid is {self.grid}; each entry must list widths of at least 1.")

    def tune(self, split: OfflineSplit, *, rho: float, seed: int) -> "MLP":
        """Fix the hidden layers of least squared error."""
        del rho
        return dataclasses.replace(self, grid=(self.choose(split, seed),))

    def fit(self, split: OfflineSplit, *, rho: float, seed: int) -> FittedMLP:
        """Choose the hidden layers on the split and train on all of it."""
        sizes = self.choose(split, seed)
        networks = self.train(split.embeddings, split.performance, sizes, seed)
        return FittedMLP(networks, rho * split.cost.mean(axis=0), split.embeddings.shape[1])

    def choose(self, split: OfflineSplit, seed: int) -> tuple[int, ...]:
        """Choose the hidden layers by cross-validated squared error of performance."""
        if len(self.grid) == 1:
            return self.grid[0]
        error = np.zeros(len(self.grid))
        x, y = split.embeddings, split.performance
        free = np.zeros(y.shape[1])
        for train, held in folds(len(x), self.fold_count, seed):
            for i, sizes in enumerate(self.grid):
                fitted = FittedMLP(self.train(x[train], y[train], sizes, seed), free, x.shape[1])
                error[i] += ((fitted.predict(x[held]) - y[held]) ** 2).sum()
        return self.grid[int(np.argmin(error))]

    def train(
        self, x: Floats, y: Floats, sizes: tuple[int, ...], seed: int
    ) -> tuple[MLPRegressor, ...]:
        """Train on embeddings [n, d] and performance [n, N]."""
        targets = [y[:, j] for j in range(y.shape[1])] if self.per_model else [y]
        networks = []
        for target in targets:
            network = MLPRegressor(
                hidden_layer_sizes=sizes,
                max_iter=self.max_iter,
                learning_rate_init=self.learning_rate,
                early_stopping=self.early_stopping,
                random_state=seed,
            )
            with warnings.catch_warnings():
                # Reaching max_iter is RouterBench's own stopping rule, not a fault.
                warnings.simplefilter("ignore", ConvergenceWarning)
                networks.append(network.fit(x.astype(np.float32), target.astype(np.float32)))
        return tuple(networks)
