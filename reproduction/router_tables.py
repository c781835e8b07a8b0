"""Values of a study's routers, and their tables: means over seeds with 95% intervals.

Beside the value of routing as in a study stand those of hyper-parameters chosen once for all seeds,
and of routers trained without the cost. Differences are paired by seed.
"""

import dataclasses
import pathlib
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import polars as pl
import xarray as xr

from cqbjax.datasets import DatasetSource
from cqbjax.engine.progress import Reporter
from cqbjax.offline import fits, value
from cqbjax.offline.routers import KNN, Router
from cqbjax.offline.value import AVERAGES, BASELINES, BEST_FIXED, average_seeds, interval_columns
from cqbjax.results.policy_styles import find_style

# A seed that no reported study uses, for tuning once; compared with tuning on each seed's split.
ONE_SEED = 1_000_000
# Other ways to choose k, beside the tuned KNN, so that a weak KNN would be noticed.
OTHER_KNN: dict[str, Router] = {
    "KNN, k by error": KNN(criterion="error"),
    "KNN, k = 5": KNN(grid=(5,)),
    "KNN, k = 40": KNN(grid=(40,)),
}
# Prefixes of the variables: tuned as in a study, tuned once for all seeds, trained without cost.
PREFIXES = ("", "once_", "blind_")
NUMBERS = tuple(f"{prefix}{name}" for prefix in PREFIXES for name in AVERAGES)
WORDS = tuple(f"{prefix}chosen" for prefix in PREFIXES)


def evaluate_routers(
    source: DatasetSource, routers: Mapping[str, Router], seeds: Sequence[int],
    cache_dir: pathlib.Path, one_seed: int = ONE_SEED, progress: Reporter | None = None,
) -> xr.Dataset:  # fmt: skip
    """Evaluate each router on each seed's pool, beside routing that trains nothing.

    Args:
        source: the dataset.
        routers: label -> router.
        seeds: [S] seeds of the pools.
        cache_dir: folder of cached fits.
        one_seed: seed on whose offline split hyper-parameters are chosen once for all seeds.
        progress: reports the fits.

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
        for row, values in enumerate(value.evaluate_baselines(source, seed).values()):
            for name, number in values.items():
                variables[name][row, column] = number
    with progress.track_steps("fitting routers", len(routers) * len(seeds)) as done:
        for row, (label, router) in enumerate(routers.items(), len(BASELINES)):
            for column, seed in enumerate(seeds):
                ways = _evaluate_ways(label, router, data, seed, one_seed)
                for name, number in ways.items():
                    variables[name][row, column] = number
                done(1)
    coords = {"policy": [*BASELINES, *routers], "seed": list(seeds)}
    arrays = {name: (("policy", "seed"), values) for name, values in variables.items()}
    return xr.Dataset(arrays, coords)


def _evaluate_ways(
    label: str, router: Router, data: fits.FitData, seed: int, one_seed: int
) -> dict[str, Any]:
    """Evaluate a router tuned on its split, as in a study, tuned once, and without the cost."""

    def evaluate(prefix: str, router: Router, data: fits.FitData) -> dict[str, Any]:
        fields = dataclasses.fields(router)  # type: ignore[arg-type]
        grids = [getattr(router, field.name) for field in fields if field.name.endswith("grid")]
        # The fixed grids: k, clusters, layers, or CARROT's k of each estimate.
        chosen = ", ".join(str(grid[0]) for grid in grids if grid)
        values = {"chosen": chosen} | value.evaluate_router(router, data, seed)
        return {prefix + name: number for name, number in values.items()}

    tuned = fits.tune_router(router, data, seed)
    values = evaluate("", tuned, data)
    if tuned != router:
        values |= evaluate("once_", fits.tune_router(router, data, one_seed), data)
    if label not in OTHER_KNN:
        values |= evaluate("blind_", tuned, data._replace(rho=0.0))
    return values


def seed_table(values: xr.Dataset) -> pl.DataFrame:
    """Return a row per policy and seed of `evaluate_routers`.

    "..., performance only" is the router trained without the cost.
    """
    rows: list[dict[str, Any]] = []
    for label in values["policy"].values.tolist():
        for prefix, name in (
            ("", label),
            ("blind_", f"{find_style(label).name}, performance only"),
        ):
            for seed in values["seed"].values.tolist():
                cell = values.sel(policy=label, seed=seed)
                if np.isnan(cell[f"{prefix}departure"]):
                    continue
                row: dict[str, Any] = {"policy": name, "seed": seed}
                for key in AVERAGES:
                    row[key] = float(cell[f"{prefix}{key}"])
                row["chosen"] = str(cell[f"{prefix}chosen"].values) or None
                for key in ("chosen", "departure", "utility") if not prefix else ():
                    once = cell[f"once_{key}"].values
                    missing = not str(once) if key == "chosen" else np.isnan(once)
                    row[f"once_{key}"] = None if missing else once.item()
                rows.append(row)
    return pl.DataFrame(rows, infer_schema_length=None)


def router_table(by_seed: pl.DataFrame, origin: Mapping[str, Any]) -> pl.DataFrame:
    """Average the rows of `seed_table` over seeds.

    Args:
        by_seed: the rows.
        origin: columns that identify the dataset.

    Returns:
        By policy: `departure`, `within_two`, `utility`, `over_fixed` (departure probability over
        that of the best fixed server of the pool), `once_departure_gain` and `once_utility_gain`
        (what choosing hyper-parameters once for all seeds would add), each with its interval;
        `chosen` with how many seeds chose it, and `once_chosen`.
    """
    best = by_seed.filter(policy=BEST_FIXED).sort("seed")["departure"]
    rows = []
    for (label,), part in by_seed.group_by("policy", maintain_order=True):
        cell = part.sort("seed")
        row = dict(origin) | {"seeds": cell.height, "policy": label}
        row |= average_seeds(cell, None if label == BEST_FIXED else best)
        counts = Counter(cell["chosen"].drop_nulls()).most_common()
        listed = [f"{what} ({count})" if len(counts) > 1 else what for what, count in counts]
        row["chosen"] = "; ".join(listed) or None
        if cell["once_chosen"].null_count() == 0:
            row["once_chosen"] = cell["once_chosen"][0]
            for key in ("departure", "utility"):
                row |= interval_columns(f"once_{key}_gain", cell[f"once_{key}"] - cell[key])
        rows.append(row)
    return pl.DataFrame(rows, infer_schema_length=None)
