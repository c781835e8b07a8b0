"""Who answered, as shares."""

import dataclasses

import jax.numpy as jnp
from jax import Array

from cqbjax.core import mnl
from cqbjax.core.recorders.protocol import Recorder, Round
from cqbjax.core.types import Problem


@dataclasses.dataclass(frozen=True)
class Traffic(Recorder):
    """Which share of the answers that were shown each server gave."""

    name, label, unit, dims = "traffic", "Share of traffic", "", ("server",)

    def start(self, problem: Problem) -> Array:
        """Return no showing."""
        return jnp.zeros(problem.num_servers, jnp.int32)

    def update(self, state: Array, round_: Round) -> Array:
        """Count who was shown."""
        servers = round_.action.servers
        shown = mnl.shown(servers.reshape(-1), len(state)) if servers.ndim == 1 else None
        if shown is not None:
            return state + (shown & round_.valid)
        return state.at[servers].add(round_.valid[:, None].astype(jnp.int32))

    def read(self, state: Array) -> Array:
        """Return the shares."""
        return state / jnp.sum(state)
