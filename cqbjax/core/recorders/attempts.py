"""Attempts that a satisfied query took."""

import dataclasses

from jax import Array

from cqbjax.core.recorders.protocol import Round
from cqbjax.core.recorders.ratio import Ratio


@dataclasses.dataclass(frozen=True)
class Attempts(Ratio):
    """Attempts that a satisfied query took."""

    name, label, unit, better = "attempts", "Attempts a query", "attempts", "less"

    def parts(self, round_: Round) -> tuple[Array, Array]:
        """Return attempts of who departed, and how many did."""
        departed = round_.departed.astype(float)
        return departed * (round_.before.served[round_.action.slot] + 1), departed
