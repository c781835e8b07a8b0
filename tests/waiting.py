"""Two recorders as a user writes them, imported here, and copied to where a user's own would be."""

import dataclasses

import jax.numpy as jnp

from cqbjax.core.recorders import Recorder


@dataclasses.dataclass(frozen=True)
class SumOfWaits(Recorder):
    """Rounds that departed queries had waited, summed."""

    name, label, unit, better = "waited", "Rounds waited", "rounds", "less"
    scale: float = 1.0

    def start(self, problem):
        return jnp.zeros(())

    def update(self, state, round_):
        waited = round_.round - round_.before.arrived[round_.action.slot]
        return state + jnp.where(round_.departed, self.scale * waited, 0.0)


@dataclasses.dataclass(frozen=True)
class DepartureRounds(Recorder):
    """The round in which each query left, by the round in which it came."""

    name, label, unit = "left", "Round of departure", "round"
    per, dims = "run", ("query",)

    def start(self, problem):
        return jnp.zeros(problem.horizon, jnp.int32)

    def update(self, state, round_):
        came = round_.before.arrived[round_.action.slot] - 1
        return state.at[came].add(jnp.where(round_.departed, round_.round, 0))
