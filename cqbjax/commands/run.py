"""Run one study, or a sweep of them: arrays, manifest, figures and tables under `results_dir`.

python scripts/run.py experiment=synthetic
python scripts/run.py -m experiment=synthetic alpha_scale=0.1,0.3,1 arrival_rate=0.6,0.7

With `-m` all combinations run as few batches, one for each program; `hydra/launcher=basic` runs
them one after another, as Hydra does by itself.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig

from cqbjax.commands import WATCH
from cqbjax.commands._hydra import job_name, make, make_policies, start
from cqbjax.commands._jobs import Job
from cqbjax.commands._refusing import SOME_LEFT_OUT

if TYPE_CHECKING:
    from rich.console import Console

    from cqbjax.studies.grid import Ready


def main() -> None:
    """Run the study, or the sweep, that the command line names."""
    start(run, together=together)


def run(config: DictConfig) -> None:
    """Run one job."""
    words = list(HydraConfig.get().overrides.task)
    if config.replay is not None:
        _replays([Job(config, {}, words)], job_name())
    elif config.theory is not None and config.theory.measure != "slopes":
        _proof(Job(config, {}, words))
    else:
        _study([Job(config, {}, words)], job_name())


def together(jobs: Sequence[Job], searching: bool = False) -> list[Any]:
    """Run the jobs of a multirun, each experiment's in one sweep.

    Args:
        jobs: all of them, or those that a search tries next.
        searching: whether their objectives are wanted.

    Returns:
        Each job's objective, or the error of one that cannot run; None where none is wanted.

    Raises:
        SystemExit: of status `SOME_LEFT_OUT`, at the end, where some could not run and this is no
            search.
    """
    from cqbjax.studies import grid

    values: list[Any] = [None] * len(jobs)
    if any(job.config.replay is not None for job in jobs):
        _replays(jobs, "")
        return values
    if any(job.config.theory is not None for job in jobs):
        raise ValueError("an experiment of the theorems is no sweep: run it without -m")
    refused: list[str] = []
    for name in dict.fromkeys(job.config.name for job in jobs):
        numbers = [i for i, job in enumerate(jobs) if job.config.name == name]
        some = [jobs[i] for i in numbers]
        studied = _study(some, "", shown=not searching)
        refused += studied.refused
        if searching:
            for i, value in zip(numbers, _objectives(some, studied.points), strict=True):
                values[i] = value
                print(f"{grid.told(jobs[i].swept)}: {value}")
    if refused and not searching:
        raise SystemExit(SOME_LEFT_OUT)
    return values


class _Studied(NamedTuple):
    """What came of the jobs of an experiment.

    Attributes:
        refused: what was said of points that cannot run.
        points: of each job, those that are stored.
    """

    refused: "list[str]"
    points: "list[list[Ready]]"


def _objectives(jobs: Sequence[Job], points: "Sequence[Sequence[Ready]]") -> list[Any]:
    """Return the objective of each job of an experiment, or an error where none of it could run."""
    from cqbjax.results.frame import LAST
    from cqbjax.studies import sharding, showing

    config = jobs[0].config
    folder = Path(config.results_dir) / "data" / config.name
    ready = [one for of_job in points for one in of_job]
    data = iter(sharding.read_back(ready, folder, [LAST]) if ready else ())
    objectives: list[Any] = []
    for job, of_job in zip(jobs, points, strict=True):
        own = [next(data) for _ in of_job]
        objectives.append(showing.objective(own, job.config) if own else ValueError("cannot run"))
    return objectives


def _study(jobs: Sequence[Job], job: str, shown: bool = True) -> _Studied:
    """Compose, run and store the points of jobs of one name, then show them if they are to be.

    What is to be said of points that cannot run is raised where there is a single job.
    """
    from cqbjax.core import backend
    from cqbjax.studies import sharding, showing, storing

    backend.configure()
    console, config = showing.console(), jobs[0].config
    folder = Path(config.results_dir) / "data" / config.name / job
    strict = len(jobs) == 1 or bool(config.fail_fast)
    each, refused = _checked(jobs, strict, console)
    ready = [one for of_job in each for one in of_job]
    if config.dry_run:
        _reckon(ready, folder, console)
        return _Studied(refused, each)
    storing.check_writable(folder)
    for file in storing.set_aside_torn(folder):
        console.print(f"{file} was torn: what it held is run again", markup=False, soft_wrap=True)
    lost, simulated = _run(sharding.left_of(ready, folder), ready, folder, console, strict)
    for name, why in lost.items():
        refused.append(f"{name} left out: {why}")
        console.print(refused[-1], markup=False, soft_wrap=True)
    each = [[one for one in of_job if one.point.name not in lost] for of_job in each]
    ready = [one for of_job in each for one in of_job]
    if ready and shown:
        _show(ready, folder, "-".join(part for part in (config.name, job) if part), console)
        _print_time_spent(simulated, console)
    return _Studied(refused, each)


def _checked(
    jobs: Sequence[Job], strict: bool, console: "Console"
) -> "tuple[list[list[Ready]], list[str]]":
    """Return the points of each job, and what was said of those that cannot run."""
    from cqbjax.studies import grid, settings, study

    each: list[list[Ready]] = []
    refused, sources = list[str](), dict[str, Any]()
    for one in jobs:
        each.append([])
        try:
            settings.check_overrides(one.words, one.config)
            points = study.checked_points(one.config, make, make_policies, one.swept, sources)
            each[-1] += points
        except ValueError as error:
            if strict:
                raise
            refused.append(f"{grid.told(one.swept)} left out: {error}")
            console.print(refused[-1], markup=False, soft_wrap=True)
    if not any(each):
        raise ValueError(f"none of {len(jobs)} points can run; the last one: {refused[-1]}")
    return each, refused


def _reckon(ready: "Sequence[Ready]", folder: Path, console: "Console") -> None:
    """Say what running points would take."""
    from cqbjax.studies import sharding, showing, study
    from cqbjax.sweeping.progress import bar

    left = sharding.left_of(ready, folder)
    prepared = WATCH.running()
    with bar() as progress:
        reckoned = study.estimated(left, progress) if left else []
    showing.print_estimates(len(ready), len(left), reckoned, prepared, console)


def _run(
    left: "Sequence[Ready]", ready: "Sequence[Ready]", folder: Path, console: "Console",
    strict: bool,
) -> tuple[dict[str, str], float | None]:  # fmt: skip
    """Run and store the points that are left, here or on a cluster.

    Returns:
        Name of a point that cannot run -> why; and the seconds that were simulated, None elsewhere.
    """
    from cqbjax.commands import _tasks
    from cqbjax.studies import sharding
    from cqbjax.sweeping.progress import bar

    asked, missing = (sum(len(one.policies) for one in some) for some in (ready, left))
    if missing < asked:
        stored = f"{asked - missing} of {asked} policies at {len(ready)} points are stored"
        console.print(f"{stored}: not run again")
    node = ready[0].point.config.get("cluster")
    with bar() as progress:
        if node and left:
            return _tasks.run_elsewhere(make(node), left, folder, progress, strict), None
        return sharding.run_all(left, folder, progress, console, strict), progress.simulated


def _show(ready: "Sequence[Ready]", folder: Path, stem: str, console: "Console") -> None:
    """Draw and print what is stored of points."""
    from cqbjax.studies import sharding, showing

    config = ready[0].point.config
    few = sum(len(one.point.config.arrival_rate) for one in ready) <= showing.MOST_PANELS
    points = sharding.read_back(ready, folder, None if few else showing.rounds_shown(config))
    written = showing.show(points, config, stem, console)
    files = ", ".join(str(path) for path in written)
    console.print(f"arrays in {folder}; {files}", markup=False)


def _print_time_spent(simulated: float | None, console: "Console") -> None:
    """Print the share of a study's time that was simulation."""
    from cqbjax.studies import showing

    console.print(showing.time_spent(simulated, WATCH.stop()), markup=False)


def _proof(job: Job) -> None:
    """Measure what a proof is made of at the points of a job, show and write it."""
    from cqbjax.core import backend
    from cqbjax.studies import proofs, settings, showing, study
    from cqbjax.sweeping.progress import bar

    backend.configure()
    console = showing.console()
    settings.check_overrides(job.words, job.config)
    ready = study.checked_points(job.config, make, make_policies)
    if job.config.dry_run:
        proofs.reckon(ready, console)
        return
    with bar() as progress:
        measured = proofs.measure(ready, job.config, progress)
    written = proofs.show(measured, job.config, console)
    console.print(", ".join(map(str, written)), markup=False, soft_wrap=True)
    _print_time_spent(progress.simulated, console)


def _replays(jobs: Sequence[Job], job: str) -> None:
    """Run, store and show the points of jobs that replay a log."""
    from cqbjax.core import backend
    from cqbjax.studies import replaying, settings, showing
    from cqbjax.sweeping.progress import bar

    backend.configure()
    console, config = showing.console(), jobs[0].config
    folder = Path(config.results_dir) / "data" / config.name / job
    points, simulated = [], 0.0
    for one in jobs:
        if one.config.replay is None or one.config.name != config.name:
            raise ValueError("a sweep is of one experiment where it replays a log: run them apart")
        settings.check_overrides(one.words, one.config)
        with bar() as progress:
            points += replaying.study(
                one.config, make_policies, folder, progress, console, one.swept
            )
            simulated += progress.simulated
    if not points:
        return
    stem = "-".join(part for part in (config.name, job) if part)
    written = replaying.show(points, config, stem, console)
    console.print(f"arrays in {folder}; {', '.join(map(str, written))}", markup=False)
    _print_time_spent(simulated, console)
