"""Times read from a column of a Parquet or CSV table: arrivals, users' delays, LLMs' latencies."""

import datetime
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from cqbjax.core.inputs import Condition, TableNames, read_when
from cqbjax.datasets.readers.parquet_csv import number_columns, read_frame, text_column
from cqbjax.datasets.table import TableError, check_unique
from cqbjax.dynamics import Orbit, ServiceTimes, count_rounds

MINUTE = 60.0
# A clock jumps at a gap of more than JUMP times the mean of the others; at most FEW gaps do.
JUMP, FEW = 1000, 10
# Columns of a trace in which repeated prompts can be found, and the fewest blocks of a prompt.
TRACE = ("timestamp", "hash_ids", "input_length")
LEAST_BLOCKS = 2


def read_times(path: str | Path, column: str | None = None) -> np.ndarray:
    """Return a trace's request times: [n] float64.

    Numbers keep the unit of the column. Dates with times of day become seconds.

    Args:
        path: a `.parquet` or `.csv` file, such as the Azure or Mooncake traces.
        column: name of the column of times; None: the column called timestamp, in any case.

    Raises:
        TableError: naming the file, and the column or the first row that is wrong.
    """
    path = Path(path)
    frame = read_frame(path)
    name = column or next((c for c in frame.columns if c.lower() == "timestamp"), "timestamp")
    if name not in frame.columns:
        raise TableError(f"{path}: lacks column {name!r}, it has {', '.join(frame.columns)}.")
    times = _parse_times(frame[name])
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
    late = find_jumps(times)
    if len(late):
        raise TableError(
            f"{path}: row {late[0] + 1} comes {times[late[0]] - times[late[0] - 1]:g} after the "
            f"row before it in column {name!r}, over {JUMP:,} mean intervals ({len(late)} such "
            "rows): a clock that jumps, cut the table there."
        )
    return times


def find_jumps(times: np.ndarray) -> np.ndarray:
    """Return the indices before which a clock jumps, in times [n] in increasing order."""
    gaps = np.diff(np.asarray(times, float))
    order = np.argsort(-gaps, kind="stable")[: max(1, min(len(gaps) // FEW, FEW))]
    largest, number = gaps[order], np.arange(1, len(order) + 1)
    others = np.maximum(len(gaps) - number, 1)
    mean = np.maximum(gaps.sum() - np.cumsum(largest), 0) / others
    least = gaps[gaps > 0].min(initial=np.inf)
    outliers = np.flatnonzero((largest > JUMP * np.maximum(mean, least)) & (number < len(gaps)))
    return np.sort(order[: outliers.max(initial=-1) + 1]) + 1


def _parse_times(column: pl.Series) -> np.ndarray:
    """Return numbers unchanged, times as seconds, NaN for anything else."""

    def parse(text: str | None) -> float:
        try:
            time = datetime.datetime.fromisoformat((text or "").strip())
        except ValueError:
            return float("nan")
        return (time if time.tzinfo else time.replace(tzinfo=datetime.UTC)).timestamp()

    if column.dtype.is_temporal():
        column = column.cast(pl.Datetime("ns"), strict=False).to_physical() / 1e9
    numbers = column.cast(pl.Float64, strict=False).fill_null(float("nan")).to_numpy()
    if column.dtype != pl.String:
        return numbers
    # Text holds numbers or ISO times, whichever more rows have; an error names the other rows.
    times = np.array([parse(text) for text in column])
    return times if np.isfinite(times).sum() > np.isfinite(numbers).sum() else numbers


@read_when(return_rate=Condition("delays", is_set=False))
def make_orbit(
    return_rate: float = 0.1, delays: str | Path | None = None, column: str | None = None,
    round_seconds: float | None = None,
) -> Orbit:  # fmt: skip
    """Return an `Orbit` with a return rate, or with delays that are read from a table.

    Args:
        return_rate: as in `dynamics.Orbit`; ignored with delays.
        delays: a `.parquet` or `.csv` file (`read_delays`); None: `return_rate` is used.
        column: name of the column of delays in seconds; None for a trace with repeated prompts.
        round_seconds: length of a round in seconds, by which `delays` are divided; None: 60.

    Raises:
        TableError: naming the file, and the column or the first row that is wrong.
        ValueError: a round has no length, or a key is given that needs delays.
    """
    if delays is None:
        _check_unused("delays", column=column, round_seconds=round_seconds)
        return Orbit(return_rate=return_rate)
    seconds = read_delays(delays, column)
    return Orbit(delays=count_rounds(seconds, MINUTE if round_seconds is None else round_seconds))


@read_when(rounds=Condition("latencies", is_set=False))
def make_service_times(
    rounds: Any = 1.0, law: Any = "fixed", latencies: str | Path | None = None,
    round_seconds: float | None = None,
) -> ServiceTimes:  # fmt: skip
    """Return `ServiceTimes` of given rounds, or with latencies that are read from a table.

    Args:
        rounds: as in `dynamics.ServiceTimes`; ignored with latencies.
        law: as in `dynamics.ServiceTimes`.
        latencies: a `.parquet` or `.csv` file (`read_latencies`); None: `rounds` is used.
        round_seconds: length of a round, with latencies; they become whole rounds, or with
            law=geometric a mean of at least one round.

    Raises:
        TableError: naming the file, and the column or the first row that is wrong.
        ValueError: a round has no length, or a key is given that needs latencies.
    """
    if latencies is None:
        _check_unused("latencies", round_seconds=round_seconds)
        return ServiceTimes(rounds=rounds, law=law)
    if round_seconds is None:
        raise ValueError("latencies needs round_seconds, how long a round is")
    seconds, names = read_latencies(latencies)
    whole = count_rounds(seconds, round_seconds)
    rounds = np.maximum(1.0, seconds / round_seconds) if law == "geometric" else whole
    return ServiceTimes(rounds=rounds, law=law, names=names)


def _check_unused(table: str, **values: Any) -> None:
    for key, value in values.items():
        if value is not None:
            raise ValueError(f"{key}={value} is read with {table} alone: leave it out")


def read_latencies(path: str | Path) -> tuple[np.ndarray, TableNames]:
    """Return the seconds of each LLM's answer to each prompt, [P, N] float64, and their names.

    Args:
        path: a `.parquet` or `.csv` file with `prompt_id` and a column per LLM, one row per prompt,
            in any order.

    Raises:
        TableError: naming the file, and the column or the first row that is wrong.
    """
    path, frame = _read(path, "latencies", ["prompt_id"])
    prompts = text_column(frame, "prompt_id", path)
    check_unique(prompts, str(path), "prompt_id")
    servers = [name for name in frame.columns if name != "prompt_id"]
    if not servers or not prompts:
        raise TableError(f"{path}: must have a row a prompt and a column an LLM.")
    rows = np.arange(len(prompts))
    seconds = np.stack([_read_seconds(frame, name, path, rows) for name in servers], axis=1)
    return seconds, TableNames(prompts, servers, str(path))


def read_delays(path: str | Path, column: str | None = None) -> np.ndarray:
    """Return the delays of a table: [n] float64, seconds.

    A row with an empty cell, such as the first attempt of a chain, is skipped. In a trace in
    Mooncake's form (`timestamp` in milliseconds, `hash_ids`, `input_length`), the delays are the
    times between requests with the same prompt. Two prompts count as the same if they have at least
    `LEAST_BLOCKS` blocks, and all block hashes and the lengths are equal.

    Args:
        path: a `.parquet` or `.csv` file.
        column: name of the column of delays, in seconds.

    Raises:
        TableError: naming the file, and the column or the first row that is wrong.
    """
    path, frame = _read(path, "delays")
    if column is None and set(TRACE) <= set(frame.columns):
        prompts = frame.filter(pl.col("hash_ids").list.len() >= LEAST_BLOCKS).with_columns(
            blocks=pl.col("hash_ids").list.eval(pl.element().cast(pl.String)).list.join(" ")
        )
        gap = pl.col("timestamp").diff().over("blocks", "input_length", order_by="timestamp")
        return prompts.select(gap.drop_nulls() / 1000).to_series().to_numpy()
    if column is None or column not in frame.columns:
        raise TableError(
            f"{path}: column={column} must name a column of seconds, one of "
            f"{', '.join(name for name in frame.columns if frame[name].dtype.is_numeric())}."
        )
    rows = np.flatnonzero(~frame[column].is_null().to_numpy())
    if not rows.size:
        raise TableError(f"{path}: {column!r} holds no delay.")
    return _read_seconds(frame, column, path, rows)


def _read(path: Any, key: str, as_text: list[str] | None = None) -> tuple[Path, pl.DataFrame]:
    if not isinstance(path, str | Path):
        raise ValueError(f"{key}={path} must be a Parquet or CSV file")
    return Path(path), read_frame(Path(path), as_text or ())


def _read_seconds(frame: pl.DataFrame, column: str, path: Path, rows: np.ndarray) -> np.ndarray:
    seconds: np.ndarray = number_columns(frame, [column], path)[rows, 0]
    wrong = ~(np.isfinite(seconds) & (seconds >= 0))
    if wrong.any():
        row = rows[wrong.argmax()] + 1
        raise TableError(f"{path}: row {row} of {column!r} must be seconds, not negative.")
    return seconds
