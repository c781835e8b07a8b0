"""LOGISTIC: a logistic regression of each server's departures on the embedding.

With one LLM shown the choice model is P(departure) = 1 / (1 + exp(-x'theta_j)) (paper, section 2),
so its maximum likelihood on an offline table is one ridge-regularised logistic regression per LLM.
A label may be a probability, the share of users that an answer satisfied: it counts as that share
of a departure.
"""

import dataclasses
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from cqbjax.offline.routers.base import Floats, Indices, OfflineSplit, ScoringRouter, cross_validate

RIDGES = (0.3, 1.0, 3.0, 10.0)
MOST_STEPS = 500


def fit_log_odds(
    features: Floats, departure: Floats, ridge: float, intercept: bool
) -> tuple[Floats, Floats]:
    """Fit theta of every server: min sum of cross-entropies + ridge / 2 |theta_j|^2.

    Args:
        features: [n, e].
        departure: [n, N] probabilities of a departure, in [0, 1].
        ridge: above 0; the intercept is not regularised.
        intercept: whether to fit one.

    Returns:
        theta [N, e] and intercepts [N], zero if not fitted.
    """
    from sklearn.linear_model import LogisticRegression

    count, servers = departure.shape
    twice = np.concatenate([features, features])
    # Each row once as a departure and once as a retrial, weighted by the label.
    labels = np.repeat([1, 0], count)
    theta, constant = np.zeros((servers, features.shape[1])), np.zeros(servers)
    model = LogisticRegression(C=1.0 / ridge, fit_intercept=intercept, max_iter=MOST_STEPS)
    for j in range(servers):
        weights = np.concatenate([departure[:, j], 1.0 - departure[:, j]])
        model.fit(twice, labels, sample_weight=weights)
        theta[j] = model.coef_[0]
        constant[j] = model.intercept_[0] if intercept else 0.0
    return theta, constant


@dataclass(frozen=True)
class Logistic:
    """Route by the predicted log-odds that a server's answer satisfies the user.

    It learns from `OfflineSplit.departure`, as logs would show it; the other routers learn from
    performance and cost. Its predictions are log-odds, which `retry=posterior` needs.

    Attributes:
        ridges: weights of |theta_j|^2 / 2, cross-validated by cross-entropy; a single weight is
            used as it is.
        fold_count: folds of the cross-validation.
    """

    ridges: tuple[float, ...] = RIDGES
    fold_count: int = 3

    on_departures = True

    def __post_init__(self) -> None:
        """Check the settings."""
        if not self.ridges or not all(0 < ridge < np.inf for ridge in self.ridges):
            raise ValueError(f"logistic ridges is {self.ridges}; it must hold numbers above 0.")

    def tune(self, split: OfflineSplit, *, rho: float, seed: int) -> "Logistic":
        """Choose the ridge weight by cross-entropy on held-out prompts; of equals, the largest.

        Folds are drawn by row numbers.

        Raises:
            ValueError: If departures are not known.
        """
        x, departure = split.embeddings, split.departure
        if departure is None:
            raise ValueError("the offline split has no departure probabilities to learn from.")

        def cross_entropies(
            grid: Sequence[float], train: Indices, held: Indices
        ) -> Iterator[float]:
            for ridge in grid:
                theta, constant = fit_log_odds(x[train], departure[train], ridge, intercept=True)
                log_odds = x[held] @ theta.T + constant
                yield float(np.sum(np.logaddexp(0.0, log_odds) - departure[held] * log_odds))

        grid = sorted(self.ridges, reverse=True)
        ridge = cross_validate(grid, cross_entropies, len(x), self.fold_count, seed)
        return dataclasses.replace(self, ridges=(ridge,))

    def fit(self, split: OfflineSplit, *, rho: float, seed: int) -> ScoringRouter:
        """Choose the ridge on the split and fit every server."""
        (ridge,) = self.tune(split, rho=rho, seed=seed).ridges
        assert split.departure is not None, "tune has checked it"
        theta, constant = fit_log_odds(split.embeddings, split.departure, ridge, intercept=True)
        return ScoringRouter(lambda x: x @ theta.T + constant)
