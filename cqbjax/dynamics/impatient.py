"""Users who give up: after so many attempts, by chance after each, or after waiting too long."""

import jax
import jax.numpy as jnp
from jax import Array

from cqbjax.core.pytree import pytree
from cqbjax.core.rules import STAYS, Reaction, Users
from cqbjax.core.types import Problem
from cqbjax.dynamics.orbit import LONGEST, geometric


@pytree
class Impatient(Users):
    """Give up after an answer too many, or a round too many in the queue.

    Attributes:
        attempts: n, after how many failed attempts a user leaves; infinite: none is too many.
        give_up: g, the probability to leave after each failed attempt.
        patience: rounds in the queue without being served after which a user leaves; infinite: any
            number is borne.
        leave: the probability to leave after each such round.
        pretends: the probability that giving up after an attempt looks like satisfaction to the
            service: it hears that the likeliest answer was accepted.
    """

    attempts: Array | float = float("inf")
    give_up: Array | float = 0.0
    patience: Array | float = float("inf")
    leave: Array | float = 0.0
    pretends: Array | float = 0.0

    def check(self, problem: Problem) -> None:
        """Refuse what is no number of attempts or rounds, or no probability.

        Raises:
            ValueError: naming the key and what is allowed.
        """
        del problem
        for key in ("attempts", "patience"):
            value = float(getattr(self, key))
            if not (value >= 1 and (value == float("inf") or value == int(value))):
                raise ValueError(f"{key}={value:g} must be a whole number, at least 1, or infinite")
        for key in ("give_up", "leave", "pretends"):
            value = float(getattr(self, key))
            if not 0 <= value <= 1:
                raise ValueError(f"{key}={value:g} must lie in [0, 1]")

    def draw(self, key: Array, problem: Problem) -> Array:
        """Draw the uniforms of giving up and of pretending: [T, c, 2]."""
        return jax.random.uniform(key, (problem.horizon, problem.places, 2))

    def patience_of(self, uniform: Array) -> Array:
        """Return the rounds that a query bears: [...] int32."""
        fixed = jnp.minimum(self.patience, LONGEST).astype(jnp.int32)
        chance = jnp.where(jnp.asarray(self.leave) > 0, self.leave, 1.0)
        drawn = geometric(uniform, chance)
        return jnp.where(jnp.asarray(self.leave) > 0, jnp.minimum(drawn, fixed), fixed)

    def bears(self, key: Array, problem: Problem) -> Array:
        """Draw how many rounds who comes bears to wait: [T, A] int32."""
        shape = (problem.horizon, problem.arrivals_a_round)
        return self.patience_of(jax.random.uniform(key, shape))

    def reacts(self, drawn: Array, attempts: Array) -> Reaction:
        """Leave after the last attempt that is borne, or by chance."""
        leaves = (attempts >= self.attempts) | (drawn[0] < self.give_up)
        return STAYS._replace(leaves=leaves, pretends=drawn[1] < self.pretends)
