"""Stored arrays as one long table, from which all tables and figures are made.

A row holds the values of all seeds for a point, arrival rate, policy, round and metric. Differences
between policies or rounds are computed seed by seed, before means and intervals.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import xarray as xr

from cqbjax.core.files import write_atomic
from cqbjax.core.labels import OPTIMAL
from cqbjax.results import summaries
from cqbjax.results.files import shape_of
from cqbjax.results.metrics import STANDARD, list_metrics, list_shares, validate_metrics
from cqbjax.results.summaries import ROUNDING

KEYS = ("point", "arrival_rate", "policy", "round", "metric")
MINUS = ("minus", "minus_low", "minus_high")
LAST = 2**62  # selects the last recorded round
_DIMS = ("round", "point", "arrival_rate", "policy", "seed")


def tabulate_runs(
    points: Sequence[xr.Dataset], names: Sequence[str], rounds: Sequence[int] | None = None
) -> pl.DataFrame:
    """Return the table.

    Args:
        points: as `results.load_points` returns them.
        names: names of metrics or of stored arrays.
        rounds: rounds to tabulate; None: all recorded ones. If a round was not recorded, the last
            recorded round before it is used.

    Returns:
        The columns `KEYS`, where point is the index in `points`, and `values`, a list with a value
        for each seed. A metric that is recorded once per run has a row at the last recorded round
        only.

    Raises:
        ValueError: no point, or a round before the first recorded one.
    """
    groups = _group_shapes(points)
    return pl.concat(_tabulate_shape(points, some, names, rounds) for some in groups)


def _group_shapes(points: Sequence[xr.Dataset]) -> list[list[int]]:
    """Return the indices of points, grouped by shape."""
    if not points:
        raise ValueError("points is empty: at least one result is needed.")
    groups: dict[Any, list[int]] = {}
    for number, point in enumerate(points):
        groups.setdefault(shape_of(point), []).append(number)
    return list(groups.values())


def _tabulate_shape(
    points: Sequence[xr.Dataset], numbers: Sequence[int], names: Sequence[str],
    rounds: Sequence[int] | None,
) -> pl.DataFrame:  # fmt: skip
    """Return the rows of points of one shape: by round, metric, point, rate and policy."""
    data, metrics = _stack_points([points[i] for i in numbers], rounds), list_metrics(points)
    sizes = {dim: 1 if dim == "seed" else data.sizes[dim] for dim in _DIMS}
    at = np.indices([*sizes.values()][:-1]).reshape(4, -1)
    keys = pl.DataFrame({
        "point": np.asarray(numbers)[at[1]], "arrival_rate": data["rates"].values[at[1], at[2]],
        "policy": pl.Series([str(label) for label in data["policy"].values]).gather(at[3]),
        "round": data["round"].values.astype(np.int64)[at[0]],
    })  # fmt: skip
    rows = []
    for name in (name for name in names if name in STANDARD or name in data):
        metric = metrics.get(name)
        by_seed = (metric.of(data) if metric else data[name]).astype(float)
        # Broadcast over policies; without seeds each has one value.
        missing = {dim: size for dim, size in sizes.items() if dim not in by_seed.dims}
        values = by_seed.expand_dims(missing).transpose(*_DIMS).values
        lists = pl.Series(values.reshape(-1, values.shape[-1])).arr.to_list()
        own = keys.with_columns(metric=pl.lit(name), values=lists)
        if metric and metric.of_run:
            own = own.filter(round=int(points[numbers[0]]["round"].values.max()))
        rows.append(own)
    return pl.concat(rows).sort("round", maintain_order=True)


def _stack_points(same: Sequence[xr.Dataset], rounds: Sequence[int] | None) -> xr.Dataset:
    """Stack points of one shape, so that summaries of a thousand are vectorised."""
    asked = [int(summaries.select_round(same[0], t)["round"]) for t in rounds or ()]
    taken = np.unique(np.asarray(same[0]["round"].values if rounds is None else asked))
    thin = [summaries.add_time_per_arrival(point).sel(round=taken) for point in same]
    data: dict[str, Any] = {
        str(name): (("point", *array.dims), np.stack([one[name].values for one in thin]))
        for name, array in thin[0].data_vars.items()
        if all(name in one for one in thin)
    }
    rates = np.stack([point["arrival_rate"].values for point in same]).astype(float)
    coords = {"policy": thin[0]["policy"].values, "round": taken}
    return xr.Dataset(data, coords | {"rates": (("point", "arrival_rate"), rates)})


def subtract_policies(table: pl.DataFrame, policy: str) -> pl.DataFrame:
    """Return a policy's values minus those of every other policy, seed by seed."""
    minuend = table.filter(policy=policy).drop("policy")
    others = table.filter(pl.col("policy") != policy)
    on = [key for key in KEYS if key != "policy"]
    both = others.join(minuend, on=on, suffix="_of", maintain_order="left")
    return both.with_columns(values=pl.col("values_of") - pl.col("values")).drop("values_of")


def tabulate_growth(points: Sequence[xr.Dataset], name: str, rounds: Sequence[int]) -> pl.DataFrame:
    """Return the growth of a metric over the second half of the rounds, seed by seed.

    Args:
        points: as `results.load_points` returns them.
        name: name of the metric.
        rounds: as in `tabulate_runs`.

    Returns:
        As `tabulate_runs`, with `since`: the last recorded round of the first half, or the first.
    """
    tables = []
    for some in _group_shapes(points):
        first = int(points[some[0]]["round"].values.min())
        for end in _tabulate_shape(points, some, [name], rounds).partition_by("round"):
            half = max(end["round"][0] // 2, first)
            middle = _tabulate_shape(points, some, [name], [half]).rename({"round": "since"})
            on = [key for key in KEYS if key != "round"]
            both = end.join(middle, on=on, suffix="_then", maintain_order="left")
            tables.append(both.with_columns(values=pl.col("values") - pl.col("values_then")))
    return pl.concat(tables).drop("values_then")


def tabulate_curves(points: Sequence[xr.Dataset], names: Sequence[str], most: int) -> pl.DataFrame:
    """Return metrics at no more than `most` of the recorded rounds.

    The oracle has rows for its queue length only, which every point records.
    """
    tables = []
    for number, point in enumerate(points):
        recorded = point.sizes["round"]
        indices = np.linspace(0, recorded - 1, min(recorded, most)).round().astype(np.int64)
        thin = point.isel(round=np.unique(indices))
        made = [tabulate_runs([thin], names).filter(pl.col("policy") != OPTIMAL)]
        if "queue_length" in names:
            best = tabulate_runs([thin.isel(policy=[0])], ["optimal_queue_length"])
            words = {"policy": pl.lit(OPTIMAL), "metric": pl.lit("queue_length")}
            made.append(best.with_columns(**words))
        tables += [one.with_columns(point=pl.lit(number, pl.Int64)) for one in made]
    return pl.concat(tables)


def summarise(table: pl.DataFrame, shares: Sequence[str] = ()) -> pl.DataFrame:
    """Replace `values` by n, mean, sd and the 95% interval low and high over seeds.

    Args:
        table: from `tabulate_runs`.
        shares: metrics that lie in [0, 1], from `metrics.list_shares`.
    """
    sized = table.with_columns(n=pl.col("values").list.len().cast(pl.Int64)).with_row_index("place")
    parts = []
    for part in sized.partition_by("n") or [sized]:
        n = part["n"][0] if part.height else 1
        each = part["values"].list.to_array(n).to_numpy()
        # Summed along rows, so that the bits of a mean do not depend on other rows.
        mean = each.sum(axis=-1) / n
        spread = ((each - mean[:, None]) ** 2).sum(axis=-1)
        sd = np.sqrt(spread / (n - 1)) if n > 1 else np.full(len(mean), np.nan)
        parts.append(part.with_columns(mean=mean, sd=sd))
    return add_interval(pl.concat(parts).sort("place").drop("place", "values"), shares=shares)


def add_interval(
    table: pl.DataFrame, level: float = 0.95, shares: Sequence[str] = ()
) -> pl.DataFrame:
    """Add low and high, the interval of the mean: Student's t, or Wilson's for shares.

    Both are null for a single seed.
    """
    n = table["n"].to_numpy()
    mean, sd = (table[name].cast(pl.Float64).to_numpy() for name in ("mean", "sd"))
    fits: Any = False
    if shares:
        # Values in [0, 1] cannot vary more than this.
        fits = (mean >= 0) & (mean <= 1) & ((n - 1) * sd**2 <= n * mean * (1 - mean) + ROUNDING)
        fits &= table["metric"].is_in(list(shares)).to_numpy()
    low, high = summaries.find_interval(n, mean, sd, level, fits)
    return table.with_columns(low=pl.Series(low), high=pl.Series(high)).with_columns(
        pl.col("mean", "sd", "low", "high").fill_nan(None)
    )


def drop_point_intervals(table: pl.DataFrame) -> pl.DataFrame:
    """Replace intervals of length zero by null: equal values at all seeds do not show certainty."""
    made = []
    for low in (c for c in table.columns if c == "low" or c.endswith("_low")):
        ends = low, f"{low.removesuffix('low')}high"
        if ends[1] not in table.columns:
            continue
        high = pl.col(ends[1]).cast(pl.Float64)  # without a type if all values are null
        wide = high - pl.col(low) > ROUNDING * pl.max_horizontal(1, high.abs())
        made += [pl.when(wide).then(end).alias(end) for end in ends]
    return table.with_columns(made)


def add_attributes(
    table: pl.DataFrame, points: Sequence[xr.Dataset], keys: Sequence[str]
) -> pl.DataFrame:
    """Replace the column `point` by attributes of the points."""
    settings = {key: [point.attrs.get(key) for point in points] for key in keys}
    columns = [pl.Series(key, values, strict=False) for key, values in settings.items()]
    return table.select(*(one.gather(table["point"]) for one in columns), pl.exclude("point"))


def aggregate_points(
    points: Sequence[xr.Dataset],
    metrics: Sequence[str] = ("gap", "throughput"),
    rounds: Sequence[int] = (),
    reference: str | None = None,
) -> pl.DataFrame:
    """Return a sweep as one table for other tools: a row per point, rate, policy, round and metric.

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
    values = tabulate_runs(points, metrics, rounds or [LAST])
    made = summarise(values, list_shares(list_metrics(points)))
    if reference is not None:
        minus = summarise(subtract_policies(values, reference))
        minus = minus.select(*KEYS, minus="mean", minus_low="low", minus_high="high")
        made = made.join(minus, on=KEYS, how="left", maintain_order="left")
    shown = (*KEYS, "n", *(MINUS if reference is not None else ()), "mean", "low", "high", "sd")
    made = drop_point_intervals(made.select(shown))
    return add_attributes(made, points, summaries.find_differing(points))


def save_aggregate(table: pl.DataFrame, stem: Path) -> tuple[Path, Path]:
    """Write `stem`.parquet and `stem`.csv atomically."""
    parquet, csv = (stem.with_name(f"{stem.name}.{kind}") for kind in ("parquet", "csv"))
    write_atomic(parquet, table.write_parquet)
    write_atomic(csv, table.write_csv)
    return parquet, csv
