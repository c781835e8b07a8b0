"""Embeddings as a file: one `.npy` array [P, d], a row a prompt, whoever made them."""

import pathlib

import numpy as np

from cqbjax.datasets.table import TableError
from cqbjax.sources.routing import check_lengths

NPY = b"\x93NUMPY"  # how every file of numpy.save begins
KINDS = ("float16", "float32", "float64")


def read_embeddings(file: pathlib.Path, num_prompts: int) -> np.ndarray:
    """Read the embeddings of a table's prompts.

    Args:
        file: an `.npy` file of float16, float32 or float64.
        num_prompts: P, the rows of the table.

    Returns:
        [P, d] float32.

    Raises:
        TableError: one sentence naming the file: no `.npy`, cut short, not one row a prompt, of
            another type, or not finite.
    """
    embeddings = _load(file)
    a_row_each = embeddings.ndim == 2 and len(embeddings) == num_prompts and embeddings.size > 0
    if not a_row_each or embeddings.dtype.name not in KINDS:
        raise TableError(
            f"{file}: the embeddings are {embeddings.dtype} of shape {embeddings.shape}, but the "
            f"table has {num_prompts} prompts and needs one row each, before any prompt is "
            f"dropped: float16, float32 or float64 of shape ({num_prompts}, d)."
        )
    with np.errstate(over="ignore"):  # what float32 cannot hold is refused below
        embeddings = embeddings.astype(np.float32)
    finite = np.isfinite(embeddings).all(axis=1)
    if not finite.all():
        raise TableError(
            f"{file}: row {int((~finite).argmax())} holds a number that is not finite in float32, "
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
        embeddings = np.load(file, allow_pickle=False) if is_npy else None
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
