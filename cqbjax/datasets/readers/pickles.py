"""Read a pickled pandas frame without letting the pickle run code.

A pickle names the callables it wants called. Only the few that a frame of numbers and strings
needs are ever handed out, looked up by their exact (module, name); any other is refused by its
name before it is imported. What is left can build arrays, indexes and frames, and nothing else.
"""

import pathlib
import pickle
from collections.abc import Callable
from typing import IO, Any

import polars as pl

from cqbjax.datasets.table import TableError


def _encode_latin1(text: str, encoding: str) -> bytes:
    """Stand for `_codecs.encode`, by which protocol 2 spells bytes; other codecs are refused."""
    if encoding not in ("latin1", "latin-1"):
        raise pickle.UnpicklingError(f"_codecs.encode to {encoding!r} is not allowed")
    return text.encode("latin-1")


def _allowed() -> dict[tuple[str, str], Callable[..., Any]]:
    """Return the callables of a frame of floats and Python strings, under old and new paths."""
    import numpy as np
    import pandas as pd
    from numpy._core import multiarray, numeric
    from pandas._libs import internals
    from pandas.core.indexes import base
    from pandas.core.internals import managers

    allowed: dict[tuple[str, str], Callable[..., Any]] = {
        ("_codecs", "encode"): _encode_latin1,
        ("numpy", "ndarray"): np.ndarray,
        ("numpy", "dtype"): np.dtype,
        ("pandas._libs.internals", "_unpickle_block"): internals._unpickle_block,
        ("pandas.core.indexes.base", "_new_Index"): base._new_Index,
        ("pandas.core.internals.managers", "BlockManager"): managers.BlockManager,
    }
    for core in ("numpy.core", "numpy._core"):  # renamed in numpy 2
        allowed[(f"{core}.multiarray", "_reconstruct")] = multiarray._reconstruct
        allowed[(f"{core}.numeric", "_frombuffer")] = numeric._frombuffer  # type: ignore[attr-defined]  # not in the stubs
    for module in ("builtins", "__builtin__"):  # protocol 2 spells it as Python 2 did
        allowed[(module, "slice")] = slice
    for module in ("pandas", "pandas.core.frame"):
        allowed[(module, "DataFrame")] = pd.DataFrame
    for module in ("pandas", "pandas.core.indexes.base"):
        allowed[(module, "Index")] = pd.Index
    for module in ("pandas", "pandas.core.indexes.range"):
        allowed[(module, "RangeIndex")] = pd.RangeIndex
    for name in ("Int64Index", "Float64Index"):  # gone since pandas 2, a plain Index now
        allowed[("pandas.core.indexes.numeric", name)] = pd.Index
    return allowed


class _FrameUnpickler(pickle.Unpickler):
    def __init__(self, file: IO[bytes]) -> None:
        super().__init__(file)
        self._allowed = _allowed()

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in self._allowed:
            raise pickle.UnpicklingError(f"it asks for {module}.{name}, which is not allowed")
        return self._allowed[(module, name)]

    def persistent_load(self, pid: Any) -> Any:
        raise pickle.UnpicklingError(f"it asks for the outside object {pid!r}")


def read_pickled_frame(path: str | pathlib.Path) -> pl.DataFrame:
    """Read a pickled pandas frame of numbers and strings.

    Args:
        path: the `.pkl` file.

    Returns:
        The frame, its index left out; a column that mixes kinds becomes strings.

    Raises:
        TableError: the pickle asks for anything outside the allow-list (named), is cut short, or
            is not a frame. No code of the pickle's choosing has run.
    """
    import pandas as pd

    path = pathlib.Path(path)
    if not path.is_file():
        raise TableError(f"{path}: no such file.")
    try:
        with path.open("rb") as file:
            frame = _FrameUnpickler(file).load()
    except pickle.UnpicklingError as error:
        raise TableError(f"{path}: the pickle was refused: {error}.") from error
    except Exception as error:  # a malformed pickle can raise anything; none of it is of use
        reason = f"{type(error).__name__}: {error}".splitlines()[0]
        raise TableError(f"{path}: not a whole pickled frame ({reason}).") from error
    if type(frame) is not pd.DataFrame:
        raise TableError(f"{path}: the pickle holds a {type(frame).__name__}, not a frame.")
    return pl.DataFrame([_series(str(column), frame[column].tolist()) for column in frame.columns])


def _series(name: str, values: list[Any]) -> pl.Series:
    values = [None if isinstance(value, float) and value != value else value for value in values]
    if all(value is None or isinstance(value, (bool, int, float)) for value in values):
        return pl.Series(name, values, dtype=pl.Float64, strict=False)
    return pl.Series(name, [None if v is None else str(v) for v in values], dtype=pl.String)
