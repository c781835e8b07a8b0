"""How long users were away, and how long answers took: a table's seconds, as rounds."""

from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from cqbjax.core.given import TableNames
from cqbjax.datasets.readers.compact import numbers, read_frame, texts
from cqbjax.datasets.table import TableError, check_unique
from cqbjax.dynamics import Orbit, Rounds, in_rounds

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
        return_rate: as in `dynamics.Orbit`; not read where there are delays.
        delays: a `.parquet` or `.csv` file of delays in seconds; None: the rate.
        column: its column, in seconds; None for a trace whose prompts come again.
        round_seconds: how long a round is, for delays; None is a minute.

    Raises:
        TableError: naming the file, and the column or the first row that is wrong.
        ValueError: rounds have no length, or what nothing reads is given.
    """
    if delays is None:
        _refuse_unread("delays", column=column, round_seconds=round_seconds)
        return Orbit(return_rate=return_rate)
    seconds = read_delays(delays, column)
    return Orbit(delays=in_rounds(seconds, MINUTE if round_seconds is None else round_seconds))


def rounds(
    rounds: Any = 1.0,
    law: str = "fixed",
    latencies: str | Path | None = None,
    round_seconds: float | None = None,
) -> Rounds:
    """Return attempts that take some rounds, or as long as a table says.

    Args:
        rounds: as in `dynamics.Rounds`; not read where there are latencies.
        law: as there.
        latencies: a `.parquet` or `.csv` file of seconds (`read_latencies`); None: `rounds`.
        round_seconds: how long a round is, for latencies.

    Raises:
        TableError: naming the file, and the column or the first row that is wrong.
        ValueError: rounds have no length, or one that nothing reads.
    """
    words: Any = law
    if latencies is None:
        _refuse_unread("latencies", round_seconds=round_seconds)
        return Rounds(rounds=rounds, law=words)
    if round_seconds is None:
        raise ValueError("latencies needs round_seconds, how long a round is")
    seconds, names = named_latencies(latencies)
    return Rounds(rounds=in_rounds(seconds, round_seconds), law=words, names=names)


def _refuse_unread(table: str, **given: Any) -> None:
    """Refuse what is given and read with a table alone."""
    for key, value in given.items():
        if value is not None:
            raise ValueError(f"{key}={value} is read with {table} alone: leave it out")


def _file(key: str, path: Any) -> Path:
    """Return the path of a file, refused where it is none."""
    if not isinstance(path, str | Path):
        raise ValueError(f"{key}={path} must be a Parquet or CSV file")
    return Path(path)


def read_latencies(path: str | Path) -> np.ndarray:
    """Return the seconds of `named_latencies`, in the order of the file."""
    return named_latencies(path)[0]


def named_latencies(path: str | Path) -> tuple[np.ndarray, TableNames]:
    """Return how long each LLM's answer to each prompt takes: [P, N] float64, seconds; and names.

    Args:
        path: a `.parquet` or `.csv` file: `prompt_id` and a column an LLM, a row a prompt, in any
            order.

    Raises:
        TableError: naming the file, and the column or the first row that is wrong.
    """
    path = _file("latencies", path)
    frame = read_frame(path, ["prompt_id"])
    prompts = texts(frame, "prompt_id", path)
    check_unique(prompts, str(path), "prompt_id")
    servers = [name for name in frame.columns if name != "prompt_id"]
    if not servers or not prompts:
        raise TableError(f"{path}: must have a row a prompt and a column an LLM.")
    seconds = np.stack([_seconds(frame, name, path) for name in servers], axis=1)
    return seconds, TableNames(prompts, servers, str(path))


def read_delays(path: str | Path, column: str | None = None) -> np.ndarray:
    """Return the delays of a table: [n] float64, seconds.

    A row whose cell is empty, such as the first try of a chain, is left out. Of a trace in
    Mooncake's form (`timestamp` in milliseconds, `hash_ids`, `input_length`) they are
    `resubmitted`.

    Args:
        path: a `.parquet` or `.csv` file.
        column: of the delays, in seconds.

    Raises:
        TableError: naming the file, and the column or the first row that is wrong.
    """
    path = _file("delays", path)
    frame = read_frame(path)
    if column is None and set(TRACE) <= set(frame.columns):
        return resubmitted(frame)
    if column is None or column not in frame.columns:
        raise TableError(
            f"{path}: column={column} must name a column of seconds, one of "
            f"{', '.join(name for name in frame.columns if frame[name].dtype.is_numeric())}."
        )
    told = _seconds(frame, column, path, ~frame[column].is_null().to_numpy())
    if not told.size:
        raise TableError(f"{path}: {column!r} holds no delay.")
    return told


def _seconds(
    frame: pl.DataFrame, column: str, path: Path, filled: np.ndarray | None = None
) -> np.ndarray:
    """Return a column's rows, or those that are filled, and refuse the first that is no time."""
    seconds = numbers(frame, [column], path)[:, 0]
    rows = np.arange(len(seconds)) if filled is None else np.flatnonzero(filled)
    seconds = seconds[rows]
    wrong = ~(np.isfinite(seconds) & (seconds >= 0))
    if wrong.any():
        row = rows[wrong.argmax()] + 1
        raise TableError(f"{path}: row {row} of {column!r} must be seconds, not negative.")
    return seconds


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
