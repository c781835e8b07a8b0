"""Embeddings as a file: one `.npy` array [P, d], a row a prompt, whoever made them."""

import pathlib

import numpy as np

from cqbjax.datasets.table import TableError
from cqbjax.sources.routing import check_lengths

NPY = b"\x93NUMPY"  # how every file of numpy.save begins
TABLE = "the table has {} prompts"
KINDS = ("float16", "float32", "float64")


def read_embeddings(
    file: pathlib.Path, num_prompts: int, of: str = TABLE, rows: np.ndarray | None = None
) -> np.ndarray:
    """Read the embeddings of a table's prompts, or of a log's conversations.

    Args:
        file: an `.npy` file of float16, float32 or float64.
        num_prompts: P, the rows of the table.
        of: what has so many rows, and of what, in words.
        rows: [R] those that are wanted; None: all.

    Returns:
        [P, d] or [R, d] float32.

    Raises:
        TableError: one sentence naming the file: no `.npy`, cut short, not one row a prompt, of
            another type, or not finite.
    """
    embeddings = _load(file)
    a_row_each = embeddings.ndim == 2 and len(embeddings) == num_prompts and embeddings.size > 0
    if not a_row_each or embeddings.dtype.name not in KINDS:
        raise TableError(
            f"{file}: the embeddings are {embeddings.dtype} of shape {embeddings.shape}, but "
            f"{of.format(num_prompts)} and needs one row each, before any is dropped: float16, "
            f"float32 or float64 of shape ({num_prompts}, d)."
        )
    if rows is not None:
        embeddings = embeddings[rows]
    with np.errstate(over="ignore"):  # what float32 cannot hold is refused below
        embeddings = embeddings.astype(np.float32)
    numbers = np.arange(len(embeddings)) if rows is None else rows
    finite = np.isfinite(embeddings).all(axis=1)
    if not finite.all():
        raise TableError(
            f"{file}: row {int(numbers[~finite][0])} holds a number that is not finite in float32, "
            f"every number must be."
        )
    try:
        check_lengths(embeddings, str(file))
    except ValueError as error:
        raise TableError(str(error)) from error
    return embeddings


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
            f"with numpy.save, a row a prompt."
        )
    return np.asarray(embeddings)
