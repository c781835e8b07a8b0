"""Queries whose users are away."""

import dataclasses

import jax.numpy as jnp
from jax import Array

from cqbjax.core.recorders.in_service import in_service
from cqbjax.core.recorders.protocol import Recorder, Round
from cqbjax.core.types import Problem


@dataclasses.dataclass(frozen=True)
class Away(Recorder):
    """Queries whose users are away."""

    name, label, unit = "away", "Away", "queries"

    def start(self, problem: Problem) -> Array:
        """Return nobody."""
        del problem
        return jnp.zeros((), jnp.int32)

    def update(self, state: Array, round_: Round) -> Array:
        """Keep the last: who is there, and neither waits nor is served."""
        del state
        there = jnp.sum(round_.after.arrived > 0, dtype=jnp.int32)
        return there - round_.length - in_service(round_)
