"""A source whose servers are all equally good, with queues known in closed form."""

from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import Array

from cqbjax.core import rng
from cqbjax.core.inputs import Condition, read_when
from cqbjax.core.pytree import Numbers, pytree, static
from cqbjax.core.types import Problem, Workload


@read_when(success=Condition("classes", is_set=False), shares=Condition("classes"))
@pytree
class Coin:
    """After each attempt a query departs with probability m (m_i in class i) for any assortment.

    Routing does not matter, and non-idling policies differ in their schedules only, so queue
    lengths are known exactly (docs/concepts/known_answers.md). The context is the class.

    Attributes:
        success: m, the departure probability of any assortment.
        classes: [I] m_i of each class, in place of `success`; None or empty: one class.
        shares: [I] share of each class among arrivals; None or empty: equal.
        num_servers: N.
    """

    success: Array | float = 0.6
    classes: Numbers | None = None
    shares: Numbers | None = None
    num_servers: int = static(default=2)

    @property
    def _chances(self) -> Any:
        """m, or m_i of each class: [] or [I]."""
        return self.success if self.classes is None else self.classes

    def problem(self, K: int, horizon: int) -> Problem:
        """Return the shapes: one table row for each class, with a unit vector as context."""
        classes = 1 if self.classes is None else int(np.shape(self.classes)[0])
        return Problem(self.num_servers, K, classes, classes, horizon, "disjoint", True)

    def check(self, seeds: np.ndarray, arrival_rate: float, K: int) -> None:
        """Validate probabilities, shares and the number of servers.

        Raises:
            ValueError: naming the key and what is allowed.
        """
        alone, chances = self.classes is None, np.asarray(self._chances, float)
        if chances.ndim != (0 if alone else 1) or not ((chances > 0) & (chances < 1)).all():
            wanted = "one probability" if alone else "a probability of each class"
            raise ValueError(
                f"{'success' if alone else 'classes'}={chances.tolist()} must be {wanted}, between "
                "0 and 1"
            )
        if self.shares is not None:
            shares, classes = np.asarray(self.shares, float), chances.size
            if shares.shape != (classes,) or not (shares >= 0).all() or not shares.sum() > 0:
                raise ValueError(
                    f"shares={shares.tolist()} must be {classes} numbers, one a class, none of "
                    "them negative"
                )
        if self.num_servers < 1:
            raise ValueError(f"num_servers={self.num_servers} must be at least 1")

    def uniform_service(self, seeds: np.ndarray, arrival_rate: float, K: int) -> float:
        """Return the service rate of any policy that never idles: 1 / mean of 1 / m_i."""
        chances = np.atleast_1d(np.asarray(self._chances, float))
        return float(1 / np.average(1 / chances, weights=self.shares))

    def draw_workload(self, key: Array, arrival_rate: Array, problem: Problem) -> Workload:
        """Draw the classes of arrivals; each of K servers has the odds m / (1 - m) / K."""
        classes, chances = problem.num_rows, jnp.atleast_1d(jnp.asarray(self._chances, float))
        log_odds = jnp.log(chances / (1 - chances) / problem.assortment_size)
        utilities = jnp.broadcast_to(log_odds[:, None], (classes, problem.num_servers))
        return draw_classes(key, utilities, self.shares, problem)


def draw_classes(
    key: Array, utilities: Array, shares: Numbers | None, problem: Problem
) -> Workload:
    """Draw the class of each round's arrival; contexts are unit vectors.

    Args:
        key: key of the run.
        utilities: [I, N] utility of each server for each class.
        shares: [I] share of each class among arrivals; None: equal.
        problem: the shapes.
    """
    classes = problem.num_rows
    shares = jnp.ones(classes) if shares is None else jnp.asarray(shares, float)
    cumulative = jnp.cumsum(shares) / jnp.sum(shares)
    rounds = jnp.arange(1, problem.horizon + 1)
    uniform = rng.round_uniforms(key, rounds, rng.Stream.ARRIVAL_ROW)
    rows = jnp.minimum(jnp.searchsorted(cumulative, uniform, side="right"), classes - 1)
    numbers = jnp.arange(classes, dtype=jnp.int32)
    return Workload(jnp.eye(classes), utilities, rows.astype(jnp.int32), numbers)
