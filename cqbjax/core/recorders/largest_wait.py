"""The longest that any query has been in the system."""

import dataclasses

import jax.numpy as jnp
from jax import Array

from cqbjax.core.recorders.protocol import Recorder, Round
from cqbjax.core.types import Problem


@dataclasses.dataclass(frozen=True)
class LargestWait(Recorder):
    """The longest that any query has been in the system so far."""

    name, label, unit, better = "largest_wait", "Largest time in system", "rounds", "less"

    def start(self, problem: Problem) -> Array:
        """Return none."""
        del problem
        return jnp.zeros((), jnp.int32)

    def update(self, state: Array, round_: Round) -> Array:
        """Look at who is there."""
        there = round_.before.arrived > 0
        oldest = jnp.max(jnp.where(there, round_.round - round_.before.arrived, 0))
        return jnp.maximum(state, oldest)
