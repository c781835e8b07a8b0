"""What users feel, as a ratio of two sums: a share or a mean, of all rounds so far."""

import abc

import jax.numpy as jnp
from jax import Array

from cqbjax.core import linalg
from cqbjax.core.recorders.protocol import Recorder, Round, Sums
from cqbjax.core.types import Problem
from cqbjax.core.world import Billed


class Ratio(Recorder):
    """A sum over a sum."""

    def start(self, problem: Problem) -> Sums:
        """Return nothing over nothing, as compensated sums [2]."""
        del problem
        return jnp.zeros(2), jnp.zeros(2)

    def update(self, state: Sums, round_: Round) -> Sums:
        """Add the round's."""
        over, under = self.parts(round_)
        return linalg.add(*state, jnp.stack([jnp.sum(over), jnp.sum(under)]))

    @abc.abstractmethod
    def parts(self, round_: Round) -> tuple[Array, Array]:
        """Return what is added above and below: [], or [c] of several attempts."""

    def read(self, state: Sums) -> Array:
        """Return the ratio, NaN of nothing: what was paid for nobody is no price."""
        over, under = state[0]
        return jnp.where(under > 0, over / under, jnp.nan)


def billed(round_: Round) -> tuple[Billed, Array]:
    """Return the costs and scores of a round's world, and the rows that were served."""
    told = round_.world.billed
    assert told is not None, "the source must know costs and scores"
    return told, round_.before.row[round_.action.slot]


def paid(round_: Round, told: Billed, row: Array) -> Array:
    """Return what the answers of a round's attempts cost, at its prices: [], or [c]."""
    servers = round_.action.servers
    each = told.dollars[row[..., None], servers]
    if round_.prices is not None:
        each = each * round_.prices[servers]
    return jnp.sum(round_.action.of_shown(each, 0.0), axis=-1)


class OfTable(Ratio):
    """A ratio that needs a table's costs or scores."""

    def check(self, problem: Problem) -> None:
        """Refuse a source that knows none.

        Raises:
            ValueError: naming the recorder.
        """
        if not problem.billed:
            raise ValueError(
                f"record={self.name} needs a table with costs and scores, and this source has none"
            )
