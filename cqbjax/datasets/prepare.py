"""Prepare a dataset once: fetch and verify its files, read, embed, and cache the result."""

import dataclasses
import functools
import pathlib
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from cqbjax.core import files
from cqbjax.datasets.cache import CACHE, SHIPPED, save_dataset
from cqbjax.datasets.catalogue import CATALOGUE, EMBEDDINGS_FILE, Dataset, find_dataset
from cqbjax.datasets.embeddings import DEFAULT_MODEL, embed, model_identity, read_embeddings
from cqbjax.datasets.fetch import VerifiedFiles, fetch, list_files
from cqbjax.datasets.readers.prices import shipped_prices
from cqbjax.datasets.table import TableError, drop_missing

FORMAT = "4"  # raise when the same files would give another table or another layout
LONGEST = 1.01  # a unit vector in half precision is a little longer than 1


class PreparedEntry(NamedTuple):
    """Outcome of preparing a dataset.

    Attributes:
        key: content hash of the entry.
        built: False when it was in the cache.
        revision: the commit downloaded, or "local".
    """

    key: str
    built: bool
    revision: str


def build_entry(
    data_dir: pathlib.Path, name: str, depends_on: Sequence[str], got: VerifiedFiles,
    write_files: Callable[[pathlib.Path], dict[str, Any]],
) -> PreparedEntry:  # fmt: skip
    """Build an entry unless it is in the cache, and make it the dataset's current one.

    Args:
        data_dir: the folder of data.
        name: name of the dataset.
        depends_on: everything that determines the entry, beside the content of the files.
        got: the files.
        write_files: writes the entry's files to its folder and returns the content of `meta.json`.

    Raises:
        ValueError: a damaged entry.
    """
    key, cache = files.hash_parts(*depends_on, *got.contents), data_dir / CACHE
    meta, pointer = cache / key / "meta.json", cache / f"{name}.json"
    built = not meta.is_file()
    with files.remove_on_error(meta.parent, unless=meta):
        files.load_or_compute(meta, lambda: write_files(meta.parent), files.JSON)
    if not pointer.is_file() or files.read(pointer, files.JSON) != {"entry": key}:
        files.write(pointer, files.JSON, {"entry": key})
    return PreparedEntry(key, built, got.revision)


def prepare(
    name: str | Dataset, data_dir: str | pathlib.Path, source: str | pathlib.Path | None = None,
    revision: str | None = None, model: str = DEFAULT_MODEL, batch_size: int = 32,
    progress: bool = True,
    prices: str | pathlib.Path | None = None, embeddings: str | pathlib.Path | None = None,
) -> PreparedEntry:  # fmt: skip
    """Build a dataset's table and embeddings into `data_dir/cache`, unless they are there.

    Args:
        name: a key of the catalogue, or a `user_table`.
        data_dir: the folder of data; downloads go to `data_dir/<name>/`.
        source: a local file or folder instead of a download.
        revision: the commit on the hub. None: the commit of the first build; before the first
            build, the catalogue's commit.
        model: encoder, a hub name or a local folder.
        batch_size: prompts per forward pass.
        progress: draw progress bars.
        prices: a price list in place of the shipped one, for a dataset priced by tokens.
        embeddings: a file in place of the encoder, [P, d] with any d: an `.npy`, row for row with
            the table before any prompt is dropped; or a Parquet file with `prompt_id` and
            `embedding`, in any order. A file `minilm_l6_v2.npy` beside the dataset's files also
            replaces the encoder.

    Returns:
        The outcome. After a kill the next call continues where the last one stopped.

    Raises:
        ValueError: one sentence: the name, the files, the table or the encoder is invalid.
    """
    entry = find_dataset(name) if isinstance(name, str) else name
    data_dir = pathlib.Path(data_dir)
    optional = {"prices": prices, "embeddings": embeddings}
    paths = {key: pathlib.Path(path) for key, path in optional.items() if path is not None}
    for key, path in paths.items():
        if not path.is_file():
            raise TableError(f"{key}={path}: no such file.")
    price_list, user_file = paths.get("prices"), paths.get("embeddings")
    if entry.priced:
        price_list = price_list or shipped_prices(entry.name)
    elif prices is not None:
        raise TableError(
            f"prices={prices}: dataset {entry.name} has its costs in its own files, a price "
            f"list is for {' and '.join(k for k, v in CATALOGUE.items() if v.priced)}."
        )
    if source is None and (SHIPPED / entry.name).is_dir():
        raise TableError(f"dataset {entry.name} comes with cqbjax and needs no preparing.")
    got = fetch(
        entry.name, data_dir, source,
        (entry.repository, entry.files, entry.revision or None), revision,
        functools.partial(list_files, patterns=entry.files),
    )  # fmt: skip
    beside = got.path / EMBEDDINGS_FILE
    vectors_file = user_file or (beside if beside.is_file() else None)
    encoder = f"embeddings {files.sha256(vectors_file)}" if vectors_file else model_identity(model)

    def write_files(folder: pathlib.Path) -> dict[str, Any]:
        raw = entry.read(got.path, price_list)
        table, rows = drop_missing(
            raw, entry.drop_servers_below, entry.drop_incomplete_prompts, str(got.path)
        )
        if vectors_file:
            vectors = read_embeddings(vectors_file, raw.num_prompts, ids=lambda: raw.prompt_ids)
            vectors = vectors[rows]
            longest = float(np.linalg.norm(vectors, axis=1).max())
            if longest > LONGEST:
                note = f"embeddings have lengths up to {longest:.4g}: the paper assumes at most 1"
                table = dataclasses.replace(table, notes=(*table.notes, note))
        else:
            cache = data_dir / CACHE / "embeddings"
            vectors = embed(table.prompts, cache, model, batch_size, progress)
        return save_dataset(folder, table, vectors)

    price_digest = "recorded" if price_list is None else files.sha256(price_list)
    settings = f"{entry.drop_servers_below} {entry.drop_incomplete_prompts} {price_digest}"
    return build_entry(
        data_dir, entry.name, (FORMAT, entry.name, settings, encoder), got, write_files
    )
