"""A kind of study: a sweep over long runs, and how fast both regrets grow or fall in them."""

import dataclasses
from collections.abc import Sequence
from typing import Any, ClassVar

import xarray as xr

from cqbjax.engine.spec import SweepSpec
from cqbjax.experiments import showing
from cqbjax.experiments.configs import Config
from cqbjax.experiments.grid import Ready
from cqbjax.experiments.kinds import Shown, Table
from cqbjax.experiments.sweeps import Sweep


@dataclasses.dataclass(frozen=True)
class Slopes(Sweep):
    """A sweep, shown on log-log axes with its slopes; what is stored is a sweep's.

    Attributes:
        windows: (first, last) of each window of rounds over which slopes are fitted.
    """

    windows: Any = ()

    unread: ClassVar[tuple[str, ...]] = ("figure_policies", "spread", "queue")

    def __post_init__(self) -> None:
        """Refuse windows that are none."""
        pairs = self.windows if isinstance(self.windows, list | tuple) else ()
        if not pairs or not all(map(_is_window, pairs)):
            raise ValueError(
                f"kind.windows={self.windows} must be a list of pairs of rounds, first < last"
            )

    def check(self, ready: Ready) -> SweepSpec:
        """Refuse what a point cannot run, and a window that it does not reach."""
        spec = super().check(ready)
        horizon, last = ready.point.config.horizon, max(pair[1] for pair in self.windows)
        if last > horizon:
            raise ValueError(
                f"kind.windows={self.windows} ends in round {last:,}: horizon={horizon:,} must "
                "reach it"
            )
        return spec

    def rounds_read(self, config: Config, panels: int) -> None:
        """Return that all rounds are read: slopes are of curves."""

    def show(self, points: Sequence[xr.Dataset], config: Config) -> Shown:
        """Return the table of a sweep, the slopes, and both on log-log axes."""
        from reproduction.theory import figures as drawing
        from reproduction.theory import slopes

        title = config.title or config.name
        fitted = slopes.table(points, self.windows)
        tables = {
            "": Table(showing.table(points, config), title),
            "slopes": Table(fitted, f"{title}: slopes on log-log axes"),
        }
        return Shown(tables, {"": drawing.draw_slopes(points, title)})


def _is_window(pair: Any) -> bool:
    whole = isinstance(pair, list | tuple) and all(type(one) is int for one in pair)
    return whole and len(pair) == 2 and 0 < pair[0] < pair[1]
