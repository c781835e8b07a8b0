"""Run one study, or a sweep of them: arrays, manifest, figures and tables under `results_dir`.

python scripts/run.py experiment=synthetic
python scripts/run.py -m experiment=synthetic alpha_scale=0.1,0.3,1 arrival_rate=0.6,0.7

With `-m` all combinations run as few batches, one for each program. Without it a list in a key
whose value by itself is none, `alpha_scale=[0.1,0.3]`, gives the same points.
"""

import dataclasses
import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cqbjax.cli import WATCH
from cqbjax.cli._hydra import check_typed, make, make_policies
from cqbjax.cli._multirun import Job
from cqbjax.cli._start import SOME_LEFT_OUT, start

if TYPE_CHECKING:
    from rich.console import Console

    from cqbjax.experiments.configs import Composed, Config
    from cqbjax.experiments.grid import Point, Ready
    from cqbjax.experiments.showing import Show


def run(jobs: Sequence[Job], show: "Show | None" = None) -> list[Any]:
    """Run the jobs, each study's in one loop.

    Args:
        jobs: the only one, all of a multirun, or those that a search tries next.
        show: returns what a study shows, in place of its kind's own `show`.

    Returns:
        Each job's objective, or the error of one that cannot run; None where none is wanted.

    Raises:
        SystemExit: of status `SOME_LEFT_OUT`, at the end, where some could not run and this is no
            search.
    """
    from cqbjax.experiments import grid

    values: list[Any] = [None] * len(jobs)
    refused, searching = list[str](), any(job.searched for job in jobs)
    for name in dict.fromkeys(job.config.name for job in jobs):
        numbers = [i for i, job in enumerate(jobs) if job.config.name == name]
        study = _prepared([jobs[i] for i in numbers])
        if study.config.dry_run:
            _reckon(study)
        else:
            from cqbjax.engine.progress import show_progress  # not waited for by who is refused

            left = _left(study)
            with show_progress() as progress:
                here = left, study.folder, progress
                lost = runner(study.config, study.console)(*here, fail_fast=study.strict)
            study.leave_out(lost)
            if study.ready and not searching:
                elsewhere = bool(left and study.config.get("cluster"))
                _show(study, None if elsewhere else progress.run_seconds, show)
        refused += study.refused
        if searching:
            for i, value in zip(numbers, _objectives(study), strict=True):
                values[i] = value
                print(f"{grid.told(jobs[i].swept)}: {value}")
    if refused and not searching:
        raise SystemExit(SOME_LEFT_OUT)
    return values


def main() -> None:
    """Run the studies that the command line names."""
    start(run)


@dataclasses.dataclass
class _Study:
    """The jobs of an experiment.

    Attributes:
        jobs: in their order.
        strict: whether what cannot run takes all down, with what is to be said of it raised.
        console: is told.
        points: of each job, those that run.
        refused: what was said of points that cannot.
    """

    jobs: Sequence[Job]
    strict: bool
    console: "Console"
    points: "list[list[Ready]]"
    refused: list[str]

    @property
    def config(self) -> "Composed":
        """The first job's configuration."""
        return self.jobs[0].config

    @property
    def folder(self) -> Path:
        """Where its arrays go."""
        return Path(self.config.results_dir) / "data" / self.config.name

    @property
    def ready(self) -> "list[Ready]":
        """All its points."""
        return [one for of_job in self.points for one in of_job]

    def leave_out(self, lost: Mapping[str, str]) -> None:
        """Go on without points, name -> why, and say so."""
        lines = [f"{name} left out: {why}" for name, why in lost.items()]
        self.refused += lines
        self.say(lines)
        self.points = [[o for o in each if o.point.name not in lost] for each in self.points]

    def say(self, lines: Iterable[str]) -> None:
        """Print lines as they are."""
        for line in lines:
            self.console.print(line, markup=False, soft_wrap=True)


def _prepared(jobs: Sequence[Job]) -> _Study:
    """Compose and check the points of jobs of one name."""
    strict = len(jobs) == 1 or bool(jobs[0].config.fail_fast)
    # What the configuration shows by itself is refused before anything heavy is imported.
    composed, refused = _composed(jobs, strict)
    from cqbjax.core import backend
    from cqbjax.experiments import showing

    backend.configure()
    points = _checked(jobs, composed, refused, strict)
    study = _Study(jobs, strict, showing.console(), points, refused)
    study.say(refused)
    if not study.ready:
        raise ValueError(f"none of {len(jobs)} points can run; the last one: {refused[-1]}")
    return study


def runner(config: "Config", console: "Console") -> "Callable[..., dict[str, str]]":
    """Return what runs and stores points, as `sharding.run_all` does: here, or on a cluster."""
    from cqbjax.experiments import sharding

    if not config.get("cluster"):
        return functools.partial(sharding.run_all, console=console)
    from cqbjax.cli import _on_cluster

    return functools.partial(_on_cluster.run_elsewhere, make(config.cluster))


def _composed(jobs: Sequence[Job], strict: bool) -> "tuple[list[list[Point] | None], list[str]]":
    """Return the points of each job, None of one that is refused, and what was said of these."""
    from cqbjax.experiments import grid

    if len({str(one.config.kind.get("_target_")) for one in jobs}) > 1:
        raise ValueError(f"name={jobs[0].config.name} is of several kinds of study: one name each")
    check_typed(jobs[0].words, *(one.config for one in jobs))
    refused = list[str]()

    def points(one: Job) -> "list[Point]":
        return grid.compose(one.config, one.swept)

    return [_unless_refused(one, strict, refused, points, one) for one in jobs], refused


def _checked(
    jobs: Sequence[Job], composed: "Sequence[list[Point] | None]", refused: list[str], strict: bool
) -> "list[list[Ready]]":
    """Return the points of each job, checked; what is said of those that cannot run is added."""
    from cqbjax.experiments import kinds

    kept = dict[str, Any]()

    def ready(one: Job, points: "list[Point]") -> "list[Ready]":
        return kinds.checked_points(one.config, make, make_policies, one.swept, kept, points)

    return [
        [] if points is None else _unless_refused(one, strict, refused, ready, one, points) or []
        for one, points in zip(jobs, composed, strict=True)
    ]


def _unless_refused(
    one: Job, strict: bool, refused: list[str], what: Callable[..., list[Any]], *given: Any
) -> list[Any] | None:
    """Return what comes of what a job is given to; None where it is refused, and why is added."""
    from cqbjax.experiments import grid, settings

    try:
        return what(*given)
    except ValueError as error:
        said = settings.as_typed(str(error), one.words, one.config)
        if strict:
            raise (error if said == str(error) else ValueError(said)) from error
        refused.append(f"{grid.told(one.swept)} left out: {said}")
        return None


def _reckon(study: _Study) -> None:
    """Say what running points would take."""
    from cqbjax.engine.progress import show_progress
    from cqbjax.experiments import sharding, showing

    ready = study.ready
    left = sharding.left_of(ready, study.folder)
    prepared = WATCH.running()
    with show_progress() as progress:
        reckoned = ready[0].kind.reckon(left, progress)
    recorded = sharding.most_bytes(left)
    showing.print_estimates(len(ready), len(left), reckoned, prepared, recorded, study.console)


def _left(study: _Study) -> "list[Ready]":
    """Return what is not stored; say how much is, and what of it was computed otherwise."""
    from cqbjax.core.files import check_writable
    from cqbjax.experiments import sharding, storing

    for folder in (study.folder, *(study.folder.parents[1] / one for one in ("tables", "figures"))):
        check_writable(folder, "results_dir")
    torn = storing.set_aside_torn(study.folder)
    why = {".torn": "was torn", ".older": "is of an older version of cqbjax"}
    study.say(f"{file} {why[file.suffix]}: what it held is run again" for file in torn)
    left = sharding.left_of(study.ready, study.folder)
    asked, missing = (sum(len(one.policies) for one in some) for some in (study.ready, left))
    if missing < asked:
        stored = f"{asked - missing} of {asked} policies at {len(study.ready)} points are stored"
        study.console.print(f"{stored}: not run again")
    study.say(storing.told_of_others(left, study.folder))
    return left


def _show(study: _Study, simulated: float | None, show: "Show | None") -> None:
    """Draw and print what is stored of points, and the seconds that were spent."""
    from cqbjax.experiments import kinds, sharding, showing

    config, folder, console, ready = study.config, study.folder, study.console, study.ready
    kind = kinds.of(config, make)
    panels = sum(len(one.point.config.arrival_rate) for one in ready)
    points = sharding.read_back(ready, folder, kind.rounds_read(config, panels))
    first = ready[0].point.config
    shown = show(kind, points, first) if show else kind.show(points, first)
    written = showing.write(shown, config, config.name, console)
    files = ", ".join(str(path) for path in written)
    console.print(f"arrays in {folder}; {files}", markup=False)
    console.print(showing.time_spent(simulated, WATCH.stop()), markup=False)


def _objectives(study: _Study) -> list[Any]:
    """Return the objective of each job of an experiment, or an error where none of it could run."""
    from cqbjax.experiments import sharding, showing
    from cqbjax.results.frame import LAST

    ready = study.ready
    data = iter(sharding.read_back(ready, study.folder, [LAST]) if ready else ())
    objectives: list[Any] = []
    for job, of_job in zip(study.jobs, study.points, strict=True):
        own = [next(data) for _ in of_job]
        objectives.append(showing.objective(own, job.config) if own else ValueError("cannot run"))
    return objectives
