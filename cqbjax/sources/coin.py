"""Queries that every LLM satisfies alike: the world whose answers are known in closed form."""

import jax.numpy as jnp
import numpy as np
from jax import Array

from cqbjax.core import rng
from cqbjax.core.pytree import Numbers, keep_arrays, pytree, static
from cqbjax.core.types import Problem, World


@pytree
class Coin:
    """A query of class i leaves after an attempt with probability m_i, whoever serves it.

    Routing does not matter here, and a policy that never idles differs from another in its schedule
    alone: what queues do is known exactly (docs/concepts/known_answers.md). A context tells the
    class.

    Attributes:
        success: m, or [I] m_i of each class: the probability that a query leaves, of any
            assortment.
        shares: [I] of what arrives, which share each class is; None: all alike.
        num_servers: N.
    """

    success: Numbers | float = 0.6
    shares: Numbers | None = None
    num_servers: int = static(default=2)

    def __post_init__(self) -> None:
        """Take lists as arrays."""
        keep_arrays(self, "success", "shares")

    @property
    def _classes(self) -> int:
        return int(np.shape(self.success)[0]) if np.ndim(self.success) else 1

    def problem(self, assortment_size: int, horizon: int) -> Problem:
        """Return the shapes: a table row a class, its context a unit vector."""
        classes = self._classes
        return Problem(
            self.num_servers, assortment_size, classes, classes, horizon, "disjoint", True
        )

    def check(self, seeds: np.ndarray, arrival_rate: float, assortment_size: int) -> None:
        """Refuse what is no probability.

        Raises:
            ValueError: naming the key and what is allowed.
        """
        del seeds, arrival_rate, assortment_size
        chances = np.asarray(self.success, float)
        if chances.ndim > 1 or not chances.size or not ((chances > 0) & (chances < 1)).all():
            raise ValueError(f"success={chances.tolist()} must lie between 0 and 1, of each class")
        if self.shares is not None:
            shares = np.asarray(self.shares, float)
            if shares.shape != (self._classes,) or not (shares >= 0).all() or not shares.sum() > 0:
                raise ValueError(
                    f"shares={shares.tolist()} must be {self._classes} numbers, one a class, none "
                    "of them negative"
                )
        if self.num_servers < 1:
            raise ValueError(f"num_servers={self.num_servers} must be at least 1")

    def uniform_service(
        self, seeds: np.ndarray, arrival_rate: float, assortment_size: int
    ) -> float:
        """Return what is served whatever the policy: 1 / mean of 1 / m_i."""
        del seeds, arrival_rate, assortment_size
        chances = np.atleast_1d(np.asarray(self.success, float))
        shares = np.ones(len(chances)) if self.shares is None else np.asarray(self.shares, float)
        return float(1 / np.average(1 / chances, weights=shares))

    def world(self, key: Array, arrival_rate: Array, problem: Problem) -> World:
        """Draw the classes that arrive; K servers share m alike."""
        del arrival_rate
        classes, chances = problem.num_rows, jnp.atleast_1d(jnp.asarray(self.success, float))
        alone = jnp.log(chances / (1 - chances) / problem.assortment_size)
        utilities = jnp.broadcast_to(alone[:, None], (classes, problem.num_servers))
        shares = jnp.ones(classes) if self.shares is None else jnp.asarray(self.shares, float)
        until = jnp.cumsum(shares) / jnp.sum(shares)
        rounds = jnp.arange(1, problem.horizon + 1)
        uniform = rng.round_uniforms(key, rounds, rng.Stream.ARRIVAL_ROW)
        rows = jnp.minimum(jnp.searchsorted(until, uniform, side="right"), classes - 1)
        numbers = jnp.arange(classes, dtype=jnp.int32)
        return World(jnp.eye(classes), utilities, rows.astype(jnp.int32), numbers)
