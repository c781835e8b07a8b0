"""A figure of a sweep: a metric at one round over the keys that were swept.

With one key a line a policy, its 95% interval beside it; with more a map a policy over the two keys
of most values, the mean over the others, which is said.
"""

import textwrap
from collections.abc import Sequence
from typing import Any

import numpy as np
import polars as pl
import xarray as xr
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from cqbjax.core.labels import OPTIMAL
from cqbjax.figures.cells import LETTERS
from cqbjax.figures.files import write_numbers
from cqbjax.figures.panels import VERBATIM, legend
from cqbjax.results.frame import LAST, labelled, long, summarised
from cqbjax.results.metrics import check_metrics, metrics_of, shares_of
from cqbjax.results.names import in_order, style_of
from cqbjax.results.summaries import differing, stand_in_of

PANEL = 3.4  # inches
MOST_COLUMNS = 3
FAR = 2.0  # times a middling policy's largest value, where colours end
MOST_WRITTEN = 80  # cells of a map in which numbers can be read


def draw_over_keys(
    points: Sequence[xr.Dataset],
    metric: str = "gap",
    round_: int | None = None,
    over: Sequence[str] = (),
) -> Figure:
    """Draw a metric over the swept keys.

    Args:
        points: as `results.load_points` returns them.
        metric: of `metrics_of(points)`.
        round_: the last recorded one that is not later; None is the last of all.
        over: one key, or two; the rest is averaged over. None named: those of most values.

    Raises:
        ValueError: no point, or a metric or key that there is none of.
    """
    check_metrics(points, [metric])
    table, keys = _values(points, metric, round_)
    for key in over:
        if key not in keys:
            raise ValueError(f"key {key} was not swept; choose from {', '.join(keys)}")
    keys = [*over, *(key for key in keys if key not in over)]
    flat = len(keys) == 1 or len(over) == 1
    policies, label = in_order(set(table["policy"])), metrics_of(points)[metric].label
    panels = 1 if flat else len(policies)
    columns = min(panels, MOST_COLUMNS)
    rows = -(-panels // columns)
    size = (PANEL * columns + 1.2, PANEL * rows + 0.6)
    figure = Figure(figsize=size, layout="constrained")
    axes = figure.subplots(rows, columns, squeeze=False).ravel()
    if flat:
        _draw_lines(axes[0], table, keys[0], policies, shares_of(metrics_of(points)))
        axes[0].set_ylabel(label, **VERBATIM)
    else:
        for axis in axes[panels:]:
            axis.set_axis_off()
        image, beyond = _draw_maps(axes[:panels], table, keys[:2], policies)
        ends = "max" if beyond else "neither"
        colours = figure.colorbar(image, ax=list(axes), extend=ends)
        colours.set_label(label, **VERBATIM)
    left = keys[1:] if flat else keys[2:]
    # Matplotlib's own wrapping takes `$` for mathematics, whatever is asked.
    said = textwrap.fill(_said(points, table["round"], left), int(14 * size[0]))
    figure.suptitle(said, style="italic", fontsize="small", **VERBATIM)
    return figure


def _values(
    points: Sequence[xr.Dataset], metric: str, round_: int | None
) -> tuple[pl.DataFrame, list[str]]:
    """Return every policy's values by seed, and the keys that were swept, most values first."""
    varied = differing(points)
    table = labelled(long(points, [metric], [LAST if round_ is None else round_]), points, varied)
    if metric == "gap":
        table = table.filter(pl.col("policy") != OPTIMAL)
    several = table["arrival_rate"].n_unique() > 1 or not varied
    keys = [*varied, "arrival_rate"] if several else varied
    return table, sorted(keys, key=lambda key: -table[key].n_unique())


def _draw_lines(
    axis: Axes, table: pl.DataFrame, key: str, policies: Sequence[str], shares: Sequence[str]
) -> None:
    """Draw a line and an interval a policy; what else was swept is averaged over, seed by seed."""
    order = table[key].unique().sort()
    numbers = order.dtype.is_numeric()
    fewest = pl.col("values").list.head(pl.col("values").list.len().min().over("policy", key))
    by_seed = table.with_columns(fewest).with_columns(
        seed=pl.int_ranges(pl.col("values").list.len())
    )
    means = (
        by_seed.explode("values", "seed").group_by("policy", "metric", key, "seed")
        .agg(pl.col("values").mean()).sort("seed").group_by("policy", "metric", key).agg("values")
    )  # fmt: skip
    lines: list[Any] = []
    for policy in policies:
        line, style = summarised(means.filter(policy=policy).sort(key), shares), style_of(policy)
        x: Any = line[key].to_list() if numbers else [order.index_of(value) for value in line[key]]
        mean, low, high = (line[end].cast(pl.Float64).to_numpy() for end in ("mean", "low", "high"))
        lines += axis.plot(
            x, mean, color=style.color, linestyle=style.dashes, label=style.name, marker="."
        )
        axis.fill_between(x, low, high, color=style.color, alpha=0.2, linewidth=0)
    if not numbers:
        axis.set_xticks(range(len(order)), list(map(str, order)), rotation=45, **VERBATIM)
    axis.set_xlabel(LETTERS.get(key, key), **VERBATIM)
    legend(axis, lines, fontsize="small")


def _draw_maps(
    axes: np.ndarray, table: pl.DataFrame, keys: Sequence[str], policies: Sequence[str]
) -> tuple[Any, bool]:
    """Draw a map a policy over two keys, NaN where nothing was run.

    Returns:
        The last image, and whether colours end below the largest value.
    """
    across, up = (table[key].unique().sort() for key in keys)
    means = table.group_by("policy", *keys).agg(pl.col("values").list.mean().mean())
    lowest, highest = _ends(means)
    beyond = False
    for axis, policy in zip(axes, policies, strict=True):
        own, shown = means.filter(policy=policy), np.full((len(up), len(across)), np.nan)
        for x, y, value in own.select(*keys, "values").iter_rows():
            shown[up.index_of(y), across.index_of(x)] = value
        image = axis.imshow(shown, origin="lower", aspect="auto", vmin=lowest, vmax=highest)
        beyond |= bool((shown > highest).any())
        axis.set_xticks(range(len(across)), list(map(str, across)), rotation=45, **VERBATIM)
        axis.set_yticks(range(len(up)), list(map(str, up)), **VERBATIM)
        axis.set_xlabel(LETTERS.get(keys[0], keys[0]), **VERBATIM)
        axis.set_ylabel(LETTERS.get(keys[1], keys[1]), **VERBATIM)
        axis.set_title(style_of(policy).name, **VERBATIM)
        if shown.size <= MOST_WRITTEN:
            write_numbers(axis, shown, (lowest + highest) / 2, "white", "black")
    return image, beyond


def _ends(means: pl.DataFrame) -> tuple[float, float]:
    """Return where the colours of values end.

    A policy far above the others would leave these one colour: colours end `FAR` times the largest
    value of a middling policy at most.
    """
    finite = means.filter(pl.col("values").is_finite())
    every = finite["values"].to_numpy()
    if not every.size:
        return 0.0, 1e-9
    lowest, highest = min(0.0, float(every.min())), float(every.max())
    each = finite.group_by("policy").agg(pl.col("values").max())["values"].sort()
    middling = float(each[(len(each) - 1) // 2])
    return lowest, max(1e-9, min(highest, FAR * middling) if middling > 0 else highest)


def _said(points: Sequence[xr.Dataset], rounds: pl.Series, left: Sequence[str]) -> str:
    """Say what is shown: round, seeds, what was averaged over, what the data stand in for."""
    seeds = sorted({point.sizes["seed"] for point in points})
    shown = ", ".join(map(str, rounds.unique().sort()))
    said = f"round {shown}, {', '.join(map(str, seeds))} seeds"
    if left:
        said += f", mean over {', '.join(LETTERS.get(key, key) for key in left)}"
    stand_in = stand_in_of(points)
    return f"{said}; data: {stand_in}" if stand_in else said
