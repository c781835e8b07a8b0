"""The pictures of the pages, drawn from committed tables and extracts; `figures.yaml` lists them.

python -m reproduction.figures                  # all of them, into results/figures
python -m reproduction.figures retry_aware      # one
"""

import math
import sys
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, cast

import matplotlib
import numpy as np
import polars as pl
import yaml
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import LogLocator, NullFormatter

from cqbjax.figures import panels
from cqbjax.figures.files import save_figure
from cqbjax.figures.panels import PRINTED_POINTS, VERBATIM
from cqbjax.figures.users import PER_QUERIES, draw_costs
from cqbjax.results.frame import add_interval
from cqbjax.results.policy_styles import Style, find_style, sort_policies
from reproduction import extracts

RESULTS = Path(__file__).resolve().parents[1] / "results"
LABEL_GAP = 0.075  # of a panel's height, between labels of lines
MUTED: dict[str, Any] = {"color": "#BBBBBB", "linewidth": 0.8, "linestyle": "-", "marker": None}


def load_pictures() -> dict[str, dict[str, Any]]:
    """Return each picture's entry by the name of its file."""
    return dict(yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text())["pictures"])


def read_rows(panel: Mapping[str, Any], results: Path = RESULTS) -> pl.DataFrame:
    """Return the rows that a panel draws: policy, `mean, low, high`, and columns of its setting.

    They are rows of a table, whose column `value` is drawn, or of a frame of an extract, whose
    metric `value` is drawn. `where` selects rows, `policies` their policies; `scale` multiplies.
    With `until`, x is the number of rounds from the row's round to this one.
    With `series`, each of these columns takes the place of a policy.
    """
    if "series" in panel:
        rest = {key: one for key, one in panel.items() if key != "series"}
        columns = {name: read_rows(rest | {"value": name}, results) for name in panel["series"]}
        return pl.concat(own.with_columns(policy=pl.lit(x)) for x, own in columns.items())
    value, scale = str(panel["value"]), panel.get("scale", 1)
    if "extract" in panel:
        made = extracts.read(results / "report" / "extracts" / panel["extract"])
        settings = [{"point": i, **one["setting"]} for i, one in enumerate(made.notes["points"])]
        frame = made.curves if panel["kind"] == "curves" else made.numbers
        rows = add_interval(frame.filter(metric=value)).join(
            pl.DataFrame(settings).cast({"point": frame.schema["point"]}), on="point"
        )
    else:
        rows = pl.read_csv(results / "tables" / f"{panel['table']}.csv", infer_schema_length=None)
        ends = {"mean": value, "low": f"{value}_low", "high": f"{value}_high"}
        none = pl.lit(None, pl.Float64)
        rows = rows.with_columns(
            **{end: pl.col(x) if x in rows.columns else none for end, x in ends.items()}
        )
    if "policy" not in rows.columns:
        rows = rows.with_columns(policy=pl.lit(panel["policy"]))
    for key, wanted in panel.get("where", {}).items():
        rows = rows.filter(pl.col(key).is_in(wanted if isinstance(wanted, list) else [wanted]))
    if "policies" in panel:
        rows = rows.filter(pl.col("policy").is_in(panel["policies"]))
    if "until" in panel:
        rows = rows.with_columns((panel["until"] - pl.col(panel["x"])).alias(panel["x"]))
    rows = rows.with_columns(pl.col("mean", "low", "high").cast(pl.Float64) * scale)
    low, high = pl.min_horizontal("low", "high"), pl.max_horizontal("low", "high")
    return rows.with_columns(low=low, high=high).drop_nulls("mean")


def style_line(label: str, panel: Mapping[str, Any]) -> Style:
    """Return a policy's style, or that of a column in `series`: its colour and dashes."""
    series = panel.get("series", {})
    return Style(label, *series[label]) if label in series else find_style(label)


def draw_dots(axis: Axes, rows: pl.DataFrame, panel: Mapping[str, Any]) -> list[Any]:
    """Draw a line of dots with intervals for each policy, pair of policies or setting.

    `pairs` joins the dots of two policies, in the colour of the first, which is hollow; `label`
    names the settings that have a line each, with a dot for each policy, `dodge` lines apart.
    """
    pairs: Mapping[str, str] = panel.get("pairs", {})
    colors = {label: find_style(label).color for label in rows["policy"]}
    colors |= {other: colors.get(one, "") for one, other in pairs.items()}
    order = panel.get("policies") or sort_policies(set(rows["policy"]))
    names = {label: find_style(label).name for label in rows["policy"]} | panel.get("names", {})
    groups: list[tuple[str, pl.DataFrame]]
    if pairs:
        groups = [
            (names[one], rows.filter(pl.col("policy").is_in([one, other])))
            for one, other in pairs.items() if {one, other} <= {*rows["policy"]}
        ]  # fmt: skip
    elif "label" in panel:
        keys = panel["keys"]
        lines = [panel["label"].format(*row) for row in rows.sort(keys).select(keys).iter_rows()]
        named = rows.sort(keys).with_columns(line=pl.Series(lines))
        groups = [(str(line), own) for (line,), own in named.group_by("line", maintain_order=True)]
    else:
        groups = [(names[label], rows.filter(policy=label)) for label in order if label in colors]
    if panel.get("sort", True):
        groups.sort(key=lambda group: float(group[1]["mean"].to_numpy().max()))
    dodge = panel.get("dodge", 0.0)
    for row, (_, dots) in enumerate(groups):
        if not dodge:
            axis.plot(dots["mean"].to_numpy(), [row] * len(dots), color="#CCCCCC", zorder=1)
        for dot in dots.iter_rows(named=True):
            place = row + dodge * (order.index(dot["policy"]) - (len(order) - 1) / 2)
            color, bars = colors[dot["policy"]], None
            if dot["low"] is not None:
                bars = [[dot["mean"] - dot["low"]], [dot["high"] - dot["mean"]]]
            axis.errorbar(
                dot["mean"], place, xerr=bars, marker="o", markersize=4.5, color=color,
                markerfacecolor="white" if dot["policy"] in pairs else color, elinewidth=1.0,
            )  # fmt: skip
    lines = ["" if panel.get("bare") else name for name, _ in groups]
    axis.set_yticks(range(len(groups)), lines, **VERBATIM)
    axis.set_ylim(len(groups) - 0.4, -0.6)
    axis.tick_params(axis="y", length=0)
    axis.spines["left"].set_visible(False)
    axis.grid(axis="x", color="#E8E8E8", linewidth=0.6)
    axis.set_axisbelow(True)
    if panel.get("log"):
        means = rows.filter(pl.col("mean") > 0)["mean"]
        axis.set_xscale("log", nonpositive="clip")
        axis.set_xlim(0.6 * float(means.min()), 1.6 * float(means.max()))  # type: ignore[arg-type]
        number_decades(axis, "x")
    elif panel.get("zero", True):
        axis.axvline(0, color="black", linewidth=0.8)
    looks = [
        (name, "black", fill)
        for name, fill in zip(panel.get("pair_names", ()), ("white", "black"), strict=False)
    ]
    if "label" in panel:
        looks = [(names[x], colors[x], colors[x]) for x in order]
    return [Line2D([], [], color=color, marker="o", markersize=4.5, linestyle="", label=name,
                   markerfacecolor=fill) for name, color, fill in looks]  # fmt: skip


def draw_lines(axis: Axes, rows: pl.DataFrame, panel: Mapping[str, Any]) -> list[Any]:
    """Draw a line with its interval for each policy over the column `x`, labelled at its end.

    `muted` policies are grey; `names` replaces labels; `bars` draws intervals as bars. Arrows mark
    the values of `ceiling` policies, which are lower bounds.
    """
    x, muted = panel.get("x", "round"), panel.get("muted", [])
    ends: list[tuple[float, str, str]] = []
    several = rows.group_by("policy").len()["len"].max()
    for label in sort_policies(set(rows["policy"])):
        own, style = rows.filter(policy=label).sort(x), style_line(label, panel)
        at, mean, low, high = own.select(x, "mean", "low", "high").cast(pl.Float64).to_numpy().T
        mean = np.where(mean > 0, mean, np.nan) if panel.get("log") else mean
        options = MUTED if label in muted else panels.line_options(style) | {"marker": None}
        options |= {"marker": "o", "markersize": 3.0} if several < 12 else {}  # type: ignore[operator]
        if label in panel.get("ceiling", []):
            options |= {"marker": "$\\uparrow$", "markersize": 9.0, "linestyle": ""}
        axis.plot(at, mean, zorder=3 if style.on_top else 2, **options)
        if label not in muted and panel.get("bars"):
            sides = [mean - low, high - mean]
            axis.errorbar(at, mean, sides, fmt="none", ecolor=style.color, elinewidth=0.9)
        elif label not in muted:
            axis.fill_between(at, low, high, color=style.color, alpha=0.18, linewidth=0)
        name = panel.get("names", {}).get(label, "" if label in muted else style.name)
        ends += [(float(mean[np.isfinite(mean)][-1]), name, options["color"])] if name else []
    if panel.get("log"):
        positive = rows.filter(pl.col("mean") > 0)["mean"]
        floor = panel.get("floor", 0.7 * float(positive.min()))  # type: ignore[arg-type]
        axis.set_yscale("log", nonpositive="clip")
        axis.set_ylim(floor, panel.get("top", 1.4 * float(positive.max())))  # type: ignore[arg-type]
        number_decades(axis, "y")
    else:
        floor = panel.get("floor", min(0.0, float(rows["mean"].min())))  # type: ignore[arg-type]
        axis.set_ylim(floor, panel.get("top"))
    if panel.get("xlog"):
        axis.set_xscale("log")
    axis.set_xlim(rows[x].min(), rows[x].max())
    if "ticks" in panel:
        axis.set_xticks(panel["ticks"], [f"{tick:g}" for tick in panel["ticks"]])
        axis.minorticks_off()
    label_ends(axis, ends)
    return []


def number_decades(axis: Axes, which: Literal["x", "y"]) -> None:
    """Write 0.1, 1 and 10 on a logarithmic axis, and numbers between them if it is short."""
    low, high = getattr(axis, f"get_{which}lim")()
    along = getattr(axis, f"{which}axis")
    between = (1.0,) if high / low > 50 else (1.0, 2.0, 5.0)
    along.set_major_locator(LogLocator(subs=between if high / low > 2 else range(1, 10)))
    along.set_major_formatter("{x:g}")
    along.set_minor_formatter(NullFormatter())


def label_ends(axis: Axes, ends: Sequence[tuple[float, str, str]]) -> None:
    """Write labels right of a panel, at the height of their values where these do not overlap."""
    at = np.reshape([(1, max(value, 1e-9)) for value, _, _ in ends], (-1, 2))
    heights = axis.transLimits.transform(axis.transScale.transform(at))[:, 1]
    order = np.argsort(heights)
    placed, grid = np.clip(heights[order], 0, 1), axis.get_gridspec()
    # How many times lower a panel is than one of two inches.
    lower = 2.0 * (grid.nrows if grid else 1) / (cast(Figure, axis.figure).get_figheight() - 1.2)
    tall = [LABEL_GAP * lower * (1 + ends[i][1].count("\n")) for i in order]
    for _ in range(200):  # moves neighbours apart until none overlap, between ticks and title
        placed = np.clip(placed, 0.04, 0.98)
        for i in range(len(placed) - 1):
            overlap = (tall[i] + tall[i + 1]) / 2 - (placed[i + 1] - placed[i])
            if overlap > 1e-6:
                placed[i : i + 2] += [-overlap / 2, overlap / 2]
    for height, number in zip(placed, order, strict=True):
        _, name, color = ends[number]
        axis.annotate(
            name, (1, height), (4, 0), "axes fraction", "offset points", color=color, va="center",
            **VERBATIM,
        )  # fmt: skip


def draw_cost_quality(axis: Axes, rows: pl.DataFrame, panel: Mapping[str, Any]) -> list[Any]:
    """Draw costs against scores, with the text and place in `names` beside each dot."""
    cells = rows.with_columns(mean_score="score", low_score="score_low", high_score="score_high")
    draw_costs(axis, cells, panel.get("order", ["policy"]))
    number_decades(axis, "x")
    for cell in cells.filter(**panel.get("named", {})).iter_rows(named=True):
        name, across, up, side = panel["names"][cell["policy"]]
        axis.annotate(
            name, (PER_QUERIES * cell["mean"], cell["mean_score"]), (across, up), "data",
            "offset points", color=find_style(cell["policy"]).color, ha=side, **VERBATIM,
        )  # fmt: skip
    return []


def draw_printed(axis: Axes, rows: pl.DataFrame, panel: Mapping[str, Any]) -> list[Any]:
    """Draw the paper's printed numbers across, ours up, and the line on which both are equal.

    Around the line is a `band`: the largest ratio of ours to the paper's inside it, or of theirs.
    """
    rows = rows.filter(pl.col("paper") > 0, pl.col("mean") > 0)
    printed, ours = rows.select("paper", "mean").to_numpy().T
    axis.plot(printed, ours, "o", color="#0072B2", markersize=4.0, alpha=0.6)
    ends = np.array([min(printed.min(), ours.min()), max(printed.max(), ours.max())])
    band, ends = panel["band"], ends * [1 / panel["band"] ** 0.5, panel["band"] ** 0.5]
    axis.plot(ends, ends, color="black", linewidth=0.8, zorder=1)
    axis.fill_between(ends, ends / band, ends * band, color="#DDDDDD", linewidth=0, zorder=0)
    inside = (abs(np.log(ours / printed)) <= math.log(band)).sum()
    text = f"{inside} of {len(ours)}\nwithin {panel['band_name']}"
    axis.annotate(text, (0.98, 0.04), xycoords="axes fraction", ha="right")
    axis.set(xscale="log", yscale="log", aspect="equal")
    for along in (axis.xaxis, axis.yaxis):
        along.set_ticks(panel["decades"], [f"{tick:g}" for tick in panel["decades"]])
    axis.minorticks_off()
    axis.set(xlim=ends, ylim=ends)
    return []


KINDS = {
    "dots": draw_dots, "lines": draw_lines, "curves": draw_lines, "costs": draw_cost_quality,
    "printed": draw_printed,
}  # fmt: skip


def draw(picture: Mapping[str, Any], results: Path = RESULTS) -> Figure:
    """Draw a picture from its entry: a title that says the finding, panels, a note.

    Each panel has the picture's keys and its own; `where` is merged. `marks` are vertical lines
    with a text, in `color`.
    """
    shared = {key: value for key, value in picture.items() if key not in ("panels", "title")}
    listed, columns = picture["panels"], picture.get("columns", len(picture["panels"]))
    handles: dict[str, Any] = {}
    with panels.fonts(PRINTED_POINTS):
        figure = Figure(figsize=picture["size"], layout="constrained")
        axes = figure.subplots(math.ceil(len(listed) / columns), columns, squeeze=False).ravel()
        for axis, panel in zip(axes, listed, strict=False):
            own = shared | panel | {"where": shared.get("where", {}) | panel.get("where", {})}
            drawn = KINDS[own["kind"]](axis, read_rows(own, results), own)
            handles |= {str(one.get_label()): one for one in drawn}
            for mark in own.get("marks", []):
                color = mark.get("color", "#555555")
                axis.axvline(mark["x"], color=color, linewidth=0.9, linestyle=":")
                axis.annotate(
                    mark["text"], (mark["x"], mark.get("y", 0.97)), (3, 0),
                    ("data", "axes fraction"), "offset points", color=color, va="top",
                    **VERBATIM,
                )  # fmt: skip
            if "xlim" in own:
                axis.set_xlim(own["xlim"])
                if own.get("log"):
                    number_decades(axis, "x")
            axis.set_title(panel.get("title", ""), loc="left", **VERBATIM)
            axis.set_xlabel(own.get("xlabel", "Round"), **VERBATIM)
            axis.set_ylabel(own.get("ylabel", ""), **VERBATIM)
        for axis in axes[len(listed) :]:
            axis.set_axis_off()
        figure.suptitle(picture["title"], x=0.01, ha="left", weight="bold", **VERBATIM)
        note = textwrap.fill(picture["note"], int(16 * picture["size"][0]))
        if handles:
            lines = math.ceil(sum(5 + len(name) for name in handles) / (16 * picture["size"][0]))
            panels.add_legend(
                figure, list(handles.values()), title=note, loc="outside lower left",
                frameon=False, ncols=math.ceil(len(handles) / lines), handlelength=1.6,
                columnspacing=1.2, alignment="left",
            )  # fmt: skip
        else:
            size = matplotlib.rcParams["font.size"]
            figure.supxlabel(note, x=0.01, ha="left", fontsize=size, **VERBATIM)
    return figure


def main(names: Sequence[str]) -> None:
    """Draw the named pictures, or all."""
    pictures = load_pictures()
    for name in names or pictures:
        print(save_figure(draw(pictures[name]), RESULTS / "figures" / name))


if __name__ == "__main__":
    main(sys.argv[1:])
