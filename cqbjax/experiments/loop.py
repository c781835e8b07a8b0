"""The loop that runs a study: validate its points, run those that are not stored, show them all.

Points run in this process, or on a cluster as one task for each shard.
"""

import functools
import os
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from rich.console import Console

from cqbjax.core import backend
from cqbjax.core.files import check_writable
from cqbjax.core.types import Policy
from cqbjax.engine.progress import Reporter, show_progress
from cqbjax.experiments import display, grid, shards, study_types
from cqbjax.experiments.clusters import Cluster
from cqbjax.experiments.configs import Config
from cqbjax.experiments.display import Show
from cqbjax.experiments.grid import GridPoint, PreparedPoint
from cqbjax.experiments.jobs import Job, Study
from cqbjax.experiments.study import Factory
from cqbjax.offline import OfflinePolicy
from cqbjax.results.frame import LAST
from cqbjax.results.index import ResultIndex

# The least number of shards on a cluster, so that several machines have work.
FEWEST_SHARDS = 8
Make = Callable[[Config], Any]
MakePolicies = Callable[[Config], Mapping[str, Policy | OfflinePolicy]]


def run_study(
    study: Study, make: Make, make_policies: MakePolicies, lap: Callable[[], float],
    show: Show | None = None,
) -> list[Any]:  # fmt: skip
    """Validate and run a study, and show it unless a search runs it.

    Args:
        study: from `compose_studies`.
        make: instantiates a configuration.
        make_policies: instantiates policies, by label.
        lap: returns the seconds since its last call, or since the command began.
        show: returns the tables and figures, in place of the method of the study's type.

    Returns:
        For each job its objective, or the error if it cannot run; None without a search.

    Raises:
        ValueError: no point can run; if the study is strict, one that cannot.
    """
    backend.configure()
    console, searched = display.make_console(), any(job.searched for job in study.jobs)
    cache = dict[str, Any]()

    def prepare(job: Job, points: list[GridPoint]) -> list[PreparedPoint]:
        return study_types.prepare_points(job.config, make, make_policies, job.swept, cache, points)

    by_job: list[list[PreparedPoint]] = [
        [] if points is None else study.attempt(prepare, job, points) or []
        for job, points in zip(study.jobs, study.points, strict=True)
    ]
    _print(console, study.skipped)
    ready = [point for points in by_job for point in points]
    if not ready:
        last = study.skipped[-1]
        raise ValueError(f"none of {len(study.jobs)} points can run; the last one: {last}")
    index = shards.index_of(ready, study.folder)
    if study.config.dry_run:
        _print_estimates(ready, index, lap, console)
        return [None] * len(study.jobs)
    left = _find_missing(ready, index, console)
    run = choose_runner(study.config, make, make_policies, console)
    with show_progress() as progress:
        lost = run(left, index, progress, fail_fast=study.strict)
    skipped = [f"{name} left out: {why}" for name, why in lost.items()]
    study.skipped += skipped
    _print(console, skipped)
    by_job = [[one for one in points if one.point.label not in lost] for points in by_job]
    ready = [point for points in by_job for point in points]
    if searched:
        return _compute_objectives(study, by_job, index)
    if ready:
        elsewhere = bool(left and study.config.get("cluster"))
        simulated = None if elsewhere else progress.run_seconds
        _show(ready, study, index, study_types.make_study_type(study.config, make), console, show)
        console.print(display.describe_time(simulated, lap()), markup=False)
    return [None] * len(study.jobs)


def _print(console: Console, lines: Iterable[str]) -> None:
    for line in lines:
        console.print(line, markup=False, soft_wrap=True)


def _print_estimates(
    ready: Sequence[PreparedPoint], index: ResultIndex, lap: Callable[[], float], console: Console
) -> None:
    """Print how long running the points would take."""
    left, prepared = shards.select_missing(ready, index), lap()
    with show_progress() as progress:
        estimates = ready[0].kind.estimate(left, progress)
    recorded, missing = shards.most_bytes(left), len({one.point.label for one in left})
    display.print_estimates(len(ready), missing, estimates, prepared, recorded, console)


def _find_missing(
    ready: Sequence[PreparedPoint], index: ResultIndex, console: Console
) -> list[PreparedPoint]:
    """Return the points that are not stored, and print how many are stored."""
    root = index.folder.parents[1]
    for one in (index.folder, root / "tables", root / "figures"):
        check_writable(one, "results_dir")
    why = {".torn": "was damaged", ".older": "has the format of another version of cqbjax"}
    for file in index.set_aside_unreadable():
        _print(console, [f"{file} {why[file.suffix]}: its points run again"])
    left, number = shards.select_missing(ready, index), sum(len(one.policies) for one in ready)
    missing = len({(one.point.label, label) for one in left for label in one.policies})
    if missing < number:
        stored = f"{number - missing} of {number} policies at {len(ready)} points are stored"
        console.print(f"{stored}: not run again")
    _print(console, shards.describe_replaced(left, index))
    return left


def _show(
    ready: Sequence[PreparedPoint], study: Study, index: ResultIndex, kind: study_types.StudyType,
    console: Console, show: Show | None,
) -> None:  # fmt: skip
    """Write tables and figures of stored points, and print them."""
    panels = sum(len(one.point.config.arrival_rate) for one in ready)
    points = shards.read_back(ready, index, kind.select_rounds(study.config, panels))
    first = ready[0].point.config
    shown = show(kind, points, first) if show else kind.show(points, first)
    written = display.write_output(shown, study.config, study.config.name, console)
    files = ", ".join(str(path) for path in written)
    console.print(f"arrays in {study.folder}; {files}", markup=False)


def _compute_objectives(
    study: Study, by_job: Sequence[Sequence[PreparedPoint]], index: ResultIndex
) -> list[Any]:
    """Return the objective of each job, or an error for a job that cannot run; print them."""
    ready = [point for points in by_job for point in points]
    stored = iter(shards.read_back(ready, index, [LAST]) if ready else ())
    values: list[Any] = []
    for job, points in zip(study.jobs, by_job, strict=True):
        own = [next(stored) for _ in points]
        values.append(
            display.compute_objective(own, job.config) if own else ValueError("cannot run")
        )
        print(f"{grid.format_words(job.swept)}: {values[-1]}")
    return values


class Runner(Protocol):
    """Runs and stores points, as `shards.run_all` does."""

    def __call__(
        self,
        ready: Sequence[PreparedPoint],
        index: ResultIndex,
        progress: Reporter,
        *,
        fail_fast: bool,
    ) -> dict[str, str]:
        """Return the label of each point that cannot run -> why."""
        ...


def choose_runner(
    config: Config, make: Make, make_policies: MakePolicies, console: Console
) -> Runner:
    """Return what runs the points of a study: this process, or the cluster of its configuration."""
    if not config.get("cluster"):
        return functools.partial(shards.run_all, console=console)
    return functools.partial(run_on_cluster, make(config.cluster), (make, make_policies))


class ShardTask(NamedTuple):
    """A shard for another process, to be pickled.

    Attributes:
        points: of the shard, validated.
        labels: of each point, the policies that run.
        folder: of the experiment, the same for all machines.
        cwd: the current folder of the command, where user-defined modules are found.
        fail_fast: whether a point that cannot run stops its shard.
        factories: functions that instantiate a configuration, and policies by label.
    """

    points: Sequence[GridPoint]
    labels: Sequence[Sequence[str]]
    folder: Path
    cwd: str
    fail_fast: bool
    factories: tuple[Make, MakePolicies]


def perform(task: ShardTask) -> dict[str, str]:
    """Run and store a shard, in a process of its own.

    Returns:
        Label of each point that cannot run -> why.
    """
    _set_up(task.cwd)
    factory, ready = Factory(*task.factories, {}), list[PreparedPoint]()
    for point, labels in zip(task.points, task.labels, strict=True):
        one = study_types.prepare_point(point, factory)
        policies = {label: policy for label, policy in one.policies.items() if label in labels}
        ready.append(one._replace(policies=policies))
    index = shards.index_of(ready, task.folder)
    return shards.run_all(ready, index, Reporter(), Console(quiet=True), task.fail_fast)


@functools.cache
def _set_up(cwd: str) -> None:
    """Prepare a process, once: it may perform several tasks."""
    os.chdir(cwd)
    sys.path.append(cwd)
    backend.configure()


def run_on_cluster(
    cluster: Cluster, factories: tuple[Make, MakePolicies], ready: Sequence[PreparedPoint],
    index: ResultIndex, progress: Reporter, fail_fast: bool,
) -> dict[str, str]:  # fmt: skip
    """Run and store points on a cluster, one task for each shard.

    Args:
        cluster: where.
        factories: see `Task`.
        ready: from `shards.select_missing`.
        index: of the experiment's folder.
        progress: advances by whole shards.
        fail_fast: whether a point that cannot run stops the study.

    Returns:
        Label of each point that cannot run -> why.

    Raises:
        ValueError: with `fail_fast`, for the first of them.
    """
    if not ready:
        return {}
    divided = shards.divide(ready, FEWEST_SHARDS)
    tasks = [
        ShardTask(
            [one.point for one in shard], [list(one.policies) for one in shard],
            index.folder.resolve(), os.getcwd(), fail_fast, factories,
        )
        for shard in divided
    ]  # fmt: skip
    rounds = [sum(one.kind.count_rounds(one) for one in shard) for shard in divided]
    lost = dict[str, str]()
    progress.expect(sum(rounds))
    progress.log(f"{len(ready)} points in {len(divided)} shards on {type(cluster).__name__}")
    for done in cluster.run(perform, tasks):
        progress.advance(rounds[done.number])
        if done.reason and fail_fast:
            raise ValueError(done.reason)
        if done.reason:
            lost |= {one.point.label: done.reason for one in divided[done.number]}
        else:
            lost |= done.value
    return lost
