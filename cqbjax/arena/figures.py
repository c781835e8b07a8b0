"""The figure of the arena: scores by task and over tasks."""

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
from cqbjax.figures.panels import VERBATIM, fonts
from cqbjax.results.policy_styles import find_style

LOWEST_COLOUR = -0.25  # lower scores have the same colour
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
            color, place = find_style(row["policy"]).color, labels.index(row["policy"])
            width = 3.0 if row["policy"] == highlighted else 1.6
            right.plot([row["iqm_low"], row["iqm_high"]], [place] * 2, color=color, lw=width)
            right.plot([row["iqm"]], [place], "o", color=color, ms=4.5)
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
