"""Prompt embeddings by sentence-transformers, kept on disk by content.

The key is the model's identity and the prompts themselves, so that a changed prompt or model can
never meet stale vectors. Work is stored in shards: a killed run loses one shard at most.
"""

import contextlib
import pathlib
import shutil
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from cqbjax.core.files import content_key, keep, memo, sha256
from cqbjax.datasets.progress import steps

DEFAULT_MODEL = "sentence-transformers/all-MiniLM-L6-v2"
SHARD = 512
# Which end of a prompt is cut off that is longer than the encoder reads; tokenizers call it so.
SIDES = RIGHT, LEFT = "right", "left"

# texts of one batch -> [batch, d], unit norm
Encode = Callable[[list[str]], np.ndarray]


class EmbeddingError(ValueError):
    """Prompts cannot be embedded, with the reason in one sentence."""


def embed(
    prompts: Sequence[str],
    cache_dir: str | pathlib.Path,
    model: str = DEFAULT_MODEL,
    batch_size: int = 32,
    progress: bool = True,
    shard_size: int = SHARD,
    load: Callable[[str, int], Encode] | None = None,
    truncation_side: str = RIGHT,
) -> np.ndarray:
    """Return the prompts' unit-norm embeddings, computed at most once.

    Args:
        prompts: [P] texts.
        cache_dir: folder for the results; `<key>.npy` is a finished one.
        model: a name on the Hugging Face hub, or a local folder that holds the model.
        batch_size: prompts a forward pass.
        progress: draw a progress bar.
        shard_size: prompts between two writes to disk.
        load: makes the encoder from (model, batch_size); sentence-transformers when None.
        truncation_side: of a prompt longer than the encoder reads, `right` cuts off the end and
            `left` the beginning.

    Returns:
        [P, d] float16, as they are stored.

    Raises:
        EmbeddingError: no prompts, sentence-transformers is not installed, the model cannot be had,
            or the encoder gives something that is not one finite vector a prompt.
    """
    if not prompts:
        raise EmbeddingError("prompts must not be empty, there is nothing to embed.")
    if batch_size < 1 or shard_size < 1:
        raise EmbeddingError(
            f"batch_size and shard_size must be at least 1, got {batch_size} and {shard_size}."
        )
    key = embedding_key(prompts, model, truncation_side)
    whole = pathlib.Path(cache_dir) / f"{key}.npy"
    shards = whole.with_suffix(f".shards.{shard_size}")
    starts = range(0, len(prompts), shard_size)

    def embedded(missing: list[int]) -> Iterator[tuple[int, np.ndarray]]:
        encode = (
            load(model, batch_size) if load else load_encoder(model, batch_size, truncation_side)
        )
        with steps(progress, "embedding prompts", len(prompts)) as done:
            done(len(prompts) - len(missing) * shard_size)
            for start in missing:
                yield start, _vectors(encode, list(prompts[start : start + shard_size]), start)
                done(shard_size)

    def join() -> np.ndarray:
        parts = keep({start: shards / f"{start:09d}.npy" for start in starts}, embedded)
        return np.concatenate(list(parts.values()))

    with contextlib.suppress(FileNotFoundError):  # who embeds the same has finished, and tidied
        memo(whole, join)
    joined = memo(whole, join)
    shutil.rmtree(shards, ignore_errors=True)
    return np.asarray(joined)


def embedding_key(
    prompts: Sequence[str], model: str = DEFAULT_MODEL, truncation_side: str = RIGHT
) -> str:
    """Return the content hash of the encoder's identity and the prompts [P], in order."""
    return content_key(encoder_identity(model, truncation_side), *prompts)


def encoder_identity(model: str, truncation_side: str = RIGHT) -> str:
    """Return what tells an encoder from others: its model, and the end of a prompt it reads.

    Raises:
        EmbeddingError: no such side.
    """
    if truncation_side not in SIDES:
        raise EmbeddingError(
            f"truncation_side={truncation_side} must be one of {', '.join(SIDES)}."
        )
    suffix = "" if truncation_side == RIGHT else f" truncation_side={truncation_side}"
    return model_identity(model) + suffix


def model_identity(model: str) -> str:
    """Return what tells a model from others: its hub name, or its local files' contents.

    A local folder is known by its files, not by its path: moved, it is the same model; with other
    weights under the same path it is another.
    """
    folder = pathlib.Path(model)
    if not folder.is_dir():
        return model
    files = sorted(
        file
        for file in folder.rglob("*")
        if file.suffix in (".json", ".safetensors", ".bin", ".txt") and file.is_file()
    )
    return content_key(*(f"{file.relative_to(folder).as_posix()} {sha256(file)}" for file in files))


def _vectors(encode: Encode, texts: list[str], start: int) -> np.ndarray:
    """Return the texts' embeddings [texts, d] float16; `start` is the first one's number."""
    vectors = np.asarray(encode(texts))
    if vectors.ndim != 2 or vectors.shape[0] != len(texts):
        raise EmbeddingError(f"the encoder gave shape {vectors.shape} for {len(texts)} prompts.")
    finite = np.isfinite(vectors).all(axis=1)
    if not finite.all():
        row = start + int((~finite).argmax())
        raise EmbeddingError(f"the embedding of prompt {row} is not finite.")
    return vectors.astype(np.float16)


def load_encoder(model: str, batch_size: int, truncation_side: str = RIGHT) -> Encode:
    """Load a sentence-transformers model; importing it takes seconds, so that waits until here.

    Raises:
        EmbeddingError: sentence-transformers is not installed, or the model cannot be had.
    """
    try:
        from sentence_transformers import SentenceTransformer
    except ImportError as error:
        raise EmbeddingError(
            "sentence-transformers is not installed: install the extra 'embed' of cqbjax."
        ) from error
    try:
        encoder = SentenceTransformer(model)
    except Exception as error:  # hub, network and file errors of several libraries
        reason = f"{type(error).__name__}: {error}".splitlines()[0]
        raise EmbeddingError(
            f"model {model!r} cannot be loaded, give a hub name that can be reached or a local "
            f"folder: {reason}."
        ) from error

    encoder.tokenizer.truncation_side = truncation_side

    def encode(texts: list[str]) -> np.ndarray:
        vectors = encoder.encode(
            texts, batch_size=batch_size, normalize_embeddings=True, show_progress_bar=False
        )
        return np.asarray(vectors)

    return encode
