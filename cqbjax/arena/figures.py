"""Figures of the arena: scores by task and over tasks, and performance profiles."""

from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib
import numpy as np
import polars as pl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from cqbjax.arena.scores import UNDECIDED
from cqbjax.core.labels import OPTIMAL
from cqbjax.figures.panels import VERBATIM, add_legend, fonts
from cqbjax.results.policy_styles import find_style

# Colours span these scores; lower ones have the first colour, and below `LOWEST_DOT` a number
# stands in place of the dot.
LOWEST_COLOUR, LOWEST_DOT = -0.25, -1.0
POINTS = 9.0
CELL = 0.62, 0.3  # inches of a score


def draw_scores(
    table: pl.DataFrame, overall: pl.DataFrame, titles: Mapping[str, str],
    highlighted: str | None = None,
) -> Figure:  # fmt: skip
    """Draw each policy's score in each task, the first group framed, and the mean over tasks.

    Args:
        table: from `board.tabulate_policies`.
        overall: from `scores.aggregate_scores`, of all tasks.
        titles: titles of the tasks, by name: the columns.
        highlighted: a label in bold.
    """
    means = dict(overall.select("policy", "iqm").iter_rows())
    mean = table.group_by("policy").agg(pl.col("score").mean())
    rank = {label: (label not in means, -(means.get(label, score) or 0.0))
            for label, score in mean.iter_rows()}  # fmt: skip
    labels = sorted((label for label in rank if label != OPTIMAL), key=rank.__getitem__)
    tasks = [name for name in titles if name in {*table["task"]}]
    # Space for names on both sides, and for the note below.
    size = max(2.9 + CELL[0] * len(tasks) + 2.6, 7.5), 1.9 + CELL[1] * len(labels)
    with fonts(POINTS), matplotlib.rc_context({"axes.spines.left": False}):
        figure = Figure(figsize=size, layout="constrained")
        left, right = figure.subplots(1, 2, width_ratios=[CELL[0] * len(tasks), 2.0], sharey=True)
        _draw_cells(left, table, labels, tasks)
        left.set_xticks(range(len(tasks)), [titles[task] for task in tasks], rotation=40,
                        ha="left", rotation_mode="anchor", **VERBATIM)  # fmt: skip
        names = [find_style(label).name for label in labels]
        left.set_yticks(range(len(labels)), names, **VERBATIM)
        for tick, label in zip(left.get_yticklabels(), labels, strict=True):
            tick.set_fontweight("bold" if label == highlighted else "normal")
        for row in overall.filter(pl.col("policy").is_in(labels)).iter_rows(named=True):
            width = 3.0 if row["policy"] == highlighted else 1.6
            _draw_interval(right, labels.index(row["policy"]), row, "iqm", width)
        right.tick_params(left=False, labelleft=False)
        right.axvline(1.0, color="black", lw=0.8, ls=":")
        right.grid(axis="x", lw=0.4)
        right.set_xlabel("interquartile mean over tasks")
        figure.supxlabel(
            "Score in a task: 0 random routing, 1 the oracle; "
            "framed: best, or statistically tied with it\n"
            "=: the same gaps as another policy at every seed", fontsize=POINTS, ha="left", x=0.01,
        )  # fmt: skip
    return figure


def _draw_cells(
    panel: Axes, table: pl.DataFrame, labels: Sequence[str], tasks: Sequence[str]
) -> None:
    """Draw the scores as coloured cells with numbers."""
    rows = {(row["policy"], row["task"]): row for row in table.iter_rows(named=True)}
    values = np.full((len(labels), len(tasks)), np.nan)
    panel.tick_params(top=True, labeltop=True, bottom=False, labelbottom=False, length=0)
    for i, label in enumerate(labels):
        for j, task in enumerate(tasks):
            row = rows.get((label, task))
            if row is None or row["score"] is None:
                panel.text(j, i, "–", ha="center", va="center", color="#777777")
                continue
            values[i, j] = row["score"]
            text = f"{round(row['score'], 2) + 0.0:.2f}{'=' if row['same_as'] else ''}"
            panel.text(j, i, text, ha="center", va="center",
                       color="white" if row["score"] < 0.35 else "black")  # fmt: skip
            if row["group"] == 1 and row["standing"] != UNDECIDED:
                frame = Rectangle((j - 0.46, i - 0.43), 0.92, 0.86, fill=False, lw=1.6)
                panel.add_patch(frame)
    scale: dict[str, Any] = {"cmap": "cividis", "vmin": LOWEST_COLOUR, "vmax": 1.0}
    panel.imshow(np.clip(values, LOWEST_COLOUR, 1.0), aspect="auto", **scale)
    panel.spines[:].set_visible(False)


def _draw_interval(
    panel: Axes, place: int, row: Mapping[str, Any], name: str, width: float = 1.6,
    filled: bool = True,
) -> None:  # fmt: skip
    """Draw a policy's mean, a dot, and its interval."""
    color = find_style(row["policy"]).color
    panel.plot([row[f"{name}_low"], row[f"{name}_high"]], [place] * 2, color=color, lw=width)
    panel.plot([row[name]], [place], "o", color=color, ms=4.5, mfc=color if filled else "white")


def draw_intervals(rows: pl.DataFrame, names: Mapping[str, str]) -> Figure:
    """Draw the scores of the policies of a task, with their intervals.

    Args:
        rows: from `board.tabulate_policies`, those with a score.
        names: the name of each policy, by label, from top to bottom.
    """
    by_name = {row["policy"]: row for row in rows.iter_rows(named=True)}
    drawn = [name for name in names if name in by_name]
    with fonts(POINTS), matplotlib.rc_context({"axes.spines.left": False}):
        figure = Figure(figsize=(6.0, 0.7 + 0.21 * len(drawn)), layout="constrained")
        panel = figure.subplots()
        least = max(LOWEST_DOT, min(0.0, *rows["score_low"].drop_nulls()) - 0.05)
        for place, name in enumerate(drawn):
            row = by_name[name]
            first = row["group"] == 1 and row["standing"] != UNDECIDED
            _draw_interval(panel, place, row, "score", filled=first)
            if row["score"] < least:
                panel.text(least, place, f" ← {row['score']:.1f}", va="center")
        panel.set_yticks(range(len(drawn)), [names[name] for name in drawn], **VERBATIM)
        panel.set_ylim(len(drawn) - 0.4, -0.6)
        panel.set_xlim(least, None)
        for end in (0.0, 1.0):
            panel.axvline(end, color="black", lw=0.8, ls=":")
        panel.grid(axis="x", lw=0.4)
        panel.set_xlabel("score (filled: statistically tied with the best)")
    return figure


def draw_profiles(
    profiles: Mapping[str, tuple[np.ndarray, np.ndarray, np.ndarray]], taus: np.ndarray,
    highlighted: str | None = None,
) -> Figure:  # fmt: skip
    """Draw performance profiles: the share of runs whose score is above tau.

    Args:
        profiles: label -> the profile and the ends of its interval, each [taus].
        taus: in increasing order.
        highlighted: a label with a thick line.
    """
    with fonts(POINTS):
        figure = Figure(figsize=(7.5, 4.0), layout="constrained")
        panel, lines = figure.subplots(), list[Any]()
        for label, (middle, low, high) in profiles.items():
            style = find_style(label)
            width = 2.6 if label == highlighted else style.width
            panel.fill_between(taus, low, high, color=style.color, alpha=0.12, lw=0)
            lines += panel.plot(
                taus, middle, color=style.color, ls=style.dashes, lw=width, label=style.name
            )
        panel.set(xlabel="score τ", ylabel="share of runs above τ", ylim=(0, 1.02))
        add_legend(
            panel, lines, fontsize="small", ncols=1, loc="center left", bbox_to_anchor=(1.01, 0.5)
        )
    return figure
