"""MLP (RouterBench): networks from embedding to performance, minus rho times mean cost."""

import warnings
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from cqbjax.offline.routers.base import Floats, PerformanceRouter


@dataclass(frozen=True)
class MLP(PerformanceRouter):
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

    def train(
        self, x: Floats, y: Floats, value: tuple[int, ...], seed: int
    ) -> Callable[[Floats], Floats]:
        """Train networks with these hidden layers."""
        from sklearn.exceptions import ConvergenceWarning
        from sklearn.neural_network import MLPRegressor

        networks = []
        for target in y.T if self.per_model else [y]:
            network = MLPRegressor(
                hidden_layer_sizes=value,
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
