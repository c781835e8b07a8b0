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

from cqbjax.files import write_atomic
from cqbjax.report.summaries import at_round, differing, mean_ci, queue_regret, throughput

# What can be asked for: name -> values by policy, arrival rate and seed at one round.
METRICS: dict[str, Callable[[xr.Dataset], xr.DataArray]] = {
    "gap": queue_regret,
    "queue_length": lambda cell: cell["queue_length"],
    "regret": lambda cell: cell["regret"],
    "throughput": throughput,
    "explored": lambda cell: cell["explored"],
}
RESAMPLES = 2000


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
        metrics: of `METRICS`.
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
    check_metrics(metrics)
    labels = dict.fromkeys(str(label) for point in points for label in point["policy"].values)
    if against is not None and against not in labels:
        raise ValueError(f"policy {against} is in no point; choose from {', '.join(labels)}")
    keys, draws = differing(points), np.random.default_rng(seed)
    rows = [
        {key: point.attrs.get(key) for key in keys} | row
        for point in points
        for t in rounds or (int(point["round"].values[-1]),)
        for name in metrics
        for row in _rows(point, t, name, against, draws)
    ]
    return pl.DataFrame(rows, infer_schema_length=None)


def check_metrics(names: Sequence[str]) -> None:
    """Refuse a metric that there is none of.

    Raises:
        ValueError: naming it and those that there are.
    """
    for name in names:
        if name not in METRICS:
            raise ValueError(f"metric {name} is unknown; choose from {', '.join(METRICS)}")


def values_at(point: xr.Dataset, name: str, t: int) -> xr.DataArray:
    """Return a metric of a point by policy, arrival_rate and seed, at a round."""
    values = METRICS[name](at_round(point, t))
    return values.transpose("policy", "arrival_rate", "seed").astype(float)


def _rows(
    point: xr.Dataset, t: int, name: str, against: str | None, draws: np.random.Generator
) -> Iterator[dict[str, Any]]:
    """Yield the rows of a point, round and metric."""
    values, taken = values_at(point, name, t), int(at_round(point, t)["round"])
    summary, spread = mean_ci(values), values.std("seed", ddof=1)
    apart = None
    if against is not None and against in values["policy"].values:
        apart = (values.sel(policy=against, drop=True) - values).transpose(*values.dims)
        paired = mean_ci(apart)
    for i, label in enumerate(values["policy"].values.tolist()):
        for j, rate in enumerate(values["arrival_rate"].values.tolist()):
            row = {"arrival_rate": rate, "policy": label, "round": taken}
            row |= {"metric": name, "n": values.sizes["seed"]}
            row |= _interval(summary, i, j) | {"sd": _number(spread.values[i, j])}
            if against is not None:
                row |= dict.fromkeys(("minus", "minus_low", "minus_high"))
                row |= dict.fromkeys(("minus_boot_low", "minus_boot_high"))
            if apart is not None and label != against:
                row |= {f"minus{k}": v for k, v in _minus(paired, apart, i, j, draws).items()}
            yield row


def _interval(summary: xr.Dataset, i: int, j: int) -> dict[str, float | None]:
    return {part: _number(summary[part].values[i, j]) for part in ("mean", "low", "high")}


def _minus(
    paired: xr.Dataset, apart: xr.DataArray, i: int, j: int, draws: np.random.Generator
) -> dict[str, float | None]:
    """Return the parts of a paired difference, by the endings of their columns."""
    mean, low, high = _interval(paired, i, j).values()
    each = apart.values[i, j]
    picked = draws.integers(len(each), size=(RESAMPLES, len(each)))
    ends = np.quantile(each[picked].mean(axis=1), (0.025, 0.975))
    return {"": mean, "_low": low, "_high": high} | dict(
        zip(("_boot_low", "_boot_high"), ends.tolist(), strict=True)
    )


def _number(value: Any) -> float | None:
    return None if np.isnan(value) else float(value)


def save(frame: pl.DataFrame, stem: Path) -> tuple[Path, Path]:
    """Write `stem`.parquet and `stem`.csv, each whole or not at all."""
    buffer = io.BytesIO()
    frame.write_parquet(buffer)
    parquet, csv = (stem.with_name(f"{stem.name}.{kind}") for kind in ("parquet", "csv"))
    write_atomic(parquet, buffer.getvalue())
    write_atomic(csv, frame.write_csv().encode())
    return parquet, csv
