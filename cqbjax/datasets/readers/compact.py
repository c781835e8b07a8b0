"""The compact form: one row a prompt, a score and a cost column a server.

Columns: `prompt_id, prompt, source, score|<LLM>, cost|<LLM>` (USD a query). It is what a user's own
table takes; any other column is left alone.
"""

import csv
import pathlib
from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

import numpy as np
import polars as pl

from cqbjax.datasets.table import RoutingTable, TableError, check_table

T = TypeVar("T")
SCORE, COST = "score|", "cost|"
REQUIRED = ("prompt_id", "prompt", "source")


def read_compact(
    path: str | pathlib.Path, name: str | None = None, stand_in: str = ""
) -> RoutingTable:
    """Read a table in the compact form from Parquet or CSV.

    Args:
        path: a `.parquet` or `.csv` file.
        name: the table's name; the file's stem when None.
        stand_in: what it stands in for, in words.

    Returns:
        The table in file order; missing scores are NaN (see `cqbjax.datasets.complete`).

    Raises:
        TableError: one sentence naming file, row and column.
    """
    path = pathlib.Path(path)
    frame = read_frame(path, REQUIRED)
    servers = _servers(frame, path)
    table = RoutingTable(
        name=name or path.stem,
        prompt_ids=texts(frame, "prompt_id", path),
        prompts=texts(frame, "prompt", path),
        origins=texts(frame, "source", path),
        servers=servers,
        performance=numbers(frame, [SCORE + server for server in servers], path),
        cost=numbers(frame, [COST + server for server in servers], path),
        stand_in=stand_in,
    )
    check_table(table, str(path), allow_missing=True)
    return table


def to_frame(table: RoutingTable) -> pl.DataFrame:
    """Return a table in the compact form, its name, what it stands in for and notes apart."""
    columns = zip(REQUIRED, (table.prompt_ids, table.prompts, table.origins), strict=True)
    frame = pl.DataFrame(dict(columns))
    for prefix, matrix in ((SCORE, table.performance), (COST, table.cost)):
        frame = frame.with_columns(
            pl.Series(prefix + server, matrix[:, j]) for j, server in enumerate(table.servers)
        )
    return frame


def opened(path: pathlib.Path, read: Callable[[pathlib.Path], T], kind: str) -> T:
    """Return what `read` makes of a file, or say in one sentence why it cannot be read."""
    if not path.is_file():
        raise TableError(f"{path}: no such file.")
    try:
        return read(path)
    except (pl.exceptions.PolarsError, OSError, UnicodeDecodeError, csv.Error) as error:
        reason = str(error).partition("\n")[0]
        raise TableError(f"{path}: not readable, cut short or not {kind}: {reason}.") from error


def read_frame(
    path: pathlib.Path, as_text: Sequence[str] = (), infer: bool = True, comments: str | None = None
) -> pl.DataFrame:
    """Read a Parquet or CSV file; the types of a CSV's columns follow from all of its rows.

    Args:
        path: the file.
        as_text: columns of a CSV that stay as they are written, such as an id 007.
        infer: False leaves every column of a CSV as text.
        comments: how a line of a CSV begins that is passed over; it counts as no row.

    Raises:
        TableError: one sentence saying why the file cannot be read, or the column named twice.
    """
    if path.suffix == ".csv":
        return opened(path, lambda file: _read_csv(file, as_text, infer, comments), "csv")
    if path.is_file() and path.suffix != ".parquet":
        raise TableError(f"{path}: must end in .parquet or .csv.")
    return opened(path, pl.read_parquet, "parquet")


def _read_csv(
    path: pathlib.Path, as_text: Sequence[str], infer: bool, comments: str | None
) -> pl.DataFrame:
    frame = pl.read_csv(
        path, infer_schema=infer, infer_schema_length=None, comment_prefix=comments,
        schema_overrides=dict.fromkeys(as_text, pl.String),
    )  # fmt: skip
    # Polars leaves quotes in a name doubled, and renames the second of two columns of one name.
    with path.open(encoding="utf-8-sig", newline="") as file:
        lines = (line for line in file if not comments or not line.startswith(comments))
        names = next(filter(None, csv.reader(lines)), [])
    for name in names:
        if names.count(name) > 1:
            raise TableError(f"{path}: column {name!r} stands there twice.")
    frame.columns = names
    return frame


def check_columns(there: Sequence[str], columns: Iterable[str], file: pathlib.Path) -> None:
    """Refuse the first column that a file lacks, by name."""
    for column in columns:
        if column not in there:
            raise TableError(f"{file}: column {column!r} is missing.")


def check_filled(
    frame: pl.DataFrame, columns: Iterable[str], file: pathlib.Path, first: int = 1
) -> None:
    """Refuse the first empty cell of columns, by row, counted from `first`, and column."""
    for column in columns:
        empty = frame[column].is_null()
        if empty.any():
            row = first + int(empty.arg_max() or 0)
            raise TableError(f"{file}: row {row}, column {column!r} is empty.")


def _servers(frame: pl.DataFrame, path: pathlib.Path) -> tuple[str, ...]:
    check_columns(frame.columns, REQUIRED, path)
    scored = [column[len(SCORE) :] for column in frame.columns if column.startswith(SCORE)]
    priced = [column[len(COST) :] for column in frame.columns if column.startswith(COST)]
    for server in scored:
        if server != server.strip() or not server.isprintable() or not server:
            raise TableError(f"{path}: column {SCORE + server!r} must end in the name of an LLM.")
    check_columns(frame.columns, [COST + server for server in scored], path)
    check_columns(frame.columns, [SCORE + server for server in priced], path)
    return tuple(scored)


def texts(frame: pl.DataFrame, column: str, path: pathlib.Path) -> tuple[str, ...]:
    """Return a column as text, 1 and 1.0 alike.

    Raises:
        TableError: naming the column if it is missing or nested, and the first row without text.
    """
    check_columns(frame.columns, [column], path)
    check_filled(frame, [column], path)
    cells = frame[column]
    if cells.dtype.is_nested():
        raise TableError(f"{path}: column {column!r} must hold text, got {cells.dtype}.")
    if cells.dtype.is_float() and ((cells == cells.round()) & (cells.abs() < 2**53)).all():
        cells = cells.cast(pl.Int64)
    return tuple(cells.cast(pl.String))


def numbers(
    frame: pl.DataFrame,
    columns: Sequence[str],
    path: pathlib.Path,
    labels: Sequence[str] | None = None,
) -> np.ndarray:
    """Return columns as numbers; text that is none is refused by row and column.

    Args:
        frame: with the columns as text or as numbers.
        columns: [N] of the frame.
        path: the file, for the error.
        labels: [N] what the file calls them, for the error; "column '...'" when None.

    Returns:
        [P, N] float64, NaN for a cell that is empty.

    Raises:
        TableError: one sentence naming file, row and column.
    """
    labels = [f"column {column!r}" for column in columns] if labels is None else labels
    values = np.empty((frame.height, len(columns)))
    for j, (column, label) in enumerate(zip(columns, labels, strict=True)):
        cells = frame[column]
        if cells.dtype.is_nested():
            raise TableError(f"{path}: {label} must hold numbers, got {cells.dtype}.")
        cast = cells.cast(pl.Float64, strict=False)
        spoilt = cast.is_null() & cells.is_not_null()
        if cells.dtype == pl.String:
            spoilt &= ~cells.str.strip_chars().str.to_lowercase().is_in(["", "nan"])
        if spoilt.any():
            row = int(spoilt.arg_max() or 0)
            raise TableError(
                f"{path}: row {row + 1}, {label} must be a number, got {cells[row]!r}."
            )
        values[:, j] = cast.fill_null(np.nan).to_numpy()
    return values
