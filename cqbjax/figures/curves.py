"""A figure over rounds, as the paper's are: queue length and cumulative regret.

One colour and line style a policy, the same in every figure (`names.py`). Drawn with Agg figures of
their own: no pyplot, no global state.
"""

import math
import textwrap
from collections.abc import Iterator, Sequence
from typing import Any, Literal

import numpy as np
import polars as pl
import xarray as xr
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from cqbjax.core.labels import OPTIMAL
from cqbjax.figures import panels
from cqbjax.figures.cells import Cell, arranged
from cqbjax.figures.vertical_scale import set_scale
from cqbjax.results.frame import curves, summarised
from cqbjax.results.metrics import check_metrics, metrics_of, shares_of
from cqbjax.results.names import in_order, style_of
from cqbjax.results.summaries import differing, stand_in_of

Spread = Literal["ci", "sd"]

SPREADS = {"ci": "95% confidence interval", "sd": "± 1 standard deviation"}

MAX_POINTS = 800  # of all panels of a row: more cannot be seen, and make the PDF heavy
MOST_ACROSS = 3  # panels of a cell side by side; more go into lines below
FEW_LINES = 8  # the bands of more would cover one another, and are drawn lighter


def draw_curves(
    points: Sequence[xr.Dataset], metrics: Sequence[str] = ("gap", "regret"), spread: Spread = "ci"
) -> Figure:
    """Draw metrics over rounds, a panel each a point and rate: the paper's queue and regret.

    Two assortment sizes stand side by side as in the paper; everything else that differs, and every
    arrival rate, makes a row. Lines are means over seeds, bands their spread. The queue length has
    the optimal policy's line too.

    Args:
        points: as `results.load_points` returns them.
        metrics: of `metrics_of(points)`, from left to right.
        spread: `ci` for the 95% interval of the mean, `sd` for one standard deviation either side.

    Raises:
        ValueError: no point, no policy but optimal, or another `spread`.
    """
    if spread not in SPREADS:
        raise ValueError(f"spread is {spread}: choose one of {', '.join(SPREADS)}.")
    if not points:
        raise ValueError("points is empty: at least one result is needed to draw a figure.")
    check_metrics(points, metrics)
    keys, settings = differing(points), [point.attrs for point in points]
    rows = arranged(settings, [point["arrival_rate"].values.tolist() for point in points], keys)
    blocks = len(rows[0])
    if any(set(point["policy"].values.tolist()) <= {OPTIMAL} for point in points):
        raise ValueError("points hold no policy but optimal: there is nothing to compare with it.")
    drawn_rounds = MAX_POINTS // (len(metrics) * blocks)
    lines = summarised(curves(points, metrics, drawn_rounds), shares_of(metrics_of(points)))
    if spread == "sd":
        ends = {"low": pl.col("mean") - pl.col("sd"), "high": pl.col("mean") + pl.col("sd")}
        lines = lines.with_columns(**ends)
    labels, stand_in = in_order(set(lines["policy"])), stand_in_of(points)
    width = 10.0 if blocks == 2 else panels.PAGE_WIDTH
    across = len(metrics) if len(metrics) <= MOST_ACROSS else (MOST_ACROSS + blocks - 1) // blocks
    lines_a_cell = math.ceil(len(metrics) / across)
    height = 2.3 * len(rows) * lines_a_cell + 0.9 + 0.02 * len(labels) + 0.3 * bool(stand_in)
    with panels.fonts(panels.PRINTED_POINTS * width / panels.PAGE_WIDTH):
        figure = Figure(figsize=(width, height), layout="constrained")
        axes = figure.subplots(len(rows) * lines_a_cell, across * blocks, squeeze=False)
        for own, cell in _places(axes, rows, across):
            for panel in own[len(metrics) if cell else 0 :]:
                panel.set_axis_off()
            if cell is None:
                continue
            for panel, metric in zip(own, metrics, strict=False):
                drawn = lines.filter(point=cell.point, arrival_rate=cell.rate, metric=metric)
                _draw_panel(panel, drawn)
                name = metrics_of(points)[metric].long_name
                panel.set_ylabel("\n".join(name.rsplit(" ", 1)), **panels.VERBATIM)
            title = panels.titled(settings[cell.point], cell.rate, keys, 84 // blocks)
            panels.set_title(own[0], title)
        _label_lowest(axes)
        panels.add_legend(figure, panels.lines_of(labels), points, f"band: {SPREADS[spread]}")
        if stand_in:
            note = textwrap.fill(f"Data: {stand_in}", 100 if blocks == 2 else 84)
            figure.suptitle(note, style="italic", **panels.VERBATIM)
    return figure


def _places(
    axes: np.ndarray[Any, Any], rows: Sequence[Sequence[Cell | None]], across: int
) -> Iterator[tuple[list[Axes], Cell | None]]:
    """Yield the panels of every cell, so many side by side, in as many lines as there are."""
    lines = len(axes) // len(rows)
    for number, cells in enumerate(rows):
        own = axes[lines * number : lines * (number + 1)]
        for block, cell in enumerate(cells):
            yield list(own[:, across * block : across * (block + 1)].ravel()), cell


def _draw_panel(panel: Axes, lines: pl.DataFrame) -> None:
    """Draw a line and a band a policy."""
    labels = in_order(set(lines["policy"]))
    shade = 0.15 if len(labels) <= FEW_LINES else 0.07
    for number, label in enumerate(labels):
        own, style = lines.filter(policy=label), style_of(label)
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
    set_scale(panel, lines)
    _mark_rounds(panel, int(rounds[-1]))


def _mark_rounds(axes: Axes, last: int) -> None:
    ticks = MaxNLocator(2, steps=[1, 1.25, 2, 2.5, 5, 10], integer=True).tick_values(0, last)
    axes.set_xlim(0, last)
    axes.set_xticks([tick for tick in ticks if 0 <= tick <= last])
    if last >= 10_000:
        axes.set_xticklabels([f"{tick / 1000:g}k" if tick else "0" for tick in axes.get_xticks()])


def _label_lowest(axes: np.ndarray[Any, Any]) -> None:
    """Name the lowest horizontal axes."""
    for column in axes.T:
        for panel in [panel for panel in column if panel.axison][-1:]:
            panel.set_xlabel("Round")
