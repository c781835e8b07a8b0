"""Prices that change during a run."""

import jax
import jax.numpy as jnp
from jax import Array

from cqbjax.core.inputs import Condition, check_each, check_interval, read_when
from cqbjax.core.pytree import Numbers, pytree
from cqbjax.core.scenario import ServiceModel
from cqbjax.core.types import Problem


@read_when(since=Condition("factors"))
@pytree
class Prices(ServiceModel):
    """The price of an answer is multiplied by a factor for its server and round.

    In round t the price of server j is multiplied by exp(s B_jt - s^2 t / 2), and from round
    `since` on also by its entry of `factors`. B_j is a random walk of standard normal steps, so
    that the exponential is 1 on average. Users and policies do not see the factors. The recorders
    `dollars` and `queries` apply the factors of the round of an answer.

    Attributes:
        factors: [N] price factor of each server from round `since` on; None or empty: 1.
        since: the first round with these factors.
        spread: s, the standard deviation of a round's step of the logarithm.
    """

    factors: Numbers | None = None
    since: Array | float = 1.0
    spread: Array | float = 0.0

    neutral = True

    def check(self, problem: Problem) -> None:
        """Validate the factors, and that the source's answers have prices.

        Raises:
            ValueError: naming the key and what is allowed.
        """
        if not problem.has_costs:
            raise ValueError("prices need a table with costs, and this source has none")
        check_each(self, "[0, inf)", problem.num_servers, "server", "factors")
        check_interval(self, "[1, inf]", "since")
        check_interval(self, "[0, inf)", "spread")

    def draw(self, key: Array, problem: Problem) -> Array:
        """Draw the factors: [T, N]."""
        t = jnp.arange(1, problem.horizon + 1)[:, None]
        steps = jax.random.normal(key, (problem.horizon, problem.num_servers))
        walk = jnp.exp(self.spread * jnp.cumsum(steps, axis=0) - jnp.square(self.spread) * t / 2)
        factors = jnp.ones(1) if self.factors is None else jnp.asarray(self.factors, float)
        return jnp.where(t >= self.since, factors, 1.0) * walk

    def prices(self, drawn: Array) -> Array:
        """Return the round's factors: [N]."""
        return drawn
