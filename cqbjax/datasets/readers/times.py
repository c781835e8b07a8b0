"""The times of a trace: one column of a table, Parquet or CSV."""

import datetime
from pathlib import Path

import numpy as np
import polars as pl

from cqbjax.datasets.readers.compact import opened
from cqbjax.datasets.table import TableError


def read_times(path: str | Path, column: str | None = None) -> np.ndarray:
    """Return a trace's request times, [n] float64 in the unit of the column (seconds of a time).

    Args:
        path: a `.parquet` or `.csv` file, such as the Azure or Mooncake traces.
        column: of the times; None is the one called timestamp, in small or capital letters.

    Raises:
        TableError: naming the file, and the column or the first row that is wrong.
    """
    path = Path(path)
    frame = opened(path, pl.read_csv if path.suffix == ".csv" else pl.read_parquet, "a table")
    name = column or next((c for c in frame.columns if c.lower() == "timestamp"), "timestamp")
    if name not in frame.columns:
        raise TableError(f"{path}: lacks column {name!r}, it has {', '.join(frame.columns)}.")
    times = _seconds(frame[name])
    if len(times) < 2:
        raise TableError(f"{path}: has {len(times)} rows, a trace needs at least 2.")
    absent = ~np.isfinite(times)
    if absent.any():
        row = int(absent.argmax()) + 1
        raise TableError(f"{path}: row {row} has no time in column {name!r}.")
    back = np.flatnonzero(np.diff(times) < 0)
    if len(back):
        raise TableError(
            f"{path}: row {int(back[0]) + 2} is earlier than the row before it, sort the table by "
            f"{name!r}."
        )
    if times[-1] == times[0]:
        raise TableError(f"{path}: all rows have the same time in column {name!r}.")
    return times


def _seconds(column: pl.Series) -> np.ndarray:
    """Return numbers as they are, times as seconds, NaN for what is neither."""
    if column.dtype == pl.String:
        return np.array([_iso(text) for text in column])
    if column.dtype.is_temporal():
        column = column.cast(pl.Datetime("ns"), strict=False).to_physical() / 1e9
    return column.cast(pl.Float64, strict=False).fill_null(float("nan")).to_numpy()


def _iso(text: str | None) -> float:
    """Return the seconds of an ISO time, UTC if it does not say, NaN for anything else."""
    try:
        time = datetime.datetime.fromisoformat((text or "").strip())
    except ValueError:
        return float("nan")
    return (time if time.tzinfo else time.replace(tzinfo=datetime.UTC)).timestamp()
