"""MLP (RouterBench): networks from embedding to performance, minus rho times mean cost."""

import dataclasses
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from cqbjax.offline.routers.base import Fitted, Floats, Indices, OfflineSplit, of_least_loss

if TYPE_CHECKING:  # slow to import, and needed only where one fits
    from sklearn.neural_network import MLPRegressor


def predicted(networks: Sequence["MLPRegressor"], x: Floats) -> Floats:
    """Predict performance [P, N] by one network for all servers, or one each."""
    single = x.astype(np.float32)
    return np.concatenate([one.predict(single).reshape(len(x), -1) for one in networks], axis=1)


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

    def fit(self, split: OfflineSplit, *, rho: float, seed: int) -> Fitted:
        """Choose the hidden layers on the split and train on all of it."""
        split = split.sort_rows()
        sizes = self.choose(split, seed)
        networks = self.train(split.embeddings, split.performance, sizes, seed)
        weighted_cost = rho * split.cost.mean(axis=0)
        return Fitted(lambda x: predicted(networks, x) - weighted_cost, split.embeddings.shape[1])

    def choose(self, split: OfflineSplit, seed: int) -> tuple[int, ...]:
        """Choose the hidden layers by cross-validated squared error of performance."""
        split = split.sort_rows()
        x, y = split.embeddings, split.performance

        def error(sizes: tuple[int, ...], train: Indices, held: Indices) -> float:
            networks = self.train(x[train], y[train], sizes, seed)
            return ((predicted(networks, x[held]) - y[held]) ** 2).sum()

        return of_least_loss(self.grid, error, len(x), self.fold_count, seed)

    def train(
        self, x: Floats, y: Floats, sizes: tuple[int, ...], seed: int
    ) -> list["MLPRegressor"]:
        """Train on embeddings [n, d] and performance [n, N]."""
        from sklearn.exceptions import ConvergenceWarning
        from sklearn.neural_network import MLPRegressor

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
        return networks
