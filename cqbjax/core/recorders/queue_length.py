"""Q(t+1), the queries that wait after round t."""

import dataclasses

import jax.numpy as jnp
from jax import Array

from cqbjax.core.recorders.protocol import Recorder, Round
from cqbjax.core.types import Problem


@dataclasses.dataclass(frozen=True)
class QueueLength(Recorder):
    """The queue's length after the round."""

    name, label, unit, better = "queue_length", "Queue length", "queries", "less"

    def start(self, problem: Problem) -> Array:
        """Return an empty queue's."""
        del problem
        return jnp.zeros((), jnp.int32)

    def update(self, state: Array, round_: Round) -> Array:
        """Keep the last."""
        del state
        return round_.length
