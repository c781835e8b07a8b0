"""Cost against quality: the plane in which the routing literature compares routers."""

import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

import polars as pl
import xarray as xr
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from cqbjax.figures import panels
from cqbjax.figures.cells import LETTERS as LETTERS_OF
from cqbjax.results.frame import LAST, labelled, long, summarised
from cqbjax.results.metrics import check_metrics, metrics_of, shares_of
from cqbjax.results.names import in_order, style_of

DOLLARS, SCORE = "dollars", "score"
MOST_PANELS = 9
MOST_TOLD = 4  # values of a key that a title names
# Costs that are so many times apart are drawn on a logarithmic scale.
FAR_APART = 8.0
# Of policies of one colour each has another shape.
SHAPES = ("o", "s", "^", "D", "v", "P", "X", "<", ">", "p", "*", "h")
AXES = "USD a satisfied query", "Score of the accepted answer"


def draw_cost_quality(points: Sequence[xr.Dataset]) -> Figure:
    """Draw what a satisfied query cost and what its answer was worth, at the end of the runs.

    A dot is a policy's mean over seeds, its bars are the 95% intervals of both. A panel is an
    assortment size at an arrival rate, or at all of them where there are many. Dots of a policy at
    several points of a panel are joined in the points' order.

    Args:
        points: as `results.load_points` returns them, with `dollars` and `score`.

    Raises:
        ValueError: no point, or one of both was not recorded.
    """
    check_metrics(points, (DOLLARS, SCORE))
    table, keys = _table(points)
    by = ["K", "arrival_rate"]
    if table.select(by).n_unique() > MOST_PANELS:
        by = ["K"]
    shapes = _shapes(in_order(set(table["policy"])))
    cells = table.partition_by(by, as_dict=True)
    with panels.drawn(points, len(cells), *AXES) as (figure, axes):
        for panel, place in zip(axes, sorted(cells), strict=True):
            own = dict(zip(by, place, strict=True))
            _draw_panel(panel, cells[place], [*keys, "arrival_rate"], shapes)
            several = {"K": own["K"]} if table["K"].n_unique() > 1 else {}
            title = panels.titled(several, own.get("arrival_rate"), [], panels.LETTERS)
            said = filter(None, [title, *_joined(cells[place], keys, by)])
            panels.set_title(panel, "\n".join(said))
        handles = [
            Line2D([], [], label=style_of(label).name, color=style_of(label).color, marker=shape,
                   linestyle="none")
            for label, shape in shapes.items()
        ]  # fmt: skip
        panels.add_legend(figure, handles, points, "bars: 95% confidence intervals")
    return figure


def _table(points: Sequence[xr.Dataset]) -> tuple[pl.DataFrame, list[str]]:
    """Return a row a point, rate and policy with both means and intervals, and the keys swept."""
    keys = [key for key in panels.apart(points) if key != "K"]
    made = summarised(long(points, (DOLLARS, SCORE), [LAST]), shares_of(metrics_of(points)))
    made = labelled(made, points, ["K", *keys]).drop("round", "n", "sd")
    on = ["K", *keys, "arrival_rate", "policy"]
    both = (made.filter(metric=name).drop("metric") for name in (DOLLARS, SCORE))
    table = next(both).join(next(both), on=on, suffix="_score", nulls_equal=True)
    # Whom nobody left with an answer has neither.
    return table.drop_nulls(["mean", "mean_score"]), keys


def _joined(cell: pl.DataFrame, keys: Sequence[str], by: Sequence[str]) -> list[str]:
    """Say in what the dots differ that are joined, a line a key."""
    said = []
    for key, name in panels.brief([*keys, *({"arrival_rate"} - {*by})]).items():
        values = cell[key].unique().sort()
        if len(values) > 1:
            few = len(values) <= MOST_TOLD
            told = ", ".join(map(str, values)) if few else f"{values[0]} to {values[-1]}"
            words = f"joined: {LETTERS_OF.get(name, name)} = {told}"
            said.append(textwrap.fill(words, panels.LETTERS, break_long_words=False))
    return said


def _shapes(labels: Sequence[str]) -> dict[str, str]:
    """Return a marker a policy: its own, or one that no other of its colour has."""
    shapes: dict[str, str] = {}
    for label in labels:
        style = style_of(label)
        taken = {shapes[other] for other in shapes if style_of(other).color == style.color}
        free = (one for one in (style.marker, *SHAPES) if one and one not in taken)
        shapes[label] = next(free, SHAPES[0])
    return shapes


def _draw_panel(
    panel: Axes, cells: pl.DataFrame, order: Sequence[str], shapes: Mapping[str, str]
) -> None:
    """Draw the policies of a panel."""
    for label in in_order(set(cells["policy"])):
        own, style = cells.filter(policy=label).sort(order, nulls_last=True), style_of(label)
        x, y = own["mean"].to_numpy(), own["mean_score"].to_numpy()
        bars = {"xerr": _bars(own, ""), "yerr": _bars(own, "_score")}
        panel.errorbar(
            x, y, **bars, color=style.color, marker=shapes[label], markersize=5.0,
            linestyle=style.dashes if len(x) > 1 else "none", linewidth=1.0, elinewidth=1.0,
            zorder=3 if style.on_top else 2,
        )  # fmt: skip
    costs = cells["mean"].to_numpy()
    if costs.size and costs.min() > 0 and costs.max() > FAR_APART * costs.min():
        panel.set_xscale("log")
    panel.margins(0.08)


def _bars(own: pl.DataFrame, of: str) -> Any:
    """Return the lengths of error bars to either side: [2, n]; None of single seeds."""
    low, mean, high = (own[f"{end}{of}"].cast(pl.Float64) for end in ("low", "mean", "high"))
    if low.null_count():
        return None
    return [(mean - low).to_numpy(), (high - mean).to_numpy()]
