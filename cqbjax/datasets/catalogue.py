"""The datasets by name: how each is read, what is dropped from it, and where it comes from."""

import dataclasses
import importlib.util
import pathlib
import re
from collections.abc import Callable

from cqbjax.core.labels import GENERATED, PAPERS, PAPERS_DATA, STAND_IN
from cqbjax.datasets.readers.compact import read_compact
from cqbjax.datasets.readers.embedllm import read_embedllm
from cqbjax.datasets.readers.paretobandit import FILES as EXAMPLES
from cqbjax.datasets.readers.paretobandit import read_paretobandit
from cqbjax.datasets.readers.routerbench import read_routerbench
from cqbjax.datasets.readers.sprout import read_sprout
from cqbjax.datasets.table import RoutingTable, TableError

EMBEDDINGS_FILE = "minilm_l6_v2.npy"
# The whole RouterBench has over 36,000 prompts; anything much smaller is a slice and says so.
WHOLE_ROUTERBENCH = 30_000


@dataclasses.dataclass(frozen=True)
class Dataset:
    """Describe one dataset of the catalogue.

    Attributes:
        name: the key in configuration and the folder under data_dir.
        title: how it is called in tables and figures.
        read: reads a folder or file, with the price list given or the shipped one, into a table
            that may lack scores.
        repository: dataset repository on the Hugging Face hub; empty when there is none.
        revision: the commit of it that is read unless another is asked for; the newest when empty.
        files: the files of it that are needed; a trailing `*` matches.
        drop_servers_below: see `complete`.
        drop_incomplete_prompts: see `complete`.
        priced: the cost comes from a price list, which a user can replace.
        package: where an installed Python package has the files: its name and the folders in it.
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
    package: tuple[str, ...] = ()

    @property
    def installed(self) -> pathlib.Path | None:
        """Return the folder of the installed package's files; None where there is none."""
        found = importlib.util.find_spec(self.package[0]) if self.package else None
        if found is None or found.origin is None:
            return None
        return pathlib.Path(found.origin).parent.joinpath(*self.package[1:])


def _routerbench(path: pathlib.Path, prices: pathlib.Path | None) -> RoutingTable:
    compact = path / "routerbench.parquet"
    holds_original = path.is_file() or any(path.glob("*.pkl")) or any(path.glob("*_t*.csv"))
    if compact.is_file() and not holds_original:
        table = read_compact(compact, name="RouterBench")
    else:
        table = read_routerbench(path)
    table = _marked(table)
    if table.provenance == GENERATED or table.num_prompts >= WHOLE_ROUTERBENCH:
        return table
    parts = ", ".join(sorted(set(table.origins)))
    return dataclasses.replace(
        table,
        name="RouterBench slice",
        stand_in=f"a slice ({table.num_prompts:,} prompts of {parts}) standing in for RouterBench",
        provenance=STAND_IN,
    )


def _mmlu_pro(path: pathlib.Path, prices: pathlib.Path | None) -> RoutingTable:
    file = path if path.is_file() else path / "mmlu_pro.parquet"
    what = "real MMLU-Pro scores, standing in for a dataset with many LLMs such as EmbedLLM"
    table = read_compact(file, name="MMLU-Pro", stand_in=what)
    return dataclasses.replace(table, provenance=STAND_IN)


def _paretobandit(path: pathlib.Path, prices: pathlib.Path | None) -> RoutingTable:
    compact = path if path.is_file() else path / "paretobandit.parquet"
    if compact.is_file() and compact.suffix != ".jsonl":
        return read_compact(compact, name="ParetoBandit")
    return read_paretobandit(path)


def _marked(table: RoutingTable) -> RoutingTable:
    """Say whose data a file in the schema of one of the paper's datasets holds."""
    made_up = [origin.startswith("synthetic") for origin in table.origins]
    if not any(made_up):
        return dataclasses.replace(table, provenance=PAPERS)
    part = "" if all(made_up) else f"{sum(made_up):,} of {len(made_up):,} prompts are "
    what = f"{part}made-up content in the schema of {table.name}, standing in for its real data"
    name = f"{table.name} (synthetic)"
    return dataclasses.replace(table, name=name, stand_in=what, provenance=GENERATED)


CATALOGUE = {
    entry.name: entry
    for entry in (
        Dataset(
            "routerbench", "RouterBench", _routerbench,
            repository="withmartian/routerbench",
            revision="784021482c3f320c6619ed4b3bb3b41a21424fcb",
            files=("routerbench_0shot.pkl",),
            drop_incomplete_prompts=True,
        ),
        Dataset(
            "mmlu_pro", "MMLU-Pro", _mmlu_pro,
            files=("mmlu_pro.parquet",),
            drop_servers_below=0.99, drop_incomplete_prompts=True,
        ),
        Dataset(
            "paretobandit", "ParetoBandit", _paretobandit,
            files=("paretobandit.parquet", *EXAMPLES),
            package=("pareto_bandit", "data", "examples"),
        ),
        Dataset(
            "embedllm", "EmbedLLM",
            lambda path, prices: _marked(read_embedllm(path, prices, progress=True)),
            repository="RZ412/EmbedLLM",
            revision="266ae3e180ccb533c86afc9cfb2f5db99d171aea",
            files=("train.csv", "val.csv", "test.csv"),
            drop_servers_below=0.99, drop_incomplete_prompts=True, priced=True,
        ),
        Dataset(
            "sprout", "SPROUT", lambda path, prices: _marked(read_sprout(path, prices)),
            repository="CARROT-LLM-Routing/SPROUT-o3mini",
            files=("data/*",),
            drop_incomplete_prompts=True, priced=True,
        ),
    )
}  # fmt: skip
OWN = "compact"  # dataset=compact: a user's own table, under that name or one of its own


def own_table(
    name: str = OWN,
    drop_servers_below: float | None = None,
    drop_incomplete_prompts: bool = False,
) -> Dataset:
    """Describe a user's own table in the compact form; nothing is dropped unasked.

    Args:
        name: what it is called in the cache, in configuration and in tables.
        drop_servers_below: see `complete`.
        drop_incomplete_prompts: see `complete`.

    Raises:
        ValueError: the name is taken or not made of letters, digits, "_" and "-".
    """
    taken = dict.fromkeys([*CATALOGUE, *PAPERS_DATA])
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


def dataset(name: str) -> Dataset:
    """Return a dataset of the catalogue.

    Raises:
        ValueError: the name is not in it.
    """
    if name not in CATALOGUE:
        raise ValueError(
            f"dataset must be one of {', '.join(CATALOGUE)}, or {OWN} for a table of your own, or "
            f"wildchat for a log of conversations, got {name!r}."
        )
    return CATALOGUE[name]
