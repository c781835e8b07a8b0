"""Price lists: what an LLM's tokens cost, from CSV files that a user can replace.

Two kinds. By LLM: `model,usd_per_million_input,usd_per_million_output,source,date`. By size
class: `kind,key,usd_per_million_tokens,source,date`, where `kind` is `dense` or `mixture` (key: the
largest number of parameters of the class, in billions) or `model` (key: an LLM's name, which then
overrides its size; "openchat/openchat_3.5" and "openchat__openchat-3.5" are one name).
"""

import importlib.resources
import pathlib
import re
from collections.abc import Sequence
from typing import NamedTuple

import polars as pl

from cqbjax.datasets.readers.compact import check_columns, read_frame
from cqbjax.datasets.table import TableError

MODEL_COLUMNS = ("model", "usd_per_million_input", "usd_per_million_output", "source", "date")
CLASS_COLUMNS = ("kind", "key", "usd_per_million_tokens", "source", "date")
# "Mixtral-8x7B" and "MixTAO-7Bx2" are mixtures; "llama-2-13b" is dense.
_MIXTURE = re.compile(r"(?<![\w.])?(\d+)x(\d+(?:\.\d+)?)b(?![a-z])", re.IGNORECASE)
_MIXTURE_AFTER = re.compile(r"(\d+(?:\.\d+)?)bx(\d+)(?![a-z])", re.IGNORECASE)
_DENSE = re.compile(r"(?<![\d.x])(\d+(?:[._]\d+)?)b(?![a-z])", re.IGNORECASE)


class Price(NamedTuple):
    """Hold USD per million input and output tokens."""

    input: float
    output: float


class SizePrices(NamedTuple):
    """Hold one price an LLM by size class.

    Attributes:
        dense: (largest billions of parameters, USD per million tokens), ascending.
        mixture: the same for mixtures of experts, by their total parameters.
        models: LLM name, as `_same` spells it, to USD per million tokens; overrides the classes.
        path: the file, for errors.
    """

    dense: tuple[tuple[float, float], ...]
    mixture: tuple[tuple[float, float], ...]
    models: dict[str, float]
    path: pathlib.Path


def shipped(name: str) -> pathlib.Path:
    """Return the path of a shipped price list, such as "sprout"."""
    return pathlib.Path(
        str(importlib.resources.files("cqbjax") / "datasets" / "prices" / f"{name}.csv")
    )


def read_prices(path: str | pathlib.Path) -> dict[str, Price]:
    """Read a price list by LLM.

    Raises:
        TableError: a missing column, an LLM named twice, or a price that is no number >= 0.
    """
    path = pathlib.Path(path)
    frame = _read(path, MODEL_COLUMNS)
    prices: dict[str, Price] = {}
    for row, cells in enumerate(frame.iter_rows(named=True), 1):
        _refuse_twice(cells["model"], prices, path, row)
        prices[cells["model"]] = Price(
            _usd(cells, "usd_per_million_input", path, row),
            _usd(cells, "usd_per_million_output", path, row),
        )
    return prices


def read_size_prices(path: str | pathlib.Path) -> SizePrices:
    """Read a price list by size class.

    Raises:
        TableError: a missing column, an unknown kind, a key named twice or not a size, or a price
            that is no number >= 0.
    """
    path = pathlib.Path(path)
    frame = _read(path, CLASS_COLUMNS)
    classes: dict[str, dict[str, float]] = {"dense": {}, "mixture": {}, "model": {}}
    for row, cells in enumerate(frame.iter_rows(named=True), 1):
        kind = cells["kind"]
        if kind not in classes:
            raise TableError(
                f"{path}: row {row}, column 'kind' must be dense, mixture or model, got {kind!r}."
            )
        if kind != "model":
            _number(cells, "key", path, row)
        key = _same(cells["key"] or "") if kind == "model" else cells["key"]
        _refuse_twice(key, classes[kind], path, row)
        classes[kind][key] = _usd(cells, "usd_per_million_tokens", path, row)
    dense, mixture = (
        tuple(sorted((float(key), price) for key, price in classes[kind].items()))
        for kind in ("dense", "mixture")
    )
    return SizePrices(dense, mixture, classes["model"], path)


def prices_by_size(names: Sequence[str], prices: SizePrices) -> list[float]:
    """Return LLMs' USD per million tokens: by its own row, else by the size that a name states.

    Raises:
        TableError: one sentence with every LLM whose name states no size, or one beyond the largest
            class.
    """
    priced = [_price(name, prices) for name in names]
    without = [name for name, price in zip(names, priced, strict=True) if price is None]
    if without:
        raise TableError(
            f"{prices.path}: {_unpriced(without)}, no row of kind model names them and their names "
            f"state no size or one beyond the largest class: give prices=PATH, a copy of this file "
            f"with a row 'model,<LLM>,<USD per million tokens>,<source>,<date>' for each."
        )
    return [price for price in priced if price is not None]


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
    without = [name for name in names if name not in prices]
    if without:
        raise TableError(
            f"{path}: {_unpriced(without)}: give prices=PATH, a copy of this file with a row "
            f"'<LLM>,<USD per million input>,<USD per million output>,<source>,<date>' for each."
        )
    return [prices[name] for name in names]


def parameters(name: str) -> tuple[str, float | None]:
    """Return ("dense" or "mixture", billions of parameters that the name states or None)."""
    base = name.rsplit("/", 1)[-1]
    if mixture := _MIXTURE.search(base) or _MIXTURE_AFTER.search(base):
        return "mixture", float(mixture[1]) * float(mixture[2])
    sizes = [float(size.replace("_", ".")) for size in _DENSE.findall(base)]
    return "dense", max(sizes, default=None)


def _price(name: str, prices: SizePrices) -> float | None:
    if (listed := prices.models.get(_same(name))) is not None:
        return listed
    kind, size = parameters(name)
    classes = prices.mixture if kind == "mixture" else prices.dense
    fitting = (price for largest, price in classes if size is not None and size <= largest)
    return next(fitting, None)


def _same(name: str) -> str:
    """Spell a name as EmbedLLM's files, its paper and the hub do not: each in its own way."""
    return "-".join(re.findall(r"[a-z0-9]+", name.lower()))


def _unpriced(names: Sequence[str]) -> str:
    listed = ", ".join(repr(name) for name in names)
    return f"{len(names)} LLM{'s' if len(names) > 1 else ''} cannot be priced ({listed})"


def _read(path: pathlib.Path, columns: tuple[str, ...]) -> pl.DataFrame:
    frame = read_frame(path, infer=False, comments="#")
    check_columns(frame.columns, columns, path)
    return frame


def _number(cells: dict[str, str | None], column: str, path: pathlib.Path, row: int) -> float:
    try:
        return float(cells[column] or "")
    except ValueError as error:
        raise TableError(
            f"{path}: row {row}, column {column!r} must be a number, got {cells[column]!r}."
        ) from error


def _usd(cells: dict[str, str | None], column: str, path: pathlib.Path, row: int) -> float:
    value = _number(cells, column, path, row)
    if not 0 <= value < float("inf"):
        raise TableError(f"{path}: row {row}, column {column!r} must be at least 0, got {value}.")
    return value


def _refuse_twice(key: str, seen: dict, path: pathlib.Path, row: int) -> None:
    if key in seen:
        raise TableError(f"{path}: row {row} names {key!r} for the second time.")
