"""Study how ACQB depends on its constants, on seeds that no reported number uses.

    python scripts/sensitivity.py experiment=synthetic
    python scripts/sensitivity.py experiment=routerbench data_dir=PATH num_seeds=8 horizon=2000
    python scripts/sensitivity.py experiment=synthetic +sensitivity.M=[1,9] dry_run=true

One constant at a time around the preset (alpha_scale, lambda0, c1, rho, M), and the grid of
alpha_scale and c1. All floats of a point share one compiled program; each M compiles its own; each
rho is a point of its own. `+sensitivity.NAME=[...]` replaces the values of a constant, an empty
list leaves it at the preset's; `dry_run=true` counts round-runs and stops. Runs are stored in
`data/sensitivity_<name>` under `results_dir` as those of any study, so that what is there is not
run again; table and figure go to `tables/sensitivity_<name>` and `figures/sensitivity_<name>`.
"""

from collections.abc import Sequence
from pathlib import Path

from omegaconf import open_dict

from cqbjax.commands import WATCH
from cqbjax.commands._hydra import make
from cqbjax.commands._multirun import Job
from cqbjax.commands._start import start
from cqbjax.core import backend
from cqbjax.figures import files as figure_files
from cqbjax.figures import sensitivity as sensitivity_figures
from cqbjax.results import tables
from cqbjax.studies import sensitivity, sharding, showing, storing
from cqbjax.studies.sensitivity import Varied
from cqbjax.sweeping.bars import bar

# Far from 0 .. num_seeds - 1, which every study reports.
FIRST_SEED = 1_000_000


def cost(varied: Sequence[Varied]) -> str:
    """Say how much there is to run: settings, the optimal policies, round-runs."""
    lines, total = [], 0
    for one in varied:
        config = one.ready.point.config
        runs = (len(one.settings) + 1) * len(config.arrival_rate) * config.num_seeds
        total += runs * config.horizon
        programs = len({setting.M for setting in one.settings}) + 1
        lines.append(
            f"{one.ready.point.name}: {len(one.settings)} settings in {programs} programs, "
            f"{runs:,} runs of {config.horizon:,} rounds"
        )
    return "\n".join([*lines, f"{total:,} round-runs"])


def main() -> None:
    """Run the study that the command line names."""
    start(measure)


def measure(jobs: Sequence[Job]) -> None:
    """Run the study at every point of an experiment, write table and figure, say what is best."""
    backend.configure()
    config, console = jobs[0].config, showing.console()
    title, stem = config.title or config.name, f"sensitivity_{config.name}"
    caption = f"Settings of ACQB, {config.name}, {config.num_seeds} seeds from {FIRST_SEED}"
    varied = []
    for job in jobs:
        with open_dict(job.config):
            job.config.first_seed, job.config.name = FIRST_SEED, stem
        varied += sensitivity.points(job.config, make, job.swept)
    console.print(cost(varied), markup=False)
    if config.dry_run:
        return
    root, ready = Path(config.results_dir), [one.ready for one in varied]
    folder = root / "data" / stem
    storing.check_writable(folder)
    with bar() as progress:
        left = sharding.left_of(ready, folder)
        sharding.run_all(left, folder, progress, console, fail_fast=True)
    stored = sharding.read_back(ready, folder)
    made = sensitivity.frame(
        [
            row
            for data, one in zip(stored, varied, strict=True)
            for row in sensitivity.rows(data, one.settings, one.preset)
        ]
    )
    written = list(tables.save_table(made, root / "tables" / stem, caption))
    tables.print_table(made, caption, console)
    written += figure_files.save(sensitivity_figures.draw(made, title), root / "figures" / stem)
    spent = showing.time_spent(progress.simulated, WATCH.stop())
    for line in (*sensitivity.sentences(made), ", ".join(map(str, written)), spent):
        console.print(line, markup=False)
