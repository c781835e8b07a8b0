"""A sweep as a tidy table: a row a point, arrival rate, policy, round and metric.

For whoever goes on elsewhere: Parquet or CSV, every swept key a column, means with intervals over
seeds, and differences from a named policy, paired by seed, with Student's t and the bootstrap.
"""

import io
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import xarray as xr

from cqbjax.core.files import write_atomic
from cqbjax.results.cells import LAST, Cells, side_by_side
from cqbjax.results.summaries import differing, mean_ci, queue_regret, throughput
from cqbjax.store.shards import more

# What can be asked for: name -> values by policy, arrival rate and seed at one round.
METRICS: dict[str, Callable[[xr.Dataset], xr.DataArray]] = {
    "gap": queue_regret,
    "queue_length": lambda cell: cell["queue_length"],
    "regret": lambda cell: cell["regret"],
    "throughput": throughput,
    "explored": lambda cell: cell["explored"],
}
RESAMPLES = 2000
MINUS = ("minus", "minus_low", "minus_high", "minus_boot_low", "minus_boot_high")


def tidy(
    points: Sequence[xr.Dataset],
    metrics: Sequence[str] = ("gap", "throughput"),
    rounds: Sequence[int] = (),
    against: str | None = None,
    seed: int = 0,
) -> pl.DataFrame:
    """Return the table.

    Args:
        points: as `results.load_points` returns them.
        metrics: of `METRICS`, or what else was recorded.
        rounds: the last recorded one that is not later is taken, and named; none is the last of
            all.
        against: a policy whose values the others' are subtracted from, seed by seed; None is none.
        seed: of the bootstrap.

    Returns:
        Columns: every key in which points differ, arrival_rate, policy, round, metric, n (seeds),
        mean, sd, low, high (95% Student-t); and with `against` minus, minus_low, minus_high,
        minus_boot_low, minus_boot_high (95%, percentiles of resampled seeds): null for the policy
        itself.

    Raises:
        ValueError: an unknown metric or policy, or a round before the first one recorded.
    """
    check_metrics(metrics, points)
    labels = dict.fromkeys(str(label) for point in points for label in point["policy"].values)
    if against is not None and against not in labels:
        raise ValueError(f"policy {against} is in no point; choose from {', '.join(labels)}")
    keys, draws = differing(points), np.random.default_rng(seed)
    rows = [
        row
        for some in side_by_side(points, rounds or [LAST])
        for name in metrics
        for row in _rows(some, keys, name, against, draws)
    ]
    return pl.DataFrame(rows, infer_schema_length=None)


def check_metrics(names: Sequence[str], points: Sequence[xr.Dataset]) -> None:
    """Refuse a metric that a point does not have.

    Raises:
        ValueError: naming it and those that there are.
    """
    for point in points:
        known = [*METRICS, *more(point)]
        for name in names:
            if name not in known:
                raise ValueError(f"metric {name} is unknown; choose from {', '.join(known)}")


def metric(name: str, data: xr.Dataset) -> xr.DataArray:
    """Return a metric by policy, arrival rate and seed at one round."""
    return METRICS[name](data) if name in METRICS else data[name]


def _rows(
    some: Cells, keys: Sequence[str], name: str, against: str | None, draws: np.random.Generator
) -> Iterator[dict[str, Any]]:
    """Yield the rows of points at a round, of one metric."""
    values = metric(name, some.data).astype(float)
    columns = _columns(mean_ci(values)) | {"sd": values.std("seed", ddof=1)}
    if against is not None and against in some.policies:
        apart = values.sel(policy=against, drop=True) - values
        columns |= _columns(mean_ci(apart), "minus") | _bootstrap(apart, draws)
    numbers = {column: some.by_policy(one) for column, one in columns.items()}
    for i, attributes in enumerate(some.attributes):
        setting = {key: attributes.get(key) for key in keys}
        for j, rate in enumerate(some.rates[i].tolist()):
            for k, label in enumerate(some.policies):
                row = {"arrival_rate": rate, "policy": label, "round": some.round}
                row |= {"metric": name, "n": values.sizes["seed"]}
                row |= dict.fromkeys(MINUS) if against is not None else {}
                row |= {column: of[i][j][k] for column, of in numbers.items()}
                if label == against:
                    row |= dict.fromkeys(MINUS)
                yield setting | row


def _columns(summary: xr.Dataset, name: str = "") -> dict[str, xr.DataArray]:
    """Return the columns of a mean and its interval."""
    before = f"{name}_" if name else ""
    ends = {f"{before}low": summary["low"], f"{before}high": summary["high"]}
    return {name or "mean": summary["mean"]} | ends


def _bootstrap(apart: xr.DataArray, draws: np.random.Generator) -> dict[str, xr.DataArray]:
    """Return the columns of a bootstrap interval: percentiles of the means of resampled seeds."""
    seeds = apart.sizes["seed"]
    # How often each resample takes each seed: its mean is then one product.
    taken = draws.multinomial(seeds, np.full(seeds, 1 / seeds), size=RESAMPLES) / seeds
    means = xr.dot(apart, xr.DataArray(taken, dims=("resample", "seed")), dim="seed")
    low, high = (means.quantile(end, "resample", skipna=False) for end in (0.025, 0.975))
    return {"minus_boot_low": low, "minus_boot_high": high}


def save(frame: pl.DataFrame, stem: Path) -> tuple[Path, Path]:
    """Write `stem`.parquet and `stem`.csv, each whole or not at all."""
    buffer = io.BytesIO()
    frame.write_parquet(buffer)
    parquet, csv = (stem.with_name(f"{stem.name}.{kind}") for kind in ("parquet", "csv"))
    write_atomic(parquet, buffer.getvalue())
    write_atomic(csv, frame.write_csv().encode())
    return parquet, csv
