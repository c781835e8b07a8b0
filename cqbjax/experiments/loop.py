"""The loop that runs a study: validate its points, run those that are not stored, show them all.

Points run in this process, or on a cluster as one task for each shard.
"""

import functools
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from rich.console import Console

from cqbjax.core import backend
from cqbjax.core.files import check_writable
from cqbjax.engine.progress import Reporter, show_progress
from cqbjax.experiments import display, grid, shards, study_types
from cqbjax.experiments.clusters import Cluster
from cqbjax.experiments.configs import Config
from cqbjax.experiments.display import Show
from cqbjax.experiments.grid import GridPoint, Job, PreparedPoint, Study
from cqbjax.experiments.study import Factory
from cqbjax.results.frame import LAST
from cqbjax.results.index import ResultIndex

# The least number of shards on a cluster, so that several machines have work.
MIN_SHARDS = 8
Make = Callable[[Config], Any]


def run_study(
    study: Study, make: Make, lap: Callable[[], float], show: Show | None = None
) -> list[Any]:
    """Validate and run a study, and show it unless a search runs it.

    Args:
        study: from `grid.compose_studies`.
        make: instantiates a configuration.
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
        return study_types.prepare_points(job.config, make, job.swept, cache, points)

    by_job: list[list[PreparedPoint]] = [
        [] if points is None else study.attempt(prepare, job, points) or []
        for job, points in zip(study.jobs, study.points, strict=True)
    ]
    display.print_lines(console, study.skipped)
    prepared = [point for points in by_job for point in points]
    if not prepared:
        last = study.skipped[-1]
        raise ValueError(f"none of {len(study.jobs)} points can run; the last one: {last}")
    index = shards.index_of(prepared, study.folder)
    if study.config.dry_run:
        _print_estimates(prepared, index, lap, console)
        return [None] * len(study.jobs)
    left = _find_missing(prepared, index, console)
    with show_progress(verbose=study.config.verbose) as progress:
        lost = run_points(left, index, make, progress, console, study.strict)
    skipped = [f"{name} left out: {why}" for name, why in lost.items()]
    study.skipped += skipped
    display.print_lines(console, skipped)
    by_job = [[one for one in points if one.point.label not in lost] for points in by_job]
    prepared = [point for points in by_job for point in points]
    if searched:
        return _compute_objectives(study, by_job, index)
    if prepared:
        elsewhere = bool(left and study.config.get("cluster"))
        simulated = None if elsewhere else progress.run_seconds
        study_type = study_types.make_study_type(study.config, make)
        _show(prepared, study, index, study_type, console, show)
        console.print(display.describe_time(simulated, lap()), markup=False)
    return [None] * len(study.jobs)


def _print_estimates(
    points: Sequence[PreparedPoint], index: ResultIndex, lap: Callable[[], float], console: Console
) -> None:
    """Print how long the points would take."""
    left, preparing = shards.select_missing(points, index), lap()
    with show_progress() as progress:
        estimates = points[0].study_type.estimate(left, progress)
    recorded, missing = shards.most_bytes(left), len({one.point.label for one in left})
    display.print_estimates(len(points), missing, estimates, preparing, recorded, console)


def _find_missing(
    points: Sequence[PreparedPoint], index: ResultIndex, console: Console
) -> list[PreparedPoint]:
    """Return the points that are not stored, and print how many are stored."""
    root = index.folder.parents[1]
    for folder in (index.folder, root / "tables", root / "figures"):
        check_writable(folder, "results_dir")
    why = {".torn": "was damaged", ".older": "has the format of another version of cqbjax"}
    for file in index.set_aside_unreadable():
        display.print_lines(console, [f"{file} {why[file.suffix]}: its points run again"])
    left, number = shards.select_missing(points, index), sum(len(one.policies) for one in points)
    missing = len({(one.point.label, label) for one in left for label in one.policies})
    if missing < number:
        places = f"{len(points)} points" if len(points) > 1 else "the point"
        stored = f"{number - missing} of {number} policies at {places} are stored"
        display.print_lines(console, [f"{stored}: not run again"])
    display.print_lines(console, shards.describe_replaced(left, index))
    return left


def _show(
    points: Sequence[PreparedPoint], study: Study, index: ResultIndex,
    study_type: study_types.StudyType, console: Console, show: Show | None,
) -> None:  # fmt: skip
    """Write tables and figures of stored points, and print them."""
    panels = sum(len(one.point.config.arrival_rate) for one in points)
    stored = shards.read_back(points, index, study_type.select_rounds(study.config, panels))
    first = points[0].point.config
    output = show(study_type, stored, first) if show else study_type.show(stored, first)
    seeds = max(index.count_seeds(shards.request_of(one)) for one in points)
    if seeds > first.num_seeds:
        output = display.name_seeds(output, f"{first.num_seeds} of the {seeds} stored seeds")
    written = display.write_output(output, study.config, study.config.name, console)
    display.print_lines(console, [f"written: {study.folder}, {display.describe_files(written)}"])


def _compute_objectives(
    study: Study, by_job: Sequence[Sequence[PreparedPoint]], index: ResultIndex
) -> list[Any]:
    """Return the objective of each job, or an error for a job that cannot run; print them."""
    prepared = [point for points in by_job for point in points]
    stored = iter(shards.read_back(prepared, index, [LAST]) if prepared else ())
    values: list[Any] = []
    for job, points in zip(study.jobs, by_job, strict=True):
        data = [next(stored) for _ in points]
        values.append(
            display.compute_objective(data, job.config) if data else ValueError("cannot run")
        )
        print(f"{grid.format_words(job.swept)}: {values[-1]}")
    return values


def run_points(
    points: Sequence[PreparedPoint], index: ResultIndex, make: Make, progress: Reporter,
    console: Console, fail_fast: bool,
) -> dict[str, str]:  # fmt: skip
    """Run and store points, in this process or on the cluster of their configuration.

    Arguments, result and errors are those of `shards.run_all`; `make` instantiates a configuration.
    """
    cluster = points[0].point.config.get("cluster") if points else None
    if not cluster:
        return shards.run_all(points, index, progress, console, fail_fast)
    return run_on_cluster(make(cluster), make, points, index, progress, fail_fast)


class ShardTask(NamedTuple):
    """A shard for another process, to be pickled.

    Attributes:
        points: points of the shard, validated.
        labels: for each point, the labels of the policies that run.
        folder: folder of the experiment, the same for all machines.
        cwd: the current folder of the command, where user-defined modules are found.
        fail_fast: whether a point that cannot run stops its shard.
        make: instantiates a configuration.
    """

    points: Sequence[GridPoint]
    labels: Sequence[Sequence[str]]
    folder: Path
    cwd: str
    fail_fast: bool
    make: Make


def run_task(task: ShardTask) -> dict[str, str]:
    """Run and store a shard, in a process of a cluster.

    Returns:
        Label of each point that cannot run -> why.
    """
    _configure_process(task.cwd)
    factory, points = Factory(task.make, {}), list[PreparedPoint]()
    for point, labels in zip(task.points, task.labels, strict=True):
        one = factory.make_once(point.config.kind).prepare(point, factory)
        policies = {label: policy for label, policy in one.policies.items() if label in labels}
        points.append(one._replace(policies=policies))
    index = shards.index_of(points, task.folder)
    return shards.run_all(points, index, Reporter(), Console(quiet=True), task.fail_fast)


@functools.cache
def _configure_process(cwd: str) -> None:
    """Configure a process of a cluster, once: it may run several tasks."""
    os.chdir(cwd)
    sys.path.append(cwd)
    backend.configure()


def run_on_cluster(
    cluster: Cluster, make: Make, points: Sequence[PreparedPoint], index: ResultIndex,
    progress: Reporter, fail_fast: bool,
) -> dict[str, str]:  # fmt: skip
    """Run and store points on a cluster, one task for each shard.

    Args:
        cluster: runs the tasks.
        make: instantiates a configuration.
        points: from `shards.select_missing`.
        index: index of the experiment's folder.
        progress: advances by whole shards.
        fail_fast: whether a point that cannot run stops the study.

    Returns:
        Label of each point that cannot run -> why.

    Raises:
        ValueError: with `fail_fast`, for the first of them.
    """
    divided = shards.divide(points, MIN_SHARDS)
    tasks = [
        ShardTask(
            [one.point for one in shard], [list(one.policies) for one in shard],
            index.folder.resolve(), os.getcwd(), fail_fast, make,
        )
        for shard in divided
    ]  # fmt: skip
    rounds = [sum(one.study_type.count_rounds(one) for one in shard) for shard in divided]
    lost = dict[str, str]()
    progress.expect(sum(rounds))
    progress.log(f"{len(points)} points in {len(divided)} shards on {type(cluster).__name__}")
    for result in cluster.run(run_task, tasks):
        progress.advance(rounds[result.number])
        if result.reason and fail_fast:
            raise ValueError(result.reason)
        if result.reason:
            lost |= {one.point.label: result.reason for one in divided[result.number]}
        else:
            lost |= result.value
    return lost
