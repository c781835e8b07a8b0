"""Queries whose attempt goes on."""

import dataclasses

import jax.numpy as jnp
from jax import Array

from cqbjax.core.recorders.protocol import Recorder, Round
from cqbjax.core.types import Problem


def in_service(round_: Round) -> Array:
    """Return how many attempts go on after a round: [] int32."""
    if round_.in_service is None:
        return jnp.zeros((), jnp.int32)
    return jnp.sum(round_.in_service, dtype=jnp.int32)


@dataclasses.dataclass(frozen=True)
class InService(Recorder):
    """Queries whose attempt goes on."""

    name, label, unit = "in_service", "In service", "queries"

    def start(self, problem: Problem) -> Array:
        """Return nobody."""
        del problem
        return jnp.zeros((), jnp.int32)

    def update(self, state: Array, round_: Round) -> Array:
        """Keep the last."""
        del state
        return in_service(round_)
