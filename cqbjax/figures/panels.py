"""What panels have in common: letters, titles, a policy's line, the legend below."""

import math
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import matplotlib
import xarray as xr
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from cqbjax.results.names import OTHERWISE, Style, style_of
from cqbjax.results.summaries import differing, stand_in_of

# A page's text is 7 inches wide; a figure drawn wider has larger letters, so that they print alike.
PAGE_WIDTH, PRINTED_POINTS = 7.0, 8.6
NARROWEST = 6.0  # inches of a figure of one panel: two columns of its legend
MOST_COLUMNS = 3
# Lines of a legend for which a figure has room, and inches of each further one.
ROOM, LINE = 3, 0.17
LETTERS = 30  # of a title above one of three panels side by side
# Options of a text that has words of the user's: `$` is no mathematics.
VERBATIM: dict[str, Any] = {"parse_math": False}


@contextmanager
def fonts(points: float) -> Iterator[None]:
    """Draw with letters of so many points, and without lines above and on the right."""
    sized = (
        "font.size", "figure.titlesize", "axes.titlesize", "axes.labelsize", "xtick.labelsize",
        "ytick.labelsize", "legend.fontsize", "legend.title_fontsize",
    )  # fmt: skip
    plain = dict.fromkeys(("axes.spines.top", "axes.spines.right"), False)
    settings: Any = dict.fromkeys(sized, points) | plain
    with matplotlib.rc_context(settings | {"axes.linewidth": 0.8, "text.parse_math": True}):
        yield


def titled(
    setting: Mapping[Any, Any], rate: float | None, keys: Sequence[str], letters: int
) -> str:
    """Return what a panel is of: K, N, slackness, rate, what is not the paper's, and `keys`."""
    # Unbreakable blanks: a line may end between two settings only.
    shown = {"K": "K", "num_servers": "N", "slackness": "ε"}
    parts = [f"{name} = {setting[key]:g}" for key, name in shown.items() if key in setting]
    parts += [] if rate is None else [f"λ = {rate:g}"]
    parts += [f"{key}: {setting[key]}" for key in OTHERWISE if setting.get(key)]
    others = [key for key in keys if key not in (*shown, *OTHERWISE)]
    parts += [f"{key} = {setting.get(key, 'unset')}" for key in others]
    whole = (part.replace(" ", "\u00a0") if len(part) < letters else part for part in parts)
    unbroken = ", ".join(whole)
    return textwrap.fill(unbroken, letters, break_long_words=False)


def set_title(panel: Axes, title: str) -> None:
    """Write a title across a cell's panels: it takes its height from the layout, and no width."""
    panel.set_title(" " + "\n " * title.count("\n"), loc="left")
    panel.annotate(
        title, (0, 1), (0, 6), "axes fraction", "offset points", in_layout=False, gid="title",
        **VERBATIM,
    )  # fmt: skip


def line_options(style: Style) -> dict[str, Any]:
    """Return matplotlib's options of a policy's line."""
    return {
        "color": style.color, "linestyle": style.dashes, "linewidth": style.width,
        "marker": style.marker or None, "markersize": 5.0, "markeredgewidth": 0,
    }  # fmt: skip


def lines_of(labels: Sequence[str]) -> list[Line2D]:
    """Return a legend's entry a policy: its line."""
    return [Line2D([], [], label=style_of(x).name, **line_options(style_of(x))) for x in labels]


def legend(owner: Axes | Figure, handles: Sequence[Any], **options: Any) -> None:
    """Add a legend that has each handle's label verbatim; matplotlib leaves `_mine` out."""
    labels = [str(one.get_label()) for one in handles]
    drawn = owner.legend(list(handles), list(map(str, range(len(labels)))), **options)
    for text, label in zip(drawn.get_texts(), labels, strict=True):
        text.set(text=label, **VERBATIM)


def add_legend(
    figure: Figure, handles: Sequence[Artist], points: Sequence[xr.Dataset], spread: str
) -> None:
    """Put a legend below all panels, which grow by what it needs.

    Above it stands over how many seeds means are, and what stands about them, `spread`.
    """
    seeds = sorted({point.sizes["seed"] for point in points})
    number = f"{seeds[0]}" if len(seeds) == 1 else f"{seeds[0]} to {seeds[-1]}"
    title = "One seed" if seeds[-1] == 1 else f"Mean over {number} seeds; {spread}"
    letters = max(len(str(one.get_label())) for one in handles)
    wide = matplotlib.rcParams["font.size"] * (0.62 * letters + 4.5)
    fitting = max(1, int(figure.get_figwidth() * 72 / wide))
    rows = math.ceil(len(handles) / fitting)
    figure.set_figheight(figure.get_figheight() + LINE * max(rows - ROOM, 0))
    legend(
        figure, handles, title=title, loc="outside lower center", frameon=False,
        ncols=math.ceil(len(handles) / rows), handlelength=2.8, columnspacing=1.4,
    )  # fmt: skip


@contextmanager
def drawn(
    points: Sequence[xr.Dataset], count: int, across: str, up: str
) -> Iterator[tuple[Figure, list[Axes]]]:
    """Draw so many square panels, at most three side by side; above them what is of all of them.

    That is K, N and the like where points do not differ, and what the data stand in for. `across`
    and `up` say what the axes are.

    Yields:
        The figure, and its panels from left to right and down.
    """
    columns = min(count, MOST_COLUMNS)
    rows, stand_in = math.ceil(count / columns), stand_in_of(points)
    width = max(PAGE_WIDTH * columns / MOST_COLUMNS, NARROWEST)
    with fonts(PRINTED_POINTS):
        height = 2.3 * rows + 1.4 + 0.3 * bool(stand_in)
        figure = Figure(figsize=(width, height), layout="constrained")
        panels = list(figure.subplots(rows, columns, squeeze=False).ravel())
        for panel in panels[count:]:
            panel.set_axis_off()
        for panel in panels[max(0, count - MOST_COLUMNS) : count]:
            panel.set_xlabel(across)
        for panel in panels[:count:MOST_COLUMNS]:
            panel.set_ylabel(up)
        yield figure, panels[:count]
        letters = int(12 * width)
        said = [titled(alike(points), None, [], letters)]
        said += [textwrap.fill(f"Data: {stand_in}", letters)] if stand_in else []
        figure.suptitle("\n".join(said), style="italic", **VERBATIM)


def alike(points: Sequence[xr.Dataset]) -> dict[Any, Any]:
    """Return the attributes in which points do not differ."""
    first, apart = points[0].attrs, differing(points)
    return {key: value for key, value in first.items() if key not in apart}


def apart(points: Sequence[xr.Dataset]) -> list[str]:
    """Return the keys that tell points from one another, as briefly as they do."""
    keys = differing(points)
    return [key for key in keys if key not in OTHERWISE] or keys


def brief(keys: Sequence[str]) -> dict[str, str]:
    """Return each key without the names above it, where that tells it from the others."""
    ends = [key.rpartition(".")[2] for key in keys]
    return {key: end if ends.count(end) == 1 else key for key, end in zip(keys, ends, strict=True)}
