"""Run one study: arrays, manifest, figures and tables under `results_dir`.

python scripts/run.py experiment=synthetic
python scripts/run.py -m experiment=synthetic arrival_rate=0.6,0.7 K=1,2
"""

import os
import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import hydra
from hydra.core.hydra_config import HydraConfig
from hydra.errors import HydraException, InstantiationException, OverrideParseException
from hydra.types import RunMode
from hydra.utils import instantiate
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from cqbjax.offline.learnt import Learnt
from cqbjax.studies import grid, settings, study
from cqbjax.sweeping import backend
from cqbjax.sweeping.progress import bar
from cqbjax.types import Policy

grid.register_resolvers()

CONF = Path(__file__).resolve().parent.parent / "conf"


def job_name() -> str:
    """Name a multirun job after its overrides; a single run has no name."""
    found = HydraConfig.get()
    return found.job.override_dirname if found.mode == RunMode.MULTIRUN else ""


def make(node: DictConfig) -> Any:
    """Make an object; an error of its own comes out as it is, without Hydra's wrapping."""
    try:
        return instantiate(node, _convert_="all")
    except InstantiationException as error:
        raise (error.__cause__ or error) from None


def check_words(words: Sequence[str]) -> None:
    """Refuse a key that is none, and a choice that has no file: Hydra would say it in pages."""
    config = OmegaConf.load(CONF / "config.yaml")
    given = [entry for entry in config.defaults if isinstance(entry, DictConfig)]
    groups = [str(name) for entry in given for name in entry]
    preset = OmegaConf.load(CONF / "preset" / "tuned.yaml")
    keys = [str(key) for key in (*config, *preset) if key != "defaults"]
    for word in words:
        key, equals, value = word.partition("=")
        if key in groups:
            known = sorted(path.stem for path in CONF.glob(f"{key}/*.yaml"))
            for label in re.findall(r"[^\s,\[\]'\"]+", value):
                if label not in [*known, "null"]:
                    sys.exit(f"error: {key} {label} is unknown; choose from {', '.join(known)}")
        elif equals and key.isidentifier() and key not in keys:
            sys.exit(f"error: {key} is no key; choose from {', '.join(sorted([*keys, *groups]))}")


def in_a_sentence(error: Exception) -> str:
    """Say in one line what Hydra or OmegaConf says in several; our own errors are one already."""
    first = next((line for line in str(error).splitlines() if line.strip()), repr(error))
    if isinstance(error, OverrideParseException):
        return f"{error.override} cannot be read: {first}"
    unknown = re.match(r"Could not override '(.+)'", first)
    if unknown:
        return f"{unknown[1]} is no key here; add --cfg job to the command to see all keys"
    return first


def start(main: Callable[[], Any]) -> None:
    """Run a script of studies; a word that Hydra refuses is one sentence."""
    check_words(sys.argv[1:])
    # Hydra's own answer to a wrong word is a page; its error alone is a sentence.
    os.environ["HYDRA_FULL_ERROR"] = "1"
    try:
        main()
    except (HydraException, OmegaConfBaseException) as error:
        if os.environ.get("CQBJAX_TRACEBACK"):
            raise
        sys.exit(f"error: {in_a_sentence(error)}")


def make_policies(nodes: DictConfig) -> dict[str, Policy | Learnt]:
    """Make each policy by itself: OmegaConf would take a dict of dataclasses for configuration."""
    return {str(label): make(node) for label, node in nodes.items()}


@hydra.main(version_base="1.3", config_path="../conf", config_name="config")
def main(config: DictConfig) -> None:
    """Compose, run and store the points of a study, then show it."""
    backend.configure()
    console = study.console()
    job = job_name()
    folder = Path(config.results_dir) / "data" / config.name / job
    try:
        settings.check_overrides(HydraConfig.get().overrides.task, config)
        ready = study.prepare(config, make, make_policies)
        with bar() as progress:
            points = study.run_all(ready, folder, progress, console)
        stem = "-".join(part for part in (config.name, job) if part)
        written = study.show(points, config, stem, console)
    except ValueError as error:
        if os.environ.get("CQBJAX_TRACEBACK"):
            raise
        sys.exit(f"error: {in_a_sentence(error)}")
    files = ", ".join(str(path) for path in written)
    console.print(f"arrays in {folder}; {files}", markup=False)


if __name__ == "__main__":
    start(main)
