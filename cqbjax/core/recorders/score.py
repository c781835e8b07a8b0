"""The quality of the answers that were accepted."""

import dataclasses

import jax.numpy as jnp
from jax import Array

from cqbjax.core.recorders.protocol import Round
from cqbjax.core.recorders.ratio import OfTable, billed


@dataclasses.dataclass(frozen=True)
class Score(OfTable):
    """The graded quality of the answers that were accepted."""

    name, label, unit, better = "score", "Score of the accepted answer", "", "more"

    def parts(self, round_: Round) -> tuple[Array, Array]:
        """Return the accepted answers' scores, and how many there are."""
        told, row = billed(round_)
        last = round_.action.servers.shape[-1] - 1
        choice = jnp.minimum(round_.choice, last)[..., None]
        server = jnp.take_along_axis(round_.action.servers, choice, axis=-1)[..., 0]
        return jnp.where(round_.departed, told.scores[row, server], 0.0), round_.departed.astype(
            float
        )
