"""Feedback that never reaches the service."""

import jax
from jax import Array

from cqbjax.core.pytree import pytree
from cqbjax.core.rules import Service
from cqbjax.core.types import Problem


@pytree
class Lost(Service):
    """Nothing is learnt from some attempts, whatever became of them.

    Attributes:
        lost: the probability that the feedback of an attempt is lost.
    """

    lost: Array | float = 0.1

    neutral = True

    def check(self, problem: Problem) -> None:
        """Refuse what is no probability.

        Raises:
            ValueError: naming the key and what is allowed.
        """
        del problem
        if not 0 <= float(self.lost) <= 1:
            raise ValueError(f"lost={float(self.lost):g} must lie in [0, 1]")

    def draw(self, key: Array, problem: Problem) -> Array:
        """Draw whether each attempt's feedback is heard: [T, c] bool."""
        return jax.random.uniform(key, (problem.horizon, problem.places)) >= self.lost

    def hears(self, drawn: Array, place: Array) -> Array:
        """Return whether the service hears."""
        return drawn[place]
