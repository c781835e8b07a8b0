"""Queries that left satisfied so far."""

import dataclasses

import jax.numpy as jnp
from jax import Array

from cqbjax.core.recorders.protocol import Recorder, Round
from cqbjax.core.types import Problem


@dataclasses.dataclass(frozen=True)
class Departures(Recorder):
    """Queries that left satisfied so far."""

    name, label, unit, better = "departures", "Departures so far", "queries", "more"

    def start(self, problem: Problem) -> Array:
        """Return none."""
        del problem
        return jnp.zeros((), jnp.int32)

    def update(self, state: Array, round_: Round) -> Array:
        """Count who left."""
        return state + jnp.sum(round_.departed, dtype=jnp.int32)
