"""Figures of the theorems: on log-log axes, with the slopes and bounds of the paper."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import xarray as xr
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from cqbjax.figures.panels import VERBATIM, add_legend
from cqbjax.results.policy_styles import find_style, sort_policies
from cqbjax.results.summaries import mean_ci
from reproduction.theory import slopes

WIDTH, HEIGHT = 10.0, 3.9
NAMES = {"regret": "Cumulative regret", "queue_regret": "Queue-length regret"}
GREY = "#555555"


def draw_slopes(points: Sequence[xr.Dataset], title: str) -> Figure:
    """Draw regret and queue-length regret on log-log axes, a row a point and arrival rate.

    Dots are means over seeds and a bin of rounds, bars their 95% intervals; a bar that reaches zero
    extends to the bottom. The dotted line has the slope of the paper's bound and passes through the
    first dot of ACQB, or of the first policy if ACQB did not run.
    """
    cells = [(point, rate) for point in points for rate in point.arrival_rate.values.tolist()]
    seeds = cells[0][0].sizes["seed"]
    figure = Figure(figsize=(WIDTH, HEIGHT * len(cells)), layout="constrained")
    axes = figure.subplots(len(cells), 2, squeeze=False)
    figure.suptitle(f"{title}: mean over {seeds} seeds with 95% interval", **VERBATIM)
    handles: list[list[Any]] = []
    for row, (point, rate) in zip(axes, cells, strict=True):
        curves = slopes.curves(point.sel(arrival_rate=rate))
        for panel, (name, values) in zip(row, curves.items(), strict=True):
            handles.append(_draw_curve(panel, values, slopes.CURVES[name]))
            panel.set_ylabel(NAMES[name])
            panel.spines[["top", "right"]].set_visible(False)
        row[0].set_title(f"K = {point.attrs['K']}, λ = {rate:g}", loc="left")
    add_legend(axes[0, 1], handles[1], frameon=False, fontsize=9)
    return figure


def _draw_curve(panel: Axes, values: xr.DataArray, exponent: float) -> list[Any]:
    """Draw a curve a policy, and return the legend's handles."""
    handles: list[Any] = []
    labels = sort_policies(values.policy.values.tolist())
    at, _ = slopes.average_bins(values["round"].values, values["round"].values)
    reference = None
    for number, label in enumerate(labels):
        _, by_seed = slopes.average_bins(values["round"].values, values.sel(policy=label).values)
        interval = mean_ci(xr.DataArray(by_seed, dims=("seed", "round")))
        mean, low, high = (interval[part].values for part in ("mean", "low", "high"))
        positive, style = mean > 0, find_style(label)
        bars = np.stack([mean - np.maximum(low, 1e-9), high - mean])[:, positive]
        # Slightly shifted, so that bars do not cover one another.
        x = at[positive] * 1.02 ** (number - (len(labels) - 1) / 2)
        handles.append(panel.errorbar(
            x, mean[positive], bars, color=style.color, linestyle=style.dashes, marker="o",
            markersize=3.5, linewidth=1.2, elinewidth=0.9, label=style.name,
        ))  # fmt: skip
        if positive.any() and (reference is None or label == "acqb"):
            reference = float(mean[positive][0]), float(at[positive][0])
    panel.set_xscale("log")
    panel.set_yscale("log", nonpositive="clip")
    if reference is not None:
        value, start = reference
        line = value * (at / start) ** exponent
        slope = panel.plot(at, line, color=GREY, linestyle=":", label=f"slope {exponent:g}")
        handles = [*slope, *handles]
    heights = np.concatenate([np.asarray(line.get_ydata(), float) for line in panel.get_lines()])
    heights = heights[heights > 0]
    if heights.size:
        panel.set_ylim(0.5 * heights.min(), 2.0 * heights.max())
    panel.set_xlabel("Round")
    return handles
