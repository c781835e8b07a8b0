"""MLP (RouterBench): networks from embedding to performance, minus rho times mean cost."""

import dataclasses
import warnings
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from cqbjax.offline.routers.base import Floats, Indices, OfflineSplit, ScoringRouter, cross_validate


@dataclass(frozen=True)
class MLP:
    """Route by a small neural regressor.

    Attributes:
        grid: Hidden layers to cross-validate; one entry fixes them.
        max_iter: Most passes over the split.
        learning_rate: Adam's step.
        early_stopping: Hold out a tenth and stop when its score no longer rises; False is
            RouterBench's own setting, which trains on to max_iter.
        per_model: One network per server, as in RouterBench's own code; False: one network with N
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
        """Choose the hidden layers whose predicted performance has the least squared error."""
        split = split.sort_rows()
        x, y = split.embeddings, split.performance

        def error(sizes: tuple[int, ...], train: Indices, held: Indices) -> float:
            predict = self.train(x[train], y[train], sizes, seed)
            return ((predict(x[held]) - y[held]) ** 2).sum()

        sizes = cross_validate(self.grid, error, len(x), self.fold_count, seed)
        return dataclasses.replace(self, grid=(sizes,))

    def fit(self, split: OfflineSplit, *, rho: float, seed: int) -> ScoringRouter:
        """Choose the hidden layers on the split and train on all of it."""
        split = split.sort_rows()
        (sizes,) = self.tune(split, rho=rho, seed=seed).grid
        predict = self.train(split.embeddings, split.performance, sizes, seed)
        weighted_cost = rho * split.cost.mean(axis=0)
        return ScoringRouter(lambda x: predict(x) - weighted_cost)

    def train(
        self, x: Floats, y: Floats, sizes: tuple[int, ...], seed: int
    ) -> Callable[[Floats], Floats]:
        """Train on embeddings [n, d] and performance [n, N]; return the prediction function."""
        from sklearn.exceptions import ConvergenceWarning
        from sklearn.neural_network import MLPRegressor

        networks = []
        for target in y.T if self.per_model else [y]:
            network = MLPRegressor(
                hidden_layer_sizes=sizes,
                max_iter=self.max_iter,
                learning_rate_init=self.learning_rate,
                early_stopping=self.early_stopping,
                random_state=seed,
            )
            with warnings.catch_warnings():
                # RouterBench itself stops at max_iter.
                warnings.simplefilter("ignore", ConvergenceWarning)
                networks.append(network.fit(x.astype(np.float32), target.astype(np.float32)))

        def predict(x: Floats) -> Floats:
            single = x.astype(np.float32)
            columns = [network.predict(single).reshape(len(x), -1) for network in networks]
            return np.concatenate(columns, axis=1)

        return predict
