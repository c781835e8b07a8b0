"""What a satisfied query cost."""

import dataclasses

import jax.numpy as jnp
from jax import Array

from cqbjax.core.recorders.protocol import Round
from cqbjax.core.recorders.ratio import OfTable, billed, paid


@dataclasses.dataclass(frozen=True)
class Dollars(OfTable):
    """What all answers that were shown cost, over the queries that were satisfied."""

    name, label, unit, better = "dollars", "Dollars a query", "USD a satisfied query", "less"

    def parts(self, round_: Round) -> tuple[Array, Array]:
        """Return what was paid, and who departed."""
        cost = paid(round_, *billed(round_))
        return jnp.where(round_.valid, cost, 0.0), round_.departed.astype(float)
