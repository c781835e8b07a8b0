"""Prices that change while a run goes on."""

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from cqbjax.core.pytree import Numbers, keep_arrays, pytree
from cqbjax.core.rules import Service
from cqbjax.core.types import Problem


@pytree
class Prices(Service):
    """What answers cost is multiplied by a factor of each server and round.

    In round t server j's is factor_j^[t >= since] exp(s B_jt - s^2 t / 2), with B_j a random walk
    of standard normal steps: it is 1 on average where `factor` is. No user's choice and no policy
    depends on it: the recorders `dollars` and `queries` pay it, in the round of the answer.

    Attributes:
        factor: from round `since` on: one number, or [N] of each server.
        since: the round.
        spread: s, the standard deviation of a round's step of the logarithm; 0: none.
    """

    factor: Numbers | float = 1.0
    since: Array | float = 1.0
    spread: Array | float = 0.0

    neutral = True

    def __post_init__(self) -> None:
        """Take lists as arrays."""
        keep_arrays(self, "factor")

    def check(self, problem: Problem) -> None:
        """Refuse what is no factor, and a source whose answers have no price.

        Raises:
            ValueError: naming the key and what is allowed.
        """
        if not problem.billed:
            raise ValueError("prices change what a table's answers cost, and this source has none")
        told = np.asarray(self.factor, float)
        if told.shape not in ((), (problem.num_servers,)):
            raise ValueError(
                f"factor={told.tolist()} must be a number, or one for each of "
                f"{problem.num_servers} servers"
            )
        if not (np.isfinite(told) & (told >= 0)).all():
            raise ValueError(f"factor={told.tolist()} must be finite and not negative")
        if not float(self.since) >= 1:
            raise ValueError(f"since={float(self.since):g} must be at least round 1")
        if not 0 <= float(self.spread) < float("inf"):
            raise ValueError(f"spread={float(self.spread):g} must be finite and not negative")

    def draw(self, key: Array, problem: Problem) -> Array:
        """Draw the factors: [T, N]."""
        t = jnp.arange(1, problem.horizon + 1)[:, None]
        steps = jax.random.normal(key, (problem.horizon, problem.num_servers))
        walk = jnp.exp(self.spread * jnp.cumsum(steps, axis=0) - jnp.square(self.spread) * t / 2)
        return jnp.where(t >= self.since, jnp.asarray(self.factor), 1.0) * walk

    def prices(self, drawn: Array) -> Array:
        """Return the round's factors: [N]."""
        return drawn
