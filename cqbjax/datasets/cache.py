"""Entries, built once and kept by content: datasets' tables and logs of conversations.

`data_dir/cache/<content hash>/` holds an entry's files; `meta.json` is written last: a folder
without it is unfinished and is built again. `data_dir/cache/<dataset>.json` says which entry is the
dataset's current one.
"""

import pathlib
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from cqbjax.core.files import JSON, content_key, memo, read, undone, write
from cqbjax.datasets.table import TableError


class Prepared(NamedTuple):
    """Say what preparing did.

    Attributes:
        key: content hash of the entry.
        built: False when it was there already.
        revision: the commit downloaded, or "local".
    """

    key: str
    built: bool
    revision: str


class Entry(NamedTuple):
    """A dataset's current entry: its content hash, its folder, and what `meta.json` says."""

    key: str
    folder: pathlib.Path
    meta: dict[str, Any]


def cache_folder(data_dir: pathlib.Path) -> pathlib.Path:
    """Return the cache folder of a data folder."""
    return data_dir / "cache"


def build(
    data_dir: pathlib.Path, name: str, depends_on: Sequence[str], revision: str,
    write_files: Callable[[pathlib.Path], dict[str, Any]],
) -> Prepared:  # fmt: skip
    """Build an entry unless it is there, and make it the dataset's current one.

    Args:
        data_dir: the data folder.
        name: of the dataset.
        depends_on: everything that the entry is built from.
        revision: the commit that the files are of.
        write_files: writes the entry's files to its folder and returns what `meta.json` shall say.

    Raises:
        ValueError: a damaged entry.
    """
    key = content_key(*depends_on)
    meta, pointer = (cache_folder(data_dir) / file for file in (f"{key}/meta.json", f"{name}.json"))
    built = not meta.is_file()
    with undone(meta.parent, unless=meta):
        memo(meta, lambda: write_files(meta.parent), JSON)
    if not pointer.is_file() or read(pointer, JSON) != {"entry": key}:
        write(pointer, JSON, {"entry": key})
    return Prepared(key, built, revision)


def current(data_dir: pathlib.Path, name: str) -> Entry | None:
    """Return a dataset's current entry; None where nothing was prepared.

    Raises:
        ValueError: it is damaged, not there, or of an older version.
    """
    pointer = cache_folder(data_dir) / f"{name}.json"
    if not pointer.is_file():
        return None
    key = str(read(pointer, JSON)["entry"])
    folder = cache_folder(data_dir) / key
    if not (folder / "meta.json").is_file():
        raise TableError(f"{pointer}: names an entry {key!r} that is not there: prepare it again.")
    meta = read(folder / "meta.json", JSON)
    if "provenance" not in meta:
        raise TableError(f"{pointer}: was prepared by an older version: prepare it again.")
    return Entry(key, folder, meta)
