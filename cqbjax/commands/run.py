"""Run one study: arrays, manifest, figures and tables under `results_dir`.

python scripts/run.py experiment=synthetic
python scripts/run.py -m experiment=synthetic arrival_rate=0.6,0.7 K=1,2
"""

import time
from pathlib import Path

from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig

from cqbjax.commands import BEGUN
from cqbjax.commands._hydra import job_name, make, make_policies, start


def main() -> None:
    """Run the study that the command line names."""
    start(run)


def run(config: DictConfig) -> None:
    """Compose, run and store the points of a study, then show it."""
    from cqbjax.studies import settings, study
    from cqbjax.sweeping import backend
    from cqbjax.sweeping.progress import bar

    backend.configure()
    console = study.console()
    job = job_name()
    folder = Path(config.results_dir) / "data" / config.name / job
    settings.check_overrides(HydraConfig.get().overrides.task, config)
    ready = study.checked_points(config, make, make_policies)
    with bar() as progress:
        points = study.run_all(ready, folder, progress, console)
    stem = "-".join(part for part in (config.name, job) if part)
    written = study.show(points, config, stem, console)
    console.print(study.time_spent(points, time.perf_counter() - BEGUN), markup=False)
    files = ", ".join(str(path) for path in written)
    console.print(f"arrays in {folder}; {files}", markup=False)
