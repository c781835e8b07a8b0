"""Build a dataset once: get the files, verify, read, embed, and keep the result by content."""

import dataclasses
import functools
import pathlib
from collections.abc import Callable
from typing import Any

import numpy as np

from cqbjax.core.files import sha256
from cqbjax.datasets import fetch
from cqbjax.datasets.cache import Prepared, build, cache_folder
from cqbjax.datasets.catalogue import CATALOGUE, EMBEDDINGS_FILE, Dataset, dataset
from cqbjax.datasets.embedding import DEFAULT_MODEL, RIGHT, embed, encoder_identity
from cqbjax.datasets.load import SHIPPED, save_dataset
from cqbjax.datasets.readers.embeddings import read_embeddings
from cqbjax.datasets.readers.prices import shipped
from cqbjax.datasets.table import TableError, complete

FORMAT = "4"  # raise when the same files would give another table or another layout
LONGEST = 1.01  # a unit vector in half precision is a little longer than 1

Embed = Callable[[tuple[str, ...]], np.ndarray]


def prepare(
    name: str | Dataset,
    data_dir: str | pathlib.Path,
    source: str | pathlib.Path | None = None,
    revision: str | None = None,
    model: str = DEFAULT_MODEL,
    batch_size: int = 32,
    progress: bool = True,
    embedder: Embed | None = None,
    prices: str | pathlib.Path | None = None,
    embeddings: str | pathlib.Path | None = None,
    truncation_side: str | None = None,
) -> Prepared:
    """Build a dataset's table and embeddings into `data_dir/cache`, unless they are there.

    Args:
        name: a key of the catalogue, or an entry of one's own (`own_table`).
        data_dir: the folder of data; downloads go to `data_dir/<name>/`.
        source: a local file or folder instead of a download, or of the files of a Python package
            that is installed.
        revision: the hub's commit; when None that of the first build, else the catalogue's.
        model: encoder, a hub name or a local folder.
        batch_size: prompts a forward pass.
        progress: draw progress bars.
        embedder: prompts [P] -> [P, d] in place of the encoder (tests).
        prices: a price list in place of the shipped one, for a dataset priced by tokens.
        embeddings: a file in place of the encoder, [P, d] with any d: an `.npy`, row for row with
            the table as it is read, before any prompt is dropped; or a Parquet file with
            `prompt_id` and `embedding`, in any order.
        truncation_side: `right` or `left`, as in `embed`. When None the encoder's own, and
            embeddings that lie beside the files are taken in its place.

    Returns:
        What was done. After a kill the next call goes on where the last one stopped.

    Raises:
        ValueError: one sentence saying what is wrong with the name, files, table or encoder.
    """
    entry = dataset(name) if isinstance(name, str) else name
    data_dir = pathlib.Path(data_dir)
    priced, own = _prices(entry, prices), _existing("embeddings", embeddings)
    source = _packaged(entry) if source is None else source
    hub = (entry.repository, entry.files, entry.revision or None)
    got = fetch.get(
        entry.name, data_dir, source, hub, revision,
        functools.partial(fetch.inventory, patterns=entry.files),
    )  # fmt: skip
    given = _given(own, got.path, truncation_side) or _shipped(entry, got.path, truncation_side)
    side = truncation_side or RIGHT
    encoder = f"embeddings {sha256(given)}" if given else encoder_identity(model, side)

    def write_files(folder: pathlib.Path) -> dict[str, Any]:
        raw = entry.read(got.path, priced)
        table, dropped = complete(
            raw, entry.drop_servers_below, entry.drop_incomplete_prompts, str(got.path)
        )
        if given:
            vectors = read_embeddings(given, raw.num_prompts, ids=lambda: raw.prompt_ids)
            vectors = vectors[dropped.kept_rows]
            table = dataclasses.replace(table, notes=table.notes + _lengths(vectors))
        elif embedder:
            vectors = embedder(table.prompts)
        else:
            kept = cache_folder(data_dir) / "embeddings"
            vectors = embed(table.prompts, kept, model, batch_size, progress, truncation_side=side)
        return save_dataset(folder, table, vectors)

    depends_on = (FORMAT, entry.name, _settings(entry, priced), encoder, *got.contents)
    done = build(data_dir, entry.name, depends_on, got.revision, write_files)
    got.remember()
    return done


def _prices(entry: Dataset, prices: str | pathlib.Path | None) -> pathlib.Path | None:
    """Return the price list that decides the cost; None where the files record it."""
    if not entry.priced:
        if prices is not None:
            raise TableError(
                f"prices={prices}: dataset {entry.name} has its costs in its own files, a price "
                f"list is for {' and '.join(k for k, v in CATALOGUE.items() if v.priced)}."
            )
        return None
    return _existing("prices", prices) or shipped(entry.name)


def _existing(key: str, path: str | pathlib.Path | None) -> pathlib.Path | None:
    """Return the file that a key names; None where it names none."""
    if path is not None and not pathlib.Path(str(path)).is_file():
        raise TableError(f"{key}={path}: no such file.")
    return None if path is None else pathlib.Path(str(path))


def _packaged(entry: Dataset) -> pathlib.Path | None:
    """Return the folder of an installed package that has the files; None where they come otherwise.

    Raises:
        TableError: they come from a package, which is not installed.
    """
    if entry.package and entry.installed is None:
        raise TableError(
            f"dataset {entry.name} comes with cqbjax and needs no preparing: to make it of its own "
            f"package, pip install 'cqbjax[{entry.name}]', or give source=PATH."
        )
    return entry.installed


def _shipped(
    entry: Dataset, path: pathlib.Path, truncation_side: str | None
) -> pathlib.Path | None:
    """Return the embeddings that come with cqbjax, where they are of the prompts of these files."""
    folder = SHIPPED / entry.name
    if truncation_side is not None or not folder.is_dir():
        return None
    same = entry.read(folder, None).prompts == entry.read(path, None).prompts
    return folder / EMBEDDINGS_FILE if same else None


def _given(
    own: pathlib.Path | None, path: pathlib.Path, truncation_side: str | None
) -> pathlib.Path | None:
    """Return the embeddings in place of the encoder: one's own, else those beside the files.

    Raises:
        TableError: one's own, and a word for the encoder.
    """
    if own and truncation_side is not None:
        raise TableError(
            f"truncation_side={truncation_side} is for the encoder, and embeddings={own} are given "
            "in its place: leave one of them out."
        )
    beside = path / EMBEDDINGS_FILE
    return own or (beside if truncation_side is None and beside.is_file() else None)


def _lengths(embeddings: np.ndarray) -> tuple[str, ...]:
    """Note embeddings [P, d] that are longer than the encoder's, all of which have length 1."""
    longest = float(np.linalg.norm(embeddings, axis=1).max())
    if longest <= LONGEST:
        return ()
    return (f"embeddings have lengths up to {longest:.4g}: the paper assumes at most 1",)


def _settings(entry: Dataset, prices: pathlib.Path | None) -> str:
    """Return what besides the files decides the table: what is dropped, and the prices."""
    listed = "recorded" if prices is None else sha256(prices)
    return f"{entry.drop_servers_below} {entry.drop_incomplete_prompts} {listed}"
