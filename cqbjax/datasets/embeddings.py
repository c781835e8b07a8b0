"""Embeddings of prompts: read from a file, or computed by sentence-transformers and cached.

An `.npy` file holds an array [P, d] whose rows are those of the table, in their order. A Parquet
file holds ids (`prompt_id` of a table, `conversation_hash` of a log) and the lists `embedding`;
rows are joined by id, in any order.

The cache key of computed embeddings is the identity of the model and the prompts themselves. They
are written in shards, so that a killed run loses at most one.
"""

import pathlib
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import polars as pl
from rich.progress import Progress

from cqbjax.core.files import hash_parts, load_or_compute_all, sha256
from cqbjax.core.inputs import join_positions
from cqbjax.core.lazy import import_extra
from cqbjax.datasets.readers.parquet_csv import check_columns, read_frame, text_column
from cqbjax.datasets.table import TableError, check_unique
from cqbjax.sources.prompt_pool import check_lengths

DEFAULT_MODEL = "sentence-transformers/all-MiniLM-L6-v2"
SHARD = 512
DTYPES = ("float16", "float32", "float64")
VECTORS = "embedding"

# texts of one batch -> [batch, d], unit norm
Encode = Callable[[list[str]], np.ndarray]


class EmbeddingError(ValueError):
    """Prompts cannot be embedded; the message is one sentence."""


def read_embeddings(
    file: pathlib.Path, num_prompts: int, of: str = "the table has {} prompts",
    rows: np.ndarray | None = None, ids: Callable[[], Sequence[str]] | None = None,
    column: str = "prompt_id",
) -> np.ndarray:  # fmt: skip
    """Read the embeddings of a table's prompts, or of a log's conversations.

    Args:
        file: an `.npy` or `.parquet` file of float16, float32 or float64.
        num_prompts: P, the rows of the table.
        of: sentence for error messages that gives the number of prompts, such as "the table has {}
            prompts". P replaces the placeholder `{}`.
        rows: [R] rows to return; None: all.
        ids: function that returns the ids [P] of the table; None: the table has no ids.
        column: name of the column of ids in the file.

    Returns:
        [P, d] or [R, d] float32.

    Raises:
        ValueError: one sentence naming the file: not readable, not one row per prompt, ids that are
            missing, unknown or repeated, another type, or a number that is not finite.
    """
    wanted = np.arange(num_prompts) if rows is None else rows
    if ids is not None and file.suffix == ".parquet":
        names, embeddings = _read_with_ids(file, column)
        known, table = ids(), of.partition(" has")[0]
        required = [known[int(i)] for i in wanted]
        places = np.array(join_positions(names, required, str(file), column, table, known), int)
        count = len(names)
    else:
        embeddings, places, count = _read_npy(file), wanted, num_prompts
    one_per_row = embeddings.ndim == 2 and len(embeddings) == count and embeddings.size > 0
    if not one_per_row or embeddings.dtype.name not in DTYPES:
        raise TableError(
            f"{file}: the embeddings are {embeddings.dtype} of shape {embeddings.shape}, but "
            f"{of.format(num_prompts)} and needs one row each, before any is dropped: float16, "
            f"float32 or float64 of shape ({count}, d)."
        )
    embeddings = embeddings[places]
    with np.errstate(over="ignore"):  # an overflow of float32 is an error below
        embeddings = embeddings.astype(np.float32)
    finite = np.isfinite(embeddings).all(axis=1)
    if not finite.all():
        raise TableError(
            f"{file}: row {int(places[~finite][0]) + 1} holds a number that is not finite in "
            "float32, every number must be."
        )
    check_lengths(embeddings, str(file), places + 1)
    return embeddings


def _read_with_ids(file: pathlib.Path, column: str) -> tuple[tuple[str, ...], np.ndarray]:
    """Return the ids of a Parquet file [R] and its embeddings [R, d]."""
    frame = read_frame(file)
    check_columns(frame.columns, (column, VECTORS), file)
    names, cells = text_column(frame, column, file), frame[VECTORS]
    check_unique(names, str(file), column)
    if cells.dtype == pl.List:
        sizes = cells.list.len().fill_null(0).to_numpy()
        differ = sizes != sizes[:1]
        if differ.any():
            row = int(differ.argmax()) + 1
            raise TableError(f"{file}: row {row} of {VECTORS!r} must be as long as the first.")
        cells = cells.list.to_array(int(sizes[:1].sum()))
    return names, cells.to_numpy()


def _read_npy(file: pathlib.Path) -> np.ndarray:
    try:  # mapped: of a log few rows may be needed
        return np.asarray(np.lib.format.open_memmap(file, mode="r"))
    except (OSError, ValueError, EOFError) as error:
        reason = " ".join(str(error).split())
        raise TableError(
            f"{file}: not readable as an .npy file of numbers, perhaps cut short ({reason}): save "
            f"one array [P, d] of float16, float32 or float64 with numpy.save, a row a prompt, or "
            f"ids and lists in a .parquet file."
        ) from error


def embed(
    prompts: Sequence[str], cache_dir: str | pathlib.Path, model: str = DEFAULT_MODEL,
    batch_size: int = 32, progress: bool = True, shard_size: int = SHARD,
    load: Callable[[str, int], Encode] | None = None,
) -> np.ndarray:  # fmt: skip
    """Return the prompts' unit-norm embeddings, computed at most once.

    Args:
        prompts: [P] texts.
        cache_dir: folder of the results, a folder of shards each.
        model: a name on the Hugging Face hub, or a local folder that holds the model.
        batch_size: prompts per forward pass.
        progress: draw a progress bar.
        shard_size: prompts between two writes to disk.
        load: function (model, batch_size) -> encoder; None: sentence-transformers.

    Returns:
        [P, d] float16, as they are stored.

    Raises:
        EmbeddingError: no prompts, the model cannot be loaded, or the encoder does not return one
            finite vector per prompt.
    """
    if not prompts:
        raise EmbeddingError("prompts must not be empty, there is nothing to embed.")
    if batch_size < 1 or shard_size < 1:
        raise EmbeddingError(
            f"batch_size and shard_size must be at least 1, got {batch_size} and {shard_size}."
        )
    key = hash_parts(model_identity(model), *prompts)
    folder = pathlib.Path(cache_dir) / f"{key}.{shard_size}"
    shards = {start: folder / f"{start:09d}.npy" for start in range(0, len(prompts), shard_size)}

    def encode_shards(missing: list[int]) -> Iterator[tuple[int, np.ndarray]]:
        encode = (load or load_encoder)(model, batch_size)
        with Progress(disable=not progress) as bar:
            task = bar.add_task("embedding prompts", total=len(prompts))
            bar.advance(task, len(prompts) - len(missing) * shard_size)
            for start in missing:
                texts = list(prompts[start : start + shard_size])
                vectors = np.asarray(encode(texts))
                if vectors.ndim != 2 or len(vectors) != len(texts):
                    raise EmbeddingError(
                        f"the encoder gave shape {vectors.shape} for {len(texts)} prompts."
                    )
                finite = np.isfinite(vectors).all(axis=1)
                if not finite.all():
                    row = start + int((~finite).argmax())
                    raise EmbeddingError(f"the embedding of prompt {row} is not finite.")
                yield start, vectors.astype(np.float16)
                bar.advance(task, shard_size)

    return np.concatenate([*load_or_compute_all(shards, encode_shards).values()])


def model_identity(model: str) -> str:
    """Return a model's name on the hub, or the hash of the files of its local folder.

    The hash does not depend on the path of the folder. A moved model thus keeps its hash, and a
    model with changed weights has a new hash.
    """
    folder = pathlib.Path(model)
    if not folder.is_dir():
        return model
    files = sorted(
        file
        for file in folder.rglob("*")
        if file.suffix in (".json", ".safetensors", ".bin", ".txt") and file.is_file()
    )
    return hash_parts(*(f"{file.relative_to(folder).as_posix()} {sha256(file)}" for file in files))


def load_encoder(model: str, batch_size: int) -> Encode:
    """Load a sentence-transformers model, which takes seconds to import.

    Raises:
        ValueError: sentence-transformers is not installed, or the model cannot be loaded.
    """
    library = import_extra("sentence_transformers", "embed", f"model={model}")
    try:
        encoder = library.SentenceTransformer(model)
    except Exception as error:  # hub, network and file errors of several libraries
        reason = f"{type(error).__name__}: {error}".splitlines()[0]
        raise EmbeddingError(
            f"model {model!r} cannot be loaded, give a hub name that can be reached or a local "
            f"folder: {reason}."
        ) from error
    return lambda texts: np.asarray(
        encoder.encode(
            texts, batch_size=batch_size, normalize_embeddings=True, show_progress_bar=False
        )
    )
