"""Scores of policies over tasks: normalised, told apart, and put together.

A score is 0 for random routing and 1 for the yardstick. Over tasks scores are put together as
Agarwal et al. (2021, "Deep Reinforcement Learning at the Edge of the Statistical Precipice") do:
the interquartile mean, performance profiles, and the bootstrap stratified by task. Policies of a
task are told apart by paired t tests over its seeds, with Holm's correction over tasks.
"""

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import polars as pl

from cqbjax.core.labels import OPTIMAL
from cqbjax.results.frame import with_interval, without_points

RAND = "random"
RESAMPLES = 2000
SHARES = ("gave_up",)
LEVEL = 0.95
# Half of the runs count for an interquartile mean: a quarter is cut at either end.
CUT = 0.25


def scored(rows: pl.DataFrame) -> pl.DataFrame:
    """Add the normalised score of each run: 1 - gap / (mean gap of random routing in its task).

    Args:
        rows: a row a `task`, `policy` and `seed`, with its `gap` in queries.

    Returns:
        The rows with `score`; null in a task in which random routing is not behind the yardstick.

    Raises:
        ValueError: a task has no row of random routing.
    """
    floor = rows.filter(policy=RAND).group_by("task").agg(floor=pl.col("gap").mean())
    lacking = sorted({*rows["task"]} - {*floor["task"]})
    if lacking:
        raise ValueError(f"task {lacking[0]} has no run of {RAND}, which scores are measured by")
    of_task = pl.when(pl.col("floor") > 0).then(pl.col("floor"))
    joined = rows.join(floor, on="task", how="left", maintain_order="left")
    return joined.with_columns(score=1 - pl.col("gap") / of_task).drop("floor")


def means(rows: pl.DataFrame, names: Sequence[str]) -> pl.DataFrame:
    """Average over seeds, with the 95% interval of the mean: Student's, of `SHARES` Wilson's.

    Args:
        rows: a row a `task`, `policy` and `seed`.
        names: of columns; nulls are left out.

    Returns:
        A row a task and policy: `seeds`, and for each name its mean, `_low` and `_high`.
    """
    each = rows.group_by("task", "policy", maintain_order=True)
    made = each.agg(seeds=pl.len())
    for name in names:
        column = pl.col(name)
        agg = each.agg(n=column.count(), mean=column.mean(), sd=column.std(), metric=pl.lit(name))
        one = with_interval(agg, LEVEL, SHARES)
        made = made.hstack(one.select(pl.col("mean").alias(name),
                                      pl.col("low", "high").name.prefix(f"{name}_")))  # fmt: skip
    return without_points(made)


def behind(rows: pl.DataFrame, best: Mapping[str, str]) -> pl.DataFrame:
    """Say how far each policy is behind a task's best, seed by seed.

    Args:
        rows: a row a `task`, `policy` and `seed`, with its `gap`.
        best: task -> the policy that others are compared with.

    Returns:
        A row a task and policy: `behind`, queries, with its interval; 0 for the best itself.
    """
    leader = pl.col("task").replace_strict(dict(best))
    own = rows.filter(pl.col("policy") == leader).select("task", "seed", of_best="gap")
    both = rows.join(own, on=("task", "seed"), how="left", maintain_order="left")
    return means(both.with_columns(behind=pl.col("gap") - pl.col("of_best")), ["behind"])


def leaders(rows: pl.DataFrame) -> dict[str, str]:
    """Return the policy of the smallest mean gap of each task; the yardstick is none."""
    mean = rows.filter(pl.col("policy") != OPTIMAL).group_by("task", "policy").agg(
        pl.col("gap").mean()
    )  # fmt: skip
    first = mean.sort("gap", "policy").group_by("task", maintain_order=True).first()
    return dict(first.select("task", "policy").sort("task").iter_rows())


def groups(rows: pl.DataFrame) -> pl.DataFrame:
    """Group the policies of each task that cannot be told apart.

    The first group of a task is its best policy and all that a paired t test over its seeds does
    not tell from it; the second begins with the best of the others, and so on. Of a policy's tests,
    one in each task, Holm's correction holds the chance of any false one to 1 - LEVEL.

    Args:
        rows: a row a `task`, `policy` and `seed`, with its `gap`; the yardstick is left out.

    Returns:
        A row a task and policy with its `group`, from 1.
    """
    left = rows.filter(pl.col("policy") != OPTIMAL)
    made, number = list[tuple[str, str, int]](), 0
    while left.height:
        number += 1
        first, p_values = leaders(left), dict[str, dict[str, float]]()
        by_task = {str(key[0]): own for key, own in left.partition_by("task", as_dict=True).items()}
        for task, own in by_task.items():
            wide = own.pivot("policy", index="seed", values="gap").drop_nulls()
            for label in wide.columns[1:]:
                apart = (wide[label] - wide[first[task]]).to_numpy()
                p_values.setdefault(label, {})[task] = paired_p(apart)
        here = set[tuple[str, str]]()
        for label, of_task in p_values.items():
            told = holm(list(of_task.values()), 1 - LEVEL)
            here |= {(task, label) for task, apart in zip(of_task, told, strict=True) if not apart}
        made += [(task, label, number) for task, label in sorted(here)]
        done = pl.DataFrame(sorted(here), ["task", "policy"], orient="row")
        left = left.join(done, on=("task", "policy"), how="anti", maintain_order="left")
    return pl.DataFrame(made, ["task", "policy", "group"], orient="row")


def paired_p(apart: np.ndarray) -> float:
    """Return the p value of a two-sided paired t test, from the differences by seed.

    It is 1 where nothing differs, or of a single seed; 0 where all differ by the same.
    """
    from scipy.special import stdtr

    n, mean = len(apart), float(apart.mean()) if len(apart) else 0.0
    if n < 2 or not apart.any():
        return 1.0
    error = float(apart.std(ddof=1)) / n**0.5
    return float(2 * stdtr(n - 1, -abs(mean) / error)) if error > 0 else 0.0


def holm(p_values: Sequence[float], alpha: float = 0.05) -> list[bool]:
    """Return which hypotheses are rejected by Holm's step-down procedure (1979).

    The i-th smallest p value of m, from 0, is held against alpha / (m - i), until one is not below.
    """
    rejected, order = [False] * len(p_values), np.argsort(p_values, kind="stable")
    for place, number in enumerate(order):
        if not p_values[number] <= alpha / (len(p_values) - place):
            break
        rejected[number] = True
    return rejected


def iqm(scores: np.ndarray) -> np.ndarray:
    """Return the interquartile mean of all runs of all tasks: [..., S, tasks] -> [...].

    The mean of the middle half, a quarter (rounded down) cut at either end.
    """
    flat = np.sort(scores.reshape(*scores.shape[:-2], -1), axis=-1)
    cut = int(CUT * flat.shape[-1])
    return np.asarray(flat[..., cut : flat.shape[-1] - cut].mean(axis=-1))


def profile(scores: np.ndarray, taus: np.ndarray) -> np.ndarray:
    """Return the share of runs whose score is above tau, for each tau.

    [..., S, tasks] -> [..., taus].
    """
    flat = np.sort(scores.reshape(-1, scores.shape[-2] * scores.shape[-1]), axis=-1)
    below = np.stack([np.searchsorted(row, taus, side="right") for row in flat])
    return (1 - below / flat.shape[-1]).reshape(*scores.shape[:-2], len(taus))


def bootstrapped(
    scores: np.ndarray, put_together: Callable[[np.ndarray], np.ndarray]
) -> tuple[np.ndarray, np.ndarray]:
    """Return the ends of the 95% percentile interval of the bootstrap stratified by task.

    Args:
        scores: [S, tasks]; of each task its runs are drawn with replacement, by themselves.
        put_together: of [..., S, tasks] makes [...].
    """
    drawn = np.random.default_rng(0).integers(len(scores), size=(RESAMPLES, *scores.shape))
    made = put_together(np.take_along_axis(scores[None], drawn, axis=1))
    low, high = np.quantile(made, [(1 - LEVEL) / 2, (1 + LEVEL) / 2], axis=0)
    return low, high


def matrix(rows: pl.DataFrame, policy: str, tasks: Sequence[str]) -> np.ndarray | None:
    """Return a policy's scores [S, tasks]; None where it did not run at every seed of each."""
    own = rows.filter(pl.col("policy") == policy, pl.col("task").is_in(tasks))
    wide = own.pivot("task", index="seed", values="score").select(
        pl.col(task) if task in {*own["task"]} else pl.lit(None).alias(task) for task in tasks
    )
    return None if not wide.height or sum(wide.null_count().row(0)) else wide.to_numpy()


def overall(rows: pl.DataFrame, tasks: Sequence[str]) -> pl.DataFrame:
    """Put the scores of several tasks together.

    Args:
        rows: from `scored`.
        tasks: some of theirs; a policy that did not run in all of them has no row.

    Returns:
        `policy`, `tasks` (how many), `iqm`, `iqm_low`, `iqm_high`, best first.
    """
    made = []
    for label in rows["policy"].unique(maintain_order=True):
        scores = matrix(rows, label, tasks)
        if scores is not None:
            low, high = bootstrapped(scores, iqm)
            made.append((label, len(tasks), float(iqm(scores)), float(low), float(high)))
    names = ["policy", "tasks", "iqm", "iqm_low", "iqm_high"]
    return without_points(pl.DataFrame(made, names, orient="row").sort("iqm", descending=True))
