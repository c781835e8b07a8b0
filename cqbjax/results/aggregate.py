"""A sweep as one table for other tools: a row per point, rate, policy, round and metric.

Every swept key is a column. Means have intervals over seeds. Differences from a reference policy
are paired by seed, with Student's t and bootstrap intervals.
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import polars as pl
import xarray as xr

from cqbjax.core.files import write_atomic
from cqbjax.results.frame import (
    KEYS,
    LAST,
    add_attributes,
    drop_point_intervals,
    subtract_policies,
    summarise,
    tabulate_runs,
)
from cqbjax.results.metrics import list_metrics, list_shares, validate_metrics
from cqbjax.results.summaries import find_differing

RESAMPLES = 2000
MINUS = ("minus", "minus_low", "minus_high", "minus_boot_low", "minus_boot_high")


def aggregate_points(
    points: Sequence[xr.Dataset],
    metrics: Sequence[str] = ("gap", "throughput"),
    rounds: Sequence[int] = (),
    reference: str | None = None,
    seed: int = 0,
) -> pl.DataFrame:
    """Return the table.

    Args:
        points: as `results.load_points` returns them.
        metrics: names from `list_metrics(points)`.
        rounds: rounds to tabulate; empty: the last recorded one. If a round was not recorded, the
            last recorded round before it is used.
        reference: a policy; the values of every other policy are subtracted from its values, seed
            by seed.
        seed: seed of the bootstrap.

    Returns:
        The columns are every key in which points differ, arrival_rate, policy, round, metric, n
        (seeds), mean, low, high (95% Student's t) and sd. With `reference`, the columns `MINUS`
        hold the mean difference, its t interval and its bootstrap interval (both 95%); they are
        null for the reference.

    Raises:
        ValueError: an unknown metric or policy, or a round before the first recorded one.
    """
    validate_metrics(points, metrics)
    labels = dict.fromkeys(str(label) for point in points for label in point["policy"].values)
    if reference is not None and reference not in labels:
        raise ValueError(f"policy {reference} is in no point; choose from {', '.join(labels)}")
    values = tabulate_runs(points, metrics, rounds or [LAST])
    made = summarise(values, list_shares(list_metrics(points)))
    if reference is not None:
        differences = subtract_policies(values, reference)
        ends = {"mean": "minus", "low": "minus_low", "high": "minus_high"}
        minus = summarise(differences).select(*KEYS, pl.col(*ends).name.map(ends.__getitem__))
        minus = minus.hstack(_bootstrap_ends(differences, np.random.default_rng(seed)))
        made = made.join(minus, on=KEYS, how="left", maintain_order="left")
    minus_columns = MINUS if reference is not None else ()
    ordered = made.select(*KEYS, "n", *minus_columns, "mean", "low", "high", "sd")
    return add_attributes(drop_point_intervals(ordered), points, find_differing(points))


def _bootstrap_ends(differences: pl.DataFrame, draws: np.random.Generator) -> pl.DataFrame:
    """Return the ends of bootstrap intervals: percentiles of the means of resampled seeds."""
    tables = []
    sized = differences.with_row_index("place").with_columns(n=pl.col("values").list.len())
    for part in sized.partition_by("n", "round", "metric", maintain_order=True):
        n = part["n"][0]
        # How often each resample takes each seed: its mean is then one product.
        taken = draws.multinomial(n, np.full(n, 1 / n), size=RESAMPLES) / n
        means = part["values"].list.to_array(n).to_numpy() @ taken.T
        low, high = np.quantile(means, [0.025, 0.975], axis=-1)
        tables.append(part.select("place", minus_boot_low=low, minus_boot_high=high))
    return pl.concat(tables).sort("place").drop("place")


def save_aggregate(table: pl.DataFrame, stem: Path) -> tuple[Path, Path]:
    """Write `stem`.parquet and `stem`.csv atomically."""
    parquet, csv = (stem.with_name(f"{stem.name}.{kind}") for kind in ("parquet", "csv"))
    write_atomic(parquet, table.write_parquet)
    write_atomic(csv, table.write_csv)
    return parquet, csv
