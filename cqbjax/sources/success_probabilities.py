"""A source from a table of success probabilities: LLMs x kinds of prompt."""

import jax.numpy as jnp
import numpy as np
from jax import Array

from cqbjax.core import mnl
from cqbjax.core.pytree import Numbers, pytree
from cqbjax.core.types import Problem, Workload
from cqbjax.sources.coin import check_shares, draw_classes

# Probabilities of 0 and 1 would have infinite log-odds: they are moved inside by this much.
MARGIN = 1e-6


@pytree
class SuccessProbabilities:
    """LLM j satisfies a query of kind i with probability p_ji; the context is the kind (one-hot).

    The utility of LLM j is the log-odds log(p_ji / (1 - p_ji)). With K = 1 an attempt by LLM j
    succeeds with probability p_ji exactly. With K > 1 the user compares the answers (MNL). Let
    o_j = p_ji / (1 - p_ji) be the odds of answer j, and sum_S o the sum of the odds over S. Answer
    j is accepted with probability o_j / (1 + sum_S o), and the query departs with probability sum_S
    o / (1 + sum_S o), which is less than that of independent attempts, 1 - prod_S (1 - p_ji).

    Attributes:
        matrix: [N, I] success probability of each LLM for each kind of prompt, in [0, 1]; 0 becomes
            1e-6, and 1 becomes 1 - 1e-6.
        weights: [I] share of each kind among arrivals, in any unit; None or empty: equal.
    """

    matrix: Numbers
    weights: Numbers | None = None

    def problem(self, K: int, horizon: int) -> Problem:
        """Return the shapes: the table has one row per kind, with a unit vector as context.

        Raises:
            ValueError: the matrix does not have two axes.
        """
        if len(np.shape(self.matrix)) != 2:
            raise ValueError("matrix must have a row for each LLM, and as many numbers in each")
        servers, kinds = np.shape(self.matrix)
        return Problem(servers, K, kinds, kinds, horizon, "disjoint", True)

    def check(self, seeds: np.ndarray, arrival_rate: float, K: int) -> None:
        """Validate probabilities and weights.

        Raises:
            ValueError: naming the key, the LLM and the kind.
        """
        matrix = np.asarray(self.matrix, float)
        wrong = np.argwhere(~((matrix >= 0) & (matrix <= 1)))
        if len(wrong):
            server, kind = wrong[0]
            raise ValueError(
                f"matrix: LLM {server}, kind {kind} must be a probability in [0, 1], got "
                f"{matrix[server, kind]:g}"
            )
        check_shares(self, "weights", matrix.shape[1], "kind")

    def uniform_service(self, seeds: np.ndarray, arrival_rate: float, K: int) -> float:
        """Return how many queries per round FIFO serves with uniform assortments."""
        departs = mnl.mean_departure_rate(np.asarray(self._log_odds()), K)
        return float(1 / np.average(1 / departs, weights=self.weights))

    def draw_workload(self, key: Array, arrival_rate: Array, problem: Problem) -> Workload:
        """Draw the kind of each round's arrival."""
        return draw_classes(key, self._log_odds(), self.weights, problem)

    def _log_odds(self) -> Array:
        chances = jnp.clip(jnp.asarray(self.matrix, float).T, MARGIN, 1 - MARGIN)
        return jnp.log(chances) - jnp.log1p(-chances)
