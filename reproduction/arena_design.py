"""What each choice of a policy is worth in the arena: an analysis of the board as an experiment.

    python -m reproduction.arena_design

reads the shipped board, writes `results/tables/arena_design.csv`, and draws
`results/figures/arena_design.png` and the picture of README, `results/figures/arena.png`. The board
crosses learners with retry rules and schedules. The analysis uses the combinations that every
learner has: a retry asks the same LLM or another (fallback), and the query served is the oldest or
the one with the fewest attempts (least served). Effects are given learner by learner, since they
differ: a mean over learners would be that of the learners that repeat a failed LLM forever.
"""

import itertools
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
import polars as pl
import xarray as xr
import yaml
from matplotlib.figure import Figure

from cqbjax.arena import scores, tasks
from cqbjax.arena.board import read_board
from cqbjax.core.files import write_atomic
from cqbjax.core.labels import OPTIMAL, split_label
from cqbjax.figures.files import encode_png
from cqbjax.figures.panels import fonts
from cqbjax.results.policy_styles import find_style
from cqbjax.results.tables import write_csv
from reproduction.theory.runs import mean_columns

RESULTS = Path(__file__).parents[1] / "results"
# Learners, labels and titles.
WORDS = yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text())
RETRIES, SCHEDULES = ("same", "fallback"), ("oldest", "least_served")
LEFT = -0.35  # end of the axis in README's picture


def cross_cells(rows: pl.DataFrame) -> tuple[list[str], np.ndarray]:
    """Return the learners of a task's crossed cells, and their scores [S, learners, 2, 2].

    The last axes are `RETRIES` and `SCHEDULES`.
    """
    cells = dict[tuple[str, str, str], np.ndarray]()
    for (label,), own in rows.sort("seed").partition_by("policy", as_dict=True).items():
        base, rules = split_label(str(label))
        schedule = rules.get("schedule", WORDS["schedules"].get(base, "oldest"))
        cells[base, rules.get("retry", "same"), schedule] = own["score"].to_numpy()
    needed = list(itertools.product(RETRIES, SCHEDULES))
    learners = [x for x in WORDS["learners"] if all((x, *one) in cells for one in needed)]
    crossed = [[[cells[name, retry, schedule] for schedule in SCHEDULES] for retry in RETRIES]
               for name in learners]  # fmt: skip
    return learners, np.moveaxis(np.array(crossed), -1, 0)


def find_effects(learners: list[str], crossed: np.ndarray) -> dict[tuple[str, str], np.ndarray]:
    """Return effects on the score, seed by seed: (factor, where) -> [S].

    The factors are another LLM on a retry, the least served query first, and the pairs of learners.
    """
    effects = {}
    for k, name in enumerate(learners):
        own = crossed[:, k]
        for j, schedule in enumerate(SCHEDULES):
            effects["another LLM", f"{name}, {schedule}"] = own[:, 1, j] - own[:, 0, j]
        for i, retry in enumerate(RETRIES):
            effects["least served", f"{name}, {retry}"] = own[:, i, 1] - own[:, i, 0]
    for factor, (one, other) in WORDS["pairs"].items():
        if {one, other} <= {*learners}:
            difference = crossed[:, learners.index(one)] - crossed[:, learners.index(other)]
            for i, j in itertools.product(range(2), range(2)):
                effects[factor, f"{RETRIES[i]}, {SCHEDULES[j]}"] = difference[:, i, j]
    return effects


def share_variance(learners: list[str], means: np.ndarray) -> dict[str, float]:
    """Return which share of the sum of squares between cells each factor has.

    Args:
        learners: names.
        means: mean scores [learners, 2, 2].
    """
    over, total = {"retry": (0, 2), "schedule": (0, 1), "learner": (1, 2)}, means - means.mean()
    parts = {name: means.mean(axes, keepdims=True) - means.mean() for name, axes in over.items()}
    shares = {
        name: float((np.broadcast_to(part, means.shape) ** 2).sum() / (total**2).sum())
        for name, part in parts.items()
    }
    return shares | {"interactions": 1 - sum(shares.values())}


def analyse(rows: pl.DataFrame) -> pl.DataFrame:
    """Return the effects of each task on the score, and each factor's share of the variance."""
    table = []
    for task in tasks.list_tasks():
        learners, crossed = cross_cells(rows.filter(task=task.name))
        if not learners:
            continue
        for factor, share in share_variance(learners, crossed.mean(0)).items():
            table.append({"task": task.name, "factor": factor, "share": share})
        for (factor, where), effect in find_effects(learners, crossed).items():
            row: dict[str, Any] = {"task": task.name, "factor": factor, "where": where}
            table.append(row | mean_columns("effect", xr.DataArray(effect, dims="seed")))
    return pl.DataFrame(table, infer_schema_length=None)


def draw_combinations(rows: pl.DataFrame) -> Figure:
    """Draw each learner's scores on real prompts in the four combinations, and count low ones."""
    named = [task.name for task in tasks.list_tasks() if task.on_prompts]
    scored = [cross_cells(rows.filter(task=name))[1].mean(0).reshape(-1, 4) for name in named]
    means = np.concatenate(scored)
    with fonts(9.0):
        figure = Figure(figsize=(7.0, 3.6), layout="constrained")
        axis = figure.subplots()
        heights = np.arange(4) + np.linspace(-0.28, 0.28, len(means))[:, None]
        for low, color in ((False, "#0072B2"), (True, "#D55E00")):
            chosen = (means < 0) == low
            axis.plot(np.maximum(means[chosen], -0.55), heights[chosen], "o", ms=4, color=color,
                      clip_on=False)  # fmt: skip
        for place, count in enumerate((means < 0).sum(0)):
            text, color = (
                f"{count} of {len(means)}\nbehind random",
                "#D55E00" if count else "#0072B2",
            )
            axis.text(1.09, place, text, va="center", color=color)
        axis.axvline(0, color="black", lw=0.8)
        axis.set_yticks(range(4), WORDS["combinations"])
        axis.set(xlim=(-0.6, 1.05), ylim=(-0.5, 3.5), xticks=(-0.5, 0, 0.5, 1), xlabel="Score")
        axis.tick_params(left=False)
        figure.supxlabel(WORDS["design_note"], fontsize=9, x=0.01, ha="left")
        figure.suptitle(WORDS["design_title"], fontsize=10, fontweight="bold", x=0.01, ha="left")
    return figure


def draw_summary(rows: pl.DataFrame) -> Figure:
    """Draw the mean scores of README's policies, without and with both rules for retries."""
    labels = [*WORDS["without"], *WORDS["contexts"]]
    with fonts(15.0), matplotlib.rc_context({"axes.spines.left": False}):
        figure = Figure(figsize=(8.4, 6.6), layout="constrained")
        axes = figure.subplots(1, 2, sharey=True)
        for axis, (title, on_prompts) in zip(axes, WORDS["families"].items(), strict=True):
            chosen = [x.name for x in tasks.list_tasks() if x.on_prompts == on_prompts]
            of_family = rows.filter(pl.col("task").is_in(chosen), pl.col("task") != "replay")
            means = of_family.group_by("policy", "seed").agg(pl.col("score").mean())
            for place, learner in enumerate(labels):
                color, ends = find_style(learner).color, []
                for rules, fill in (("", "white"), ("_fallback_least_served", color)):
                    own = xr.DataArray(means.filter(policy=learner + rules)["score"], dims="seed")
                    if not own.size:
                        continue
                    mean, low, high = mean_columns("", own).values()
                    ends.append(max(mean, LEFT))
                    axis.plot(ends[-1], place, "o" if mean >= LEFT else "<", color=color, ms=11,
                              mfc=fill, mew=1.8, zorder=3, clip_on=False)  # fmt: skip
                    if mean < LEFT:
                        axis.text(LEFT + 0.09, place + 0.2, f"{mean:.1f}", fontsize=13)
                    axis.plot([low, high], [place] * 2, color=color, lw=1.8)
                axis.plot(ends, [place] * len(ends), color="#BBBBBB", lw=1.5, zorder=1)
                text = WORDS["missing"][len(ends)]
                axis.text(0.44, place, text, va="center", ha="center", fontsize=13)
            axis.axhspan(len(WORDS["without"]) - 0.5, len(labels) - 0.4, color="#EEF3F8", zorder=0)
            axis.set_title(title, loc="left", fontsize=16, fontweight="bold")
            axis.axvline(0, color="black", lw=0.8)
            axis.set(xlim=(LEFT - 0.03, 1.04), xticks=(0, 0.5, 1), xlabel="Score")
            axis.set_ylim(-0.6, len(labels) - 0.4)
            axis.set_yticks(range(len(labels)), [find_style(label).name for label in labels])
            axis.tick_params(left=False)
            axis.grid(axis="x", lw=0.5)
        for text, x, y in WORDS["groups"]:
            axes[1].text(x, y, text, fontsize=13, fontstyle="italic", va="center", ha="center")
        figure.supxlabel(WORDS["note"], fontsize=13, x=0.01, ha="left")
        figure.suptitle(WORDS["title"], fontsize=18, fontweight="bold", x=0.01, ha="left")
    return figure


if __name__ == "__main__":
    matplotlib.use("agg")
    runs = scores.add_scores(read_board().rows).filter(pl.col("policy") != OPTIMAL)
    made = analyse(runs)
    write_csv(RESULTS / "tables" / "arena_design.csv", made)
    write_atomic(RESULTS / "figures" / "arena_design.png", encode_png(draw_combinations(runs)))
    draw_summary(runs).savefig(RESULTS / "figures" / "arena.png", dpi=100)
