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
    """Draw each learner's score in the four combinations: a panel for each task on real prompts."""
    every = {task.name: task for task in tasks.list_tasks()}
    cells = {name: cross_cells(rows.filter(task=name)) for name in every}
    synthetic = [c for name, c in cells.items() if c[0] and not every[name].on_prompts]
    panels = {"Synthetic (mean of ten)": (
        synthetic[0][0], np.mean([crossed.mean(0) for _, crossed in synthetic], axis=0)
    )}  # fmt: skip
    panels |= {
        every[name].title: (learners, crossed.mean(0))
        for name, (learners, crossed) in cells.items() if learners and every[name].on_prompts
    }  # fmt: skip
    with fonts(9.0):
        figure = Figure(figsize=(7.0, 6.4), layout="constrained")
        axes = figure.subplots(2, 3, sharex=True, sharey=True).ravel()
        for panel, (title, (learners, means)) in zip(axes, panels.items(), strict=True):
            at = [-WORDS["learners"].index(name) for name in learners]
            for own, (label, color, fill, marker, size) in zip(
                means.reshape(-1, 4).T, WORDS["combinations"], strict=True
            ):
                panel.plot(np.maximum(own, -0.55), at, marker, label=label, color=color, mfc=fill,
                           ms=size, clip_on=False)  # fmt: skip
            panel.set_title(title, loc="left", fontsize=9, fontweight="bold")
            names = [find_style(name).name for name in WORDS["learners"]]
            panel.set_yticks(range(0, -len(names), -1), names)
            panel.set(xlim=(-0.6, 1.05), xticks=(-0.5, 0, 0.5, 1))
            panel.tick_params(left=False)
            panel.grid(lw=0.4)
        axes[0].text(-0.45, -8, WORDS["missing"], va="center", backgroundcolor="white")
        for panel in axes[3:]:
            panel.set_xlabel("Score")
        figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower left", ncols=2,
                      frameon=False, alignment="left", title=WORDS["design_note"])  # fmt: skip
        figure.suptitle(WORDS["design_title"], fontsize=10, fontweight="bold", x=0.01, ha="left")
    return figure


def draw_summary(rows: pl.DataFrame) -> Figure:
    """Draw the scores of the policies of README: a dot for each task, and the mean over tasks."""
    families = {"Synthetic data": False, "Real prompts": True}
    names = {task.name: task.on_prompts for task in tasks.list_tasks()}
    means = rows.group_by("task", "policy").agg(pl.col("score").mean())
    blocks = []
    for family, on_prompts in families.items():
        chosen = [name for name, own in names.items() if own == on_prompts and name != "replay"]
        of_family = means.filter(pl.col("task").is_in(chosen))
        shown = of_family.filter(pl.col("policy").is_in([*WORDS["shown"]]))
        ranked = shown.group_by("policy").agg("score", mean=pl.col("score").mean()).sort("mean")
        blocks.append((f"{family}, {len(chosen)} scenarios", ranked))
    with fonts(15.0), matplotlib.rc_context({"axes.spines.left": False}):
        heights = [len(ranked) + 1 for _, ranked in blocks]
        figure = Figure(figsize=(8.4, 1.9 + 0.33 * sum(heights)), layout="constrained")
        panels = figure.subplots(2, 1, height_ratios=heights, sharex=True)
        for panel, (name, ranked) in zip(panels, blocks, strict=True):
            for place, row in enumerate(ranked.iter_rows(named=True)):
                style = find_style(row["policy"])
                panel.plot(np.clip(row["score"], -0.04, None), [place] * len(row["score"]), "|",
                           color=style.color, ms=11, mew=1.4, alpha=0.6)  # fmt: skip
                marker = "o" if row["mean"] >= -0.04 else "<"
                panel.plot(max(row["mean"], -0.04), place, marker, color=style.color, ms=11)
                if marker == "<":
                    panel.text(0.01, place, f"{row['mean']:.1f}", va="center", fontsize=13)
            panel.set_yticks(range(ranked.height), [WORDS["shown"][x] for x in ranked["policy"]])
            panel.set_title(name, loc="left", fontsize=16, fontweight="bold")
            panel.set(xlim=(-0.06, 1.03), ylim=(-0.6, ranked.height - 0.4))
            panel.tick_params(left=False)
            panel.grid(axis="x", lw=0.5)
        panels[1].set_xlabel("score: 0 random routing, 1 the oracle")
        note = f"| one scenario, ● mean over scenarios\n{WORDS['note']}"
        figure.supxlabel(note, fontsize=12, x=0.01, ha="left")
        figure.suptitle(WORDS["title"], fontsize=18, fontweight="bold", x=0.01, ha="left")
    return figure


if __name__ == "__main__":
    matplotlib.use("agg")
    runs = scores.add_scores(read_board().rows).filter(pl.col("policy") != OPTIMAL)
    made = analyse(runs)
    write_csv(RESULTS / "tables" / "arena_design.csv", made)
    write_atomic(RESULTS / "figures" / "arena_design.png", encode_png(draw_combinations(runs)))
    draw_summary(runs).savefig(RESULTS / "figures" / "arena.png", dpi=100)
