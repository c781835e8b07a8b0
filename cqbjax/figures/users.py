"""What users experience: cost against quality, times in system, and who waits over time."""

import textwrap
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import polars as pl
import xarray as xr
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from cqbjax.core.labels import OPTIMAL
from cqbjax.core.recorders import TimeInSystem
from cqbjax.core.recorders.users import bin_upper_edges
from cqbjax.figures import panels
from cqbjax.figures.curves import Spread, draw_curves
from cqbjax.figures.sweeps import draw_over_keys
from cqbjax.results.frame import LAST, add_attributes, summarise, tabulate_runs
from cqbjax.results.metrics import list_metrics, list_shares, validate_metrics
from cqbjax.results.policy_styles import find_style, sort_policies
from cqbjax.results.summaries import mean_ci

DOLLARS, SCORE, TIMES = "dollars", "score", TimeInSystem.name
WAITING, ELSEWHERE = "queue_length", ("away", "in_service")
# Of many points one number is drawn: the mean time in system of all arrivals, or if it cannot be
# computed, the 99th percentile of the satisfied queries.
ALL_TIMES, LONG_TIME = "time_per_arrival", "time_99"
MAX_PANELS, MAX_VALUES = 9, 4  # of a figure; of a key that a title lists
# Costs are of so many satisfied queries; from this ratio of costs their scale is logarithmic.
PER_QUERIES, WIDE_RANGE = 1000, 8.0


def draw_user_figures(
    points: Sequence[xr.Dataset], few: bool, spread: Spread
) -> Iterator[tuple[str, Figure]]:
    """Draw cost against quality, times in system, and waiting queries, as far as recorded.

    Args:
        points: points of a study, from `results.load_points`.
        few: whether there are few points, so that each has its own panel. Otherwise the values at
            the end of the runs are drawn over the swept keys.
        spread: as in `draw_curves`.

    Yields:
        The suffix of a file name, and the figure.
    """
    recorded = {name for name in points[0] if all(name in point for point in points)}
    if {DOLLARS, SCORE} <= recorded:
        yield "cost_quality", draw_cost_quality(points)
    if TIMES in recorded:
        known = [name for name in (ALL_TIMES, LONG_TIME) if name in list_metrics(points)]
        figure = draw_times(points) if few else draw_over_keys(points, known[0])
        yield "time_in_system", figure
    elsewhere = [name for name in ELSEWHERE if name in recorded]
    if elsewhere and few:
        yield "waiting", draw_curves(points, [WAITING, *elsewhere], spread)


def draw_cost_quality(points: Sequence[xr.Dataset]) -> Figure:
    """Draw the cost of satisfied queries against the score of answers, at the end of the runs.

    A dot is a policy's mean over seeds, with 95% intervals of cost and score as bars. There is a
    panel for each pair of assortment size and arrival rate. If this gives more than `MAX_PANELS`
    panels, there is a panel for each assortment size instead. If a panel shows several points, the
    dots of a policy are connected in the points' order.

    Args:
        points: from `results.load_points`, with `dollars` and `score`.

    Raises:
        ValueError: there is no point, or `dollars` or `score` was not recorded.
    """
    validate_metrics(points, (DOLLARS, SCORE))
    keys = [key for key in panels.list_varied_keys(points) if key != "K"]
    table = _tabulate_costs(points, keys)
    by = ["K", "arrival_rate"]
    if table.select(by).n_unique() > MAX_PANELS:
        by = ["K"]
    cells = table.partition_by(by, as_dict=True)
    axes = "USD per 1,000 satisfied queries", "Score of the accepted answer"
    with panels.create_panels(points, len(cells), *axes) as (figure, drawn):
        for panel, place in zip(drawn, sorted(cells), strict=True):
            own = dict(zip(by, place, strict=True))
            draw_costs(panel, cells[place], [*keys, "arrival_rate"])
            several = {"K": own["K"]} if table["K"].n_unique() > 1 else {}
            title = panels.format_title(several, own.get("arrival_rate"), [], panels.TITLE_LETTERS)
            lines = filter(None, [title, *_describe_lines(cells[place], keys, by)])
            panels.write_title(panel, "\n".join(lines))
        handles = [
            Line2D([], [], label=own.name, color=own.color, marker=own.marker or "o", linestyle="")
            for own in map(find_style, sort_policies(set(table["policy"])))
        ]
        note = "bars: 95% confidence intervals; line: best score for the cost"
        panels.add_legend_below(figure, handles, points, note)
    return figure


def _tabulate_costs(points: Sequence[xr.Dataset], keys: Sequence[str]) -> pl.DataFrame:
    """Return a row for each point, rate and policy, with both means and intervals."""
    runs = tabulate_runs(points, (DOLLARS, SCORE), [LAST])
    table = summarise(runs, list_shares(list_metrics(points)))
    table = add_attributes(table, points, ["K", *keys]).drop("round", "n", "sd")
    on = ["K", *keys, "arrival_rate", "policy"]
    costs, scores = (table.filter(metric=name).drop("metric") for name in (DOLLARS, SCORE))
    both = costs.join(scores, on=on, suffix="_score", nulls_equal=True)
    # A policy that satisfied no query has neither.
    return both.drop_nulls(["mean", "mean_score"])


def _describe_lines(cell: pl.DataFrame, keys: Sequence[str], by: Sequence[str]) -> list[str]:
    """Return a line for each key in which connected dots differ."""
    lines = []
    for key, name in panels.shorten_keys([*keys, *({"arrival_rate"} - {*by})]).items():
        values = cell[key].unique().sort()
        if len(values) > 1:
            few = len(values) <= MAX_VALUES
            listed = ", ".join(map(str, values)) if few else f"{values[0]} to {values[-1]}"
            text = f"joined: {panels.SYMBOLS.get(name, name)} = {listed}"
            lines.append(textwrap.fill(text, panels.TITLE_LETTERS, break_long_words=False))
    return lines


def draw_costs(panel: Axes, cells: pl.DataFrame, order: Sequence[str]) -> None:
    """Draw policies, and a line through those with the best score for their cost, oracle excluded.

    Args:
        panel: with costs across, in USD per 1,000 satisfied queries.
        cells: rows with policy, `mean, low, high` (USD per satisfied query) and the same of the
            score (`mean_score`).
        order: columns by which the dots of a policy are joined.
    """
    for label in sort_policies(set(cells["policy"])):
        own, style = cells.filter(policy=label).sort(order, nulls_last=True), find_style(label)
        bars = dict[str, Any]()
        for axis, suffix in (("xerr", ""), ("yerr", "_score")):
            columns = own.select(f"{end}{suffix}" for end in ("low", "mean", "high"))
            low, mean, high = columns.cast(pl.Float64).to_numpy().T
            ends = (1 if suffix else PER_QUERIES) * np.stack([mean - low, high - mean])
            # A single seed has no interval.
            bars[axis] = None if np.isnan(ends).any() else ends
        panel.errorbar(
            PER_QUERIES * own["mean"].to_numpy(), own["mean_score"].to_numpy(), **bars,
            color=style.color, marker=style.marker or "o", markersize=5.0, linestyle=style.dashes
            if len(own) > 1 else "none", linewidth=1.0, elinewidth=1.0,
            zorder=3 if style.on_top else 2,
        )  # fmt: skip
    others = cells.filter(pl.col("policy") != OPTIMAL)
    best = others.sort("mean", "mean_score", descending=[False, True]).filter(
        pl.col("mean_score") > pl.col("mean_score").cum_max().shift(1, fill_value=-np.inf)
    )
    costs, line = cells["mean"].to_numpy(), best.select(pl.col("mean") * PER_QUERIES, "mean_score")
    panel.plot(*line.to_numpy().T, color="#999999", linewidth=0.8, zorder=1, gid="pareto")
    if costs.size and costs.min() > 0 and costs.max() > WIDE_RANGE * costs.min():
        panel.set_xscale("log")
    panel.margins(0.08)


def draw_times(points: Sequence[xr.Dataset]) -> Figure:
    """Draw P(W > w), the share of satisfied queries that were in the system for over w rounds.

    There is a panel for each grid point and arrival rate. Both axes are logarithmic. Lines are
    means over seeds, and bands are their 95% intervals; a band that reaches zero extends to the
    bottom.

    Args:
        points: from `results.load_points`, with `time_in_system`.

    Raises:
        ValueError: no point, or a point that did not record it.
    """
    if not points or any(TIMES not in point for point in points):
        raise ValueError(f"{TIMES} was not recorded at every point: run with record=[{TIMES}].")
    keys = panels.shorten_keys(panels.list_varied_keys(points))
    cells = [(point, rate) for point in points for rate in point["arrival_rate"].values.tolist()]
    labels = sort_policies({str(label) for point in points for label in point["policy"].values})
    axes = "Rounds in the system, w", "Share longer than w"
    with panels.create_panels(points, len(cells), *axes) as (figure, drawn):
        for panel, (point, rate) in zip(drawn, cells, strict=True):
            _draw_shares(panel, point.sel(arrival_rate=rate))
            setting = {name: point.attrs.get(key, "unset") for key, name in keys.items()}
            title = panels.format_title(setting, rate, list(setting), panels.TITLE_LETTERS)
            panels.write_title(panel, title)
        handles = panels.legend_lines(labels)
        panels.add_legend_below(figure, handles, points, "band: 95% confidence interval")
    return figure


def compute_tail(point: xr.Dataset) -> xr.DataArray:
    """Return P(W > w) of each run, over `time_bin`, whose coordinate is w in rounds.

    It is NaN in a run without satisfied queries.

    Args:
        point: with `time_in_system`: counts over `retried` and `time_bin`.
    """
    counts = point[TIMES].sum("retried").astype(float)
    total = counts.sum("time_bin")
    share = 1 - counts.cumsum("time_bin") / total.where(total > 0)
    return share.assign_coords(time_bin=bin_upper_edges(int(point.attrs["horizon"])))


def _draw_shares(panel: Axes, cell: xr.Dataset) -> None:
    """Draw a line and a band for each policy, up to the longest time in system."""
    shares, least = compute_tail(cell), 1.0
    for label in sort_policies([str(label) for label in cell["policy"].values]):
        style, own = find_style(label), mean_ci(shares.sel(policy=label), share=True)
        mean, low, high = (own[end].values for end in ("mean", "low", "high"))
        # Rounding errors leave tiny shares above the longest time.
        positive = int(np.sum(mean > 1e-9))
        if not positive:
            continue
        order, rounds = 3.0 if style.on_top else 2.0, shares["time_bin"].values[:positive]
        least = min(least, float(mean[:positive].min()))
        if np.isfinite(low).all():
            panel.fill_between(
                rounds, np.maximum(low[:positive], 1e-12), high[:positive], color=style.color,
                alpha=0.15, linewidth=0, step="post", zorder=order - 1,
            )  # fmt: skip
        options = panels.line_options(style) | {"marker": None}
        panel.plot(rounds, mean[:positive], drawstyle="steps-post", zorder=order, **options)
    panel.set_xscale("log")
    panel.set_yscale("log")
    panel.set_ylim(0.5 * least, 1.2)
