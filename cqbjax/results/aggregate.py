"""A sweep as one table for other tools: a row per point, rate, policy, round and metric.

Every swept key is a column. Means have intervals over seeds. Differences from a reference policy
are paired by seed.
"""

from collections.abc import Sequence
from pathlib import Path

import polars as pl
import xarray as xr

from cqbjax.core.files import write_atomic
from cqbjax.results import frame as frames
from cqbjax.results.frame import KEYS
from cqbjax.results.metrics import list_metrics, list_shares, validate_metrics
from cqbjax.results.summaries import find_differing

MINUS = ("minus", "minus_low", "minus_high")


def aggregate_points(
    points: Sequence[xr.Dataset],
    metrics: Sequence[str] = ("gap", "throughput"),
    rounds: Sequence[int] = (),
    reference: str | None = None,
) -> pl.DataFrame:
    """Return the table.

    Args:
        points: as `results.load_points` returns them.
        metrics: names from `list_metrics(points)`.
        rounds: rounds to tabulate; empty: the last recorded one. If a round was not recorded, the
            last recorded round before it is used.
        reference: a policy; the values of every other policy are subtracted from its values, seed
            by seed.

    Returns:
        The columns are every key in which points differ, arrival_rate, policy, round, metric, n
        (seeds), mean, low, high (95% Student's t) and sd. With `reference`, the columns `MINUS`
        hold the mean difference and its interval (95% Student's t); they are null for the
        reference.

    Raises:
        ValueError: an unknown metric or policy, or a round before the first recorded one.
    """
    validate_metrics(points, metrics)
    labels = dict.fromkeys(str(label) for point in points for label in point["policy"].values)
    if reference is not None and reference not in labels:
        raise ValueError(f"policy {reference} is in no point; choose from {', '.join(labels)}")
    values = frames.tabulate_runs(points, metrics, rounds or [frames.LAST])
    made = frames.summarise(values, list_shares(list_metrics(points)))
    if reference is not None:
        minus = frames.summarise(frames.subtract_policies(values, reference))
        minus = minus.select(*KEYS, minus="mean", minus_low="low", minus_high="high")
        made = made.join(minus, on=KEYS, how="left", maintain_order="left")
    shown = (*KEYS, "n", *(MINUS if reference is not None else ()), "mean", "low", "high", "sd")
    made = frames.drop_point_intervals(made.select(shown))
    return frames.add_attributes(made, points, find_differing(points))


def save_aggregate(table: pl.DataFrame, stem: Path) -> tuple[Path, Path]:
    """Write `stem`.parquet and `stem`.csv atomically."""
    parquet, csv = (stem.with_name(f"{stem.name}.{kind}") for kind in ("parquet", "csv"))
    write_atomic(parquet, table.write_parquet)
    write_atomic(csv, table.write_csv)
    return parquet, csv
