"""What each choice of a policy is worth in the arena: an analysis of the board as an experiment.

    python -m reproduction.arena_design

reads the shipped board, writes `results/tables/arena_design.csv`, and draws
`results/figures/arena_design.png` and the picture of README, `results/figures/arena.png`. The board
crosses learners with retry rules and schedules. The cells of the analysis are those that every
learner has: a retry asks the same LLM or another (fallback), and the query served is the oldest or
the one with the fewest attempts (least served).
"""

import itertools
from pathlib import Path

import matplotlib
import numpy as np
import polars as pl
from matplotlib.figure import Figure
from scipy import stats

from cqbjax.arena import scores, tasks
from cqbjax.arena.board import read_board
from cqbjax.core.labels import OPTIMAL, split_label
from cqbjax.figures.panels import fonts
from cqbjax.results.policy_styles import find_style
from cqbjax.results.tables import write_csv

RESULTS = Path(__file__).parents[1] / "results"
# Learner -> whether it uses contexts, and whether graded answers of every LLM (a log).
LEARNERS = {
    "thompson": (False, False), "greedy": (False, False),
    "acqb": (True, False), "linucb": (True, False), "lints": (True, False),
    "zero": (False, True), "logistic": (True, True), "acqb_warm": (True, True),
    "acqb_cl": (True, True),
}  # fmt: skip
OWN = {"acqb": "joint", "acqb_warm": "joint", "acqb_cl": "joint"}  # the others: oldest
RETRIES, SCHEDULES = ("same", "fallback"), ("oldest", "least_served")
FACTORS = {
    "retry": "Retry: another LLM,\nnot the same", "schedule": "Schedule: least\nserved, not oldest",
    "contexts": "Learner: contexts,\nnot counts by LLM", "graded": "Learner: from\ngraded answers",
}  # fmt: skip
# The policies of README's picture, with their names there.
STAR = "* a retry goes to another LLM, and the query with the fewest attempts comes first"
SHOWN = {
    "acqb": "ACQB", "acqb_fallback_least_served": "ACQB *", "lints": "LinTS",
    "thompson": "Thompson by LLM", "thompson_fallback_least_served": "Thompson by LLM *",
    "q_ths": "Q-ThS", "best_llm": "best LLM in trials",
    "best_llm_fallback_least_served": "best LLM in trials *",
    "zero_fallback_least_served": "best LLM of a log *", "logistic": "router from a log",
    "logistic_fallback_least_served": "router from a log *",
}  # fmt: skip


def cross_cells(rows: pl.DataFrame) -> tuple[list[str], np.ndarray]:
    """Return the learners of a task's crossed cells, and their scores [S, learners, 2, 2].

    The last axes are `RETRIES` and `SCHEDULES`.
    """
    cells = dict[tuple[str, str, str], np.ndarray]()
    for (label,), own in rows.sort("seed").partition_by("policy", as_dict=True).items():
        base, rules = split_label(str(label))
        schedule = rules.get("schedule", OWN.get(base, "oldest"))
        cells[base, rules.get("retry", "same"), schedule] = own["score"].to_numpy()
    needed = list(itertools.product(RETRIES, SCHEDULES))
    learners = [name for name in LEARNERS if all((name, *one) in cells for one in needed)]
    crossed = [[[cells[name, retry, schedule] for schedule in SCHEDULES] for retry in RETRIES]
               for name in learners]  # fmt: skip
    return learners, np.moveaxis(np.array(crossed), -1, 0)


def find_effects(learners: list[str], crossed: np.ndarray) -> dict[str, np.ndarray]:
    """Return the effect of each factor on the score, seed by seed: factor -> [S].

    An effect is the difference of two means over all other factors. That of contexts compares
    learners without graded answers. That of graded answers is the mean of two: among learners with
    contexts, and among those without.
    """
    mean = {
        kind: crossed[:, [LEARNERS[name] == kind for name in learners]].mean((1, 2, 3))
        for kind in dict.fromkeys(LEARNERS[name] for name in learners)
    }
    effects = {
        "retry": (crossed[:, :, 1] - crossed[:, :, 0]).mean((1, 2)),
        "schedule": (crossed[..., 1] - crossed[..., 0]).mean((1, 2)),
        "contexts": mean[True, False] - mean[False, False],
    }
    if (True, True) in mean:
        effects["graded"] = (
            sum(mean[contexts, True] - mean[contexts, False] for contexts in (False, True)) / 2
        )
    return effects


def share_variance(learners: list[str], means: np.ndarray) -> dict[str, float]:
    """Return which share of the sum of squares between cells each factor has.

    Args:
        learners: names.
        means: mean scores [learners, 2, 2].
    """
    total = means - means.mean()
    parts = {
        "retry": means.mean((0, 2))[None, :, None] - means.mean(),
        "schedule": means.mean((0, 1))[None, None] - means.mean(),
        "learner": means.mean((1, 2))[:, None, None] - means.mean(),
    }
    shares = {
        name: float((np.broadcast_to(part, means.shape) ** 2).sum() / (total**2).sum())
        for name, part in parts.items()
    }
    return shares | {"interactions": 1 - sum(shares.values())}


def analyse(rows: pl.DataFrame) -> pl.DataFrame:
    """Return a row for each task and factor: effect on the score, and share of the variance."""
    table = []
    for task in tasks.list_tasks():
        own = rows.filter(task=task.name)
        learners, crossed = cross_cells(own)
        if not learners:
            continue
        effects = find_effects(learners, crossed)
        shares = share_variance(learners, crossed.mean(0))
        for factor in dict.fromkeys([*effects, *shares]):
            effect = effects.get(factor)
            row = {"task": task.name, "factor": factor, "share": shares.get(factor)}
            if effect is not None:
                low, high = stats.t.interval(
                    scores.LEVEL, len(effect) - 1, effect.mean(), stats.sem(effect)
                )
                row |= {"effect": effect.mean(), "effect_low": low, "effect_high": high}
            table.append(row | {"learners": len(learners), "seeds": len(crossed)})
    return pl.DataFrame(table, infer_schema_length=None)


def draw_effects(table: pl.DataFrame) -> Figure:
    """Draw the effect of each factor in each task, with intervals."""
    all_tasks = [task for task in tasks.list_tasks() if task.name in {*table["task"]}]
    with fonts(9.0):
        figure = Figure(figsize=(9.0, 0.9 + 0.27 * len(all_tasks)), layout="constrained")
        panels = figure.subplots(1, len(FACTORS), sharey=True)
        for panel, (factor, title) in zip(panels, FACTORS.items(), strict=True):
            for place, task in enumerate(all_tasks):
                for row in table.filter(task=task.name, factor=factor).iter_rows(named=True):
                    color = "#D55E00" if task.on_prompts else "#0072B2"
                    if abs(row["effect"]) <= 1:
                        ends = np.clip([row["effect_low"], row["effect_high"]], -1, 1)
                        panel.plot(ends, [place] * 2, color=color, lw=1.6)
                        panel.plot([row["effect"]], [place], "o", color=color, ms=4.5)
                    else:
                        arrow = (
                            f"← {row['effect']:.1f}"
                            if row["effect"] < 0
                            else f"{row['effect']:.1f} →"
                        )
                        side = "left" if row["effect"] < 0 else "right"
                        x = -0.97 if side == "left" else 0.97
                        panel.text(x, place, arrow, ha=side, va="center", fontsize=8, color=color)
            panel.axvline(0, color="black", lw=0.8)
            panel.set(xlim=(-1, 1), xticks=(-1, -0.5, 0, 0.5, 1))
            panel.set_title(title, fontsize=9, loc="left")
            panel.grid(axis="x", lw=0.4)
        panels[0].set_yticks(range(len(all_tasks)), [task.title for task in all_tasks])
        panels[0].set_ylim(len(all_tasks) - 0.5, -0.6)
        for label, task in zip(panels[0].get_yticklabels(), all_tasks, strict=True):
            label.set_color("#D55E00" if task.on_prompts else "#0072B2")
        figure.supxlabel("gain in score (0 random routing, 1 the oracle), with 95% interval; "
                         "blue: synthetic data, orange: real prompts", fontsize=9)  # fmt: skip
    return figure


def draw_summary(rows: pl.DataFrame, title: str) -> Figure:
    """Draw the scores of `SHOWN`: a dot for each task, and the mean over tasks."""
    families = {"Synthetic data": False, "Real prompts": True}
    names = {task.name: task.on_prompts for task in tasks.list_tasks()}
    means = rows.group_by("task", "policy").agg(pl.col("score").mean())
    blocks = []
    for family, on_prompts in families.items():
        chosen = [name for name, own in names.items() if own == on_prompts and name != "replay"]
        of_family = means.filter(pl.col("task").is_in(chosen))
        ranked = (
            of_family.filter(pl.col("policy").is_in(list(SHOWN))).group_by("policy").agg("score")
        )
        ranked = ranked.with_columns(mean=pl.col("score").list.mean()).sort("mean")
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
                panel.plot(max(row["mean"], -0.04), place, "o", color=style.color, ms=11)
                if row["mean"] < -0.04:
                    panel.text(0.0, place, f"← {row['mean']:.1f}", va="center", fontsize=13)
            panel.set_yticks(range(ranked.height), [SHOWN[one] for one in ranked["policy"]])
            panel.set_title(name, loc="left", fontsize=16, fontweight="bold")
            panel.set(xlim=(-0.06, 1.03), ylim=(-0.6, ranked.height - 0.4))
            panel.tick_params(left=False)
            panel.grid(axis="x", lw=0.5)
        panels[1].set_xlabel("score: 0 random routing, 1 the oracle")
        figure.supxlabel(
            f"| one scenario, ● mean over scenarios\n{STAR}", fontsize=12, x=0.01, ha="left"
        )
        figure.suptitle(title, fontsize=18, fontweight="bold", x=0.01, ha="left")
    return figure


TITLE = "ACQB leads on synthetic data;\non real prompts, retry rules and graded answers decide"


if __name__ == "__main__":
    matplotlib.use("agg")
    runs = scores.add_scores(read_board().rows).filter(pl.col("policy") != OPTIMAL)
    made = analyse(runs)
    write_csv(RESULTS / "tables" / "arena_design.csv", made)
    draw_effects(made).savefig(RESULTS / "figures" / "arena_design.png", dpi=110)
    draw_summary(runs, TITLE).savefig(RESULTS / "figures" / "arena.png", dpi=100)
