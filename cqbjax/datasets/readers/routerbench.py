"""RouterBench in its own schema: CSVs as in RouterDC's copy, or the official pickled frames.

Columns: `sample_id, prompt, eval_name`, then for each LLM a score column named by the LLM,
    `<LLM>|model_response` and `<LLM>|total_cost` (USD per query), and `oracle_model_to_route_to`.
"""

import ast
import pathlib
import pickle
from collections.abc import Sequence
from typing import Any

import numpy as np
import polars as pl

from cqbjax.datasets.readers.parquet_csv import (
    check_columns,
    check_filled,
    number_columns,
    read_frame,
)
from cqbjax.datasets.table import CellNames, RoutingTable, TableError, check_table

COST_SUFFIX = "|total_cost"
RESPONSE_SUFFIX = "|model_response"
REQUIRED = ("sample_id", "prompt", "eval_name")
NUMBERED = ("", "Unnamed: 0")  # the frame's own row number, as pandas writes it
ORACLE = "oracle_model_to_route_to"
# Columns of a joined row: its number in the unsplit RouterBench, its file and its row there.
ROW, FILE, FILE_ROW = "__row", "__file", "__file_row"
# The callables of a pickled frame of floats and strings, under the paths of old and new versions.
ALLOWED = {
    f"{module}.{name}"
    for modules, names in (
        ("_codecs", "encode"), ("builtins __builtin__", "slice"), ("numpy", "ndarray dtype"),
        ("numpy.core.multiarray numpy._core.multiarray", "_reconstruct"),
        ("numpy.core.numeric numpy._core.numeric", "_frombuffer"),
        ("pandas._libs.internals", "_unpickle_block"),
        ("pandas.core.internals.managers", "BlockManager"), ("pandas.core.frame", "DataFrame"),
        ("pandas.core.indexes.base", "_new_Index Index"), ("pandas", "DataFrame Index RangeIndex"),
        ("pandas.core.indexes.range", "RangeIndex"),
        ("pandas.core.indexes.numeric", "Int64Index Float64Index"),
    )
    for module in modules.split() for name in names.split()
}  # fmt: skip


def read_routerbench(path: str | pathlib.Path) -> RoutingTable:
    """Read RouterBench from a folder of CSVs, one CSV, or one pickle.

    Rows are put in the order of the frame's own row number (the CSVs' unnamed first column), which
    is the order of the unsplit RouterBench; without one, in file order. A prompt that is a Python
    list of strings is unwrapped. Rows without any score are dropped.

    Rows that share a `sample_id` are merged if no server has two scores. The row with most scores
    gives prompt and costs. A score that it lacks is taken from the other row only if the LLM's
    response is the same text: the same answer to the same question. The table's notes count dropped
    and merged rows.

    Args:
        path: a folder, a `.csv` or a `.pkl`.

    Returns:
        The table; a missing score is NaN (see `cqbjax.datasets.drop_missing`).

    Raises:
        TableError: one sentence naming file, row and column, or a class that a pickle must not use.
    """
    path = pathlib.Path(path)
    frames = []
    for file in _find_files(path):
        pickled = file.suffix == ".pkl"
        frame = read_pickled_frame(file) if pickled else read_frame(file, infer=False)
        check_columns(frame.columns, REQUIRED, file)
        check_filled(frame, REQUIRED, file)
        frames.append((file, frame))
    servers = _find_servers(frames)
    parts = [_select_columns(frame, servers, file) for file, frame in frames]
    frame, notes = _merge_ids(pl.concat(parts).sort(ROW, maintain_order=True), servers)
    table = RoutingTable(
        name="RouterBench",
        prompt_ids=tuple(frame["sample_id"]),
        prompts=tuple(unwrap_prompt(prompt) for prompt in frame["prompt"]),
        origins=tuple(frame["eval_name"]),
        servers=servers,
        performance=_to_matrix(frame, servers),
        cost=_to_matrix(frame, [server + COST_SUFFIX for server in servers]),
        notes=notes,
        in_file_order=False,
    )
    return check_table(table, str(path), allow_missing=True)


def unwrap_prompt(prompt: str) -> str:
    """Return the text of a prompt written as a Python list of strings, joined by blank lines."""
    if not (prompt.startswith("[") and prompt.endswith("]")):
        return prompt
    try:
        value = ast.literal_eval(prompt)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return prompt  # a prompt may begin and end with brackets of its own
    if isinstance(value, list) and value and all(isinstance(part, str) for part in value):
        return "\n\n".join(value)
    return prompt


def _find_files(path: pathlib.Path) -> list[pathlib.Path]:
    if path.is_file():
        return [path]
    if not path.is_dir():
        raise TableError(f"{path}: no such file or folder.")
    files = []
    for file in sorted(path.glob("*.csv")):
        with file.open(encoding="utf-8", errors="replace") as lines:
            header = lines.readline()
        # Other CSVs, such as models.csv, may lie beside the data.
        if COST_SUFFIX in header or "sample_id" in header:
            files.append(file)
    if not files:
        files = sorted(path.glob("*.pkl"))
        if len(files) > 1:
            names = ", ".join(file.name for file in files)
            raise TableError(f"{path}: name one of the pickles {names}, they are different sets.")
    if not files:
        raise TableError(
            f"{path}: no RouterBench file, need CSVs with '<LLM>{COST_SUFFIX}' columns or one .pkl."
        )
    return files


def _find_servers(frames: list[tuple[pathlib.Path, pl.DataFrame]]) -> tuple[str, ...]:
    """Return the LLMs in the order of the first file's score columns; all files must agree."""
    servers: tuple[str, ...] = ()
    for file, frame in frames:
        priced = {c.removesuffix(COST_SUFFIX) for c in frame.columns if c.endswith(COST_SUFFIX)}
        answered = {c.split("|")[0] for c in frame.columns if c.endswith(RESPONSE_SUFFIX)}
        for server in sorted(priced - set(frame.columns)):
            raise TableError(f"{file}: column {server!r} (the scores) is missing.")
        check_columns(frame.columns, [one + COST_SUFFIX for one in sorted(answered)], file)
        for column in sorted(set(frame.columns) - priced - {*REQUIRED, *NUMBERED, ORACLE}):
            if "|" not in column and _holds_scores(frame[column]):
                raise TableError(
                    f"{file}: column {column + COST_SUFFIX!r} is missing, column {column!r} holds "
                    f"scores."
                )
        if not priced:
            raise TableError(
                f"{file}: no LLM there, each needs a column of scores named by it and one named "
                f"'<LLM>{COST_SUFFIX}'."
            )
        servers = servers or tuple(column for column in frame.columns if column in priced)
        if different := sorted(priced ^ set(servers)):
            raise TableError(f"{file}: column {different[0]!r} is not in every file of the folder.")
    return servers


def _holds_scores(cells: pl.Series) -> bool:
    """Return whether a column holds numbers in [0, 1] alone, as an LLM's scores do."""
    filled = cells.drop_nulls()
    scores = filled.cast(pl.Float64, strict=False).is_between(0, 1).fill_null(False)
    return len(filled) > 0 and bool(scores.all())


def _select_columns(
    frame: pl.DataFrame, servers: tuple[str, ...], file: pathlib.Path
) -> pl.DataFrame:
    """Return the required columns of one file, checked, with numbers as float64."""
    costs = [server + COST_SUFFIX for server in servers]
    scores, cost = number_columns(frame, servers, file), number_columns(frame, costs, file)
    ids = frame["sample_id"].cast(pl.String).to_list()
    CellNames(str(file), ids, servers, "column '{}'", f"column '{{}}{COST_SUFFIX}'").check(
        scores, cost
    )
    unnamed = [c for c in frame.columns if c in NUMBERED]
    order = frame[unnamed[0]].cast(pl.Int64, strict=False) if unnamed else None
    if order is None or order.null_count():
        order = pl.Series(np.arange(frame.height))
    answers = [server + RESPONSE_SUFFIX for server in servers]
    absent = [pl.lit(None, pl.String).alias(c) for c in answers if c not in frame.columns]
    texts = frame.with_columns(absent).select(pl.col([*REQUIRED, *answers]).cast(pl.String))
    columns = zip((*servers, *costs), np.hstack([scores, cost]).T, strict=True)
    return texts.with_columns(
        *(pl.Series(name, values, nan_to_null=True) for name, values in columns),
        order.alias(ROW),
        pl.lit(str(file)).alias(FILE),
        pl.int_range(1, pl.len() + 1).alias(FILE_ROW),
    )


def _merge_ids(
    frame: pl.DataFrame, servers: tuple[str, ...]
) -> tuple[pl.DataFrame, tuple[str, ...]]:
    """Drop rows without a score and merge rows of one id; return a note on each."""
    scored = frame.filter(pl.any_horizontal(pl.col(server).is_not_null() for server in servers))
    notes = []
    if frame.height > scored.height:
        notes.append(f"dropped {frame.height - scored.height:,} rows without any score")
    repeated = scored.filter(pl.col("sample_id").is_duplicated())
    if repeated.height:
        groups = repeated.partition_by("sample_id", maintain_order=True)
        merged = pl.concat(_merge_rows(group, servers) for group in groups)
        scored = pl.concat([scored.filter(~pl.col("sample_id").is_duplicated()), merged]).sort(ROW)
        notes.append(
            f"merged {repeated.height:,} rows into {merged.height:,} prompts of the same id"
        )
    return scored, tuple(notes)


def _merge_rows(group: pl.DataFrame, servers: tuple[str, ...]) -> pl.DataFrame:
    """Return the row with most scores, with the scores of equal responses in the other rows."""
    scores = _to_matrix(group, servers)
    known = ~np.isnan(scores)
    twice = known.sum(axis=0) > 1
    if twice.any():
        column = int(twice.argmax())
        first, second = (int(row) for row in np.flatnonzero(known[:, column])[:2])
        raise TableError(
            f"{group[FILE][second]}: row {group[FILE_ROW][second]}, column 'sample_id': "
            f"{group['sample_id'][0]!r} also stands in row {group[FILE_ROW][first]} of "
            f"{group[FILE][first]}, and both have a score in column {servers[column]!r}."
        )
    fullest = int(known.sum(axis=1).argmax())
    row = group[fullest]
    for j in np.flatnonzero(~known[fullest] & known.any(axis=0)):
        other = int(known[:, j].argmax())
        response = group[servers[j] + RESPONSE_SUFFIX]
        if response[other] is not None and response[other] == response[fullest]:
            row = row.with_columns(pl.lit(float(scores[other, j])).alias(servers[j]))
    return row


def _to_matrix(frame: pl.DataFrame, columns: Sequence[str]) -> np.ndarray:
    return frame.select(pl.col(columns).fill_null(np.nan)).to_numpy().astype(np.float64)


def read_pickled_frame(path: pathlib.Path) -> pl.DataFrame:
    """Read a pickled pandas frame of numbers and strings without letting the pickle run code.

    Reading a pickle calls the functions and classes that the pickle names. Only those in `ALLOWED`
    are permitted. They build arrays, indexes and frames.

    Args:
        path: the `.pkl` file.

    Returns:
        The frame without its index; a column of mixed types becomes strings.

    Raises:
        TableError: the pickle asks for another callable (named), is cut short, or is not a frame.
    """
    import pandas as pd

    try:
        with path.open("rb") as file:
            frame = _FrameUnpickler(file).load()
    except pickle.UnpicklingError as error:
        raise TableError(f"{path}: the pickle was refused: {error}.") from error
    except Exception as error:  # a malformed pickle can raise anything
        reason = f"{type(error).__name__}: {error}".splitlines()[0]
        raise TableError(f"{path}: not a whole pickled frame ({reason}).") from error
    if type(frame) is not pd.DataFrame:
        raise TableError(f"{path}: the pickle holds a {type(frame).__name__}, not a frame.")
    columns = []
    for column in frame.columns:
        values = [None if isinstance(v, float) and v != v else v for v in frame[column].tolist()]
        if all(value is None or isinstance(value, (bool, int, float)) for value in values):
            columns.append(pl.Series(str(column), values, dtype=pl.Float64, strict=False))
        else:
            texts = [None if value is None else str(value) for value in values]
            columns.append(pl.Series(str(column), texts, dtype=pl.String))
    return pl.DataFrame(columns)


class _FrameUnpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if f"{module}.{name}" not in ALLOWED:
            raise pickle.UnpicklingError(f"it asks for {module}.{name}, which is not allowed")
        if module == "pandas.core.indexes.numeric":  # a plain Index since pandas 2
            module, name = "pandas", "Index"
        return super().find_class(module, name)

    def persistent_load(self, pid: Any) -> Any:
        raise pickle.UnpicklingError(f"it asks for the outside object {pid!r}")
