"""RouterBench in its own schema: CSVs as in RouterDC's copy, or the official pickled frames.

Columns: `sample_id, prompt, eval_name`, then for each LLM a score column named by the LLM,
`<LLM>|model_response` and `<LLM>|total_cost` (USD a query), and `oracle_model_to_route_to`.
"""

import ast
import pathlib

import numpy as np
import polars as pl

from cqbjax.datasets.readers.compact import check_columns, check_filled, numbers, read_frame
from cqbjax.datasets.readers.pickles import read_pickled_frame
from cqbjax.datasets.table import RoutingTable, TableError, check_cells, check_table

COST_SUFFIX = "|total_cost"
RESPONSE_SUFFIX = "|model_response"
REQUIRED = ("sample_id", "prompt", "eval_name")
NUMBERED = ("", "Unnamed: 0")  # the frame's own row number, as pandas writes it
ORACLE = "oracle_model_to_route_to"
# What a joined row remembers: its place in the unsplit RouterBench, its file and its row there.
ROW, FILE, FILE_ROW = "__row", "__file", "__file_row"


def read_routerbench(path: str | pathlib.Path) -> RoutingTable:
    """Read RouterBench from a folder of CSVs, one CSV, or one pickle.

    Rows are put in the order of the frame's own row number (the CSVs' unnamed first column), which
    is the order of the unsplit RouterBench; without one, in file order. A prompt that is a Python
    list of strings is unwrapped. Rows with no score at all are dropped. Of rows that share a
    `sample_id` with no server scored twice, the one with most scores stands, its prompt and costs
    too; a score that it lacks is taken from the other row only where that LLM's response is the
    same text, for then it is the same answer to the same question. All is counted in the notes.

    Args:
        path: a folder, a `.csv` or a `.pkl`.

    Returns:
        The table; a missing score is NaN (see `cqbjax.datasets.complete`).

    Raises:
        TableError: one sentence naming file, row and column; a pickle that asks for anything but
            a frame's own classes is refused by the name it asked for.
    """
    path = pathlib.Path(path)
    frames = [(file, _read_one(file)) for file in _files(path)]
    servers = _servers(frames)
    parts = [_numbered(frame, servers, file) for file, frame in frames]
    frame = pl.concat(parts).sort(ROW, maintain_order=True)
    frame, notes = _one_row_an_id(frame, servers)
    table = RoutingTable(
        name="RouterBench",
        prompt_ids=tuple(frame["sample_id"]),
        prompts=tuple(unwrap(prompt) for prompt in frame["prompt"]),
        origins=tuple(frame["eval_name"]),
        servers=servers,
        performance=_matrix(frame, list(servers)),
        cost=_matrix(frame, [server + COST_SUFFIX for server in servers]),
        notes=notes,
        in_order=False,
    )
    check_table(table, str(path), allow_missing=True)
    return table


def unwrap(prompt: str) -> str:
    """Return the text of a prompt written as a Python list of strings, joined by blank lines."""
    if not (prompt.startswith("[") and prompt.endswith("]")):
        return prompt
    try:
        value = ast.literal_eval(prompt)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return prompt  # a prompt may well begin and end with brackets of its own
    if isinstance(value, list) and value and all(isinstance(part, str) for part in value):
        return "\n\n".join(value)
    return prompt


def _files(path: pathlib.Path) -> list[pathlib.Path]:
    if path.is_file():
        return [path]
    if not path.is_dir():
        raise TableError(f"{path}: no such file or folder.")
    # models.csv and the like may lie beside the data: only files with a cost or an id are read.
    marks = (COST_SUFFIX, "sample_id")
    csvs = sorted(path.glob("*.csv"))
    files = [file for file in csvs if any(mark in _header(file) for mark in marks)]
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


def _header(file: pathlib.Path) -> str:
    with file.open(encoding="utf-8", errors="replace") as lines:
        return lines.readline()


def _read_one(file: pathlib.Path) -> pl.DataFrame:
    frame = read_pickled_frame(file) if file.suffix == ".pkl" else read_frame(file, infer=False)
    check_columns(frame.columns, REQUIRED, file)
    check_filled(frame, REQUIRED, file)
    return frame


def _servers(frames: list[tuple[pathlib.Path, pl.DataFrame]]) -> tuple[str, ...]:
    """Return the LLMs in the order of the first file's score columns; all files must agree."""
    servers: tuple[str, ...] | None = None
    for file, frame in frames:
        priced = {c.removesuffix(COST_SUFFIX) for c in frame.columns if c.endswith(COST_SUFFIX)}
        for server in sorted(priced):
            if server not in frame.columns:
                raise TableError(f"{file}: column {server!r} (the scores) is missing.")
        answered = {c.split("|")[0] for c in frame.columns if c.endswith(RESPONSE_SUFFIX)}
        for server in sorted(answered - priced):
            raise TableError(f"{file}: column {server + COST_SUFFIX!r} is missing.")
        for column in sorted(set(_score_like(frame)) - priced):
            raise TableError(
                f"{file}: column {column + COST_SUFFIX!r} is missing, column {column!r} holds "
                f"scores."
            )
        if not priced:
            raise TableError(
                f"{file}: no LLM there, each needs a column of scores named by it and one named "
                f"'<LLM>{COST_SUFFIX}'."
            )
        here = tuple(column for column in frame.columns if column in priced)
        if servers is not None and set(here) != set(servers):
            odd = sorted(set(here) ^ set(servers))[0]
            raise TableError(f"{file}: column {odd!r} is not in every file of the folder.")
        servers = servers or here
    return servers or ()


def _score_like(frame: pl.DataFrame) -> list[str]:
    """Return columns that could be an LLM's scores: a plain name, and numbers in [0, 1] alone."""
    columns = []
    for column in frame.columns:
        if "|" in column or column in (*REQUIRED, *NUMBERED, ORACLE):
            continue
        given = frame[column].drop_nulls()
        score = given.cast(pl.Float64, strict=False)
        if len(given) and bool(score.is_between(0, 1).fill_null(False).all()):
            columns.append(column)
    return columns


def _numbered(frame: pl.DataFrame, servers: tuple[str, ...], file: pathlib.Path) -> pl.DataFrame:
    """Return the needed columns of one file, numbers as float64 and every cell looked at."""
    costs = [server + COST_SUFFIX for server in servers]
    scores, cost = numbers(frame, servers, file), numbers(frame, costs, file)
    ids = frame["sample_id"].cast(pl.String).to_list()
    cost_label = f"column '{{}}{COST_SUFFIX}'"
    check_cells(
        scores, cost, ids, servers, str(file), score_label="column '{}'", cost_label=cost_label
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


def _one_row_an_id(
    frame: pl.DataFrame, servers: tuple[str, ...]
) -> tuple[pl.DataFrame, tuple[str, ...]]:
    """Drop rows without a score and merge rows of one id; count both."""
    scored = pl.sum_horizontal(pl.col(server).is_not_null() for server in servers)
    kept = frame.filter(scored > 0)
    notes = []
    if frame.height > kept.height:
        notes.append(f"dropped {frame.height - kept.height:,} rows without any score")
    repeated = kept.filter(pl.col("sample_id").is_duplicated())
    if repeated.height:
        merged = pl.concat(
            _merge(group, servers)
            for group in repeated.partition_by("sample_id", maintain_order=True)
        )
        kept = pl.concat([kept.filter(~pl.col("sample_id").is_duplicated()), merged]).sort(ROW)
        notes.append(
            f"merged {repeated.height:,} rows into {merged.height:,} prompts of the same id"
        )
    return kept, tuple(notes)


def _merge(group: pl.DataFrame, servers: tuple[str, ...]) -> pl.DataFrame:
    """Return the row with most scores, lent the scores that the same responses got elsewhere."""
    scores = _matrix(group, list(servers))
    given = ~np.isnan(scores)
    twice = given.sum(axis=0) > 1
    if twice.any():
        column = int(twice.argmax())
        first, second = (int(row) for row in np.flatnonzero(given[:, column])[:2])
        raise TableError(
            f"{group[FILE][second]}: row {group[FILE_ROW][second]}, column 'sample_id': "
            f"{group['sample_id'][0]!r} also stands in row {group[FILE_ROW][first]} of "
            f"{group[FILE][first]}, and both have a score in column {servers[column]!r}."
        )
    fullest = int(given.sum(axis=1).argmax())
    row = group[fullest]
    for j in np.flatnonzero(~given[fullest] & given.any(axis=0)):
        lender = int(given[:, j].argmax())
        response = group[servers[j] + RESPONSE_SUFFIX]
        if response[lender] is not None and response[lender] == response[fullest]:
            row = row.with_columns(pl.lit(float(scores[lender, j])).alias(servers[j]))
    return row


def _matrix(frame: pl.DataFrame, columns: list[str]) -> np.ndarray:
    return frame.select(pl.col(columns).fill_null(np.nan)).to_numpy().astype(np.float64)
