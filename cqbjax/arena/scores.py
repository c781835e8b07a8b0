"""Scores of policies in tasks: normalised, tested for differences, aggregated over tasks.

A score is 0 for random routing and 1 for the oracle. Scores are aggregated over tasks as Agarwal et
al. (2021, "Deep Reinforcement Learning at the Edge of the Statistical Precipice") propose: by the
interquartile mean, with a bootstrap stratified by task. Policies of a task are compared by
Wilcoxon's signed-rank test over its seeds, with Holm's correction over policies.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import polars as pl

from cqbjax.core.labels import OPTIMAL
from cqbjax.results.frame import add_interval, drop_point_intervals

RANDOM = "random"  # the policy with score 0
RESAMPLES = 2000
SHARES = ("gave_up",)
LEVEL = 0.95
# Policies whose scores differ by more are not tied, even if no test tells them apart.
TIED = 0.02
BEST, TIE, UNDECIDED = "best", "tied", "undecided"


def add_scores(rows: pl.DataFrame) -> pl.DataFrame:
    """Add the normalised score of each run: 1 - gap / (mean gap of random routing in its task).

    Args:
        rows: a row for each `task`, `policy` and `seed`, with its `gap` in queries.

    Returns:
        The rows with `score`; null in a task in which random routing has no gap to the oracle.

    Raises:
        ValueError: a task without a run of random routing.
    """
    missing = sorted({*rows["task"]} - {*rows.filter(policy=RANDOM)["task"]})
    if missing:
        raise ValueError(f"task {missing[0]} has no run of {RANDOM}, which scores are measured by")
    scale = pl.col("gap").filter(policy=RANDOM).mean().over("task")
    return rows.with_columns(score=1 - pl.col("gap") / pl.when(scale > 0).then(scale))


def average(rows: pl.DataFrame, names: Sequence[str]) -> pl.DataFrame:
    """Average over seeds, with the 95% interval of the mean: Student's, of `SHARES` Wilson's.

    Args:
        rows: a row for each `task`, `policy` and `seed`.
        names: names of columns; nulls are left out.

    Returns:
        A row for each task and policy: `seeds`, and for each name its mean, `_low` and `_high`.
    """
    groups = rows.group_by("task", "policy", maintain_order=True)
    table = groups.agg(seeds=pl.len())
    for name in names:
        column = pl.col(name)
        agg = groups.agg(n=column.count(), mean=column.mean(), sd=column.std(), metric=pl.lit(name))
        ends = pl.col("low", "high").name.prefix(f"{name}_")
        one = add_interval(agg, LEVEL, SHARES)
        table = table.hstack(one.select(pl.col("mean").alias(name), ends))
    return drop_point_intervals(table)


def compare_with_best(rows: pl.DataFrame) -> pl.DataFrame:
    """Return the difference of each policy's gap to that of its task's best policy, seed by seed.

    Args:
        rows: a row for each `task`, `policy` and `seed`, with its `gap`.

    Returns:
        A row for each task and policy: `behind`, queries, with its interval; 0 for the best.
    """
    of_leader = pl.col("policy") == pl.col("task").replace_strict(find_best(rows))
    of_best = pl.col("gap").filter(of_leader).first().over("task", "seed")
    return average(rows.with_columns((pl.col("gap") - of_best).alias("behind")), ["behind"])


def find_best(rows: pl.DataFrame) -> dict[str, str]:
    """Return the policy with the smallest mean gap in each task, the oracle apart."""
    own = rows.filter(pl.col("policy") != OPTIMAL)
    means = own.group_by("task", "policy").agg(pl.col("gap").mean())
    first = means.sort("gap", "policy").group_by("task", maintain_order=True).first()
    return dict(first.select("task", "policy").sort("task").iter_rows())


def group_policies(rows: pl.DataFrame) -> pl.DataFrame:
    """Group the policies of each task that do not differ significantly.

    The first group of a task is its best policy and every policy that a signed-rank test over seeds
    does not distinguish from it; the second group begins with the best of the others, and so on.
    Holm's correction keeps the probability of any false rejection among the policies compared with
    the best of a group below 1 - LEVEL. A few seeds with large gaps do not decide the test, but
    they do decide which policy has the smallest mean gap.

    Args:
        rows: a row for each `task`, `policy` and `seed`, with its `gap`; the oracle is ignored.

    Returns:
        A row for each task and policy: its `group`, from 1; its `standing` there, `BEST`, `TIE` if
        its mean score is within `TIED` of the best's, else `UNDECIDED`; and `same_as`, the first
        policy with the same gap at every seed, if there is another.
    """
    own, groups = add_scores(rows).filter(pl.col("policy") != OPTIMAL), list[tuple[Any, ...]]()
    for (task,), of_task in own.partition_by("task", as_dict=True).items():
        wide = of_task.sort("policy").pivot("policy", index="seed", values="gap").drop_nulls()
        score = dict(of_task.group_by("policy").agg(pl.col("score").mean()).iter_rows())
        left, number = sorted(wide.columns[1:], key=lambda x: (wide[x].mean(), x)), 0
        while left:
            best, number = left[0], number + 1
            tests = [paired_p((wide[label] - wide[best]).to_numpy()) for label in left[1:]]
            rejected = dict(zip(left, [False, *holm(tests, 1 - LEVEL)], strict=True))
            for label in (label for label in left if not rejected[label]):
                far = abs((score[label] or 0.0) - (score[best] or 0.0)) > TIED
                standing = BEST if label == best else UNDECIDED if far else TIE
                first = next(x for x in wide.columns[1:] if wide[x].equals(wide[label]))
                same = first if first != label else None
                groups.append((task, label, number, standing, same))
            left = [label for label in left if rejected[label]]
    names = ["task", "policy", "group", "standing", "same_as"]
    return pl.DataFrame(groups, names, orient="row", infer_schema_length=None)


def paired_p(differences: np.ndarray) -> float:
    """Return the p value of Wilcoxon's two-sided signed-rank test of the differences by seed.

    Differences of 0 are ranked and then dropped (Pratt 1959). It is 1 if all are 0.
    """
    from scipy.stats import wilcoxon  # slow to import

    return float(wilcoxon(differences, zero_method="pratt").pvalue) if differences.any() else 1.0


def holm(p_values: Sequence[float], alpha: float = 0.05) -> list[bool]:
    """Return which hypotheses Holm's step-down procedure (1979) rejects.

    The i-th smallest p value of m, counted from 0, is compared with alpha / (m - i), up to the
    first that is not below.
    """
    rejected, order = [False] * len(p_values), np.argsort(p_values, kind="stable")
    for place, number in enumerate(order):
        if not p_values[number] <= alpha / (len(p_values) - place):
            break
        rejected[number] = True
    return rejected


def iqm(scores: np.ndarray) -> np.ndarray:
    """Return the interquartile mean of all runs of all tasks: [..., S, tasks] -> [...]."""
    from scipy.stats import trim_mean

    return np.asarray(trim_mean(scores.reshape(*scores.shape[:-2], -1), 0.25, axis=-1))


def bootstrap(
    scores: np.ndarray, statistic: Callable[[np.ndarray], np.ndarray]
) -> tuple[np.ndarray, np.ndarray]:
    """Return the ends of the 95% percentile interval of the bootstrap stratified by task.

    Args:
        scores: [S, tasks]; the runs of each task are drawn with replacement, independently.
        statistic: [..., S, tasks] -> [...].
    """
    drawn = np.random.default_rng(0).integers(len(scores), size=(RESAMPLES, *scores.shape))
    values = statistic(np.take_along_axis(scores[None], drawn, axis=1))
    low, high = np.quantile(values, [(1 - LEVEL) / 2, (1 + LEVEL) / 2], axis=0)
    return low, high


def score_matrix(rows: pl.DataFrame, policy: str, tasks: Sequence[str]) -> np.ndarray | None:
    """Return a policy's scores [S, tasks]; None if it did not run at every seed of each task."""
    own = rows.filter(pl.col("policy") == policy, pl.col("task").is_in(tasks))
    wide = own.pivot("task", index="seed", values="score").select(
        pl.col(task) if task in {*own["task"]} else pl.lit(None).alias(task) for task in tasks
    )
    return None if not wide.height or sum(wide.null_count().row(0)) else wide.to_numpy()


def aggregate_scores(rows: pl.DataFrame, tasks: Sequence[str]) -> pl.DataFrame:
    """Aggregate the scores of each policy over tasks.

    Args:
        rows: from `add_scores`.
        tasks: names; a policy that did not run in all of them has no row.

    Returns:
        `policy`, `tasks` (the number of them), `iqm`, `iqm_low`, `iqm_high`, best first.
    """
    table = []
    for label in rows["policy"].unique(maintain_order=True):
        scores = score_matrix(rows, label, tasks)
        if scores is not None:
            low, high = bootstrap(scores, iqm)
            table.append((label, len(tasks), float(iqm(scores)), float(low), float(high)))
    names = ["policy", "tasks", "iqm", "iqm_low", "iqm_high"]
    scored = pl.DataFrame(table, names, orient="row").sort("iqm", descending=True)
    return drop_point_intervals(scored)
