"""The loop that runs a study: validate its points, run those that are not stored, show them all.

A shard is the unit that can be lost, repeated, or run by another process. Its points go through one
call of their study type (`StudyType.run`), so that those of a sweep share batches; then they are
stored. Its size bounds the memory of a study, however many points the study has. Shards run in this
process, or on a cluster as one task each.
"""

import contextlib
import dataclasses
import functools
import os
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import xarray as xr
import yaml
from rich.console import Console

from cqbjax.core import backend
from cqbjax.core.files import check_writable, hash_parts
from cqbjax.core.labels import OPTIMAL
from cqbjax.core.queueing import QueueOverflow
from cqbjax.engine.progress import Reporter, show_progress
from cqbjax.experiments import configs, display, grid, study, study_types
from cqbjax.experiments.clusters import Cluster
from cqbjax.experiments.configs import Config
from cqbjax.experiments.display import Show
from cqbjax.experiments.grid import GridPoint, Job, PreparedPoint, Study
from cqbjax.experiments.manifests import manifest_of
from cqbjax.experiments.study import Factory
from cqbjax.experiments.validation import RUN_KEYS
from cqbjax.results.files import StoredPoint
from cqbjax.results.frame import LAST, aggregate_points
from cqbjax.results.index import Cell, ResultIndex, RunRequest

UNFINISHED = ".unfinished"
MAX_LINES = 6  # most notes that are printed of a shard
# The least number of shards on a cluster, so that several machines have work.
MIN_SHARDS = 8
Make = Callable[[Config], Any]


def run_study(study: Study, make: Make, show: Show | None = None) -> list[Any]:
    """Validate and run a study, and show it unless a search runs it.

    Args:
        study: from `grid.compose_studies`.
        make: instantiates a configuration.
        show: returns the tables and figures, in place of the method of the study's type.

    Returns:
        For each job its objective, or the error if it cannot run; None without a search.

    Raises:
        ValueError: no point can run; if the study is strict, one that cannot.
    """
    begun = time.perf_counter()
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
    folder = Path(study.config.results_dir) / "data" / study.config.name
    index = ResultIndex.of_study(folder, study.config.name)
    if study.config.dry_run:
        _print_estimates(prepared, index, time.perf_counter() - begun, console)
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
        study_type = study_types.make_study_type(study.config, make)
        _show(prepared, study, index, study_type, console, show)
    return [None] * len(study.jobs)


def _print_estimates(
    points: Sequence[PreparedPoint], index: ResultIndex, preparing: float, console: Console
) -> None:
    """Print what the points that are not stored would take; checking took `preparing` seconds."""
    left, study_type = select_missing(points, index), points[0].study_type
    stored = len(points) - len({one.point.label for one in left})
    with show_progress() as progress:
        estimates = study_type.estimate(left, progress)
    shards = study_type.divide(left) if left else []
    recorded = max((sum(map(study_type.count_bytes, shard)) for shard in shards), default=0)
    compiling = sum(one.compiling for one in estimates)
    running = sum(one.running for one in estimates)
    lines = [
        *(
            f"{one.description}: compiling {one.compiling:.1f} s, running {one.running:.1f} s"
            for one in estimates
        ),
        f"{len(points)} points, {stored} of them stored; {len(estimates)} groups, a program each; "
        f"about {preparing + compiling + running:.0f} s: checking {preparing:.0f}, "
        f"compiling {compiling:.0f} (done now, and cached), running {running:.0f}; fits of routers "
        f"and heads, storing and drawing not counted; arrays of up to {recorded / 1e6:,.0f} MB "
        "are in memory until they are stored",
    ]
    display.print_lines(console, lines)


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
    left, number = select_missing(points, index), sum(len(one.policies) for one in points)
    missing = len({(one.point.label, label) for one in left for label in one.policies})
    if missing < number:
        places = f"{len(points)} points" if len(points) > 1 else "the point"
        stored = f"{number - missing} of {number} policies at {places} are stored"
        display.print_lines(console, [f"{stored}: not run again"])
    return left


def _show(
    points: Sequence[PreparedPoint], study: Study, index: ResultIndex,
    study_type: study_types.StudyType, console: Console, show: Show | None,
) -> None:  # fmt: skip
    """Write tables and figures of stored points, and print them."""
    panels = sum(len(one.point.config.arrival_rate) for one in points)
    stored = read_back(points, index, study_type.select_rounds(study.config, panels))
    first = points[0].point.config
    output = show(study_type, stored, first) if show else study_type.show(stored, first)
    written = display.write_output(output, study.config, study.config.name, console)
    display.print_lines(console, [f"written: {', '.join(map(str, [index.folder, *written]))}"])


def _compute_objectives(
    study: Study, by_job: Sequence[Sequence[PreparedPoint]], index: ResultIndex
) -> list[Any]:
    """Return the objective of each job, or an error for a job that cannot run; print them.

    It is a mean over seeds, rates and points; the key `objective` names its metric and policy.
    """
    prepared = [point for points in by_job for point in points]
    stored = iter(read_back(prepared, index, [LAST]) if prepared else ())
    values: list[Any] = []
    for job, points in zip(study.jobs, by_job, strict=True):
        value: Any = ValueError("cannot run")
        if points:
            asked = job.config.objective
            table = aggregate_points([next(stored) for _ in points], [asked.metric])
            value = float(table.filter(policy=asked.policy)["mean"].mean())  # type: ignore[arg-type]
        values.append(value)
        print(f"{grid.format_words(job.swept)}: {value}")
    return values


def run_points(
    points: Sequence[PreparedPoint], index: ResultIndex, make: Make, progress: Reporter,
    console: Console, fail_fast: bool,
) -> dict[str, str]:  # fmt: skip
    """Run and store points, in this process or on the cluster of their configuration.

    Args:
        points: from `select_missing`.
        index: index of the experiment's folder.
        make: instantiates a configuration.
        progress: receives fits, compiling and rounds.
        console: prints policies that are left out, and the dataset.
        fail_fast: whether a point that cannot run ends the study.

    Returns:
        Label of a point that could not run -> why.

    Raises:
        ValueError: a file cannot be written; with `fail_fast`, also that of such a point.
    """
    lost = dict[str, str]()
    cluster = points[0].point.config.get("cluster") if points else None
    if cluster:
        return run_on_cluster(make(cluster), make, points, index, progress, fail_fast)
    progress.reserve(sum(one.study_type.count_rounds(one) for one in points))
    for shard in points[0].study_type.divide(points) if points else ():
        lost |= run_shard(shard, index, progress, console, fail_fast)
    progress.release()
    return lost


def run_shard(
    shard: Sequence[PreparedPoint], index: ResultIndex, progress: Reporter, console: Console,
    fail_fast: bool,
) -> dict[str, str]:  # fmt: skip
    """Run the points of a shard together, and store them; see `run_points`.

    If one of them cannot run, each of them runs alone, so that the others are stored.
    """
    begun, known, parts = time.perf_counter(), list(index.manifests), list[str]()
    for request in map(request_of, shard):
        key = request.key
        parts += [request.name, key.point, *key.policies.values(), str(request.cells)]
    resume = index.folder / UNFINISHED / hash_parts(*parts)
    notes = list(dict.fromkeys(line for one in shard for line in study.describe_point(one)))
    more = [f"and so on for {len(notes) - MAX_LINES} more points"] * (len(notes) > MAX_LINES)
    display.print_lines(console, [*notes[:MAX_LINES], *more])
    try:
        datasets = shard[0].study_type.run(shard, progress, resume)
    except QueueOverflow as error:
        if fail_fast:
            raise
        if len(shard) == 1:
            return {shard[0].point.label: str(error)}
        alone = (run_shard([one], index, progress, console, fail_fast) for one in shard)
        return {label: why for lost in alone for label, why in lost.items()}
    seconds = time.perf_counter() - begun
    stored = []
    for one, data in zip(shard, datasets, strict=True):
        config = configs.to_plain(one.point.requested or one.point.config)
        # LibYAML takes a third of Python's time.
        dumper = getattr(yaml, "CSafeDumper", yaml.SafeDumper)
        text = yaml.dump(config, Dumper=dumper, sort_keys=False, allow_unicode=True)
        stored.append(StoredPoint(data, manifest_of(one, data, seconds), str(text)))
    index.store(stored, known if shard[0].point.config.rerun else None)
    shutil.rmtree(resume, ignore_errors=True)
    with contextlib.suppress(OSError):  # other shards are unfinished, or it is gone
        resume.parent.rmdir()
    return {}


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
    index = ResultIndex.of_study(task.folder, points[0].point.config.name)
    return run_shard(points, index, Reporter(), Console(quiet=True), task.fail_fast)


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
    """Run and store points on a cluster, one task for each shard; see `run_points`."""
    divided = points[0].study_type.divide(points, MIN_SHARDS)
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
        failed = {one.point.label: result.reason for one in divided[result.number]}
        lost |= failed if result.reason else result.value
    return lost


def request_of(prepared: PreparedPoint) -> RunRequest:
    """Return the runs of a point, as the store identifies them."""
    config, name = prepared.point.config, prepared.point.name
    key = prepared.study_type.cache_key(prepared)
    if not prepared.study_type.extensible:
        return RunRequest(name, key)
    return RunRequest(name, key, config.arrival_rate, grid.list_seeds(config))


def select_missing(points: Sequence[PreparedPoint], index: ResultIndex) -> list[PreparedPoint]:
    """Return the policies, arrival rates and seeds that are not stored, as parts of points.

    Each part has consecutive seeds.
    """
    parts = []
    for prepared in points:
        policies, config = prepared.policies, prepared.point.config
        if config.rerun:
            parts.append(prepared)
            continue
        request = request_of(prepared)
        labels: dict[tuple[tuple[Any, ...], range] | None, list[str]] = {}
        for label, cells in index.missing(request).items():
            for block in [None] if len(cells) == len(request.cells) else _form_blocks(cells):
                labels.setdefault(block, []).append(label)
        for block, missing in labels.items():
            part = prepared._replace(
                # The oracle always runs, and a sweep would replace a missing one by the paper's.
                policies={x: policies[x] for x in policies if x in missing or x == OPTIMAL}
            )
            if block is not None:
                rates, seeds = block
                values = dict(zip(RUN_KEYS, (list(rates), seeds.start, len(seeds)), strict=True))
                point = dataclasses.replace(
                    prepared.point, config=config.with_values(values), requested=config
                )
                part = part._replace(point=point, spec=None)  # the spec has all rates and seeds
            parts.append(part)
    return parts


def _form_blocks(cells: Sequence[Cell]) -> Iterator[tuple[tuple[Any, ...], range]]:
    """Yield cells as blocks: arrival rates with the same missing range of seeds."""
    missing: dict[Any, list[range]] = {}
    for rate, seed in cells:
        ranges = missing.setdefault(rate, [])
        if ranges and ranges[-1].stop == seed:
            ranges[-1] = range(ranges[-1].start, seed + 1)
        else:
            assert seed is not None
            ranges.append(range(seed, seed + 1))
    for seeds in dict.fromkeys(one for ranges in missing.values() for one in ranges):
        yield tuple(rate for rate, ranges in missing.items() if seeds in ranges), seeds


def read_back(
    points: Sequence[PreparedPoint], index: ResultIndex, rounds: Sequence[int] | None = None
) -> list[xr.Dataset]:
    """Return the stored arrays of points, with their policies, arrival rates and seeds only.

    Args:
        points: points of a study that have run.
        index: index of the experiment's folder.
        rounds: as in `results.load_points`.
    """
    index.refresh()
    stored = index.read([request_of(one) for one in points], rounds)
    return [
        data.assign_attrs(one.attributes or {}) for one, data in zip(points, stored, strict=True)
    ]
