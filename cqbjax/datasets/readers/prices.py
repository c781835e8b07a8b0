"""Price lists: what an LLM's tokens cost, from a CSV file that a user can replace.

Columns: `model,usd_per_million_input,usd_per_million_output,source,date`. Datasets spell one LLM in
several ways, so names are compared by their letters and digits: "openchat/openchat-3.5" and
"openchat__openchat_3.5" are one LLM.
"""

import pathlib
import re
from collections.abc import Sequence

import numpy as np

from cqbjax.datasets.readers.parquet_csv import check_columns, number_columns, read_frame
from cqbjax.datasets.table import TableError

COLUMNS = ("model", "usd_per_million_input", "usd_per_million_output", "source", "date")


def shipped_prices(name: str) -> pathlib.Path:
    """Return the path of a shipped price list, such as "sprout"."""
    return pathlib.Path(__file__).parents[1] / "prices" / f"{name}.csv"


def read_prices(path: pathlib.Path) -> dict[str, np.ndarray]:
    """Read a price list: normalised name of an LLM -> USD per million input and output tokens [2].

    Raises:
        TableError: a missing column, a repeated LLM, or a price that is not a number >= 0.
    """
    frame = read_frame(path, infer=False, comments="#")
    check_columns(frame.columns, COLUMNS, path)
    usd, prices = number_columns(frame, COLUMNS[1:3], path), dict[str, np.ndarray]()
    for row, (model, price) in enumerate(zip(frame["model"], usd, strict=True), 1):
        name = _normalise(model or "")
        if name in prices:
            raise TableError(f"{path}: row {row} names {model!r} for the second time.")
        for column, value in zip(COLUMNS[1:3], price, strict=True):
            if not 0 <= value < float("inf"):
                raise TableError(
                    f"{path}: row {row}, column {column!r} must be at least 0, got {value}."
                )
        prices[name] = price
    return prices


def find_prices(
    names: Sequence[str], prices: dict[str, np.ndarray], path: pathlib.Path
) -> np.ndarray:
    """Return the prices [N, 2] of LLMs, from `read_prices` of the list at `path`.

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
    return np.stack([prices[_normalise(name)] for name in names])


def _normalise(name: str) -> str:
    return "-".join(re.findall(r"[a-z0-9]+", name.lower()))
