"""The times of a trace: one column of a table, Parquet or CSV."""

import datetime
from pathlib import Path

import numpy as np
import polars as pl

from cqbjax.datasets.readers.compact import read_frame
from cqbjax.datasets.table import TableError

# A clock jumps at a gap of over so many times the mean of the others, of which so few there are.
JUMP, FEW = 1000, 10


def read_times(path: str | Path, column: str | None = None) -> np.ndarray:
    """Return a trace's request times, [n] float64 in the unit of the column (seconds of a time).

    Args:
        path: a `.parquet` or `.csv` file, such as the Azure or Mooncake traces.
        column: of the times; None is the one called timestamp, in small or capital letters.

    Raises:
        TableError: naming the file, and the column or the first row that is wrong.
    """
    path = Path(path)
    frame = read_frame(path)
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
    late = jumps(times)
    if len(late):
        raise TableError(
            f"{path}: row {late[0] + 1} comes {times[late[0]] - times[late[0] - 1]:g} after the "
            f"row before it in column {name!r}, over {JUMP:,} mean intervals ({len(late)} such "
            "rows): a clock that jumps, cut the table there."
        )
    return times


def jumps(times: np.ndarray) -> np.ndarray:
    """Return the places before which a clock jumps, in times [n] in increasing order."""
    gaps = np.diff(np.asarray(times, float))
    order = np.argsort(-gaps, kind="stable")[: max(1, min(len(gaps) // FEW, FEW))]
    largest, number = gaps[order], np.arange(1, len(order) + 1)
    others = np.maximum(len(gaps) - number, 1)
    mean = np.maximum(gaps.sum() - np.cumsum(largest), 0) / others
    least = gaps[gaps > 0].min(initial=np.inf)
    apart = np.flatnonzero((largest > JUMP * np.maximum(mean, least)) & (number < len(gaps)))
    return np.sort(order[: apart.max(initial=-1) + 1]) + 1


def _seconds(column: pl.Series) -> np.ndarray:
    """Return numbers as they are, times as seconds, NaN for what is neither."""
    if column.dtype.is_temporal():
        column = column.cast(pl.Datetime("ns"), strict=False).to_physical() / 1e9
    numbers = column.cast(pl.Float64, strict=False).fill_null(float("nan")).to_numpy()
    if column.dtype != pl.String:
        return numbers
    # Of a column of text the reading that more rows have, so that an error names the odd row.
    return max(numbers, np.array([_iso(text) for text in column]), key=_finite)


def _finite(times: np.ndarray) -> int:
    return int(np.isfinite(times).sum())


def _iso(text: str | None) -> float:
    """Return the seconds of an ISO time, UTC if it does not say, NaN for anything else."""
    try:
        time = datetime.datetime.fromisoformat((text or "").strip())
    except ValueError:
        return float("nan")
    return (time if time.tzinfo else time.replace(tzinfo=datetime.UTC)).timestamp()
