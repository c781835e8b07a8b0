"""The datasets by name: how each is read, what is dropped from it, and where it comes from."""

import dataclasses
import pathlib
from collections.abc import Callable

import numpy as np

from cqbjax.datasets.compact import read_compact
from cqbjax.datasets.embedllm import read_embedllm
from cqbjax.datasets.routerbench import read_routerbench
from cqbjax.datasets.sprout import read_sprout
from cqbjax.datasets.table import RoutingTable, TableError, complete

EMBEDDINGS_FILE = "minilm_l6_v2.npy"
ENCODER = "sentence-transformers/all-MiniLM-L6-v2"
# The whole RouterBench has over 36,000 prompts; anything much smaller is a slice and says so.
WHOLE_ROUTERBENCH = 30_000


@dataclasses.dataclass(frozen=True)
class Dataset:
    """Describe one dataset of the catalogue.

    Attributes:
        name: the key in configuration and the folder under data_dir.
        title: how it is called in tables and figures.
        read: reads a folder or file into a table that may lack scores.
        repository: dataset repository on the Hugging Face hub; empty when there is none.
        files: the files of it that are needed; a trailing `*` matches.
        drop_servers_below: see `complete`.
        drop_incomplete_prompts: see `complete`.
    """

    name: str
    title: str
    read: Callable[[pathlib.Path], RoutingTable]
    repository: str
    files: tuple[str, ...]
    drop_servers_below: float | None
    drop_incomplete_prompts: bool


def _routerbench(path: pathlib.Path) -> RoutingTable:
    compact = path / "routerbench.parquet"
    holds_original = path.is_file() or any(path.glob("*.pkl")) or any(path.glob("*_t*.csv"))
    if compact.is_file() and not holds_original:
        table = read_compact(compact, name="RouterBench")
    else:
        table = read_routerbench(path)
    if table.num_prompts >= WHOLE_ROUTERBENCH:
        return table
    parts = ", ".join(sorted(set(table.origins)))
    return dataclasses.replace(
        table,
        name="RouterBench slice",
        stand_in=f"a slice ({table.num_prompts:,} prompts of {parts}) standing in for RouterBench",
    )


def _mmlu_pro(path: pathlib.Path) -> RoutingTable:
    file = path if path.is_file() else path / "mmlu_pro.parquet"
    what = "real MMLU-Pro scores, standing in for a dataset with many LLMs such as EmbedLLM"
    return read_compact(file, name="MMLU-Pro", stand_in=what)


def _embedllm(path: pathlib.Path) -> RoutingTable:
    return _marked(read_embedllm(path, progress=True))


def _sprout(path: pathlib.Path) -> RoutingTable:
    return _marked(read_sprout(path))


def _marked(table: RoutingTable) -> RoutingTable:
    """Mark a file with made-up content, so that no result of it passes for the real thing."""
    if not all(origin.startswith("synthetic") for origin in table.origins):
        return table
    what = f"made-up content in the schema of {table.name}, standing in for its real data"
    return dataclasses.replace(table, name=f"{table.name} (synthetic)", stand_in=what)


CATALOGUE = {
    entry.name: entry
    for entry in (
        Dataset(
            "routerbench", "RouterBench", _routerbench, "withmartian/routerbench",
            ("routerbench_0shot.pkl",), None, True,
        ),
        Dataset(
            "mmlu_pro", "MMLU-Pro", _mmlu_pro, "", ("mmlu_pro.parquet",), 0.99, True,
        ),
        Dataset(
            "embedllm", "EmbedLLM", _embedllm, "RZ412/EmbedLLM",
            ("train.csv", "val.csv", "test.csv"), 0.99, True,
        ),
        Dataset(
            "sprout", "SPROUT", _sprout, "CARROT-LLM-Routing/SPROUT", ("data/*",), None, True,
        ),
    )
}  # fmt: skip


def dataset(name: str) -> Dataset:
    """Return a dataset of the catalogue.

    Raises:
        ValueError: the name is not in it.
    """
    if name not in CATALOGUE:
        raise ValueError(f"dataset must be one of {', '.join(CATALOGUE)}, got {name!r}.")
    return CATALOGUE[name]


def load_dataset(name: str, data_dir: str | pathlib.Path) -> tuple[RoutingTable, np.ndarray]:
    """Load a dataset's table and its prompts' embeddings, row for row.

    From `data_dir/<name>/` when `minilm_l6_v2.npy` lies beside the files there (one row a prompt of
    the files), else from what `scripts/prepare_data.py` built under `data_dir/cache/`.

    Args:
        name: a key of `CATALOGUE`.
        data_dir: the folder of data.

    Returns:
        The complete, checked table, what was dropped counted in its notes, and its embeddings
        [P, d] float32.

    Raises:
        ValueError: one sentence: an unknown name, no data, a bad file, or embeddings that do not
            fit the table.
    """
    # The cache is built from catalogue entries, so it can only be imported once they exist.
    from cqbjax.datasets.cache import load_cached

    entry = dataset(name)
    folder = pathlib.Path(data_dir) / name
    file = folder / EMBEDDINGS_FILE
    if file.is_file():
        return _beside(entry, folder, file)
    cached = load_cached(name, pathlib.Path(data_dir))
    if cached is None:
        raise TableError(
            f"{folder}: no {EMBEDDINGS_FILE} there and nothing prepared in "
            f"{folder.parent / 'cache'}: run python scripts/prepare_data.py dataset={name}."
        )
    return cached


def _beside(
    entry: Dataset, folder: pathlib.Path, file: pathlib.Path
) -> tuple[RoutingTable, np.ndarray]:
    raw = entry.read(folder)
    embeddings = read_embeddings(file, raw.num_prompts)
    table, dropped = complete(
        raw, entry.drop_servers_below, entry.drop_incomplete_prompts, str(folder)
    )
    return table, embeddings[dropped.kept_rows]


def read_embeddings(file: pathlib.Path, num_prompts: int) -> np.ndarray:
    """Read embeddings [P, d] as float32.

    Raises:
        TableError: unreadable or cut short, not one row a prompt, or not finite.
    """
    try:
        embeddings = np.load(file, allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise TableError(
            f"{file}: not readable as an array, perhaps cut short: {error}."
        ) from error
    if embeddings.ndim != 2 or embeddings.shape[0] != num_prompts:
        raise TableError(
            f"{file}: the embeddings have shape {embeddings.shape}, but the table has "
            f"{num_prompts} prompts and needs one row each."
        )
    embeddings = embeddings.astype(np.float32)
    finite = np.isfinite(embeddings).all(axis=1)
    if not finite.all():
        raise TableError(
            f"{file}: row {int((~finite).argmax())} holds a number that is not finite."
        )
    return embeddings
