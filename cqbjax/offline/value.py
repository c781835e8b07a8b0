"""Routers evaluated without a queue: the value of their routing, and of contexts.

Every number belongs to a seed: a fit on its offline split is evaluated on its own pool.
"""

import collections
import dataclasses
import pathlib
from collections.abc import Sequence
from typing import Any

import numpy as np
import polars as pl
import xarray as xr

from cqbjax.datasets import DatasetSource, Split, raw_utility
from cqbjax.offline import fits
from cqbjax.offline.routers import KNN, Logistic, Router
from cqbjax.offline.routers.knn import TIED
from cqbjax.results.summaries import ROUNDING, mean_ci

BASELINES = ORACLE, BEST_FIXED, FALLBACK, RANDOM = (
    "oracle", "best fixed on the pool", "best fixed, then another", "random LLM",
)  # fmt: skip
AVERAGES = "departure", "within_two", "utility"
# Of a card: its routers, its seeds, and the most offline prompts, which bound its time.
CARD_ROUTERS: dict[str, Router] = {"knn": KNN(), "logistic": Logistic(ridges=(1.0,))}
CARD_SEEDS, CARD_PROMPTS = range(5), 4000


def context_card(source: DatasetSource, cache_dir: pathlib.Path) -> pl.DataFrame:
    """Return what contexts are worth on a dataset: routers beside routing that ignores contexts.

    Args:
        source: the dataset.
        cache_dir: folder of cached fits.

    Returns:
        By policy the means over seeds, each with its 95% interval _low and _high: of
        `average_served` `departure`, as `at_once`, and `within_two`; and `over_fixed`, the
        departure probability over that of the best fixed server of the pool.
    """
    source = dataclasses.replace(source, offline_size=CARD_PROMPTS)
    data = fits.make_fit_data(source, cache_dir)
    by_seed: dict[str, list[dict[str, float]]] = collections.defaultdict(list)
    for seed in CARD_SEEDS:
        for label, numbers in evaluate_baselines(source, seed).items():
            by_seed[label].append(numbers)
        for label, router in CARD_ROUTERS.items():
            tuned = fits.tune_router(router, data, seed)
            by_seed[label].append(evaluate_router(tuned, data, seed))
    best = pl.DataFrame(by_seed[BEST_FIXED])["departure"]
    rows = [
        {"policy": label} | average_seeds(pl.DataFrame(each), None if label == BEST_FIXED else best)
        for label, each in by_seed.items()
    ]
    card = pl.DataFrame(rows, infer_schema_length=None).drop(pl.selectors.starts_with("utility"))
    return card.rename(lambda column: column.replace("departure", "at_once"))


def evaluate_router(router: Router, data: fits.FitData, seed: int) -> dict[str, float]:
    """Train a tuned router on a seed's offline split, and evaluate it on the seed's pool."""
    predicted = fits.predict_utilities({seed: router}, data)[seed]["utilities"]
    order = np.argsort(-predicted, axis=1, kind="stable").T
    parts = data.source.split(seed)
    return average_served(data.source, parts, order[0], order[min(1, len(order) - 1)])


def evaluate_baselines(source: DatasetSource, seed: int) -> dict[str, dict[str, float]]:
    """Evaluate routing without training: oracle, one LLM for all, that one with a fallback, random.

    The best LLM, of a prompt or of the pool, is the one with the greatest departure probability. If
    several tie, for example because utilities are cut to [0, 1], it is the one of these with the
    greatest utility. The fallback is the LLM that leaves the fewest prompts unsatisfied by both.
    """
    parts = source.split(seed)
    truth = source.probabilities[parts.pool]
    utility = raw_utility(source.table.performance, source.cost, source.rho)[parts.pool]
    best = np.where(is_largest(truth), utility, -np.inf).argmax(axis=1)
    mean = np.where(is_largest(truth.mean(axis=0)), utility.mean(axis=0), -np.inf)
    everyone = np.ones(len(truth), int)
    fixed = mean.argmax() * everyone
    left = ((1 - truth[:, fixed[:1]]) * (1 - truth)).mean(axis=0)
    left[fixed[0]] = np.inf
    every = [average_served(source, parts, j * everyone) for j in range(truth.shape[1])]
    random = {key: float(np.mean([one[key] for one in every])) for key in every[0]}
    random["within_two"] = float(np.mean(1 - (1 - truth.mean(axis=1)) ** 2))
    return {
        ORACLE: average_served(source, parts, best),
        BEST_FIXED: average_served(source, parts, fixed),
        FALLBACK: average_served(source, parts, fixed, left.argmin() * everyone),
        RANDOM: random,
    }


def average_served(
    source: DatasetSource, parts: Split, server: np.ndarray, second: np.ndarray | None = None
) -> dict[str, float]:
    """Average over the pool what a query is served.

    Args:
        source: the dataset.
        parts: the pool of I prompts.
        server: [I] LLM of the first attempt.
        second: [I] LLM of the second one; None: the same again.

    Returns:
        Of the first attempt `departure`, the mean departure probability, and `utility`, the mean
        performance - rho * cost; and `within_two`, the mean probability to depart in two attempts,
        which succeed independently.
    """
    utility = raw_utility(source.table.performance, source.cost, source.rho)
    once = source.probabilities[parts.pool, server]
    again = once if second is None else source.probabilities[parts.pool, second]
    return {
        "departure": float(once.mean()),
        "within_two": float(np.mean(1 - (1 - once) * (1 - again))),
        "utility": float(utility[parts.pool, server].mean()),
    }


def is_largest(values: np.ndarray) -> np.ndarray:
    """Return which values [..., N] are the largest of the last axis, or tie with it."""
    return values >= values.max(axis=-1, keepdims=True) - TIED


def average_seeds(served: pl.DataFrame, best: pl.Series | None) -> dict[str, Any]:
    """Average the columns `AVERAGES` over seeds, with intervals.

    Args:
        served: a row per seed.
        best: departure probabilities of the best fixed server, from which the difference
            `over_fixed` is taken; None: without it.
    """
    row: dict[str, Any] = {}
    for key in AVERAGES:
        row |= interval_columns(key, served[key])
    if best is not None:
        row |= interval_columns("over_fixed", served["departure"] - best)
    return row


def interval_columns(name: str, values: Sequence[float] | np.ndarray | pl.Series) -> dict[str, Any]:
    """Average over seeds, with Student's t interval; a single seed and equal seeds have none."""
    cell = mean_ci(xr.DataArray(np.asarray(values, float), dims="seed"))
    cell = cell.where(cell["high"] - cell["low"] > ROUNDING).assign(mean=cell["mean"])
    ends = {"": "mean", "_low": "low", "_high": "high"}
    numbers = {f"{name}{end}": float(cell[part]) for end, part in ends.items()}
    return {key: None if np.isnan(value) else value for key, value in numbers.items()}
