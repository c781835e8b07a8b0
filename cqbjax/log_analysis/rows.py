"""Rows of a log, in a stream: JSON lines, a JSON array, CSV or Parquet, gzipped or not."""

import contextlib
import csv
import functools
import gzip
import io
import json
import sys
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any

import polars as pl

from cqbjax.logs.shards import LogError

GZIP, PARQUET = b"\x1f\x8b", b"PAR1"
CHUNK = 1 << 20  # characters of a JSON array that are read at once
NOT_JSON, NOT_OBJECT, WRONG_CELLS = (
    "not JSON", "not an object of names and values", "another number of cells than the header",
)  # fmt: skip

TextFile = functools.partial(io.TextIOWrapper, encoding="utf-8-sig", errors="replace", newline="")
# The number of a row, from 1, and its fields, or the reason why it cannot be read.
Row = tuple[int, dict[str, Any] | str]


def read_rows(path: Path) -> Iterator[Row]:
    """Yield the rows of a log with their numbers: of a text file, the number of the line.

    The content decides on the format, not the file's name.

    Raises:
        LogError: the file does not exist, is empty, or is cut short.
    """
    try:
        with path.open("rb") as plain:
            packed = plain.read(2) == GZIP
        with gzip.open(path) if packed else path.open("rb") as file:
            begin = file.read(4096)
            file.seek(0)
            yield from _choose_reader(begin)(file)
    except (OSError, EOFError, zlib.error, pl.exceptions.PolarsError, csv.Error) as error:
        missing = isinstance(error, FileNotFoundError)
        reason = "no such file" if missing else f"cannot be read, or is cut short: {error}"
        raise LogError(f"{path}: {reason}.".replace("..", ".")) from error


def _choose_reader(begin: bytes) -> Callable[[Any], Iterator[Row]]:
    if begin.startswith(PARQUET):
        return _read_parquet
    text = begin.decode("utf-8-sig", "replace").lstrip()
    if not text:
        raise EOFError("it is empty")
    if text[0] == "[":
        return _read_array
    # The first line of JSON lines may be damaged.
    by_lines = any(line.lstrip().startswith("{") for line in text.splitlines()[:3])
    return _read_lines if by_lines else _read_csv


def _read_parquet(file: IO[bytes]) -> Iterator[Row]:
    batches = pl.scan_parquet(file).collect_batches(chunk_size=4096)
    yield from enumerate((row for rows in batches for row in rows.iter_rows(named=True)), 1)


def _read_lines(file: IO[bytes]) -> Iterator[Row]:
    for number, line in enumerate(TextFile(file), 1):
        if line.strip():
            try:
                row = json.loads(line)
                yield number, row if isinstance(row, dict) else NOT_OBJECT
            except (ValueError, RecursionError):
                yield number, NOT_JSON


def _read_array(file: IO[bytes]) -> Iterator[Row]:
    """Yield the elements of a JSON array; nothing after an element that is not JSON is found."""
    text, decoder, number = TextFile(file), json.JSONDecoder(), 0
    left = text.read(CHUNK).lstrip()[1:]
    while True:
        more = text.read(max(CHUNK, len(left)))
        left += more
        with contextlib.suppress(ValueError):  # an element that is cut, or is not JSON
            while True:
                left = left.lstrip(", \r\n\t")
                row, end = decoder.raw_decode(left)
                if more and end == len(left):  # a number may go on
                    break
                number += 1
                yield number, row if isinstance(row, dict) else NOT_OBJECT
                left = left[end:]
        if left.startswith("]"):
            return
        if not more:
            yield number + 1, NOT_JSON
            return


def _read_csv(file: IO[bytes]) -> Iterator[Row]:
    csv.field_size_limit(min(sys.maxsize, 2**31 - 1))  # a prompt may be long
    reader = csv.reader(TextFile(file))
    names = next(reader)
    for cells in filter(None, reader):
        fits = len(cells) == len(names)
        yield reader.line_num, dict(zip(names, cells, strict=True)) if fits else WRONG_CELLS
