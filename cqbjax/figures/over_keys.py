"""A figure of a sweep: a metric at one round over the keys that were swept.

With one key a line a policy, its 95% interval beside it; with more a map a policy over the two keys
of most values, the mean over the others, which is said.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import xarray as xr
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from cqbjax.core.labels import OPTIMAL
from cqbjax.results import tidy
from cqbjax.results.cells import LAST, side_by_side
from cqbjax.results.names import in_order, style_of
from cqbjax.results.summaries import at_round, differing, mean_ci, stand_in_of

PANEL = 3.4  # inches
MOST_COLUMNS = 3
MOST_WRITTEN = 80  # cells of a map in which numbers can be read
RATE, LABELS = "arrival_rate", {"arrival_rate": "λ", "num_servers": "N", "slackness": "ε"}


NAMES = {
    "gap": "Q - Q*, queries", "queue_length": "Q, queries", "regret": "cumulative regret",
    "throughput": "throughput, queries a round", "explored": "explored rounds",
}  # fmt: skip


class _Value(NamedTuple):
    """What one policy came to at one point and arrival rate.

    Attributes:
        keys: the swept keys' values.
        policy: its label.
        each: [S] the metric.
    """

    keys: dict[str, Any]
    policy: str
    each: np.ndarray


def draw_over_keys(
    points: Sequence[xr.Dataset],
    metric: str = "gap",
    round_: int | None = None,
    over: Sequence[str] = (),
) -> Figure:
    """Draw a metric over the swept keys.

    Args:
        points: as `results.load_points` returns them.
        metric: of `tidy.METRICS`, or what else was recorded.
        round_: the last recorded one that is not later; None is the last of all.
        over: one key, or two; the rest is averaged over. None named: those of most values.

    Raises:
        ValueError: no point, or a metric or key that there is none of.
    """
    if not points:
        raise ValueError("points is empty: at least one result is needed to draw a figure.")
    tidy.check_metrics([metric], points)
    about = points[0][metric].attrs if metric not in NAMES else {}
    shown = NAMES.get(metric) or f"{about['long_name']}, {about['units']}"
    values = _values(points, metric, round_)
    keys = sorted(values[0].keys, key=lambda key: -len({one.keys[key] for one in values}))
    for key in over:
        if key not in keys:
            raise ValueError(f"key {key} was not swept; choose from {', '.join(keys)}")
    keys = [*over, *(key for key in keys if key not in over)]
    flat = len(keys) == 1 or len(over) == 1
    policies = in_order({one.policy for one in values})
    panels = 1 if flat else len(policies)
    columns = min(panels, MOST_COLUMNS)
    rows = -(-panels // columns)
    size = (PANEL * columns + 1.2, PANEL * rows + 0.6)
    figure = Figure(figsize=size, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(rows, columns, squeeze=False).ravel()
    if flat:
        _draw_lines(axes[0], values, keys[0], policies, shown)
    else:
        maps = [_map(values, policy, keys[:2]) for policy in policies]
        ends = (
            min(0.0, *(float(np.nanmin(one)) for one in maps)),
            max(1e-9, *(float(np.nanmax(one)) for one in maps)),
        )
        for axis, policy, one in zip(axes, policies, maps, strict=False):
            image = _draw_map(axis, one, values, keys[:2], ends)
            axis.set_title(style_of(policy).name)
        figure.colorbar(image, ax=list(axes), label=shown)
        for axis in axes[panels:]:
            axis.set_axis_off()
    left = keys[1:] if flat else keys[2:]
    figure.suptitle(_said(points, round_, left), style="italic", fontsize="small", wrap=True)
    return figure


def _values(points: Sequence[xr.Dataset], metric: str, round_: int | None) -> list[_Value]:
    """Return every policy's values, by swept keys."""
    varied = differing(points)
    rates = {float(rate) for point in points for rate in point[RATE].values}
    all_values = []
    for some in side_by_side(points, [LAST if round_ is None else round_]):
        by_seed = tidy.metric(metric, some.data).transpose("point", RATE, "policy", "seed")
        values = by_seed.values.astype(float)
        for i, attributes in enumerate(some.attributes):
            own = {key: attributes.get(key) for key in varied}
            for j, rate in enumerate(some.rates[i].tolist()):
                keys = own | ({RATE: rate} if len(rates) > 1 or not own else {})
                all_values += [
                    _Value(keys, label, values[i, j, k])
                    for k, label in enumerate(some.policies)
                    if label != OPTIMAL or metric != "gap"
                ]
    return all_values


def _taken(point: xr.Dataset, round_: int | None) -> int:
    """Return the round asked for, or the last one."""
    return int(point["round"].values[-1]) if round_ is None else round_


def _ordered(values: Sequence[_Value], key: str) -> list[Any]:
    """Return the distinct values of a key, numbers by size."""
    distinct = {one.keys[key] for one in values}
    numbers = all(isinstance(value, int | float) for value in distinct)
    return sorted(distinct) if numbers else sorted(distinct, key=str)


def _draw_lines(
    axis: Axes, values: Sequence[_Value], key: str, policies: Sequence[str], name: str
) -> None:
    """Draw a line and an interval a policy; what else was swept is averaged over, seed by seed."""
    order = _ordered(values, key)
    numbers = all(isinstance(value, int | float) for value in order)
    for policy in policies:
        own: dict[Any, np.ndarray] = {}
        for value in order:
            several = [o.each for o in values if o.policy == policy and o.keys[key] == value]
            if several:
                shortest = min(map(len, several))
                own[value] = np.mean([each[:shortest] for each in several], axis=0)
        there = [value for value in order if value in own]
        x = there if numbers else [order.index(value) for value in there]
        each = [mean_ci(xr.DataArray(own[value], dims="seed")) for value in there]
        mean, low, high = ([float(one[part]) for one in each] for part in ("mean", "low", "high"))
        style = style_of(policy)
        axis.plot(x, mean, color=style.color, linestyle=style.dashes, label=style.name, marker=".")
        axis.fill_between(x, low, high, color=style.color, alpha=0.2, linewidth=0)
    if not numbers:
        axis.set_xticks(range(len(order)), [str(value) for value in order], rotation=45)
    axis.set_xlabel(LABELS.get(key, key))
    axis.set_ylabel(name)
    axis.legend(fontsize="small")


def _map(values: Sequence[_Value], policy: str, keys: Sequence[str]) -> np.ndarray:
    """Return the mean of a policy over two keys: [y, x], NaN where nothing was run."""
    across, up = (_ordered(values, key) for key in keys)
    total, count = np.zeros((len(up), len(across))), np.zeros((len(up), len(across)))
    for one in values:
        if one.policy == policy:
            place = up.index(one.keys[keys[1]]), across.index(one.keys[keys[0]])
            total[place] += one.each.mean()
            count[place] += 1
    return np.where(count > 0, total / np.maximum(count, 1), np.nan)


def _draw_map(
    axis: Axes, shown: np.ndarray, values: Sequence[_Value], keys: Sequence[str],
    ends: tuple[float, float],
) -> Any:  # fmt: skip
    """Draw one map and return its image."""
    across, up = (_ordered(values, key) for key in keys)
    image = axis.imshow(shown, origin="lower", aspect="auto", vmin=ends[0], vmax=ends[1])
    axis.set_xticks(range(len(across)), [f"{value}" for value in across], rotation=45)
    axis.set_yticks(range(len(up)), [f"{value}" for value in up])
    axis.set_xlabel(LABELS.get(keys[0], keys[0]))
    axis.set_ylabel(LABELS.get(keys[1], keys[1]))
    if shown.size <= MOST_WRITTEN:
        _write_numbers(axis, shown, ends)
    return image


def _write_numbers(axis: Axes, shown: np.ndarray, ends: tuple[float, float]) -> None:
    """Write each number in its cell, light on dark and dark on light."""
    middle = (ends[0] + ends[1]) / 2
    for (row, column), value in np.ndenumerate(shown):
        if np.isfinite(value):
            color = "white" if value < middle else "black"
            text = f"{value:.3g}"
            axis.text(column, row, text, ha="center", va="center", color=color, fontsize="x-small")


def _said(points: Sequence[xr.Dataset], round_: int | None, left: Sequence[str]) -> str:
    """Say what is shown: round, seeds, what was averaged over, what the data stand in for."""
    rounds = sorted({int(at_round(p, _taken(p, round_))["round"]) for p in points})
    seeds = sorted({point.sizes["seed"] for point in points})
    said = f"round {', '.join(map(str, rounds))}, {', '.join(map(str, seeds))} seeds"
    if left:
        said += f", mean over {', '.join(LABELS.get(key, key) for key in left)}"
    stand_in = stand_in_of(points)
    return f"{said}; data: {stand_in}" if stand_in else said
