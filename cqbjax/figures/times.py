"""How long queries are in the system: the share that is there for longer than so many rounds."""

from collections.abc import Sequence

import numpy as np
import xarray as xr
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from cqbjax.core.recorders import TimeInSystem
from cqbjax.core.recorders.users import bin_upper_edges
from cqbjax.figures import panels
from cqbjax.results.names import in_order, style_of
from cqbjax.results.summaries import mean_ci

NAME = TimeInSystem.name
AXES = "Rounds in the system, w", "Share longer than w"


def draw_times(points: Sequence[xr.Dataset]) -> Figure:
    """Draw P(W > w), the share of satisfied queries that were in the system for longer than w.

    A panel is a point at an arrival rate, both its scales logarithmic. Lines are means over seeds,
    bands their 95% intervals; a band that reaches zero goes on to the bottom.

    Args:
        points: as `results.load_points` returns them, with `time_in_system`.

    Raises:
        ValueError: no point, or one that did not record it.
    """
    if not points or any(NAME not in point for point in points):
        raise ValueError(f"{NAME} was not recorded at every point: run with record=[{NAME}].")
    keys = panels.apart(points)
    cells = [(point, rate) for point in points for rate in point["arrival_rate"].values.tolist()]
    labels = in_order({str(label) for point in points for label in point["policy"].values})
    with panels.drawn(points, len(cells), *AXES) as (figure, axes):
        for panel, (point, rate) in zip(axes, cells, strict=True):
            _draw_panel(panel, point.sel(arrival_rate=rate))
            told = {name: point.attrs.get(key, "unset") for key, name in panels.brief(keys).items()}
            panels.set_title(panel, panels.titled(told, rate, list(told), panels.LETTERS))
        labelled = panels.lines_of(labels)
        panels.add_legend(figure, labelled, points, "band: 95% confidence interval")
    return figure


def longer(point: xr.Dataset) -> xr.DataArray:
    """Return P(W > w) of each run, over `time_bin`, whose coordinate is w in rounds; NaN of none.

    Args:
        point: with `time_in_system`: counts over `retried` and `time_bin`.
    """
    counts = point[NAME].sum("retried").astype(float)
    left = counts.sum("time_bin")
    share = 1 - counts.cumsum("time_bin") / left.where(left > 0)
    return share.assign_coords(time_bin=bin_upper_edges(int(point.attrs["horizon"])))


def _draw_panel(panel: Axes, cell: xr.Dataset) -> None:
    """Draw a line and a band a policy, as far as anybody was there for as long."""
    shares = longer(cell)
    least = 1.0
    for label in in_order([str(label) for label in cell["policy"].values]):
        style, own = style_of(label), mean_ci(shares.sel(policy=label), share=True)
        mean, low, high = (own[end].values for end in ("mean", "low", "high"))
        # From nobody on there is no more to draw; rounding leaves a speck of a share.
        some = int(np.sum(mean > 1e-9))
        if not some:
            continue
        order, rounds = 3.0 if style.on_top else 2.0, shares["time_bin"].values[:some]
        least = min(least, float(mean[:some].min()))
        if np.isfinite(low).all():
            floor = np.maximum(low[:some], 1e-12)
            panel.fill_between(
                rounds, floor, high[:some], color=style.color, alpha=0.15, linewidth=0,
                step="post", zorder=order - 1,
            )  # fmt: skip
        options = panels.line_options(style) | {"marker": None}
        panel.plot(rounds, mean[:some], drawstyle="steps-post", zorder=order, **options)
    panel.set_xscale("log")
    panel.set_yscale("log")
    panel.set_ylim(0.5 * least, 1.2)
