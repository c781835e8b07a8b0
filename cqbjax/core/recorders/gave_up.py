"""The share of those who are gone that gave up."""

import dataclasses

import jax.numpy as jnp
from jax import Array

from cqbjax.core.recorders.protocol import Round
from cqbjax.core.recorders.ratio import Ratio


@dataclasses.dataclass(frozen=True)
class GaveUp(Ratio):
    """Of those who are gone, the share that gave up: after an attempt, or unserved."""

    name, label, unit, better = "gave_up", "Share that gave up", "", "less"

    def parts(self, round_: Round) -> tuple[Array, Array]:
        """Return who gave up, and who is gone."""
        lost = jnp.zeros(()) if round_.gave_up is None else jnp.sum(round_.gave_up)
        if round_.lost_patience is not None:
            lost = lost + jnp.sum(round_.lost_patience)
        return lost.astype(float), lost + jnp.sum(round_.departed)
