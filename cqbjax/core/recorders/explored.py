"""Rounds of forced exploration so far, those of an empty queue apart."""

import dataclasses

import jax.numpy as jnp
from jax import Array

from cqbjax.core.recorders.protocol import Recorder, Round
from cqbjax.core.types import Problem


@dataclasses.dataclass(frozen=True)
class Explored(Recorder):
    """Rounds of forced exploration so far, those of an empty queue apart."""

    name, label, unit, better = "explored", "Explored rounds so far", "rounds", ""

    def start(self, problem: Problem) -> Array:
        """Return none."""
        del problem
        return jnp.zeros((), jnp.int32)

    def update(self, state: Array, round_: Round) -> Array:
        """Count forced explorations."""
        return state + jnp.sum(round_.action.explored & round_.valid, dtype=jnp.int32)
