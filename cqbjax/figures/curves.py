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
from matplotlib.ticker import FixedLocator, FuncFormatter, MaxNLocator, NullLocator

from cqbjax.core.labels import OPTIMAL
from cqbjax.figures import panels
from cqbjax.results.frame import summarise, tabulate_curves
from cqbjax.results.metrics import list_metrics, list_shares, validate_metrics
from cqbjax.results.policy_styles import find_style, sort_policies
from cqbjax.results.summaries import find_differing, join_stand_ins

Spread = Literal["ci", "sd"]
SPREADS = {"ci": "95% confidence interval", "sd": "± 1 standard deviation"}

MAX_POINTS = 800  # of all panels of a row: more are not visible, and make the PDF large
MAX_ACROSS = 3  # panels of a cell side by side; more go into further lines
FEW_LINES = 8  # with more lines, bands would cover one another, and are drawn lighter
# A policy this many times above the close competitors gets the logarithmic scale.
FLATTENING = 2.5


def draw_curves(
    points: Sequence[xr.Dataset], metrics: Sequence[str] = ("gap", "regret"), spread: Spread = "ci"
) -> Figure:
    """Draw metrics over rounds, with a panel for each point, arrival rate and metric.

    Two assortment sizes are side by side, as in the paper. Each combination of arrival rate and of
    the other keys that differ has a row. Lines are means over seeds, and bands show their spread.
    The queue length is drawn for the optimal policy too.

    Args:
        points: from `results.load_points`.
        metrics: names from `results.metrics.list_metrics(points)`, drawn from left to right.
        spread: `ci` for the 95% interval of the mean, `sd` for one standard deviation either side.

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
                _draw_panel(panel, drawn)
                name, server = known[metric].long_name, known[metric].server
                words = (
                    [name.removesuffix(f", {server}"), server] if server else name.rsplit(" ", 1)
                )
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


def _draw_panel(panel: Axes, lines: pl.DataFrame) -> None:
    """Draw a line and a band for each policy."""
    labels = sort_policies(set(lines["policy"]))
    shade = 0.15 if len(labels) <= FEW_LINES else 0.07
    for number, label in enumerate(labels):
        own, style = lines.filter(policy=label), find_style(label)
        rounds, mean, low, high = (
            own[name].cast(pl.Float64).to_numpy() for name in ("round", "mean", "low", "high")
        )
        order = 3.0 if style.on_top else 2.0
        panel.fill_between(
            rounds, low, high, color=style.color, alpha=shade, linewidth=0, zorder=order - 1
        )
        every = max(1, len(rounds) // 5)
        panel.plot(
            rounds, mean, zorder=order, **panels.line_options(style),
            markevery=(every * (1 + number % 5) // 6, every),
        )  # fmt: skip
    _set_scale(panel, lines)
    last = int(rounds[-1])
    ticks = MaxNLocator(2, steps=[1, 1.25, 2, 2.5, 5, 10], integer=True).tick_values(0, last)
    panel.set_xlim(0, last)
    panel.set_xticks([tick for tick in ticks if 0 <= tick <= last])
    if last >= 10_000:
        panel.set_xticklabels([f"{tick / 1000:g}k" if tick else "0" for tick in panel.get_xticks()])


def _set_scale(panel: Axes, lines: pl.DataFrame) -> None:
    """Scale the vertical axis of a panel.

    The scale is linear for the close competitors. If weak policies would flatten them, it is
    logarithmic above them.

    Args:
        panel: with its lines drawn.
        lines: `policy, mean, low, high` of these lines.
    """
    # A share is missing before any query has left.
    lines = lines.drop_nulls("mean")
    if lines.is_empty():
        return
    # A single seed has no band.
    low, high = (pl.col("mean", end) for end in ("low", "high"))
    best = lines.select("policy", "mean", low=pl.min_horizontal(low), high=pl.max_horizontal(high))
    tops = np.sort(best.group_by("policy").agg(pl.col("high").max())["high"].to_numpy())
    close = count_close(tops)
    # A wide band below zero may be cut off, but not a mean.
    cut = max(float(best["low"].to_numpy().min()), -0.25 * float(tops[close - 1]))
    bottom = 1.05 * min(0.0, cut, float(best["mean"].to_numpy().min()))
    # If all values are zero, the axis ends at one.
    top = 1.05 * float(tops[-1]) if tops[-1] > 0 else 1.0
    if close < len(tops):
        # The close competitors get the more height, the more they are.
        _split_scale(panel, 1.06 * float(tops[close - 1]), top, 0.4 + 0.35 * close / len(tops))
    else:
        panel.yaxis.set_major_locator(MaxNLocator(4))
    panel.set_ylim(bottom, top)


def count_close(tops: np.ndarray[Any, Any]) -> int:
    """Count the policies whose curves have similar heights, the close competitors.

    The largest ratio of two neighbours in `tops` separates them from the weak policies.

    Args:
        tops: [P] highest value of each policy, ascending.

    Returns:
        At least two, or P if a linear axis can show all policies: the highest value is then at most
        `FLATTENING` times the highest value of the close competitors.
    """
    if len(tops) < 3 or tops[1] <= 0:
        return len(tops)
    close = 2 + int(np.argmax(tops[2:] / tops[1:-1]))
    return close if tops[-1] > FLATTENING * tops[close - 1] else len(tops)


def _split_scale(panel: Axes, threshold: float, top: float, share: float) -> None:
    """Scale linearly up to `threshold`, at `share` of the height, and logarithmically above it."""
    decades = np.log10(top / threshold)
    # Matplotlib draws the linear part linscale / (1 - 1 / base) decades high.
    linscale = 0.9 * decades * share / (1 - share)
    panel.set_yscale("symlog", linthresh=threshold, linscale=linscale)
    linear = [tick for tick in MaxNLocator(4).tick_values(0, threshold) if 0 <= tick <= threshold]
    candidates = [m * 10.0**e for e in range(-3, 8) for m in (1, 2, 5)]
    # A tick closer than a line of text to its neighbour would overlap it.
    gap = decades * 0.13 / (1 - share)
    ticks, last = [], max(np.log10(linear[-1]) if linear[-1] else -9.0, np.log10(threshold) - gap)
    for tick in candidates:
        if threshold < tick <= top and np.log10(tick) >= last + gap:
            ticks.append(tick)
            last = np.log10(tick)
    panel.yaxis.set_major_locator(FixedLocator([*linear, *ticks]))
    panel.yaxis.set_minor_locator(NullLocator())
    panel.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    panel.axhspan(threshold, top, color="0.5", alpha=0.12, linewidth=0, zorder=0)
    middle = (1.01, math.sqrt(threshold * top))
    panel.annotate(
        "log", middle, xycoords=panel.get_yaxis_transform(),
        rotation=90, va="center", color="0.35", style="italic", annotation_clip=False,
    )  # fmt: skip
