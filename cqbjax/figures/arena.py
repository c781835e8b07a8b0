"""The arena drawn: every policy in every task, and over all of them; and performance profiles."""

from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib
import numpy as np
import polars as pl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from cqbjax.figures.panels import VERBATIM, fonts, legend
from cqbjax.results.names import style_of

# Scores are coloured from here to the yardstick's; what is worse has the same colour.
WORST = -0.25
FURTHEST = -1.0  # of what is worse the number is written
POINTS = 9.0
CELL = 0.62, 0.3  # inches of a score


def draw_scores(
    table: pl.DataFrame, overall: pl.DataFrame, titles: Mapping[str, str], own: str | None = None
) -> Figure:
    """Draw each policy's score in each task, the first group framed, and the mean over tasks.

    Args:
        table: of `board.table`.
        overall: of `scores.overall`, of all tasks.
        titles: of the tasks, by name: the columns.
        own: a label that stands out.
    """
    means = dict(overall.select("policy", "iqm").iter_rows())
    mean = table.group_by("policy").agg(pl.col("score").mean())
    rank = {label: (label not in means, -(means.get(label, score) or 0.0))
            for label, score in mean.iter_rows()}  # fmt: skip
    labels = sorted((label for label in rank if label != "optimal"), key=rank.__getitem__)
    tasks = [name for name in titles if name in {*table["task"]}]
    # Names on both sides, and room below for what is said of the colours.
    size = max(2.9 + CELL[0] * len(tasks) + 2.6, 7.5), 1.9 + CELL[1] * len(labels)
    with fonts(POINTS), matplotlib.rc_context({"axes.spines.left": False}):
        figure = Figure(figsize=size, layout="constrained")
        left, right = figure.subplots(1, 2, width_ratios=[CELL[0] * len(tasks), 2.0], sharey=True)
        _cells(left, table, labels, tasks)
        left.set_xticks(range(len(tasks)), [titles[task] for task in tasks], rotation=40,
                        ha="left", rotation_mode="anchor", **VERBATIM)  # fmt: skip
        names = [style_of(label).name for label in labels]
        left.set_yticks(range(len(labels)), names, **VERBATIM)
        for tick, label in zip(left.get_yticklabels(), labels, strict=True):
            tick.set_fontweight("bold" if label == own else "normal")
        _means(right, overall, labels, own)
        figure.supxlabel(
            "Score in a task: 0 random routing, 1 the yardstick; framed: not told from the best",
            fontsize=POINTS, ha="left", x=0.01,
        )  # fmt: skip
    return figure


def _cells(panel: Axes, table: pl.DataFrame, labels: Sequence[str], tasks: Sequence[str]) -> None:
    """Draw the scores as coloured cells with numbers."""
    there = {(row["policy"], row["task"]): row for row in table.iter_rows(named=True)}
    values = np.full((len(labels), len(tasks)), np.nan)
    panel.tick_params(top=True, labeltop=True, bottom=False, labelbottom=False, length=0)
    for i, label in enumerate(labels):
        for j, task in enumerate(tasks):
            row = there.get((label, task))
            if row is None or row["score"] is None:
                panel.text(j, i, "–", ha="center", va="center", color="#777777")
                continue
            values[i, j] = row["score"]
            dark = row["score"] < 0.35
            panel.text(j, i, f"{round(row['score'], 2) + 0.0:.2f}", ha="center", va="center",
                       color="white" if dark else "black")  # fmt: skip
            if row["group"] == 1:
                frame = Rectangle((j - 0.46, i - 0.43), 0.92, 0.86, fill=False, lw=1.6)
                panel.add_patch(frame)
    panel.imshow(np.clip(values, WORST, 1.0), cmap="cividis", vmin=WORST, vmax=1.0, aspect="auto")
    panel.spines[:].set_visible(False)


def _means(panel: Axes, overall: pl.DataFrame, labels: Sequence[str], own: str | None) -> None:
    """Draw interquartile means over tasks with their intervals."""
    for row in overall.iter_rows(named=True):
        if row["policy"] not in labels:
            continue
        wide = 3.0 if row["policy"] == own else 1.6
        _interval(panel, labels.index(row["policy"]), row, "iqm", wide=wide)
    panel.tick_params(left=False, labelleft=False)
    panel.axvline(1.0, color="black", lw=0.8, ls=":")
    panel.grid(axis="x", lw=0.4)
    panel.set_xlabel("interquartile mean over tasks")


def _interval(
    panel: Axes, place: int, row: Mapping[str, Any], name: str, wide: float = 1.6,
    full: bool = True,
) -> None:  # fmt: skip
    """Draw a policy's mean, a dot, and its interval."""
    color = style_of(row["policy"]).color
    panel.plot([row[f"{name}_low"], row[f"{name}_high"]], [place] * 2, color=color, lw=wide)
    panel.plot([row[name]], [place], "o", color=color, ms=4.5, mfc=color if full else "white")


def draw_intervals(rows: pl.DataFrame, names: Mapping[str, str], by: str) -> Figure:
    """Draw the scores of one policy in its tasks, or of one task's policies, with their intervals.

    Args:
        rows: of `board.table`, those with a score.
        names: what stands beside each, from above, by its value in the column `by`.
        by: `task` or `policy`.
    """
    there = {row[by]: row for row in rows.iter_rows(named=True)}
    shown = [name for name in names if name in there]
    with fonts(POINTS), matplotlib.rc_context({"axes.spines.left": False}):
        figure = Figure(figsize=(6.0, 0.7 + 0.21 * len(shown)), layout="constrained")
        panel = figure.subplots()
        least = max(FURTHEST, min(0.0, *rows["score_low"].drop_nulls()) - 0.05)
        for place, name in enumerate(shown):
            row = there[name]
            _interval(panel, place, row, "score", full=row["group"] == 1)
            if row["score"] < least:
                panel.text(least, place, f" ← {row['score']:.1f}", va="center")
        panel.set_yticks(range(len(shown)), [names[name] for name in shown], **VERBATIM)
        panel.set_ylim(len(shown) - 0.4, -0.6)
        panel.set_xlim(least, None)
        for end in (0.0, 1.0):
            panel.axvline(end, color="black", lw=0.8, ls=":")
        panel.grid(axis="x", lw=0.4)
        panel.set_xlabel("score (full: not told from the best)")
    return figure


def draw_profiles(
    profiles: Mapping[str, tuple[np.ndarray, np.ndarray, np.ndarray]], taus: np.ndarray,
    own: str | None = None,
) -> Figure:  # fmt: skip
    """Draw performance profiles: the share of runs whose score is above tau.

    Args:
        profiles: label -> the profile and the ends of its interval, each [taus].
        taus: in increasing order.
        own: a label that stands out.
    """
    with fonts(POINTS):
        figure = Figure(figsize=(7.5, 4.0), layout="constrained")
        panel, lines = figure.subplots(), list[Any]()
        for label, (middle, low, high) in profiles.items():
            style = style_of(label)
            wide = 2.6 if label == own else style.width
            panel.fill_between(taus, low, high, color=style.color, alpha=0.12, lw=0)
            lines += panel.plot(
                taus, middle, color=style.color, ls=style.dashes, lw=wide, label=style.name
            )
        panel.set(xlabel="score τ", ylabel="share of runs above τ", ylim=(0, 1.02))
        legend(
            panel, lines, fontsize="small", ncols=1, loc="center left", bbox_to_anchor=(1.01, 0.5)
        )
    return figure
