"""RouterBench in its own schema: CSVs as in RouterDC's copy, or the official pickled frames.

Columns: `sample_id, prompt, eval_name`, then for each LLM a score column named by the LLM,
    `<LLM>|model_response` and `<LLM>|total_cost` (USD per query), and `oracle_model_to_route_to`.
"""

import ast
import pathlib
import pickle
from typing import Any

import polars as pl

from cqbjax.datasets.readers.parquet_csv import (
    check_columns,
    check_filled,
    number_columns,
    read_frame,
)
from cqbjax.datasets.table import RoutingTable, TableError, check_cells, check_table

COST_SUFFIX = "|total_cost"
RESPONSE_SUFFIX = "|model_response"
REQUIRED = ("sample_id", "prompt", "eval_name")
NUMBERED = ("", "Unnamed: 0")  # the frame's own row number, as pandas writes it
ORACLE = "oracle_model_to_route_to"
# Columns of a joined row: its number in the unsplit RouterBench, its file, its row there, and how
# many scores it has.
ROW, FILE, FILE_ROW, SCORES = "__row", "__file", "__file_row", "__scores"
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
    gives prompt and costs. If this row has no score for an LLM, the other row's score is taken, but
    only if both rows hold the same text as the LLM's response. The table's notes count dropped and
    merged rows.

    Args:
        path: a folder, a `.csv` or a `.pkl`.

    Returns:
        The table; a missing score is NaN (see `cqbjax.datasets.drop_missing`).

    Raises:
        TableError: one sentence naming file, row and column, or a class that a pickle must not use.
    """
    path, servers, parts = pathlib.Path(path), tuple[str, ...](), []
    for file in _find_files(path):
        pickled = file.suffix == ".pkl"
        frame = read_pickled_frame(file) if pickled else read_frame(file, infer=False)
        check_columns(frame.columns, REQUIRED, file)
        check_filled(frame, REQUIRED, file)
        found = _find_servers(frame, file)
        servers = servers or found
        if different := sorted(set(found) ^ set(servers)):
            raise TableError(f"{file}: column {different[0]!r} is not in every file of the folder.")
        parts.append(_select_columns(frame, servers, file))
    frame, notes = _merge_ids(pl.concat(parts).sort(ROW, maintain_order=True), servers)
    table = RoutingTable(
        name="RouterBench",
        prompt_ids=tuple(frame["sample_id"]),
        prompts=tuple(unwrap_prompt(prompt) for prompt in frame["prompt"]),
        origins=tuple(frame["eval_name"]),
        servers=servers,
        performance=frame.select(servers).to_numpy(order="c"),
        cost=frame.select(server + COST_SUFFIX for server in servers).to_numpy(order="c"),
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
    files, pickles = list[pathlib.Path](), sorted(path.glob("*.pkl"))
    for file in sorted(path.glob("*.csv")):
        with file.open(encoding="utf-8", errors="replace") as lines:
            header = lines.readline()
        # Other CSVs, such as models.csv, may lie beside the data.
        if COST_SUFFIX in header or "sample_id" in header:
            files.append(file)
    if not files and not pickles:
        raise TableError(
            f"{path}: no RouterBench file, need CSVs with '<LLM>{COST_SUFFIX}' columns or one .pkl."
        )
    if not files and len(pickles) > 1:
        names = ", ".join(file.name for file in pickles)
        raise TableError(f"{path}: name one of the pickles {names}, they are different sets.")
    return files or pickles


def _find_servers(frame: pl.DataFrame, file: pathlib.Path) -> tuple[str, ...]:
    """Return the LLMs of a file in the order of its score columns."""
    columns = set(frame.columns)
    priced = {name.removesuffix(COST_SUFFIX) for name in columns if name.endswith(COST_SUFFIX)}
    answered = {name.split("|")[0] for name in columns if name.endswith(RESPONSE_SUFFIX)}
    for server in sorted(priced - columns):
        raise TableError(f"{file}: column {server!r} (the scores) is missing.")
    check_columns(frame.columns, [server + COST_SUFFIX for server in sorted(answered)], file)
    for column in sorted(columns - priced - {*REQUIRED, *NUMBERED, ORACLE}):
        filled = frame[column].drop_nulls()
        scores = filled.cast(pl.Float64, strict=False).is_between(0, 1).fill_null(False)
        if "|" not in column and len(filled) and scores.all():
            raise TableError(
                f"{file}: column {column + COST_SUFFIX!r} is missing, column {column!r} holds "
                f"scores."
            )
    if not priced:
        raise TableError(
            f"{file}: no LLM there, each needs a column of scores named by it and one named "
            f"'<LLM>{COST_SUFFIX}'."
        )
    return tuple(column for column in frame.columns if column in priced)


def _select_columns(
    frame: pl.DataFrame, servers: tuple[str, ...], file: pathlib.Path
) -> pl.DataFrame:
    """Return the required columns of one file, checked, with numbers as float64."""
    costs, answers = (
        [server + suffix for server in servers] for suffix in (COST_SUFFIX, RESPONSE_SUFFIX)
    )
    check_cells(
        number_columns(frame, servers, file), number_columns(frame, costs, file), str(file),
        frame["sample_id"].cast(pl.String).to_list(), servers,
        ("column '{}'", f"column '{{}}{COST_SUFFIX}'"),
    )  # fmt: skip
    absent = [pl.lit(None).alias(answer) for answer in answers if answer not in frame.columns]
    row = pl.int_range(pl.len())
    unnamed = [frame[c].cast(pl.Int64, strict=False) for c in frame.columns if c in NUMBERED]
    order = row if not unnamed or unnamed[0].null_count() else pl.lit(unnamed[0])
    return frame.with_columns(absent).select(
        pl.col([*REQUIRED, *answers]).cast(pl.String),
        pl.col([*servers, *costs]).cast(pl.Float64, strict=False).fill_nan(None),
        order.alias(ROW), pl.lit(str(file)).alias(FILE), (row + 1).alias(FILE_ROW),
    )  # fmt: skip


def _merge_ids(
    frame: pl.DataFrame, servers: tuple[str, ...]
) -> tuple[pl.DataFrame, tuple[str, ...]]:
    """Drop rows without a score and merge rows of one id; return a note on each.

    Of the rows of one id, the one with most scores stays, with the scores of equal responses in the
    other rows.
    """
    scores = pl.sum_horizontal(pl.col(servers).is_not_null()).alias(SCORES)
    scored = frame.with_columns(scores).filter(pl.col(SCORES) > 0)
    for server in servers:
        known = scored.filter(pl.col(server).is_not_null())
        for twice in known.filter(~pl.col("sample_id").is_first_distinct()).iter_rows(named=True):
            first = known.filter(sample_id=twice["sample_id"]).row(0, named=True)
            raise TableError(
                f"{twice[FILE]}: row {twice[FILE_ROW]}, column 'sample_id': "
                f"{twice['sample_id']!r} also stands in row {first[FILE_ROW]} of {first[FILE]}, "
                f"and both have a score in column {server!r}."
            )
    ordered = scored.sort(SCORES, descending=True, maintain_order=True)
    groups = ordered.group_by("sample_id", maintain_order=True)
    response = {server: pl.col(server + RESPONSE_SUFFIX) for server in servers}
    merged = groups.agg(
        pl.exclude("sample_id", *servers).first(),
        *(
            pl.col(server).filter((pl.int_range(pl.len()) == 0) | (answer == answer.first())).max()
            for server, answer in response.items()
        ),
    ).sort(ROW, maintain_order=True)
    repeated = int(scored["sample_id"].is_duplicated().sum())
    prompts = merged.height - scored.height + repeated
    notes = {
        f"dropped {frame.height - scored.height:,} rows without any score": frame.height
        - scored.height,
        f"merged {repeated:,} rows into {prompts:,} prompts of the same id": repeated,
    }
    return merged, tuple(note for note, count in notes.items() if count)


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
    columns = {
        str(column): [
            None if isinstance(x, float) and x != x else x for x in frame[column].tolist()
        ]
        for column in frame.columns
    }
    return pl.DataFrame(columns, strict=False)


class _FrameUnpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if f"{module}.{name}" not in ALLOWED:
            raise pickle.UnpicklingError(f"it asks for {module}.{name}, which is not allowed")
        if module == "pandas.core.indexes.numeric":  # a plain Index since pandas 2
            module, name = "pandas", "Index"
        return super().find_class(module, name)

    def persistent_load(self, pid: Any) -> Any:
        raise pickle.UnpicklingError(f"it asks for the outside object {pid!r}")
