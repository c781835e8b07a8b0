"""Prepared datasets and logs, each an entry of the cache under the hash of its content.

`data_dir/cache/<content hash>/` holds the files of an entry. `meta.json` is written last: a folder
without it is unfinished and is built again. `data_dir/cache/<dataset>.json` names the current entry
of a dataset.
"""

import dataclasses
import pathlib
from typing import Any, NamedTuple

import numpy as np

from cqbjax.core import files
from cqbjax.core.labels import command
from cqbjax.datasets.catalogue import CATALOGUE, EMBEDDINGS_FILE, OWN
from cqbjax.datasets.embeddings import read_embeddings
from cqbjax.datasets.readers.parquet_csv import read_compact, to_frame
from cqbjax.datasets.table import RoutingTable, TableError, check_table, drop_missing

# Tables that come with the package, a folder each.
SHIPPED = pathlib.Path(__file__).parent / "shipped"
CACHE = "cache"  # folder of a data folder
TABLE, EMBEDDINGS = "table.parquet", "embeddings.npy"  # files of an entry
# Keys of `meta.json` by the attribute of `RoutingTable` that they hold.
META = {"name": "name", "proxy_note": "stand_in", "provenance": "provenance", "notes": "notes"}


class CacheEntry(NamedTuple):
    """A dataset's current entry: its content hash, its folder and the content of `meta.json`."""

    key: str
    folder: pathlib.Path
    meta: dict[str, Any]


def find_entry(data_dir: pathlib.Path, name: str) -> CacheEntry | None:
    """Return a dataset's current entry; None if it was never prepared.

    Raises:
        ValueError: it is damaged, missing, or of an older version.
    """
    pointer = data_dir / CACHE / f"{name}.json"
    if not pointer.is_file():
        return None
    key = str(files.read(pointer, files.JSON)["entry"])
    folder = data_dir / CACHE / key
    if not (folder / "meta.json").is_file():
        raise TableError(f"{pointer}: names an entry {key!r} that is not there: prepare it again.")
    meta = files.read(folder / "meta.json", files.JSON)
    if "provenance" not in meta:
        raise TableError(f"{pointer}: was prepared by an older version: prepare it again.")
    return CacheEntry(key, folder, meta)


def load_dataset(name: str, data_dir: str | pathlib.Path) -> tuple[RoutingTable, np.ndarray]:
    """Load a dataset's table and its prompts' embeddings, row for row.

    Looks in three places: the current entry of `data_dir/cache/`, with the price list that it was
    prepared with; `data_dir/<name>/` if it holds the embeddings `minilm_l6_v2.npy`, one row per
    prompt of the files; the tables that come with the package.

    Args:
        name: a key of `CATALOGUE`, or the name under which a user's table was prepared.
        data_dir: the folder of data.

    Returns:
        The complete, checked table, whose notes count what was dropped, and its embeddings
        [P, d] float32.

    Raises:
        ValueError: one sentence: an unknown name, no data, an invalid file, or embeddings that do
            not fit the table.
    """
    data_dir = pathlib.Path(data_dir)
    if entry := find_entry(data_dir, name):
        file = entry.folder / TABLE
        meta = {attribute: entry.meta[key] for attribute, key in META.items()}
        table = dataclasses.replace(read_compact(file), **meta | {"notes": tuple(meta["notes"])})
        check_table(table, str(file))
        return table, read_embeddings(entry.folder / EMBEDDINGS, table.num_prompts)
    folder = data_dir / name
    if not folder.is_dir() and (SHIPPED / name).is_dir():
        folder = SHIPPED / name
    prepare = f"run {command('prepare_data')} data_dir={data_dir}"
    if name not in CATALOGUE:
        raise TableError(
            f"dataset must be one of {', '.join(CATALOGUE)} or the name of a prepared table of "
            f"your own, and no {name!r} is prepared in {data_dir / CACHE}: {prepare} "
            f"dataset={OWN} name={name} source=FILE."
        )
    listed = CATALOGUE[name]
    if not (folder / EMBEDDINGS_FILE).is_file():
        raise TableError(
            f"{data_dir / name}: no {EMBEDDINGS_FILE} there and nothing prepared in "
            f"{data_dir / CACHE}: {prepare} dataset={name}"
            f"{'' if listed.repository else ' source=PATH'}."
        )
    raw = listed.read(folder, None)
    embeddings = read_embeddings(folder / EMBEDDINGS_FILE, raw.num_prompts)
    table, rows = drop_missing(
        raw, listed.drop_servers_below, listed.drop_incomplete_prompts, str(folder)
    )
    return table, embeddings[rows]


def save_dataset(
    folder: pathlib.Path, table: RoutingTable, embeddings: np.ndarray
) -> dict[str, Any]:
    """Write the files of an entry and return the content of its `meta.json`.

    Args:
        folder: folder of the entry.
        table: complete table.
        embeddings: [P, d].
    """
    files.write_atomic(folder / TABLE, to_frame(table).write_parquet)
    files.write(folder / EMBEDDINGS, files.ARRAY, embeddings)
    return {key: getattr(table, attribute) for attribute, key in META.items()}
