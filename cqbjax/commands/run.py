"""Run one study, or a sweep of them: arrays, manifest, figures and tables under `results_dir`.

python scripts/run.py experiment=synthetic
python scripts/run.py -m experiment=synthetic alpha_scale=0.1,0.3,1 arrival_rate=0.6,0.7

With `-m` all combinations run as few batches, one for each program. Without it a list in a key
whose value by itself is none, `alpha_scale=[0.1,0.3]`, gives the same points.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from cqbjax.commands import WATCH
from cqbjax.commands._hydra import make, make_policies
from cqbjax.commands._multirun import Job
from cqbjax.commands._start import SOME_LEFT_OUT, start

if TYPE_CHECKING:
    from rich.console import Console

    from cqbjax.studies.grid import Ready


def main() -> None:
    """Run the study, or the sweep, that the command line names."""
    start(run)


def run(jobs: Sequence[Job]) -> list[Any]:
    """Run the jobs, each experiment's in one sweep.

    Args:
        jobs: the only one, all of a multirun, or those that a search tries next.

    Returns:
        Each job's objective, or the error of one that cannot run; None where none is wanted.

    Raises:
        SystemExit: of status `SOME_LEFT_OUT`, at the end, where some could not run and this is no
            search.
    """
    from cqbjax.studies import grid

    values: list[Any] = [None] * len(jobs)
    if any(job.config.replay is not None for job in jobs):
        _replays(jobs)
        return values
    proofs = [job for job in jobs if job.config.theory is not None]
    if proofs and len(jobs) > 1:
        raise ValueError("an experiment of the theorems is no sweep: run it without -m")
    if proofs and proofs[0].config.theory.measure != "slopes":
        _proof(proofs[0])
        return values
    refused, searching = list[str](), any(job.searched for job in jobs)
    for name in dict.fromkeys(job.config.name for job in jobs):
        numbers = [i for i, job in enumerate(jobs) if job.config.name == name]
        some = [jobs[i] for i in numbers]
        studied = _study(some, shown=not searching)
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


def _study(jobs: Sequence[Job], shown: bool = True) -> _Studied:
    """Compose, run and store the points of jobs of one name, then show them if they are to be.

    What is to be said of points that cannot run is raised where there is a single job.
    """
    from cqbjax.core import backend
    from cqbjax.studies import sharding, showing, storing

    backend.configure()
    console, config = showing.console(), jobs[0].config
    folder = Path(config.results_dir) / "data" / config.name
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
        _show(ready, folder, config.name, console)
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
    from cqbjax.sweeping.bars import bar

    left = sharding.left_of(ready, folder)
    prepared = WATCH.running()
    with bar() as progress:
        reckoned = study.estimated(left, progress) if left else []
    recorded = sharding.most_bytes(left)
    showing.print_estimates(len(ready), len(left), reckoned, prepared, recorded, console)


def _run(
    left: "Sequence[Ready]", ready: "Sequence[Ready]", folder: Path, console: "Console",
    strict: bool,
) -> tuple[dict[str, str], float | None]:  # fmt: skip
    """Run and store the points that are left, here or on a cluster.

    Returns:
        Name of a point that cannot run -> why; and the seconds that were simulated, None elsewhere.
    """
    from cqbjax.commands import _on_cluster
    from cqbjax.studies import sharding, storing
    from cqbjax.sweeping.bars import bar

    asked, missing = (sum(len(one.policies) for one in some) for some in (ready, left))
    if missing < asked:
        stored = f"{asked - missing} of {asked} policies at {len(ready)} points are stored"
        console.print(f"{stored}: not run again")
    for line in storing.told_of_others(left, folder):
        console.print(line, markup=False, soft_wrap=True)
    node = ready[0].point.config.get("cluster")
    with bar() as progress:
        if node and left:
            return _on_cluster.run_elsewhere(make(node), left, folder, progress, strict), None
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
    from cqbjax.sweeping.bars import bar

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


def _replays(jobs: Sequence[Job]) -> None:
    """Run, store and show the points of jobs that replay a log."""
    from cqbjax.core import backend
    from cqbjax.studies import replaying, settings, showing
    from cqbjax.sweeping.bars import bar

    backend.configure()
    console, config = showing.console(), jobs[0].config
    folder = Path(config.results_dir) / "data" / config.name
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
    written = replaying.show(points, config, config.name, console)
    console.print(f"arrays in {folder}; {', '.join(map(str, written))}", markup=False)
    _print_time_spent(simulated, console)
