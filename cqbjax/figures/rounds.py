"""Figures of the paper, drawn from stored results: queue length and cumulative regret by round.

One colour and line style a policy, the same in every figure (`names.py`). Drawn with Agg figures of
their own: no pyplot, no global state.
"""

import math
import textwrap
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Literal, NamedTuple

import matplotlib
import numpy as np
import xarray as xr
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from cqbjax.core.labels import OPTIMAL
from cqbjax.figures.scales import YScale, set_scale
from cqbjax.results.names import Style, in_order, style_of
from cqbjax.results.summaries import differing, mean_ci, mean_sd, queue_regret, stand_in_of
from cqbjax.store.shards import more

Spread = Literal["ci", "sd"]
Queue = Literal["regret", "length"]
Second = Literal["regret", "length"]
_Shown = tuple[str, ...]  # of the left panel, of the right one, and of those of what else is kept

# A page's text is 7 inches wide; a figure drawn wider has larger letters, so that they print alike.
PAGE_WIDTH, PRINTED_POINTS = 7.0, 8.6
MAX_POINTS = 800  # of all panels of a row: more cannot be seen, and make the PDF heavy
FEW_LINES = 8  # the bands of more would cover one another, and are drawn lighter


class _Cell(NamedTuple):
    """One point at one arrival rate: a queue panel beside a regret panel."""

    point: xr.Dataset
    rate: float


def draw_queue_and_regret(
    points: Sequence[xr.Dataset],
    spread: Spread = "ci",
    queue: Queue = "regret",
    yscale: YScale = "auto",
    second: Second = "regret",
) -> Figure:
    """Draw queue length and cumulative regret over rounds, a pair of panels a point and rate.

    Two assortment sizes stand side by side as in the paper; everything else that differs, and every
    arrival rate, makes a row. What else was recorded by round has a panel beside these two. Lines
    are means over seeds, bands their spread.

    Args:
        points: as `results.load_points` returns them.
        spread: `ci` for the 95% interval of the mean, `sd` for one standard deviation either side.
        queue: `regret` for Q - Q*, in queries; `length` for Q, with the optimal policy's line.
        yscale: `auto` keeps the close rivals on a linear scale and, where weak policies would
            flatten them, continues above it on a logarithmic one; `linear`; `symlog`, linear up
            to 1; `log`.
        second: what the right panel of a pair shows: cumulative `regret`, or the queue `length`
            with the optimal policy's line (where there is one server, and nothing to regret).

    Raises:
        ValueError: no point, or an argument that is none of the above.
    """
    _check_choice("spread", spread, Spread)
    _check_choice("queue", queue, Queue)
    _check_choice("yscale", yscale, YScale)
    _check_choice("second", second, Second)
    if not points:
        raise ValueError("points is empty: at least one result is needed to draw a figure.")
    rows = _arrange(points)
    blocks = len(rows[0])
    recorded = [name for name in more(points[0]) if all(name in point for point in points)]
    shown = (queue, second, *recorded)
    panels = len(shown)
    rivals = {label for point in points for label in point["policy"].values.tolist()} - {OPTIMAL}
    labels = in_order(rivals | {OPTIMAL} if "length" in (queue, second) else rivals)
    stand_in = stand_in_of(points)
    width = (10.0 if blocks == 2 else PAGE_WIDTH) * panels / 2
    with _fonts(PRINTED_POINTS * width / PAGE_WIDTH):
        height = 2.3 * len(rows) + 0.9 + 0.02 * len(labels) + 0.3 * bool(stand_in)
        figure = Figure(figsize=(width, height), layout="constrained")
        FigureCanvasAgg(figure)
        axes = figure.subplots(len(rows), panels * blocks, squeeze=False)
        most = MAX_POINTS // (panels * blocks)
        for row, cells in enumerate(rows):
            for block, cell in enumerate(cells):
                pair = list(axes[row, panels * block : panels * (block + 1)])
                if cell is None:
                    for empty in pair:
                        empty.set_axis_off()
                else:
                    title = _cell_title(cell, points, 84 // blocks)
                    _draw_cell(pair, cell, title, spread, shown, yscale, most)
        _label_outer(axes, shown, points[0])
        _add_legend(figure, labels, _explain(points, spread))
        if stand_in:
            note = textwrap.fill(f"Data: {stand_in}", 100 if blocks == 2 else 84)
            figure.suptitle(note, style="italic")
    return figure


def _check_choice(key: str, value: str, choices: Any) -> None:
    if value not in choices.__args__:
        raise ValueError(f"{key} is {value}: choose one of {', '.join(choices.__args__)}.")


@contextmanager
def _fonts(points: float) -> Iterator[None]:
    settings: Any = {
        "font.size": points,
        "figure.titlesize": points,
        "axes.titlesize": points,
        "axes.labelsize": points,
        "xtick.labelsize": points,
        "ytick.labelsize": points,
        "legend.fontsize": points,
        "legend.title_fontsize": points,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.linewidth": 0.8,
        "text.parse_math": True,
    }
    with matplotlib.rc_context(settings):
        yield


def _arrange(points: Sequence[xr.Dataset]) -> list[list[_Cell | None]]:
    """Lay cells into rows: by all but K and then by rate, with two values of K side by side."""
    sizes = sorted({point.attrs["K"] for point in points})
    keys = [key for key in differing(points) if key != "K"]
    beside = len(sizes) == 2
    rows: dict[tuple[Any, ...], list[_Cell | None]] = {}
    for point in sorted(points, key=lambda point: _sortable(point, ["K", *keys])):
        for rank, rate in enumerate(np.sort(point["arrival_rate"].values)):
            place = (*_sortable(point, keys if beside else ["K", *keys]), rank)
            block = sizes.index(point.attrs["K"]) if beside else 0
            # Points alike in everything but the arrival rate: one more row each.
            while place in rows and rows[place][block] is not None:
                place = (*place[:-1], place[-1] + 1)
            rows.setdefault(place, [None] * (1 + beside))[block] = _Cell(point, float(rate))
    return [rows[place] for place in sorted(rows)]


def _sortable(point: xr.Dataset, keys: Sequence[str]) -> tuple[Any, ...]:
    values = [point.attrs.get(key, "") for key in keys]
    return tuple((1, value) if isinstance(value, str) else (0, value) for value in values)


def _cell_title(cell: _Cell, points: Sequence[xr.Dataset], letters: int) -> str:
    shown = {"K": "K", "num_servers": "N", "slackness": "ε"}
    attributes = cell.point.attrs
    # Unbreakable blanks: a line may end between two settings only.
    parts = [
        f"{name}\u00a0=\u00a0{attributes[key]:g}"
        for key, name in shown.items()
        if key in attributes
    ]
    parts.append(f"λ\u00a0=\u00a0{cell.rate:g}")
    if attributes.get("arrivals"):
        parts.append(f"arrivals: {attributes['arrivals']}".replace(" ", "\u00a0"))
    others = [key for key in differing(points) if key not in (*shown, "arrivals")]
    for key in others:
        parts.append(f"{key}\u00a0=\u00a0{attributes.get(key, 'unset')}".replace(" ", "\u00a0"))
    return textwrap.fill(", ".join(parts), letters, break_long_words=False)


def _draw_cell(
    pair: Sequence[Axes], cell: _Cell, title: str, spread: Spread, shown: _Shown, yscale: YScale,
    most: int,
) -> None:  # fmt: skip
    recorded = cell.point.sizes["round"]
    kept = np.unique(np.linspace(0, recorded - 1, min(recorded, most)).round().astype(int))
    point = cell.point.sel(arrival_rate=cell.rate).isel(round=kept)
    labels = [label for label in point["policy"].values.tolist() if label != OPTIMAL]
    if not labels:
        raise ValueError("points hold no policy but optimal: there is nothing to compare with it.")
    rivals = point.sel(policy=labels)
    queue, second, *others = shown
    left = _lengths(point, rivals) if queue == "length" else queue_regret(rivals)
    right = _lengths(point, rivals) if second == "length" else rivals["regret"]
    more_panels = [rivals[name] for name in others]
    for axes, values in zip(pair, (left, right, *more_panels), strict=True):
        summary = mean_ci(values) if spread == "ci" else mean_sd(values)
        _draw_lines(axes, summary)
        set_scale(axes, summary, yscale)
        _mark_rounds(axes, int(point["round"].max()))
    # A title spans both panels: it takes its height from the layout, and no width.
    pair[0].set_title(" " + "\n " * title.count("\n"), loc="left")
    pair[0].annotate(
        title, (0, 1), (0, 6), "axes fraction", "offset points", in_layout=False, gid="title"
    )


def _lengths(point: xr.Dataset, rivals: xr.Dataset) -> xr.DataArray:
    """Return the rivals' queue lengths and the optimal policy's."""
    optimal = point["optimal_queue_length"].expand_dims(policy=[OPTIMAL])
    return xr.concat([rivals["queue_length"], optimal], dim="policy")


def _mark_rounds(axes: Axes, last: int) -> None:
    ticks = MaxNLocator(2, steps=[1, 1.25, 2, 2.5, 5, 10], integer=True).tick_values(0, last)
    axes.set_xlim(0, last)
    axes.set_xticks([tick for tick in ticks if 0 <= tick <= last])
    if last >= 10_000:
        axes.set_xticklabels([f"{tick / 1000:g}k" if tick else "0" for tick in axes.get_xticks()])


def _draw_lines(axes: Axes, summary: xr.Dataset) -> None:
    labels, rounds = summary["policy"].values.tolist(), summary["round"].values
    by_policy = summary.transpose("policy", "round")
    mean, low, high = (by_policy[part].values for part in ("mean", "low", "high"))
    shade = 0.15 if len(labels) <= FEW_LINES else 0.07
    for number, label in enumerate(in_order(labels)):
        row, style = labels.index(label), style_of(label)
        order = 3.0 if style.on_top else 2.0
        axes.fill_between(
            rounds, low[row], high[row],
            color=style.color, alpha=shade, linewidth=0, zorder=order - 1,
        )  # fmt: skip
        every = max(1, len(rounds) // 5)
        axes.plot(
            rounds, mean[row], zorder=order, **_line_options(style),
            markevery=(every * (1 + number % 5) // 6, every),
        )  # fmt: skip


def _line_options(style: Style) -> dict[str, Any]:
    return {
        "color": style.color, "linestyle": style.dashes, "linewidth": style.width,
        "marker": style.marker or None, "markersize": 5.0, "markeredgewidth": 0,
    }  # fmt: skip


def _label_outer(axes: np.ndarray[Any, Any], shown: _Shown, point: xr.Dataset) -> None:
    queue, second, *others = shown
    length = "Queue\nlength"
    names = (
        "Queue length\nregret" if queue == "regret" else length,
        "Cumulative\nregret" if second == "regret" else length,
        *(f"{point[n].attrs['long_name']},\n{point[n].attrs['units']}" for n in others),
    )
    for column in range(axes.shape[1]):
        drawn = [panel for panel in axes[:, column] if panel.axison]
        for panel in drawn:
            panel.set_ylabel(names[column % len(names)])
        if drawn:
            drawn[-1].set_xlabel("Round")


def _add_legend(figure: Figure, labels: Sequence[str], title: str) -> None:
    handles = [Line2D([], [], label=style_of(x).name, **_line_options(style_of(x))) for x in labels]
    letters = max(len(style_of(label).name) for label in labels)
    points = matplotlib.rcParams["font.size"] * (0.62 * letters + 4.5)
    fitting = max(1, int(figure.get_figwidth() * 72 / points))
    rows = math.ceil(len(labels) / fitting)
    figure.legend(
        handles=handles, title=title, loc="outside lower center", frameon=False,
        ncols=math.ceil(len(labels) / rows), handlelength=2.8, columnspacing=1.4,
    )  # fmt: skip


def _explain(points: Sequence[xr.Dataset], spread: Spread) -> str:
    seeds = sorted({point.sizes["seed"] for point in points})
    number = f"{seeds[0]}" if len(seeds) == 1 else f"{seeds[0]} to {seeds[-1]}"
    band = "95% confidence interval" if spread == "ci" else "± 1 standard deviation"
    if seeds[-1] == 1:
        return "One seed"
    return f"Mean over {number} seeds; band: {band}"
