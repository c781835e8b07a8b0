"""Study how ACQB depends on its constants, on seeds that no reported number uses.

    python scripts/sensitivity.py experiment=synthetic
    python scripts/sensitivity.py experiment=routerbench data_dir=PATH num_seeds=8 horizon=2000
    python scripts/sensitivity.py experiment=synthetic +sensitivity.M=[1,9] +dry=true

One constant at a time around the preset (alpha_scale, lambda0, c1, rho, M), and the grid of
alpha_scale and c1. All floats of a point share one compiled program; each M compiles its own; each
rho is a source of its own. `+sensitivity.NAME=[...]` replaces the values of a constant, an empty
list leaves it at the preset's; `+dry=true` counts round-runs and stops. Writes
`tables/sensitivity_<name>` and `figures/sensitivity_<name>` under `results_dir`.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf, open_dict

from cqbjax.commands import WATCH
from cqbjax.commands._hydra import make
from cqbjax.commands._multirun import Job
from cqbjax.commands._start import start
from cqbjax.core import backend
from cqbjax.figures import files as figure_files
from cqbjax.figures import sensitivity as sensitivity_figures
from cqbjax.results import tables
from cqbjax.studies import grid, sensitivity, showing, study
from cqbjax.studies.grid import Point
from cqbjax.studies.sensitivity import Setting
from cqbjax.sweeping.progress import Reporter, bar

# Far from 0 .. num_seeds - 1, which every study reports.
FIRST_SEED = 1_000_000


def chosen(point: Point) -> tuple[Setting, list[Setting]]:
    """Return the preset at a point, and all settings to run there."""
    config: Any = OmegaConf.to_container(point.config, resolve=True)
    preset = sensitivity.preset_of(config, point.config.K)
    values = sensitivity.values_of(preset, config.get("sensitivity") or {})
    return preset, sensitivity.settings(preset, values)


def run(point: Point, progress: Reporter) -> list[dict[str, Any]]:
    """Run all settings of a point, those of one rho together."""
    preset, all_ = chosen(point)
    rows = []
    for rho in dict.fromkeys(one.rho for one in all_):
        some = [one for one in all_ if one.rho == rho]
        with open_dict(point.config):
            if rho is not None:
                point.config.source.rho = rho
        source = make(point.config.source)
        policies = {one.label: one.policy(point.config.kappa) for one in some}
        (data,) = study.run([grid.Ready(point, source, policies)], progress)
        rows += sensitivity.rows(data, some, preset)
    return rows


def cost(points: list[Point]) -> str:
    """Say how much there is to run: settings, the optimal policies, round-runs."""
    lines, total = [], 0
    for point in points:
        _, all_ = chosen(point)
        optimal = len({one.rho for one in all_})
        runs = (len(all_) + optimal) * len(point.config.arrival_rate) * point.config.num_seeds
        total += runs * point.config.horizon
        programs = len({one.M for one in all_}) + 1
        lines.append(
            f"{point.name}: {len(all_)} settings in {programs} programs, {runs:,} runs of "
            f"{point.config.horizon:,} rounds"
        )
    return "\n".join([*lines, f"{total:,} round-runs"])


def main() -> None:
    """Run the study that the command line names."""
    start(measure)


def measure(jobs: Sequence[Job]) -> None:
    """Run the study at every point of an experiment, write table and figure, say what is best."""
    backend.configure()
    config = jobs[0].config
    for job in jobs:
        job.config.first_seed = FIRST_SEED
    console = showing.console()
    points = [
        grid.settle(point, make(point.config.source))
        for job in jobs
        for point in grid.compose(job.config, job.swept)
    ]
    console.print(cost(points), markup=False)
    if config.get("dry"):
        return
    with bar() as progress:
        rows = [row for point in points for row in run(point, progress)]
    made = sensitivity.frame(rows)
    root, stem = Path(config.results_dir), f"sensitivity_{config.name}"
    caption = f"Settings of ACQB, {config.name}, {config.num_seeds} seeds from {FIRST_SEED}"
    written = list(tables.save_table(made, root / "tables" / stem, caption))
    tables.print_table(made, caption, console)
    figure = sensitivity_figures.draw(made, config.title or config.name)
    written += figure_files.save(figure, root / "figures" / stem)
    spent = showing.time_spent(progress.simulated, WATCH.stop())
    for line in (*sensitivity.sentences(made), ", ".join(map(str, written)), spent):
        console.print(line, markup=False)
