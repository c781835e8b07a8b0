"""How long an attempt takes; its place is taken meanwhile."""

from typing import Literal

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from cqbjax.core import linalg
from cqbjax.core.pytree import Numbers, check_words, keep_arrays, pytree, static
from cqbjax.core.rules import Service
from cqbjax.core.types import Problem
from cqbjax.worlds.orbit import geometric


@pytree
class Rounds(Service):
    """An attempt takes some rounds, and a query's place until its last one.

    What the user says is heard in the last round. Of an assortment the slowest server counts.

    Attributes:
        rounds: what an attempt takes, at least 1: one number, or [N] of each server.
        law: `fixed`: whole rounds, always as many; `geometric`: as many on average.
    """

    rounds: Numbers | float = 1.0
    law: Literal["fixed", "geometric"] = static(default="fixed")

    lasting = True

    def __post_init__(self) -> None:
        """Take lists as arrays."""
        keep_arrays(self, "rounds")

    def check(self, problem: Problem) -> None:
        """Refuse what is no number of rounds.

        Raises:
            ValueError: naming the key and what is allowed.
        """
        check_words(self)
        told = np.asarray(self.rounds, float)
        if told.shape not in ((), (problem.num_servers,)):
            raise ValueError(
                f"rounds={told.tolist()} must be a number, or one for each of "
                f"{problem.num_servers} servers"
            )
        if not (np.isfinite(told) & (told >= 1)).all():
            raise ValueError(f"rounds={told.tolist()} must be at least 1 round an attempt")
        if self.law == "fixed" and not (told == np.floor(told)).all():
            raise ValueError(f"rounds={told.tolist()} must be whole where law=fixed")

    def draw(self, key: Array, problem: Problem) -> Array:
        """Draw the uniforms of the lengths: [T, c]."""
        return jax.random.uniform(key, (problem.horizon, problem.places))

    def rounds_of(self, uniform: Array, servers: Array) -> Array:
        """Return how long the slowest of some servers [K] takes: [] int32."""
        own = jnp.asarray(self.rounds)
        mean = linalg.largest(own[servers], axis=-1) if own.ndim else own
        return mean.astype(jnp.int32) if self.law == "fixed" else geometric(uniform, 1 / mean)

    def takes(self, drawn: Array, place: Array, servers: Array) -> Array:
        """Return how many rounds the attempt takes: [] int32."""
        return self.rounds_of(drawn[place], servers)
