"""Loading a dataset by its name: what was prepared, else the files with embeddings beside them."""

import pathlib

import numpy as np

from cqbjax.datasets.cache import load_cached
from cqbjax.datasets.catalogue import CATALOGUE, EMBEDDINGS_FILE, OWN, Dataset
from cqbjax.datasets.readers.embeddings import read_embeddings
from cqbjax.datasets.table import RoutingTable, TableError, complete


def load_dataset(name: str, data_dir: str | pathlib.Path) -> tuple[RoutingTable, np.ndarray]:
    """Load a dataset's table and its prompts' embeddings, row for row.

    From what `scripts/prepare_data.py` built under `data_dir/cache/`, with the price list that it
    was given; else from `data_dir/<name>/` when `minilm_l6_v2.npy` lies beside the files there, one
    row a prompt of the files.

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
    cached = load_cached(name, pathlib.Path(data_dir))
    if cached is not None:
        return cached
    folder = pathlib.Path(data_dir) / name
    file = folder / EMBEDDINGS_FILE
    if name in CATALOGUE and file.is_file():
        return _beside(CATALOGUE[name], folder, file)
    raise TableError(_unprepared(name, pathlib.Path(data_dir)))


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


def _beside(
    entry: Dataset, folder: pathlib.Path, file: pathlib.Path
) -> tuple[RoutingTable, np.ndarray]:
    raw = entry.read(folder, None)
    embeddings = read_embeddings(file, raw.num_prompts)
    table, dropped = complete(
        raw, entry.drop_servers_below, entry.drop_incomplete_prompts, str(folder)
    )
    return table, embeddings[dropped.kept_rows]
