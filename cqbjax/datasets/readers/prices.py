"""Price lists: what an LLM's tokens cost, from a CSV file that a user can replace.

Columns: `model,usd_per_million_input,usd_per_million_output,source,date`. Datasets spell one LLM in
several ways, so names are compared by their letters and digits: "openchat/openchat-3.5" and
"openchat__openchat_3.5" are one LLM.
"""

import importlib.resources
import pathlib
import re
from collections.abc import Sequence
from typing import NamedTuple

from cqbjax.datasets.readers.compact import check_columns, read_frame
from cqbjax.datasets.table import TableError

COLUMNS = ("model", "usd_per_million_input", "usd_per_million_output", "source", "date")


class Price(NamedTuple):
    """Hold USD per million input and output tokens."""

    input: float
    output: float


def shipped(name: str) -> pathlib.Path:
    """Return the path of a shipped price list, such as "sprout"."""
    return pathlib.Path(
        str(importlib.resources.files("cqbjax") / "datasets" / "prices" / f"{name}.csv")
    )


def read_prices(path: str | pathlib.Path) -> dict[str, Price]:
    """Read a price list: name of an LLM, as `_spelled_alike` has it -> price.

    Raises:
        TableError: a missing column, an LLM named twice, or a price that is no number >= 0.
    """
    path = pathlib.Path(path)
    frame = read_frame(path, infer=False, comments="#")
    check_columns(frame.columns, COLUMNS, path)
    prices: dict[str, Price] = {}
    for row, cells in enumerate(frame.iter_rows(named=True), 1):
        name = _spelled_alike(cells["model"] or "")
        if name in prices:
            raise TableError(f"{path}: row {row} names {cells['model']!r} for the second time.")
        prices[name] = Price(*(_usd(cells, column, path, row) for column in COLUMNS[1:3]))
    return prices


def prices_by_name(
    names: Sequence[str], prices: dict[str, Price], path: pathlib.Path
) -> list[Price]:
    """Return LLMs' prices.

    Args:
        names: of the LLMs.
        prices: from `read_prices`.
        path: the price list, for errors.

    Raises:
        TableError: one sentence with every LLM that has no price.
    """
    without = [name for name in names if _spelled_alike(name) not in prices]
    if without:
        listed = ", ".join(repr(name) for name in without)
        raise TableError(
            f"{path}: {len(without)} LLM{'s' if len(without) > 1 else ''} cannot be priced "
            f"({listed}): give prices=PATH, a copy of this file with a row "
            f"'<LLM>,<USD per million input>,<USD per million output>,<source>,<date>' for each."
        )
    return [prices[_spelled_alike(name)] for name in names]


def _spelled_alike(name: str) -> str:
    return "-".join(re.findall(r"[a-z0-9]+", name.lower()))


def _usd(cells: dict[str, str | None], column: str, path: pathlib.Path, row: int) -> float:
    try:
        value = float(cells[column] or "")
    except ValueError as error:
        raise TableError(
            f"{path}: row {row}, column {column!r} must be a number, got {cells[column]!r}."
        ) from error
    if not 0 <= value < float("inf"):
        raise TableError(f"{path}: row {row}, column {column!r} must be at least 0, got {value}.")
    return value
