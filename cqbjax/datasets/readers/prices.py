"""Price lists: what an LLM's tokens cost, from a CSV file that a user can replace.

Columns: `model,usd_per_million_input,usd_per_million_output,source,date`. Datasets spell one LLM in
several ways, so names are compared by their letters and digits: "openchat/openchat-3.5" and
"openchat__openchat_3.5" are one LLM.
"""

import pathlib
import re
from collections.abc import Sequence
from typing import NamedTuple

from cqbjax.datasets.readers.parquet_csv import check_columns, read_frame
from cqbjax.datasets.table import TableError

COLUMNS = ("model", "usd_per_million_input", "usd_per_million_output", "source", "date")


class Price(NamedTuple):
    """USD per million input and output tokens."""

    input: float
    output: float


def shipped_prices(name: str) -> pathlib.Path:
    """Return the path of a shipped price list, such as "sprout"."""
    return pathlib.Path(__file__).parents[1] / "prices" / f"{name}.csv"


def read_prices(path: pathlib.Path) -> dict[str, Price]:
    """Read a price list: normalised name of an LLM -> price.

    Raises:
        TableError: a missing column, a repeated LLM, or a price that is not a number >= 0.
    """
    frame = read_frame(path, infer=False, comments="#")
    check_columns(frame.columns, COLUMNS, path)
    prices: dict[str, Price] = {}
    for row, cells in enumerate(frame.iter_rows(named=True), 1):
        name, numbers = _normalise(cells["model"] or ""), []
        if name in prices:
            raise TableError(f"{path}: row {row} names {cells['model']!r} for the second time.")
        for column in COLUMNS[1:3]:
            where = f"{path}: row {row}, column {column!r}"
            try:
                numbers.append(float(cells[column] or ""))
            except ValueError as error:
                raise TableError(f"{where} must be a number, got {cells[column]!r}.") from error
            if not 0 <= numbers[-1] < float("inf"):
                raise TableError(f"{where} must be at least 0, got {numbers[-1]}.")
        prices[name] = Price(*numbers)
    return prices


def find_prices(names: Sequence[str], prices: dict[str, Price], path: pathlib.Path) -> list[Price]:
    """Return the prices of LLMs, from `read_prices` of the list at `path`.

    Raises:
        TableError: one sentence with every LLM that has no price.
    """
    without = [name for name in names if _normalise(name) not in prices]
    if without:
        listed = ", ".join(repr(name) for name in without)
        raise TableError(
            f"{path}: {len(without)} LLM{'s' if len(without) > 1 else ''} cannot be priced "
            f"({listed}): give prices=PATH, a copy of this file with a row "
            f"'<LLM>,<USD per million input>,<USD per million output>,<source>,<date>' for each."
        )
    return [prices[_normalise(name)] for name in names]


def _normalise(name: str) -> str:
    return "-".join(re.findall(r"[a-z0-9]+", name.lower()))
