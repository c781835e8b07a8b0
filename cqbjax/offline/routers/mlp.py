"""MLP (RouterBench): networks from embedding to performance, minus rho times mean cost."""

import warnings
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from cqbjax.offline.routers.base import Floats, PerformanceRouter


@dataclass(frozen=True)
class MLP(PerformanceRouter):
    """Route by a small neural regressor with N outputs.

    A tenth of the split is held out, and training stops when its score no longer rises.

    Attributes:
        grid: Hidden layers to cross-validate; one entry fixes them.
        max_iter: Most passes over the split.
        learning_rate: Adam's step.
        fold_count: Folds of the cross-validation.
    """

    grid: tuple[tuple[int, ...], ...] = ((100,), (100, 100))
    max_iter: int = 200
    learning_rate: float = 1e-3
    fold_count: int = 3

    def __post_init__(self) -> None:
        """Check the grid."""
        if not self.grid or any(not sizes or min(sizes) < 1 for sizes in self.grid):
            raise ValueError(f"MLP grid is {self.grid}; each entry must list widths of at least 1.")

    def train(
        self, x: Floats, y: Floats, value: tuple[int, ...], seed: int
    ) -> Callable[[Floats], Floats]:
        """Train a network with these hidden layers."""
        from sklearn.exceptions import ConvergenceWarning
        from sklearn.neural_network import MLPRegressor

        network = MLPRegressor(
            hidden_layer_sizes=value, max_iter=self.max_iter,
            learning_rate_init=self.learning_rate, early_stopping=True, random_state=seed,
        )  # fmt: skip
        with warnings.catch_warnings():
            # RouterBench itself stops at max_iter.
            warnings.simplefilter("ignore", ConvergenceWarning)
            network.fit(x.astype(np.float32), y.astype(np.float32))
        return lambda x: network.predict(x.astype(np.float32)).reshape(len(x), -1)
