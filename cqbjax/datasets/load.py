"""Loading a dataset by its name: what was prepared, else the files with embeddings beside them."""

import dataclasses
import pathlib
from typing import Any

import numpy as np

from cqbjax.core.files import ARRAY, write, write_atomic
from cqbjax.datasets.cache import current
from cqbjax.datasets.catalogue import CATALOGUE, EMBEDDINGS_FILE, OWN
from cqbjax.datasets.readers.compact import read_compact, to_frame
from cqbjax.datasets.readers.embeddings import read_embeddings
from cqbjax.datasets.table import RoutingTable, TableError, check_table, complete

# Tables that come with the package, a folder each.
SHIPPED = pathlib.Path(__file__).parent / "shipped"
TABLE, EMBEDDINGS = "table.parquet", "embeddings.npy"  # of an entry


def load_dataset(name: str, data_dir: str | pathlib.Path) -> tuple[RoutingTable, np.ndarray]:
    """Load a dataset's table and its prompts' embeddings, row for row.

    From what `scripts/prepare_data.py` built under `data_dir/cache/`, with the price list that it
    was given; else from `data_dir/<name>/` when `minilm_l6_v2.npy` lies beside the files there, one
    row a prompt of the files; else from the package, if it comes with it.

    Args:
        name: a key of `CATALOGUE`, or the name under which a user's own table was prepared.
        data_dir: the folder of data.

    Returns:
        The complete, checked table, what was dropped counted in its notes, and its embeddings
        [P, d] float32.

    Raises:
        ValueError: one sentence: an unknown name, no data, a bad file, or embeddings that do not
            fit the table.
    """
    data_dir = pathlib.Path(data_dir)
    if entry := current(data_dir, name):
        table_file, said = entry.folder / TABLE, entry.meta
        table = read_compact(table_file, said["name"], said["stand_in"])
        table = dataclasses.replace(
            table, provenance=said["provenance"], notes=tuple(said["notes"])
        )
        check_table(table, str(table_file))
        return table, read_embeddings(entry.folder / EMBEDDINGS, table.num_prompts)
    folder = data_dir / name
    if not folder.is_dir() and (SHIPPED / name).is_dir():
        folder = SHIPPED / name
    if name not in CATALOGUE or not (folder / EMBEDDINGS_FILE).is_file():
        raise TableError(_unprepared(name, data_dir))
    listed = CATALOGUE[name]
    raw = listed.read(folder, None)
    embeddings = read_embeddings(folder / EMBEDDINGS_FILE, raw.num_prompts)
    table, dropped = complete(
        raw, listed.drop_servers_below, listed.drop_incomplete_prompts, str(folder)
    )
    return table, embeddings[dropped.kept_rows]


def save_dataset(
    folder: pathlib.Path, table: RoutingTable, embeddings: np.ndarray
) -> dict[str, Any]:
    """Write the files of an entry and return what is to be said of it.

    Args:
        folder: of the entry.
        table: complete table.
        embeddings: [P, d] float32; kept as float16 where that loses nothing, as of the encoder's.
    """
    write_atomic(folder / TABLE, to_frame(table).write_parquet)
    whole = embeddings.astype(np.float32)
    with np.errstate(over="ignore"):
        half = whole.astype(np.float16)
    write(folder / EMBEDDINGS, ARRAY, half if np.array_equal(half, whole) else whole)
    said = {"name": table.name, "stand_in": table.stand_in, "provenance": table.provenance}
    return {**said, "notes": list(table.notes)}


def _unprepared(name: str, data_dir: pathlib.Path) -> str:
    script = f"run python scripts/prepare_data.py data_dir={data_dir}"
    if name in CATALOGUE:
        source = "" if CATALOGUE[name].repository else " source=PATH"
        return (
            f"{data_dir / name}: no {EMBEDDINGS_FILE} there and nothing prepared in "
            f"{data_dir / 'cache'}: {script} dataset={name}{source}."
        )
    return (
        f"dataset must be one of {', '.join(CATALOGUE)} or the name of a prepared table of your "
        f"own, and no {name!r} is prepared in {data_dir / 'cache'}: {script} dataset={OWN} "
        f"name={name} source=FILE."
    )
