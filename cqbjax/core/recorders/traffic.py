"""Who answered, as shares."""

import dataclasses
from collections.abc import Mapping

import jax.numpy as jnp
import numpy as np
from jax import Array

from cqbjax.core import mnl
from cqbjax.core.labels import LLM
from cqbjax.core.recorders.protocol import Recorder, Round, Summary
from cqbjax.core.types import Problem

# Of so many servers each share is a number of its own in tables; of more they are in the arrays.
MOST_TOLD = 16


@dataclasses.dataclass(frozen=True)
class Traffic(Recorder):
    """Which share of the answers that were shown each server gave."""

    name, label, unit, dims = "traffic", "Share of traffic", "", (LLM,)

    def start(self, problem: Problem) -> Array:
        """Return no showing."""
        return jnp.zeros(problem.num_servers, jnp.int32)

    def update(self, state: Array, round_: Round) -> Array:
        """Count who was shown."""
        action = round_.action
        if action.servers.ndim == 1:
            return state + (mnl.shown(action.answering, len(state)) & round_.valid)
        answers = jnp.broadcast_to(round_.valid[:, None], action.servers.shape)
        return state.at[action.servers].add(action.of_shown(answers, False).astype(jnp.int32))

    def read(self, state: Array) -> Array:
        """Return the shares, NaN where nobody was shown."""
        return state / jnp.sum(state)

    def summaries(self, stored: np.ndarray, horizon: int) -> Mapping[str, Summary]:
        """Return each server's share, of few servers."""
        del horizon
        if stored.shape[-1] > MOST_TOLD:
            return {}
        return {
            f"traffic_{j}": Summary(stored[..., j], self.label, self.unit, "", server=j)
            for j in range(stored.shape[-1])
        }
