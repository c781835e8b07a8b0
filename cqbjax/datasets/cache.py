"""Built once, kept by content: tables in the compact form with their embeddings.

`data_dir/cache/<content hash>/` holds `table.parquet`, `embeddings.npy` and `meta.json`, which is
written last: a folder without it is unfinished and is built again.
`data_dir/cache/<dataset>.json` says which of them is the dataset's current one.
"""

import dataclasses
import json
import pathlib
from typing import Any

import numpy as np
import polars as pl

from cqbjax.core.files import write_atomic
from cqbjax.datasets.readers.compact import COST, SCORE, read_compact
from cqbjax.datasets.readers.embeddings import read_embeddings
from cqbjax.datasets.table import RoutingTable, TableError, check_table


def cache_folder(data_dir: pathlib.Path) -> pathlib.Path:
    """Return the cache folder of a data folder."""
    return data_dir / "cache"


def is_built(data_dir: pathlib.Path, key: str) -> bool:
    """Say whether the entry of this content hash is complete."""
    return (cache_folder(data_dir) / key / "meta.json").is_file()


def store(data_dir: pathlib.Path, key: str, table: RoutingTable, embeddings: np.ndarray) -> None:
    """Write an entry; only its last step makes it count.

    Args:
        data_dir: the data folder.
        key: content hash of all that the entry was built from.
        table: complete table.
        embeddings: [P, d] float32; kept as float16 where that loses nothing.
    """
    folder = cache_folder(data_dir) / key
    frame = pl.DataFrame(
        {"prompt_id": table.prompt_ids, "prompt": table.prompts, "source": table.origins}
    )
    for prefix, matrix in ((SCORE, table.performance), (COST, table.cost)):
        frame = frame.with_columns(
            pl.Series(prefix + server, matrix[:, j]) for j, server in enumerate(table.servers)
        )
    write_atomic(folder / "table.parquet", frame.write_parquet)
    kept = _narrowest(embeddings)
    write_atomic(folder / "embeddings.npy", lambda file: np.save(file, kept, allow_pickle=False))
    meta = {"name": table.name, "stand_in": table.stand_in, "notes": list(table.notes)}
    write_json(folder / "meta.json", meta)


def _narrowest(embeddings: np.ndarray) -> np.ndarray:
    """Return [P, d] as float16 where that is exact, as for the encoder's, else as float32."""
    whole = embeddings.astype(np.float32)
    with np.errstate(over="ignore"):
        half = whole.astype(np.float16)
    return half if np.array_equal(half, whole) else whole


def point(data_dir: pathlib.Path, name: str, key: str) -> None:
    """Make an entry the dataset's current one."""
    pointer = cache_folder(data_dir) / f"{name}.json"
    if not pointer.is_file() or read_json(pointer) != {"entry": key}:
        write_json(pointer, {"entry": key})


def load_cached(name: str, data_dir: pathlib.Path) -> tuple[RoutingTable, np.ndarray] | None:
    """Return the dataset's current entry, table and embeddings [P, d] float32, or None.

    Raises:
        TableError: the entry is damaged.
    """
    pointer = cache_folder(data_dir) / f"{name}.json"
    if not pointer.is_file():
        return None
    key = str(read_json(pointer).get("entry", ""))
    folder = cache_folder(data_dir) / key
    if not key or not is_built(data_dir, key):
        raise TableError(f"{pointer}: names an entry {key!r} that is not there: prepare it again.")
    meta = read_json(folder / "meta.json")
    table = dataclasses.replace(
        read_compact(folder / "table.parquet", meta["name"], meta["stand_in"]),
        notes=tuple(meta["notes"]),
    )
    check_table(table, str(folder / "table.parquet"))
    return table, read_embeddings(folder / "embeddings.npy", table.num_prompts)


def write_json(path: pathlib.Path, content: dict[str, Any]) -> None:
    """Write JSON atomically."""
    text = json.dumps(content, indent=2, sort_keys=True) + "\n"
    write_atomic(path, text.encode())


def read_json(path: pathlib.Path) -> dict[str, Any]:
    """Read a JSON object.

    Raises:
        TableError: it is not one.
    """
    try:
        content = json.loads(path.read_text())
    except ValueError as error:
        raise TableError(f"{path}: not JSON: {error}.") from error
    if not isinstance(content, dict):
        raise TableError(f"{path}: must hold a JSON object.")
    return content
