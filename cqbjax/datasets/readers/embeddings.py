"""Embeddings as a file: one array [P, d], a row a prompt, whoever made them.

An `.npy` file holds the array alone: its rows are those of the table, in their order. A Parquet
file holds ids too (`prompt_id` of a table, `conversation_hash` of a log) beside the lists of
`embedding`: rows are joined by id, in any order.
"""

import pathlib
from collections.abc import Callable, Sequence

import numpy as np
import polars as pl

from cqbjax.core.given import places_of
from cqbjax.datasets.readers.compact import check_columns, read_frame, texts
from cqbjax.datasets.table import TableError, check_unique
from cqbjax.sources.routing import check_lengths

NPY = b"\x93NUMPY"  # how every file of numpy.save begins
TABLE = "the table has {} prompts"
KINDS = ("float16", "float32", "float64")
VECTORS = "embedding"


def read_embeddings(
    file: pathlib.Path,
    num_prompts: int,
    of: str = TABLE,
    rows: np.ndarray | None = None,
    ids: Callable[[], Sequence[str]] | None = None,
    column: str = "prompt_id",
) -> np.ndarray:
    """Read the embeddings of a table's prompts, or of a log's conversations.

    Args:
        file: an `.npy` or `.parquet` file of float16, float32 or float64.
        num_prompts: P, the rows of the table.
        of: what has so many rows, and of what, in words.
        rows: [R] those that are wanted; None: all.
        ids: returns the ids [P] of the table; None: it has none.
        column: what ids are called in the file.

    Returns:
        [P, d] or [R, d] float32.

    Raises:
        TableError: one sentence naming the file: not readable, not one row a prompt, ids that are
            missing, unknown or occur twice, of another type, or not finite.
    """
    wanted = np.arange(num_prompts) if rows is None else rows
    if ids is not None and file.suffix == ".parquet":
        names, embeddings = _with_ids(file, column)
        own, table = ids(), of.partition(" has")[0]
        mine = [own[int(i)] for i in wanted]
        try:
            places = np.array(places_of(names, mine, str(file), column, table, own), int)
        except ValueError as error:
            raise TableError(str(error)) from error
        count = len(names)
    else:
        embeddings, places, count = _load(file), wanted, num_prompts
    a_row_each = embeddings.ndim == 2 and len(embeddings) == count and embeddings.size > 0
    if not a_row_each or embeddings.dtype.name not in KINDS:
        raise TableError(
            f"{file}: the embeddings are {embeddings.dtype} of shape {embeddings.shape}, but "
            f"{of.format(num_prompts)} and needs one row each, before any is dropped: float16, "
            f"float32 or float64 of shape ({count}, d)."
        )
    embeddings = embeddings[places]
    with np.errstate(over="ignore"):  # what float32 cannot hold is refused below
        embeddings = embeddings.astype(np.float32)
    finite = np.isfinite(embeddings).all(axis=1)
    if not finite.all():
        raise TableError(
            f"{file}: row {int(places[~finite][0]) + 1} holds a number that is not finite in "
            "float32, every number must be."
        )
    try:
        check_lengths(embeddings, str(file), places + 1)
    except ValueError as error:
        raise TableError(str(error)) from error
    return embeddings


def _with_ids(file: pathlib.Path, column: str) -> tuple[tuple[str, ...], np.ndarray]:
    """Return the ids of a Parquet file [R] and its embeddings [R, d]."""
    frame = read_frame(file)
    check_columns(frame.columns, (column, VECTORS), file)
    names, cells = texts(frame, column, file), frame[VECTORS]
    check_unique(names, str(file), column)
    if cells.dtype == pl.List:
        sizes = cells.list.len().fill_null(0).to_numpy()
        odd = sizes != sizes[:1]
        if odd.any():
            row = int(odd.argmax()) + 1
            raise TableError(f"{file}: row {row} of {VECTORS!r} must be as long as the first.")
        cells = cells.list.to_array(int(sizes[:1].sum()))
    return names, cells.to_numpy()


def _load(file: pathlib.Path) -> np.ndarray:
    try:
        with file.open("rb") as opened:
            is_npy = opened.read(len(NPY)) == NPY
        # Mapped: of a log the rows wanted may be few.
        embeddings = np.load(file, mmap_mode="r", allow_pickle=False) if is_npy else None
    except (OSError, ValueError, EOFError) as error:
        reason = " ".join(str(error).split())
        raise TableError(
            f"{file}: not readable as an array of numbers, perhaps cut short: {reason}."
        ) from error
    if embeddings is None:
        raise TableError(
            f"{file}: is not an .npy file: save one array [P, d] of float16, float32 or float64 "
            f"with numpy.save, a row a prompt, or ids and lists in a .parquet file."
        )
    return np.asarray(embeddings)
