"""A source whose servers are all equally good, with queues known in closed form."""

from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import Array

from cqbjax.core import rng
from cqbjax.core.inputs import Condition, check_each, check_interval, read_when
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
        classes = np.size(np.asarray(self._chances))
        if self.classes is None:
            check_interval(self, "(0, 1)", "success")
        check_each(self, "(0, 1)", classes, "class", "classes")
        check_shares(self, "shares", classes, "class")
        check_interval(self, "[1, inf)", "num_servers", whole=True)

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


def check_shares(source: Any, key: str, classes: int, noun: str) -> None:
    """Validate the field of a source that holds the shares of classes.

    Raises:
        ValueError: naming the key and what is allowed.
    """
    check_each(source, "[0, inf)", classes, noun, key)
    shares = getattr(source, key)
    if shares is not None and not np.sum(shares) > 0:
        raise ValueError(f"{key}={np.asarray(shares).tolist()} must not all be 0")


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
