"""How long users were away between a try and the next: a table's, for `worlds.Orbit`."""

from pathlib import Path

import numpy as np
import polars as pl

from cqbjax.datasets.readers.compact import opened
from cqbjax.datasets.table import TableError
from cqbjax.worlds.orbit import Orbit, delays_of

MINUTE = 60.0
# The columns of a trace in which prompts that come again can be told, and the least blocks of one.
TRACE = ("timestamp", "hash_ids", "input_length")
LEAST_BLOCKS = 2


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
        column: its column, in seconds; None for a trace whose prompts come again.
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

    A row without one, such as the first try of a chain, is left out. Of a trace in Mooncake's form
    (`timestamp` in milliseconds, `hash_ids`, `input_length`) they are `resubmitted`.

    Args:
        path: a `.parquet` or `.csv` file.
        column: of the delays, in seconds.

    Raises:
        TableError: naming the file, and the column or the first row that is wrong.
    """
    path = Path(path)
    frame = opened(path, pl.read_csv if path.suffix == ".csv" else pl.read_parquet, "a table")
    if column is None and set(TRACE) <= set(frame.columns):
        return resubmitted(frame)
    if column not in frame.columns or not frame[column].dtype.is_numeric():
        raise TableError(
            f"{path}: column={column} must name a column of seconds, one of "
            f"{', '.join(name for name in frame.columns if frame[name].dtype.is_numeric())}."
        )
    values = frame[column].cast(pl.Float64).fill_nan(None)
    wrong = (values < 0) | values.is_infinite()
    if wrong.any():
        row = (wrong.arg_max() or 0) + 1
        raise TableError(f"{path}: row {row} of {column!r} must be seconds, not negative.")
    told = values.drop_nulls().to_numpy()
    if not told.size:
        raise TableError(f"{path}: {column!r} holds no delay.")
    return told


def resubmitted(trace: pl.DataFrame) -> np.ndarray:
    """Return the seconds between requests of the same prompt: [n] float64.

    Two are of the same prompt where all blocks' hashes and the length agree and there are at least
    `LEAST_BLOCKS` blocks.

    Args:
        trace: with `timestamp` (milliseconds), `hash_ids` and `input_length`.
    """
    asked = trace.filter(pl.col("hash_ids").list.len() >= LEAST_BLOCKS).with_columns(
        blocks=pl.col("hash_ids").list.eval(pl.element().cast(pl.String)).list.join(" ")
    )
    after = pl.col("timestamp").diff().over("blocks", "input_length", order_by="timestamp")
    gaps: np.ndarray = asked.select(after.drop_nulls().alias("gap") / 1000)["gap"].to_numpy()
    return gaps
