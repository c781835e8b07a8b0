"""Queries that every LLM satisfies alike: the world whose answers are known in closed form."""

from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import Array

from cqbjax.core import rng
from cqbjax.core.pytree import Numbers, convert_lists, pytree, static
from cqbjax.core.types import Problem, Workload


@pytree
class Coin:
    """A query leaves after an attempt with probability m, or m_i if of class i, whoever serves it.

    Routing does not matter here, and a policy that never idles differs from another in its schedule
    alone: what queues do is known exactly (docs/concepts/known_answers.md). A context tells the
    class.

    Attributes:
        success: m, the probability that a query leaves, of any assortment.
        classes: [I] m_i of each class, in place of `success`; None or none: one class.
        shares: [I] of what arrives, which share each class is; None or none: all alike.
        num_servers: N.
    """

    success: Array | float = 0.6
    classes: Numbers | None = None
    shares: Numbers | None = None
    num_servers: int = static(default=2)

    def __post_init__(self) -> None:
        """Take lists as arrays, and empty ones as none."""
        convert_lists(self, "classes", "shares")

    @property
    def _chances(self) -> Any:
        """m, or m_i of each class: [] or [I]."""
        return self.success if self.classes is None else self.classes

    @property
    def _number(self) -> int:
        """I, how many classes there are."""
        return 1 if self.classes is None else int(np.shape(self.classes)[0])

    def problem(self, K: int, horizon: int) -> Problem:
        """Return the shapes: a table row a class, its context a unit vector."""
        classes = self._number
        return Problem(self.num_servers, K, classes, classes, horizon, "disjoint", True)

    def check(self, seeds: np.ndarray, arrival_rate: float, K: int) -> None:
        """Refuse what is no probability.

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
            shares, classes = np.asarray(self.shares, float), self._number
            if shares.shape != (classes,) or not (shares >= 0).all() or not shares.sum() > 0:
                raise ValueError(
                    f"shares={shares.tolist()} must be {classes} numbers, one a class, none of "
                    "them negative"
                )
        if self.num_servers < 1:
            raise ValueError(f"num_servers={self.num_servers} must be at least 1")

    def uniform_service(self, seeds: np.ndarray, arrival_rate: float, K: int) -> float:
        """Return what is served whatever the policy: 1 / mean of 1 / m_i."""
        chances = np.atleast_1d(np.asarray(self._chances, float))
        shares = np.ones(len(chances)) if self.shares is None else np.asarray(self.shares, float)
        return float(1 / np.average(1 / chances, weights=shares))

    def draw_workload(self, key: Array, arrival_rate: Array, problem: Problem) -> Workload:
        """Draw the classes that arrive; K servers share m alike."""
        classes, chances = problem.num_rows, jnp.atleast_1d(jnp.asarray(self._chances, float))
        alone = jnp.log(chances / (1 - chances) / problem.assortment_size)
        utilities = jnp.broadcast_to(alone[:, None], (classes, problem.num_servers))
        shares = jnp.ones(classes) if self.shares is None else jnp.asarray(self.shares, float)
        until = jnp.cumsum(shares) / jnp.sum(shares)
        rounds = jnp.arange(1, problem.horizon + 1)
        uniform = rng.round_uniforms(key, rounds, rng.Stream.ARRIVAL_ROW)
        rows = jnp.minimum(jnp.searchsorted(until, uniform, side="right"), classes - 1)
        numbers = jnp.arange(classes, dtype=jnp.int32)
        return Workload(jnp.eye(classes), utilities, rows.astype(jnp.int32), numbers)
