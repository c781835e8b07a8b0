"""The datasets by name: their readers, what is dropped from them, and where they come from."""

import dataclasses
import pathlib
import re
from collections.abc import Callable

from cqbjax.core.inputs import suggest_names
from cqbjax.core.labels import GENERATED, PAPER, PAPER_DATASETS, PROXY
from cqbjax.datasets.readers.embedllm import read_embedllm
from cqbjax.datasets.readers.parquet_csv import read_compact
from cqbjax.datasets.readers.routerbench import read_routerbench
from cqbjax.datasets.readers.sprout import read_sprout
from cqbjax.datasets.table import RoutingTable, TableError

EMBEDDINGS_FILE = "minilm_l6_v2.npy"
# The whole RouterBench has over 36,000 prompts; a table that is much smaller is a slice.
WHOLE_ROUTERBENCH = 30_000
OWN = "compact"  # dataset=compact: a user's table


@dataclasses.dataclass(frozen=True)
class Dataset:
    """A dataset of the catalogue.

    Attributes:
        name: the key in configuration and the folder under data_dir.
        title: name in tables and figures.
        read: function of a path (a folder or file) and a price list (None: the shipped one). It
            returns a table that may lack scores.
        repository: dataset repository on the Hugging Face hub; empty when there is none.
        revision: commit that is read by default; the newest when empty.
        files: names of the required files; a trailing `*` stands for any text.
        drop_servers_below: see `drop_missing`.
        drop_incomplete_prompts: see `drop_missing`.
        priced: whether the cost comes from a price list, which a user can replace.
    """

    name: str
    title: str
    read: Callable[[pathlib.Path, pathlib.Path | None], RoutingTable]
    repository: str = ""
    revision: str = ""
    files: tuple[str, ...] = ()
    drop_servers_below: float | None = None
    drop_incomplete_prompts: bool = False
    priced: bool = False


def _read_routerbench(path: pathlib.Path, prices: pathlib.Path | None) -> RoutingTable:
    compact = path / "routerbench.parquet"
    holds_original = path.is_file() or any(path.glob("*.pkl")) or any(path.glob("*_t*.csv"))
    if compact.is_file() and not holds_original:
        table = read_compact(compact, name="RouterBench")
    else:
        table = read_routerbench(path)
    table = _mark_generated(table)
    if table.provenance == GENERATED or table.num_prompts >= WHOLE_ROUTERBENCH:
        return table
    parts = ", ".join(sorted(set(table.origins)))
    note = f"a slice ({table.num_prompts:,} prompts of {parts}) standing in for RouterBench"
    return dataclasses.replace(table, name="RouterBench slice", proxy_note=note, provenance=PROXY)


def _read_mmlu_pro(path: pathlib.Path, prices: pathlib.Path | None) -> RoutingTable:
    file = path if path.is_file() else path / "mmlu_pro.parquet"
    note = "real MMLU-Pro scores, standing in for a dataset with many LLMs such as EmbedLLM"
    return dataclasses.replace(read_compact(file, "MMLU-Pro", note), provenance=PROXY)


def _mark_generated(table: RoutingTable) -> RoutingTable:
    """Set the provenance of a table in the schema of one of the paper's datasets."""
    generated = [origin.startswith("synthetic") for origin in table.origins]
    if not any(generated):
        return dataclasses.replace(table, provenance=PAPER)
    part = "" if all(generated) else f"{sum(generated):,} of {len(generated):,} prompts are "
    note = f"{part}made-up content in the schema of {table.name}, standing in for its real data"
    name = f"{table.name} (synthetic)"
    return dataclasses.replace(table, name=name, proxy_note=note, provenance=GENERATED)


CATALOGUE = {
    entry.name: entry
    for entry in (
        Dataset(
            "routerbench", "RouterBench", _read_routerbench,
            repository="withmartian/routerbench",
            revision="784021482c3f320c6619ed4b3bb3b41a21424fcb",
            files=("routerbench_0shot.pkl",), drop_incomplete_prompts=True,
        ),
        Dataset(
            "mmlu_pro", "MMLU-Pro", _read_mmlu_pro, files=("mmlu_pro.parquet",),
            drop_servers_below=0.99, drop_incomplete_prompts=True,
        ),
        Dataset(
            "paretobandit", "ParetoBandit",
            lambda path, prices: read_compact(
                path if path.is_file() else path / "paretobandit.parquet", name="ParetoBandit"
            ),
            files=("paretobandit.parquet",),
        ),
        Dataset(
            "embedllm", "EmbedLLM",
            lambda path, prices: _mark_generated(read_embedllm(path, prices)),
            repository="RZ412/EmbedLLM", revision="266ae3e180ccb533c86afc9cfb2f5db99d171aea",
            files=("train.csv", "val.csv", "test.csv"),
            drop_servers_below=0.99, drop_incomplete_prompts=True, priced=True,
        ),
        Dataset(
            "sprout", "SPROUT", lambda path, prices: _mark_generated(read_sprout(path, prices)),
            repository="CARROT-LLM-Routing/SPROUT-o3mini", files=("data/*",),
            drop_incomplete_prompts=True, priced=True,
        ),
    )
}  # fmt: skip


def user_table(
    name: str = OWN, drop_servers_below: float | None = None, drop_incomplete_prompts: bool = False
) -> Dataset:
    """Return the catalogue entry of a user's table in the compact form.

    Args:
        name: name in the cache, in configuration and in tables.
        drop_servers_below: see `drop_missing`.
        drop_incomplete_prompts: see `drop_missing`.

    Raises:
        ValueError: the name is taken or not made of letters, digits, "_" and "-".
    """
    taken = dict.fromkeys([*CATALOGUE, *PAPER_DATASETS])
    if name.lower() in taken or not re.fullmatch(r"[\w-]+", name):
        raise ValueError(
            f"name={name} must be letters, digits, _ and - and none of {', '.join(taken)}."
        )

    def read(path: pathlib.Path, prices: pathlib.Path | None) -> RoutingTable:
        if path.is_dir():
            raise TableError(f"{path}: is a folder, source must be one .parquet or .csv file.")
        return read_compact(path, name)

    return Dataset(
        name, name, read,
        drop_servers_below=drop_servers_below, drop_incomplete_prompts=drop_incomplete_prompts,
    )  # fmt: skip


def find_dataset(name: str) -> Dataset:
    """Return a dataset of the catalogue.

    Raises:
        ValueError: the name is not in it.
    """
    if name not in CATALOGUE:
        shown = (*CATALOGUE, f"{OWN} for a table of your own", "wildchat for a log")
        known = (*CATALOGUE, OWN, "wildchat")
        raise ValueError(f"dataset {name} is unknown{suggest_names(str(name), known, shown)}")
    return CATALOGUE[name]
