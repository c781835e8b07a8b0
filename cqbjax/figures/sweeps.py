"""A metric at one round over the keys that a sweep varies.

Over one key, each policy is a line with its 95% interval. Over several, each policy is a map over
the two keys with the most values. The map averages over the other keys, and the title names these.
"""

import math
import textwrap
from collections.abc import Sequence
from typing import Any

import numpy as np
import polars as pl
import xarray as xr
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from cqbjax.core.labels import OPTIMAL
from cqbjax.figures import panels
from cqbjax.figures.panels import SYMBOLS, VERBATIM
from cqbjax.results.frame import LAST, add_attributes, summarise, tabulate_runs
from cqbjax.results.metrics import list_metrics, list_shares, validate_metrics
from cqbjax.results.policy_styles import find_style, sort_policies
from cqbjax.results.summaries import find_differing, join_stand_ins

PANEL = 3.4  # inches
# Colours end at this multiple of the largest value of the median policy.
COLOUR_RANGE = 2.0
MAX_WRITTEN = 80  # cells of a map in which numbers are legible


@panels.cjk_fonts()
def draw_over_keys(
    points: Sequence[xr.Dataset],
    metric: str = "gap",
    round_: int | None = None,
    over: Sequence[str] = (),
    log: bool = False,
) -> Figure:
    """Draw a metric over the swept keys.

    Args:
        points: from `results.load_points`.
        metric: a name from `list_metrics(points)`.
        round_: the last recorded round up to this one is drawn; None: the last of all.
        over: one or two keys; the figure averages over the others. Default: the keys with the most
            values.
        log: whether the vertical axis of lines is logarithmic.

    Raises:
        ValueError: no point, or an unknown metric or key.
    """
    validate_metrics(points, [metric])
    table, keys = _tabulate(points, metric, round_)
    for key in over:
        if key not in keys:
            raise ValueError(f"key {key} was not swept; choose from {', '.join(keys)}")
    keys = [*over, *(key for key in keys if key not in over)]
    flat = len(keys) == 1 or len(over) == 1
    policies, label = sort_policies(set(table["policy"])), list_metrics(points)[metric].label
    count = 1 if flat else len(policies)
    columns = min(count, panels.MAX_COLUMNS)
    rows = math.ceil(count / columns)
    size = (max(panels.MIN_WIDTH, PANEL * columns + 1.2), PANEL * rows + 0.6)
    figure = Figure(figsize=size, layout="constrained")
    axes = figure.subplots(rows, columns, squeeze=False).ravel()
    if flat:
        shares = list_shares(list_metrics(points))
        lines = _draw_lines(axes[0], table, keys[0], policies, shares)
        panels.add_legend_below(figure, lines, points, "band: 95% confidence interval")
        axes[0].set_ylabel(label, **VERBATIM)
        if log:
            # The means set the range: an interval may reach zero.
            drawn = np.concatenate([line.get_ydata() for line in axes[0].get_lines()])
            axes[0].set_yscale("log", nonpositive="clip")
            axes[0].set_ylim(bottom=drawn[drawn > 0].min() / 2)
    else:
        for axis in axes[count:]:
            axis.set_axis_off()
        image, beyond = _draw_maps(axes[:count], table, keys[:2], policies)
        ends = "max" if beyond else "neither"
        colours = figure.colorbar(image, ax=list(axes), extend=ends)
        colours.set_label(label, **VERBATIM)
    seeds = sorted({point.sizes["seed"] for point in points})
    rounds = ", ".join(map(str, table["round"].unique().sort()))
    title = f"round {rounds}, {', '.join(map(str, seeds))} seeds"
    averaged = [SYMBOLS.get(key, key) for key in keys[1 if flat else 2 :]]
    title += f", mean over {', '.join(averaged)}" if averaged else ""
    title += f"; data: {join_stand_ins(points)}" if join_stand_ins(points) else ""
    # Matplotlib's own wrapping would take `$` for mathematics.
    title = textwrap.fill(title, int(14 * size[0]))
    figure.suptitle(title, style="italic", fontsize="small", **VERBATIM)
    return figure


def _tabulate(
    points: Sequence[xr.Dataset], metric: str, round_: int | None
) -> tuple[pl.DataFrame, list[str]]:
    """Return every policy's values by seed, and the swept keys, most values first."""
    varied, last = find_differing(points), LAST if round_ is None else round_
    table = add_attributes(tabulate_runs(points, [metric], [last]), points, varied)
    if metric == "gap":
        table = table.filter(pl.col("policy") != OPTIMAL)
    several = table["arrival_rate"].n_unique() > 1 or not varied
    keys = [*varied, "arrival_rate"] if several else varied
    return table, sorted(keys, key=lambda key: -table[key].n_unique())


def _draw_lines(
    axis: Axes, table: pl.DataFrame, key: str, policies: Sequence[str], shares: Sequence[str]
) -> list[Any]:
    """Draw a line and an interval for each policy, averaged over other keys; return the lines."""
    order = table[key].unique().sort()
    numeric = order.dtype.is_numeric()
    number = pl.col("values").list.len()
    fewest = pl.col("values").list.head(number.min().over("policy", key))
    by_seed = table.with_columns(fewest).with_columns(seed=pl.int_ranges(number))
    means = (
        by_seed.explode("values", "seed").group_by("policy", "metric", key, "seed")
        .agg(pl.col("values").mean()).sort("seed").group_by("policy", "metric", key).agg("values")
    )  # fmt: skip
    lines: list[Any] = []
    for policy in policies:
        line, style = summarise(means.filter(policy=policy).sort(key), shares), find_style(policy)
        x: Any = line[key].to_list() if numeric else [order.index_of(value) for value in line[key]]
        mean, low, high = line.select("mean", "low", "high").cast(pl.Float64).to_numpy().T
        look = {"color": style.color, "linestyle": style.dashes, "label": style.name}
        lines += axis.plot(x, mean, marker=".", **look)
        axis.fill_between(x, low, high, color=style.color, alpha=0.2, linewidth=0)
    if not numeric:
        axis.set_xticks(range(len(order)), list(map(str, order)), rotation=45, **VERBATIM)
    axis.set_xlabel(SYMBOLS.get(key, key), **VERBATIM)
    return lines


def _draw_maps(
    axes: np.ndarray, table: pl.DataFrame, keys: Sequence[str], policies: Sequence[str]
) -> tuple[Any, bool]:
    """Draw a map over two keys for each policy, NaN where nothing was run.

    Returns:
        The last image, and whether colours end below the largest value.
    """
    across, up = (table[key].unique().sort() for key in keys)
    means = table.group_by("policy", *keys).agg(pl.col("values").list.mean().mean())
    lowest, highest = _find_colour_range(means)
    beyond = False
    for axis, policy in zip(axes, policies, strict=True):
        own, values = means.filter(policy=policy), np.full((len(up), len(across)), np.nan)
        for x, y, value in own.select(*keys, "values").iter_rows():
            values[up.index_of(y), across.index_of(x)] = value
        image = axis.imshow(values, origin="lower", aspect="auto", vmin=lowest, vmax=highest)
        beyond |= bool((values > highest).any())
        axis.set_xticks(range(len(across)), list(map(str, across)), rotation=45, **VERBATIM)
        axis.set_yticks(range(len(up)), list(map(str, up)), **VERBATIM)
        axis.set_xlabel(SYMBOLS.get(keys[0], keys[0]), **VERBATIM)
        axis.set_ylabel(SYMBOLS.get(keys[1], keys[1]), **VERBATIM)
        axis.set_title(find_style(policy).name, **VERBATIM)
        if values.size <= MAX_WRITTEN:
            panels.write_numbers(axis, values, (lowest + highest) / 2, "white", "black")
    return image, beyond


def _find_colour_range(means: pl.DataFrame) -> tuple[float, float]:
    """Return the values at which colours end.

    If a policy had far larger values than all others, the others would have nearly a single colour.
    So colours end at most at `COLOUR_RANGE` times the largest value of the median policy.
    """
    finite = means.filter(pl.col("values").is_finite())
    values = finite["values"].to_numpy()
    if not values.size:
        return 0.0, 1e-9
    lowest, highest = min(0.0, float(values.min())), float(values.max())
    largest = finite.group_by("policy").agg(pl.col("values").max())["values"].sort()
    median = float(largest[(len(largest) - 1) // 2])
    return lowest, max(1e-9, min(highest, COLOUR_RANGE * median) if median > 0 else highest)
