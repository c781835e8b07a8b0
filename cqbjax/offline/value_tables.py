"""Tables of `value`: means over seeds with 95% intervals.

Differences are paired by seed.
"""

import dataclasses
import pathlib
import warnings
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import polars as pl
import xarray as xr

from cqbjax.datasets import DatasetSource
from cqbjax.offline.routers import KNN, Logistic, Router
from cqbjax.offline.value import AVERAGES, BEST_FIXED, evaluate_routers
from cqbjax.results.policy_styles import find_style
from cqbjax.results.summaries import ROUNDING, mean_ci

# Of a card: its routers, its seeds, and the most offline prompts, which bound its time.
CARD_ROUTERS: dict[str, Router] = {"knn": KNN(), "logistic": Logistic(ridges=(1.0,))}
CARD_SEEDS, CARD_PROMPTS = range(5), 4000


def context_card(source: DatasetSource, cache_dir: pathlib.Path) -> pl.DataFrame:
    """Return what contexts are worth on a dataset: routers beside routing that ignores contexts.

    Args:
        source: the dataset.
        cache_dir: folder of cached fits.

    Returns:
        By policy: `departure`, as `at_once`, `within_two` and `over_fixed` of `router_table`.
    """
    source = dataclasses.replace(source, offline_size=CARD_PROMPTS)
    warnings.filterwarnings("ignore", message=".*of its grid")  # the card shows no choice
    values = evaluate_routers(source, CARD_ROUTERS, CARD_SEEDS, cache_dir, prefixes=("",))
    table = router_table(seed_table(values), {})
    shown = table.select("policy", pl.selectors.matches("^(departure|within_two|over_fixed)"))
    return shown.rename(lambda column: column.replace("departure", "at_once"))


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
        for key in AVERAGES:
            row |= interval_columns(key, cell[key])
        if label != BEST_FIXED:
            row |= interval_columns("over_fixed", cell["departure"] - best)
        counts = Counter(cell["chosen"].drop_nulls()).most_common()
        listed = [f"{what} ({count})" if len(counts) > 1 else what for what, count in counts]
        row["chosen"] = "; ".join(listed) or None
        if cell["once_chosen"].null_count() == 0:
            row["once_chosen"] = cell["once_chosen"][0]
            for key in ("departure", "utility"):
                row |= interval_columns(f"once_{key}_gain", cell[f"once_{key}"] - cell[key])
        rows.append(row)
    return pl.DataFrame(rows, infer_schema_length=None)


def interval_columns(name: str, values: Sequence[float] | np.ndarray | pl.Series) -> dict[str, Any]:
    """Average over seeds, with Student's t interval; a single seed and equal seeds have none."""
    cell = mean_ci(xr.DataArray(np.asarray(values, float), dims="seed"))
    cell = cell.where(cell["high"] - cell["low"] > ROUNDING).assign(mean=cell["mean"])
    ends = {"": "mean", "_low": "low", "_high": "high"}
    numbers = {f"{name}{end}": float(cell[part]) for end, part in ends.items()}
    return {key: None if np.isnan(value) else value for key, value in numbers.items()}
