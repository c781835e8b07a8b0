"""How alike the times in system are."""

import dataclasses

import jax.numpy as jnp
from jax import Array

from cqbjax.core import linalg
from cqbjax.core.recorders.protocol import Recorder, Round, Sums
from cqbjax.core.types import Problem


@dataclasses.dataclass(frozen=True)
class Fairness(Recorder):
    """Jain's index of the times in system of satisfied queries: 1 where all are alike."""

    name, label, unit, better = "fairness", "Jain's index of times in system", "", "more"

    def start(self, problem: Problem) -> Sums:
        """Return no query: their number, the sum of times and that of squares."""
        del problem
        return jnp.zeros(3), jnp.zeros(3)

    def update(self, state: Sums, round_: Round) -> Sums:
        """Add who departed."""
        rounds = (round_.round - round_.before.arrived[round_.action.slot]).astype(float)
        left = round_.departed.astype(float)
        terms = left, left * rounds, left * rounds**2
        return linalg.add(*state, jnp.stack([jnp.sum(term) for term in terms]))

    def read(self, state: Sums) -> Array:
        """Return (sum x)^2 / (n sum x^2)."""
        count, times, squares = state[0]
        return times**2 / (count * squares)
