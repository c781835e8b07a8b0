"""Parquet and CSV files: the compact form of a routing table, and checks that all readers share.

The compact form has one row per prompt, with a score and a cost column per server:
`prompt_id, prompt, source, score|<LLM>, cost|<LLM>` (USD per query). A user's table has this form;
other columns are ignored.
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
    path: str | pathlib.Path, name: str | None = None, proxy_note: str = ""
) -> RoutingTable:
    """Read a table in the compact form from Parquet or CSV.

    Args:
        path: a `.parquet` or `.csv` file.
        name: name of the table; the file's stem when None.
        proxy_note: for a proxy dataset, a text that names the dataset it replaces.

    Returns:
        The table in file order; missing scores are NaN (see `cqbjax.datasets.drop_missing`).

    Raises:
        TableError: one sentence naming file, row and column.
    """
    path = pathlib.Path(path)
    frame = read_frame(path, REQUIRED)
    check_columns(frame.columns, REQUIRED, path)
    scored, priced = (
        [column.removeprefix(prefix) for column in frame.columns if column.startswith(prefix)]
        for prefix in (SCORE, COST)
    )
    for server in scored:
        if server != server.strip() or not server.isprintable() or not server:
            raise TableError(f"{path}: column {SCORE + server!r} must end in the name of an LLM.")
    check_columns(frame.columns, [COST + server for server in scored], path)
    check_columns(frame.columns, [SCORE + server for server in priced], path)
    table = RoutingTable(
        name=name or path.stem,
        prompt_ids=text_column(frame, "prompt_id", path),
        prompts=text_column(frame, "prompt", path),
        origins=text_column(frame, "source", path),
        servers=tuple(scored),
        performance=number_columns(frame, [SCORE + server for server in scored], path),
        cost=number_columns(frame, [COST + server for server in scored], path),
        proxy_note=proxy_note,
    )
    return check_table(table, str(path), allow_missing=True)


def to_frame(table: RoutingTable) -> pl.DataFrame:
    """Return the cells of a table in the compact form, without its name and notes."""
    columns = dict(zip(REQUIRED, (table.prompt_ids, table.prompts, table.origins), strict=True))
    return pl.DataFrame(columns).with_columns(
        pl.Series(prefix + server, matrix[:, j])
        for prefix, matrix in ((SCORE, table.performance), (COST, table.cost))
        for j, server in enumerate(table.servers)
    )


def read_with(read: Callable[[pathlib.Path], T], path: pathlib.Path, file_format: str) -> T:
    """Return `read(path)`; raise a `TableError` of one sentence if the file cannot be read."""
    if not path.is_file():
        raise TableError(f"{path}: no such file.")
    try:
        return read(path)
    except (pl.exceptions.PolarsError, OSError, UnicodeDecodeError, csv.Error) as error:
        reason = str(error).partition("\n")[0]
        raise TableError(
            f"{path}: not readable, cut short or not {file_format}: {reason}."
        ) from error


def read_frame(
    path: pathlib.Path, as_text: Sequence[str] = (), infer: bool = True, comments: str | None = None
) -> pl.DataFrame:
    """Read a Parquet or CSV file; the types of a CSV's columns follow from all of its rows.

    Args:
        path: the file.
        as_text: columns of a CSV that stay text, such as an id 007.
        infer: False leaves every column of a CSV as text.
        comments: beginning of the lines of a CSV that are skipped and not counted as rows.

    Raises:
        TableError: the file cannot be read, or two columns have one name.
    """

    def read_csv(path: pathlib.Path) -> pl.DataFrame:
        frame = pl.read_csv(
            path, infer_schema=infer, infer_schema_length=None, comment_prefix=comments,
            schema_overrides=dict.fromkeys(as_text, pl.String),
        )  # fmt: skip
        # Polars leaves quotes in a name doubled, and renames the second of two equal columns.
        with path.open(encoding="utf-8-sig", newline="") as file:
            lines = (line for line in file if not comments or not line.startswith(comments))
            names = next(filter(None, csv.reader(lines)), [])
        for name in names:
            if names.count(name) > 1:
                raise TableError(f"{path}: column {name!r} stands there twice.")
        frame.columns = names
        return frame

    if path.suffix == ".csv":
        return read_with(read_csv, path, "csv")
    if path.is_file() and path.suffix != ".parquet":
        raise TableError(f"{path}: must end in .parquet or .csv.")
    return read_with(pl.read_parquet, path, "parquet")


def check_columns(columns: Sequence[str], required: Iterable[str], file: pathlib.Path) -> None:
    """Raise a `TableError` naming the first required column that a file lacks."""
    for column in required:
        if column not in columns:
            raise TableError(f"{file}: column {column!r} is missing.")


def check_filled(frame: pl.DataFrame, columns: Iterable[str], file: pathlib.Path) -> None:
    """Raise a `TableError` naming row, counted from 1, and column of the first empty cell."""
    for column in columns:
        empty = frame[column].is_null()
        if empty.any():
            row = int(empty.arg_max() or 0)
            raise TableError(f"{file}: row {row + 1}, column {column!r} is empty.")


def text_column(frame: pl.DataFrame, column: str, path: pathlib.Path) -> tuple[str, ...]:
    """Return a column as text; 1 and 1.0 give the same.

    Raises:
        TableError: the column is missing or nested, or a row has no text.
    """
    check_columns(frame.columns, [column], path)
    check_filled(frame, [column], path)
    cells = frame[column]
    if cells.dtype.is_nested():
        raise TableError(f"{path}: column {column!r} must hold text, got {cells.dtype}.")
    if cells.dtype.is_float() and ((cells == cells.round()) & (cells.abs() < 2**53)).all():
        cells = cells.cast(pl.Int64)
    return tuple(cells.cast(pl.String))


def number_columns(
    frame: pl.DataFrame, columns: Sequence[str], path: pathlib.Path, part: str = ""
) -> np.ndarray:
    """Return columns as numbers.

    Args:
        frame: with the columns as text or as numbers.
        columns: [N] names of columns of the frame.
        path: the file, for the error.
        part: part of a column that holds the numbers, for the error.

    Returns:
        [P, N] float64, NaN for an empty cell.

    Raises:
        TableError: naming file, row and column of the first text that is not a number.
    """
    values = np.empty((frame.height, len(columns)))
    for j, column in enumerate(columns):
        cells, label = frame[column], f"column {column!r}{part}"
        if cells.dtype.is_nested():
            raise TableError(f"{path}: {label} must hold numbers, got {cells.dtype}.")
        cast = cells.cast(pl.Float64, strict=False)
        wrong = cast.is_null() & cells.is_not_null()
        if cells.dtype == pl.String:
            wrong &= ~cells.str.strip_chars().str.to_lowercase().is_in(["", "nan"])
        if wrong.any():
            row = int(wrong.arg_max() or 0)
            raise TableError(
                f"{path}: row {row + 1}, {label} must be a number, got {cells[row]!r}."
            )
        values[:, j] = cast.fill_null(np.nan).to_numpy()
    return values
