"""What figures share: fonts, titles, lines, legends, and the arrangement of panels."""

import math
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib
import numpy as np
import xarray as xr
import yaml
from matplotlib import font_manager
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from cqbjax.results.policy_styles import OTHERWISE, Style, find_style
from cqbjax.results.summaries import find_differing, join_stand_ins

# A page's text is 7 inches wide. Wider figures have larger letters, so that they print alike.
PAGE_WIDTH, PRINTED_POINTS = 7.0, 8.6
MIN_WIDTH = 6.0  # inches of a figure of one panel: two columns of its legend
MAX_COLUMNS = 3
# A figure has space for these lines of a legend; each further line takes these inches.
LEGEND_LINES, LINE_HEIGHT = 3, 0.17
TITLE_LETTERS = 30  # of a title above one of three panels side by side
# Options of a user-defined text, in which `$` does not begin mathematics.
VERBATIM: dict[str, Any] = {"parse_math": False}
_DATA = yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text())
SYMBOLS: dict[str, str] = _DATA["symbols"]  # of keys
CJK_FONTS: list[str] = _DATA["cjk_fonts"]


@contextmanager
def fonts(points: float) -> Iterator[None]:
    """Draw with letters of this size, and without spines at the top and the right."""
    sized = (
        "font.size", "figure.titlesize", "axes.titlesize", "axes.labelsize", "xtick.labelsize",
        "ytick.labelsize", "legend.fontsize", "legend.title_fontsize",
    )  # fmt: skip
    plain = dict.fromkeys(("axes.spines.top", "axes.spines.right"), False)
    settings: Any = dict.fromkeys(sized, points) | plain
    settings |= {"axes.linewidth": 0.8, "text.parse_math": True}
    with cjk_fonts(), matplotlib.rc_context(settings):
        yield


@contextmanager
def cjk_fonts() -> Iterator[None]:
    """Take Chinese, Japanese and Korean letters from the first of `CJK_FONTS` that is installed."""
    installed = [name for name in CJK_FONTS if name in font_manager.get_font_names()]
    families: Any = [*matplotlib.rcParams["font.family"], *installed[:1]]
    with matplotlib.rc_context({"font.family": families}):
        yield


class Cell(NamedTuple):
    """A point, by its number, at an arrival rate."""

    point: int
    rate: float


def arrange_cells(
    settings: Sequence[Mapping[Any, Any]], rates: Sequence[Sequence[float]], keys: Sequence[str]
) -> list[list[Cell | None]]:
    """Arrange cells in rows: by all keys but K, then by rate, with two values of K side by side.

    Args:
        settings: settings of each point, including K.
        rates: arrival rates of each point.
        keys: in which points differ.

    Returns:
        Rows of equal length; None if a point has no such cell.
    """

    def rank(number: int, names: Sequence[str]) -> tuple[Any, ...]:
        values = [settings[number].get(name, "") for name in names]
        return tuple((isinstance(value, str), value) for value in values)

    sizes = sorted({setting["K"] for setting in settings})
    beside = len(sizes) == 2
    by = [key for key in keys if key != "K"] if beside else ["K", *keys]
    rows: dict[tuple[Any, ...], list[Cell | None]] = {}
    for number in sorted(range(len(settings)), key=lambda one: rank(one, ["K", *keys])):
        block = sizes.index(settings[number]["K"]) if beside else 0
        for order, rate in enumerate(sorted(map(float, rates[number]))):
            place = (*rank(number, by), order)
            # Points that differ only in the arrival rate have a row each.
            while place in rows and rows[place][block] is not None:
                place = (*place[:-1], place[-1] + 1)
            rows.setdefault(place, [None] * (1 + beside))[block] = Cell(number, rate)
    return [rows[place] for place in sorted(rows)]


def format_title(
    setting: Mapping[Any, Any], rate: float | None, keys: Sequence[str], letters: int
) -> str:
    """Return a panel's title: K, N, slackness, rate, what differs from the paper, and `keys`."""
    # Non-breaking spaces: a line may end only between two settings.
    symbols = {key: SYMBOLS.get(key, key) for key in ("K", "num_servers", "slackness")}
    parts = [f"{symbol} = {setting[key]:g}" for key, symbol in symbols.items() if key in setting]
    parts += [] if rate is None else [f"λ = {rate:g}"]
    parts += [f"{key}: {setting[key]}" for key in OTHERWISE if setting.get(key)]
    others = [key for key in keys if key not in (*symbols, *OTHERWISE)]
    parts += [f"{key} = {setting.get(key, 'unset')}" for key in others]
    unbroken = (part.replace(" ", "\u00a0") if len(part) < letters else part for part in parts)
    return textwrap.fill(", ".join(unbroken), letters, break_long_words=False)


def write_title(panel: Axes, title: str) -> None:
    """Write a title above a cell's panels; the layout reserves its height, but not its width."""
    panel.set_title(" " + "\n " * title.count("\n"), loc="left")
    panel.annotate(
        title, (0, 1), (0, 6), "axes fraction", "offset points", in_layout=False, gid="title",
        **VERBATIM,
    )  # fmt: skip


def write_numbers(
    panel: Axes, values: np.ndarray, middle: float, below: str, above: str, size: Any = "x-small"
) -> None:
    """Write each number in its cell, in colour `below` if less than `middle`, else `above`."""
    for (row, column), value in np.ndenumerate(values):
        if np.isfinite(value):
            color = below if value < middle else above
            panel.text(
                column, row, f"{value:.3g}", ha="center", va="center", color=color, fontsize=size
            )


def line_options(style: Style) -> dict[str, Any]:
    """Return Matplotlib's options of a policy's line."""
    return {
        "color": style.color, "linestyle": style.dashes, "linewidth": style.width,
        "marker": style.marker or None, "markersize": 5.0, "markeredgewidth": 0,
    }  # fmt: skip


def legend_lines(labels: Sequence[str]) -> list[Line2D]:
    """Return a legend's line for each policy."""
    return [Line2D([], [], label=find_style(x).name, **line_options(find_style(x))) for x in labels]


def add_legend(owner: Axes | Figure, handles: Sequence[Any], **options: Any) -> None:
    """Add a legend with each handle's label verbatim; Matplotlib would leave out `_mine`."""
    labels = [str(one.get_label()) for one in handles]
    drawn = owner.legend(list(handles), list(map(str, range(len(labels)))), **options)
    for text, label in zip(drawn.get_texts(), labels, strict=True):
        text.set(text=label, **VERBATIM)


def add_legend_below(
    figure: Figure, handles: Sequence[Artist], points: Sequence[xr.Dataset], spread: str
) -> None:
    """Add a legend below all panels; the figure grows by the space that it needs.

    Its title is the number of seeds and `spread`, which names the bands or bars.
    """
    seeds = sorted({point.sizes["seed"] for point in points})
    number = f"{seeds[0]}" if len(seeds) == 1 else f"{seeds[0]} to {seeds[-1]}"
    title = "One seed" if seeds[-1] == 1 else f"Mean over {number} seeds; {spread}"
    fit_legend(figure, handles, title, matplotlib.rcParams["font.size"])


def fit_legend(figure: Figure, handles: Sequence[Any], title: str, points: float) -> None:
    """Add a legend below all panels, as wide as the figure allows; the figure grows with it."""
    letters = max(len(str(one.get_label())) for one in handles)
    fitting = max(1, int(figure.get_figwidth() * 72 / (points * (0.62 * letters + 4.5))))
    rows = math.ceil(len(handles) / fitting)
    add_legend(
        figure, handles, title=title, loc="outside lower center", frameon=False,
        ncols=math.ceil(len(handles) / rows), handlelength=2.8, columnspacing=1.4,
    )  # fmt: skip
    figure.set_figheight(figure.get_figheight() + LINE_HEIGHT * max(rows - LEGEND_LINES, 0))


@contextmanager
def create_panels(
    points: Sequence[xr.Dataset], count: int, xlabel: str, ylabel: str
) -> Iterator[tuple[Figure, list[Axes]]]:
    """Create square panels, at most three side by side, and finish the figure on exit.

    Its title has the settings in which points do not differ, and the source of proxy data.

    Yields:
        The figure, and its panels from left to right and down.
    """
    columns = min(count, MAX_COLUMNS)
    rows, stand_in = math.ceil(count / columns), join_stand_ins(points)
    width = max(PAGE_WIDTH * columns / MAX_COLUMNS, MIN_WIDTH)
    with fonts(PRINTED_POINTS):
        height = 2.3 * rows + 1.4 + 0.3 * bool(stand_in)
        figure = Figure(figsize=(width, height), layout="constrained")
        panels = list(figure.subplots(rows, columns, squeeze=False).ravel())
        for panel in panels[count:]:
            panel.set_axis_off()
        for panel in panels[max(0, count - MAX_COLUMNS) : count]:
            panel.set_xlabel(xlabel)
        for panel in panels[:count:MAX_COLUMNS]:
            panel.set_ylabel(ylabel)
        yield figure, panels[:count]
        letters, varied = int(12 * width), find_differing(points)
        common = {key: value for key, value in points[0].attrs.items() if key not in varied}
        lines = [format_title(common, None, [], letters)]
        lines += [textwrap.fill(f"Data: {stand_in}", letters)] if stand_in else []
        figure.suptitle("\n".join(lines), style="italic", **VERBATIM)


def list_varied_keys(points: Sequence[xr.Dataset]) -> list[str]:
    """Return the keys in which points differ.

    Derived descriptions (`OTHERWISE`) are left out if the points also differ in another key.
    """
    keys = find_differing(points)
    return [key for key in keys if key not in OTHERWISE] or keys


def shorten_keys(keys: Sequence[str]) -> dict[str, str]:
    """Return each key without its prefix, if that is unique."""
    ends = [key.rpartition(".")[2] for key in keys]
    return {key: end if ends.count(end) == 1 else key for key, end in zip(keys, ends, strict=True)}
