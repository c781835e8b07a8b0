"""Metrics over rounds, as in the paper's figures: queue length and cumulative regret.

Each policy has one colour and line style, the same in every figure. Figures do not use pyplot, and
have no global state.
"""

import math
import textwrap
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
import polars as pl
import xarray as xr
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from cqbjax.core.labels import OPTIMAL
from cqbjax.figures import panels
from cqbjax.results.frame import summarise, tabulate_curves
from cqbjax.results.metrics import list_metrics, list_shares, validate_metrics
from cqbjax.results.policy_styles import find_style, sort_policies
from cqbjax.results.summaries import find_differing, join_stand_ins

Spread = Literal["ci", "sd"]
Scale = Literal["linear", "log"]
SPREADS = {"ci": "95% confidence interval", "sd": "± 1 standard deviation"}

MAX_POINTS = 800  # of all panels of a row: more are not visible, and make the PDF large
MAX_ACROSS = 3  # panels of a cell side by side; more go into further lines
FEW_LINES = 8  # with more lines, bands would cover one another, and are drawn lighter


def draw_curves(
    points: Sequence[xr.Dataset], metrics: Sequence[str] = ("gap", "regret"),
    spread: Spread = "ci", scale: Scale = "linear",
) -> Figure:  # fmt: skip
    """Draw metrics over rounds, with a panel for each point, arrival rate and metric.

    Two assortment sizes are side by side, as in the paper. Each combination of arrival rate and of
    the other keys that differ has a row. Lines are means over seeds, and bands show their spread.
    The queue length is drawn for the optimal policy too.

    Args:
        points: from `results.load_points`.
        metrics: names from `results.metrics.list_metrics(points)`, drawn from left to right.
        spread: `ci` for the 95% interval of the mean, `sd` for one standard deviation either side.
        scale: of the vertical axes; on `log` values that are not positive are not drawn.

    Raises:
        ValueError: no point, no policy but the optimal one, or an unknown `spread`.
    """
    if spread not in SPREADS:
        raise ValueError(f"spread is {spread}: choose one of {', '.join(SPREADS)}.")
    if not points:
        raise ValueError("points is empty: at least one result is needed to draw a figure.")
    validate_metrics(points, metrics)
    keys, settings = find_differing(points), [point.attrs for point in points]
    rates = [point["arrival_rate"].values.tolist() for point in points]
    rows = panels.arrange_cells(settings, rates, keys)
    blocks, known = len(rows[0]), list_metrics(points)
    if any(set(point["policy"].values.tolist()) <= {OPTIMAL} for point in points):
        raise ValueError("points hold no policy but optimal: there is nothing to compare with it.")
    table = tabulate_curves(points, metrics, MAX_POINTS // (len(metrics) * blocks))
    lines = summarise(table, list_shares(known))
    if spread == "sd":
        ends = {"low": pl.col("mean") - pl.col("sd"), "high": pl.col("mean") + pl.col("sd")}
        lines = lines.with_columns(**ends)
    labels, stand_in = sort_policies(set(lines["policy"])), join_stand_ins(points)
    width = 10.0 if blocks == 2 else panels.PAGE_WIDTH
    across = len(metrics) if len(metrics) <= MAX_ACROSS else (MAX_ACROSS + blocks - 1) // blocks
    lines_per_cell = math.ceil(len(metrics) / across)
    height = 2.3 * len(rows) * lines_per_cell + 0.9 + 0.02 * len(labels) + 0.3 * bool(stand_in)
    with panels.fonts(panels.PRINTED_POINTS * width / panels.PAGE_WIDTH):
        figure = Figure(figsize=(width, height), layout="constrained")
        axes = figure.subplots(len(rows) * lines_per_cell, across * blocks, squeeze=False)
        for row, block in np.ndindex(len(rows), blocks):
            cell = rows[row][block]
            of_row = axes[lines_per_cell * row : lines_per_cell * (row + 1)]
            own = list(of_row[:, across * block : across * (block + 1)].ravel())
            for panel in own[len(metrics) if cell else 0 :]:
                panel.set_axis_off()
            if cell is None:
                continue
            for panel, metric in zip(own, metrics, strict=False):
                drawn = lines.filter(point=cell.point, arrival_rate=cell.rate, metric=metric)
                _draw_panel(panel, drawn, scale)
                words, server = known[metric].long_name.rsplit(" ", 1), known[metric].server
                if server:
                    words = [known[metric].long_name.removesuffix(f", {server}"), server]
                panel.set_ylabel("\n".join(words), **panels.VERBATIM)
            title = panels.format_title(settings[cell.point], cell.rate, keys, 84 // blocks)
            panels.write_title(own[0], title)
        for column in axes.T:
            for panel in [panel for panel in column if panel.axison][-1:]:
                panel.set_xlabel("Round")
        handles = panels.legend_lines(labels)
        panels.add_legend_below(figure, handles, points, f"band: {SPREADS[spread]}")
        if stand_in:
            note = textwrap.fill(f"Data: {stand_in}", 100 if blocks == 2 else 84)
            figure.suptitle(note, style="italic", **panels.VERBATIM)
    return figure


def _draw_panel(panel: Axes, lines: pl.DataFrame, scale: Scale) -> None:
    """Draw a line and a band for each policy."""
    labels = sort_policies(set(lines["policy"]))
    shade = 0.15 if len(labels) <= FEW_LINES else 0.07
    for number, label in enumerate(labels):
        own, style = lines.filter(policy=label), find_style(label)
        columns = own.select("round", "mean", "low", "high").cast(pl.Float64)
        rounds, mean, low, high = columns.to_numpy().T
        order, band = 3.0 if style.on_top else 2.0, dict[str, Any](color=style.color, alpha=shade)
        panel.fill_between(rounds, low, high, linewidth=0, zorder=order - 1, **band)
        every = max(1, len(rounds) // 5)
        panel.plot(
            rounds, mean, zorder=order, **panels.line_options(style),
            markevery=(every * (1 + number % 5) // 6, every),
        )  # fmt: skip
    _set_scale(panel, lines, scale)
    last = int(rounds[-1])
    ticks = MaxNLocator(2, steps=[1, 1.25, 2, 2.5, 5, 10], integer=True).tick_values(0, last)
    panel.set_xlim(0, last)
    panel.set_xticks([tick for tick in ticks if 0 <= tick <= last])
    if last >= 10_000:
        panel.set_xticklabels([f"{tick / 1000:g}k" if tick else "0" for tick in panel.get_xticks()])


def _set_scale(panel: Axes, lines: pl.DataFrame, scale: Scale) -> None:
    """Scale the vertical axis of a panel with these lines (`mean, low, high`)."""
    # A share is missing before any query has left.
    lines = lines.drop_nulls("mean")
    if scale == "log":
        panel.set_yscale("log", nonpositive="mask")
    if lines.is_empty() or scale == "log":
        return
    # A single seed has no band.
    low, top = pl.min_horizontal("mean", "low").min(), pl.max_horizontal("mean", "high").max()
    low, mean, top = lines.select(low=low, mean=pl.col("mean").min(), top=top).row(0)
    panel.yaxis.set_major_locator(MaxNLocator(4))
    # A wide band below zero may be cut off, but not a mean. If all values are zero, the axis ends
    # at one.
    bottom = min(0.0, mean, max(low, -0.25 * top))
    panel.set_ylim(1.05 * bottom, 1.05 * top if top > 0 else 1.0)
