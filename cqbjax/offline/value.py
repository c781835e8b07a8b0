"""Routers evaluated without a queue: the value of their routing.

Every number belongs to a seed: a fit on its offline split is evaluated on its own pool.
`value_tables.py` makes tables of these numbers.
"""

import dataclasses
import pathlib
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np
import xarray as xr

from cqbjax.datasets import DatasetSource, Split, raw_utility
from cqbjax.engine.progress import Reporter
from cqbjax.offline import fits
from cqbjax.offline.fits import FitData
from cqbjax.offline.routers import KNN, Router
from cqbjax.offline.routers.knn import TIED

# A seed that no reported study uses, for tuning once; compared with tuning on each seed's split.
ONE_SEED = 1_000_000
# Other ways to choose k, beside the tuned KNN, so that a weak KNN would be noticed.
OTHER_KNN: dict[str, Router] = {
    "KNN, k by error": KNN(criterion="error"),
    "KNN, k = 5": KNN(grid=(5,)),
    "KNN, k = 40": KNN(grid=(40,)),
}
BASELINES = ORACLE, BEST_FIXED, FALLBACK, RANDOM = (
    "oracle", "best fixed on the pool", "best fixed, then another", "random LLM",
)  # fmt: skip
# Prefixes of the variables: tuned as in a study, tuned once for all seeds, trained without cost.
PREFIXES = ("", "once_", "blind_")
AVERAGES = "departure", "within_two", "utility"
NUMBERS = tuple(f"{prefix}{name}" for prefix in PREFIXES for name in AVERAGES)
WORDS = tuple(f"{prefix}chosen" for prefix in PREFIXES)


def evaluate_routers(
    source: DatasetSource, routers: Mapping[str, Router], seeds: Sequence[int],
    cache_dir: pathlib.Path, one_seed: int = ONE_SEED, progress: Reporter | None = None,
    prefixes: Collection[str] = PREFIXES,
) -> xr.Dataset:  # fmt: skip
    """Evaluate each router on each seed's pool, beside routing that trains nothing.

    Args:
        source: the dataset.
        routers: label -> router.
        seeds: [S] seeds of the pools.
        cache_dir: folder of cached fits.
        one_seed: seed on whose offline split hyper-parameters are chosen once for all seeds.
        progress: reports the fits.
        prefixes: those of `PREFIXES` to evaluate.

    Returns:
        Variables over policy and seed, which are those of `average_served`; `chosen`, the
        hyper-parameters chosen on the seed's own split; `once_...`, the same with hyper-parameters
        chosen once; and `blind_...`, the same for the router trained without the cost, with the
        hyper-parameters `chosen`. They are NaN, or an empty text, if a router has nothing to choose
        or to train.
    """
    progress = progress or Reporter()
    data = fits.make_fit_data(source, cache_dir)
    shape = len(BASELINES) + len(routers), len(seeds)
    variables = {name: np.full(shape, np.nan) for name in NUMBERS}
    variables |= {name: np.full(shape, "", object) for name in WORDS}
    for column, seed in enumerate(seeds):
        for row, values in enumerate(evaluate_baselines(source, seed).values()):
            for name, value in values.items():
                variables[name][row, column] = value
    with progress.track_steps("fitting routers", len(routers) * len(seeds)) as done:
        for row, (label, router) in enumerate(routers.items(), len(BASELINES)):
            for column, seed in enumerate(seeds):
                ways = _evaluate_ways(label, router, data, seed, one_seed, prefixes)
                for name, value in ways.items():
                    variables[name][row, column] = value
                done(1)
    coords = {"policy": [*BASELINES, *routers], "seed": list(seeds)}
    arrays = {name: (("policy", "seed"), values) for name, values in variables.items()}
    return xr.Dataset(arrays, coords)


def _evaluate_ways(
    label: str, router: Router, data: FitData, seed: int, one_seed: int, prefixes: Collection[str]
) -> dict[str, Any]:
    """Evaluate a router tuned on its split, as in a study, tuned once, and without the cost."""

    def evaluate(prefix: str, router: Router, data: FitData) -> dict[str, Any]:
        predicted = fits.predict_utilities({seed: router}, data)[seed]
        first, second = np.argsort(-predicted, axis=1, kind="stable").T[[0, min(1, servers - 1)]]
        fields = dataclasses.fields(router)  # type: ignore[arg-type]
        grids = [getattr(router, field.name) for field in fields if field.name.endswith("grid")]
        # The fixed grids: k, clusters, layers, or CARROT's k of each estimate.
        chosen = ", ".join(str(grid[0]) for grid in grids if grid)
        values = {"chosen": chosen} | average_served(source, source.split(seed), first, second)
        return {prefix + name: value for name, value in values.items()}

    source, tuned = data.source, fits.tune_router(router, data, seed)
    servers = source.table.num_servers
    values = evaluate("", tuned, data)
    if tuned != router and "once_" in prefixes:
        values |= evaluate("once_", fits.tune_router(router, data, one_seed), data)
    if label not in OTHER_KNN and "blind_" in prefixes:
        values |= evaluate("blind_", tuned, data._replace(rho=0.0))
    return values


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
