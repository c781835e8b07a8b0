"""How long users were away between a try and the next: a table's, for `worlds.Orbit`."""

from pathlib import Path

import numpy as np
import polars as pl

from cqbjax.datasets.readers.compact import opened
from cqbjax.datasets.table import TableError
from cqbjax.worlds.orbit import Orbit, delays_of

MINUTE = 60.0


def orbit(
    return_rate: float = 0.1,
    delays: str | Path | None = None,
    column: str | None = None,
    round_seconds: float | None = None,
) -> Orbit:
    """Return users who come back with a rate, or after delays of a table.

    Args:
        return_rate: as in `worlds.Orbit`; not read where there are delays.
        delays: a `.parquet` or `.csv` file of delays in seconds; None: the rate.
        column: its column; None is the only one that holds numbers.
        round_seconds: how long a round is, for delays; None is a minute.

    Raises:
        TableError: naming the file, and the column or the first row that is wrong.
        ValueError: rounds have no length.
    """
    if delays is None:
        return Orbit(return_rate=return_rate)
    seconds = read_delays(delays, column)
    return Orbit(delays=delays_of(seconds, MINUTE if round_seconds is None else round_seconds))


def read_delays(path: str | Path, column: str | None = None) -> np.ndarray:
    """Return the delays of a table: [n] float64, seconds.

    Args:
        path: a `.parquet` or `.csv` file.
        column: of the delays; None is the only one that holds numbers.

    Raises:
        TableError: naming the file, and the column or the first row that is wrong.
    """
    path = Path(path)
    frame = opened(path, pl.read_csv if path.suffix == ".csv" else pl.read_parquet, "a table")
    numbers = [name for name in frame.columns if frame[name].dtype.is_numeric()]
    if column is None and len(numbers) != 1:
        raise TableError(
            f"{path}: has {len(numbers)} columns of numbers, name the one with delays in seconds."
        )
    name = column or numbers[0]
    if name not in numbers:
        raise TableError(f"{path}: lacks a column {name!r} of numbers, it has {frame.columns}.")
    values = frame[name].cast(pl.Float64).fill_null(float("nan")).to_numpy()
    wrong = ~(np.isfinite(values) & (values >= 0))
    if wrong.any() or not values.size:
        row = int(wrong.argmax()) + 1
        raise TableError(f"{path}: row {row} of {name!r} must be seconds, not negative.")
    return values
