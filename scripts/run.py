"""Run one study: arrays, manifest, figures and tables under `results_dir`.

python scripts/run.py experiment=synthetic
python scripts/run.py -m experiment=synthetic arrival_rate=0.6,0.7 K=1,2
"""

import os
import sys
from pathlib import Path

import hydra
from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode
from hydra.utils import instantiate
from omegaconf import DictConfig

from cqbjax import backend, study
from cqbjax.progress import bar
from cqbjax.types import Policy

study.register_resolvers()


def job_name() -> str:
    """Name a multirun job after its overrides; a single run has no name."""
    found = HydraConfig.get()
    return found.job.override_dirname if found.mode == RunMode.MULTIRUN else ""


def make_policies(nodes: DictConfig) -> dict[str, Policy]:
    """Make each policy by itself: OmegaConf would take a dict of dataclasses for configuration."""
    return {str(label): instantiate(node) for label, node in nodes.items()}


@hydra.main(version_base="1.3", config_path="../conf", config_name="config")
def main(config: DictConfig) -> None:
    """Compose, run and store the points of a study, then show it."""
    backend.configure()
    console = study.console()
    job = job_name()
    folder = Path(config.results_dir) / "data" / config.name / job
    try:
        with bar() as progress:
            points = study.run_all(config, instantiate, make_policies, folder, progress, console)
        stem = "-".join(part for part in (config.name, job) if part)
        written = study.show(points, config, stem, console)
    except ValueError as error:
        if os.environ.get("CQBJAX_TRACEBACK"):
            raise
        sys.exit(f"error: {error}")
    console.print(f"arrays in {folder}; " + ", ".join(str(path) for path in written))


if __name__ == "__main__":
    main()
