"""Stored arrays as one long table, from which all tables and figures are made.

A row holds the values of all seeds for a point, arrival rate, policy, round and metric. Differences
between policies or rounds are computed seed by seed, before means and intervals.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import polars as pl
import xarray as xr

from cqbjax.core.labels import OPTIMAL
from cqbjax.results import summaries
from cqbjax.results.metrics import STANDARD, list_metrics
from cqbjax.results.points import shape_of
from cqbjax.results.summaries import ROUNDING

KEYS = ("point", "arrival_rate", "policy", "round", "metric")
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
    present = [name for name in names if name in STANDARD or name in data]
    last = int(points[numbers[0]]["round"].values.max())
    arrays = {n: metrics[n].of(data) if n in metrics else data[n] for n in present}
    of_run = [name for name in present if name in metrics and metrics[name].of_run]
    rows = pl.concat(_to_rows(array, data, name) for name, array in arrays.items()).filter(
        (pl.col("round") == last) | ~pl.col("metric").is_in(of_run)
    )
    rows = rows.sort("round", maintain_order=True)
    return rows.with_columns(pl.Series(numbers).gather(rows["point"]).alias("point"))


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


def _to_rows(by_seed: xr.DataArray, data: xr.Dataset, name: str) -> pl.DataFrame:
    """Return the rows of a metric, broadcast over policies; without seeds each has one value."""
    sizes = {dim: 1 if dim == "seed" else data.sizes[dim] for dim in _DIMS}
    missing = {dim: size for dim, size in sizes.items() if dim not in by_seed.dims}
    values = by_seed.astype(float).expand_dims(missing).transpose(*_DIMS).values
    at = np.indices(values.shape[:-1]).reshape(4, -1)
    return pl.DataFrame({
        "point": at[1], "arrival_rate": data["rates"].values[at[1], at[2]],
        "policy": pl.Series([str(label) for label in data["policy"].values]).gather(at[3]),
        "round": data["round"].values.astype(np.int64)[at[0]],
    }).with_columns(
        metric=pl.lit(name), values=pl.Series(values.reshape(-1, values.shape[-1])).arr.to_list()
    )  # fmt: skip


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
    half = summaries.t_quantile(n, level) * sd / np.sqrt(n)
    low, high = mean - half, mean + half
    if shares:
        # Values in [0, 1] cannot vary more than this.
        fits = (mean >= 0) & (mean <= 1) & ((n - 1) * sd**2 <= n * mean * (1 - mean) + ROUNDING)
        fits &= table["metric"].is_in(list(shares)).to_numpy()
        ends_of_shares = summaries.share_interval(n, np.where(fits, mean, np.nan), sd, level)
        low, high = np.where(fits, ends_of_shares, (low, high))
    ends = {"low": pl.Series(low), "high": pl.Series(high)}
    return table.with_columns(pl.col("mean", "sd").fill_nan(None), **ends).with_columns(
        pl.col("low", "high").fill_nan(None)
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
