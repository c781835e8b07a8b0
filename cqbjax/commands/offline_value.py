"""Measure the contrastive head and the offline-trained routers of an experiment, without a queue.

    python scripts/offline_value.py experiment=routerbench num_seeds=30
    python scripts/offline_value.py experiment=mmlu_pro num_seeds=30 data_dir=PATH

Writes `tables/offline_<name>_head.{csv,md}`: nearest-neighbour utility error before and after the
head; `tables/offline_<name>_routers.{csv,md}`: what each router would serve, and its
hyper-parameters, chosen on every seed's own split and once for all seeds;
`tables/offline_<name>_seeds.csv`: the routers seed by seed. Fits are kept as in a study, so that a
killed call goes on where it was.
"""

import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from omegaconf import DictConfig

from cqbjax.commands._hydra import make, make_policies
from cqbjax.commands._multirun import Job
from cqbjax.commands._start import start
from cqbjax.core import backend, files
from cqbjax.offline import fits
from cqbjax.results import tables
from cqbjax.studies import grid, offline_value, showing
from cqbjax.sweeping.bars import bar


def measure(config: DictConfig) -> dict[str, Any]:
    """Return the tables by the ending of their names."""
    source, seeds = make(config.source), grid.seeds(config)
    chosen = offline_value.chosen_of(make_policies(config.policy))
    folder = fits.cache_folder(config.cache_dir)
    wanted = chosen.head or make(config.head)
    one = offline_value.ONE_SEED if config.tuning_seed is None else int(config.tuning_seed)
    with bar() as progress:
        head = offline_value.head_table(source, seeds, folder, wanted, progress)
        by_seed = offline_value.seed_table(source, chosen.routers, seeds, folder, one, progress)
    routers = offline_value.router_table(by_seed, source)
    return {"head": head, "routers": routers, "seeds": by_seed}


def main() -> None:
    """Measure the experiment that the command line names."""
    start(write)


def write(jobs: Sequence[Job]) -> None:
    """Measure, write and print each experiment."""
    backend.configure()
    for job in jobs:
        _write(job.config)


def _write(config: DictConfig) -> None:
    console = showing.console()
    # The table shows what every seed chose.
    warnings.filterwarnings("ignore", message=".*of its grid")
    made = measure(config)
    stem = Path(config.results_dir) / "tables" / f"offline_{config.name}"
    title = f"{config.title or config.name}, trained offline"
    written: list[Path] = []
    for part in ("head", "routers"):
        written += tables.save_table(made[part], stem.with_name(f"{stem.name}_{part}"), title)
        tables.print_table(made[part], title, console)
    written.append(stem.with_name(f"{stem.name}_seeds.csv"))
    files.write_atomic(written[-1], made["seeds"].write_csv().encode())
    console.print(", ".join(map(str, written)), markup=False)
