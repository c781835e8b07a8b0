"""Shards: points that run and are stored together, and the selection of what is not stored yet.

A shard is the unit that can be lost, repeated, or run by another process. Its points go through one
call of their study type (`StudyType.run`), so that those of a sweep share batches; then they are
stored. Its size bounds the memory of a study, however many points the study has.
"""

import contextlib
import dataclasses
import shutil
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import xarray as xr
import yaml
from rich.console import Console

from cqbjax.core.files import hash_parts
from cqbjax.core.labels import OPTIMAL
from cqbjax.core.queueing import QueueOverflow
from cqbjax.engine.progress import Reporter
from cqbjax.experiments import configs, display, study
from cqbjax.experiments.configs import Config
from cqbjax.experiments.grid import PreparedPoint, list_seeds
from cqbjax.experiments.manifests import manifest_of
from cqbjax.experiments.validation import RUN_KEYS
from cqbjax.results.index import Cell, ResultIndex, RunRequest
from cqbjax.results.points import StoredPoint

UNFINISHED = ".unfinished"
MAX_LINES = 6  # most notes that are printed of a shard


def request_of(prepared: PreparedPoint) -> RunRequest:
    """Return the runs of a point, as the store identifies them."""
    config, name = prepared.point.config, prepared.point.name
    key = prepared.study_type.cache_key(prepared)
    if not prepared.study_type.extensible:
        return RunRequest(name, key)
    return RunRequest(name, key, config.arrival_rate, list_seeds(config))


def index_of(points: Sequence[PreparedPoint], folder: Path) -> ResultIndex:
    """Return the index of the folder of points.

    Raises:
        ValueError: the folder holds results of another experiment.
    """
    return ResultIndex.of_study(folder, points[0].point.config.name)


def select_missing(points: Sequence[PreparedPoint], index: ResultIndex) -> list[PreparedPoint]:
    """Return the policies, arrival rates and seeds that are not stored, as parts of points."""
    return [part for one in points for part in _split_missing(one, index)]


def _split_missing(prepared: PreparedPoint, index: ResultIndex) -> list[PreparedPoint]:
    """Return the parts of a point that are not stored, each with consecutive seeds."""
    policies, config = prepared.policies, prepared.point.config
    if config.rerun:
        return [prepared]
    request = request_of(prepared)
    labels: dict[tuple[tuple[Any, ...], range] | None, list[str]] = {}
    for label, cells in index.missing(request).items():
        for block in [None] if len(cells) == len(request.cells) else _form_blocks(cells):
            labels.setdefault(block, []).append(label)
    parts = []
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


def divide(points: Sequence[PreparedPoint], min_shards: int = 1) -> list[list[PreparedPoint]]:
    """Divide points into shards; see `StudyType.divide`."""
    return points[0].study_type.divide(points, min_shards) if points else []


def most_bytes(points: Sequence[PreparedPoint]) -> int:
    """Return the largest size of a shard's arrays, which are in memory until they are stored."""
    return max(
        (sum(one.study_type.count_bytes(one) for one in shard) for shard in divide(points)),
        default=0,
    )


def run_all(
    points: Sequence[PreparedPoint], index: ResultIndex, progress: Reporter, console: Console,
    fail_fast: bool,
) -> dict[str, str]:  # fmt: skip
    """Run and store points, shard by shard.

    If a point of a shard cannot run, each of its points runs alone, so that the others are stored.

    Args:
        points: from `select_missing`.
        index: index of the experiment's folder.
        progress: receives fits, compiling and rounds.
        console: prints policies that are left out, and the dataset.
        fail_fast: whether a point that cannot run ends the study.

    Returns:
        Label of a point that could not run -> why.

    Raises:
        ValueError: a file cannot be written; with `fail_fast`, also that of such a point.
    """
    lost, left, known = dict[str, str](), divide(points), list(index.manifests)
    progress.reserve(sum(one.study_type.count_rounds(one) for one in points))
    while left:
        shard = left.pop(0)
        begun, resume = time.perf_counter(), index.folder / UNFINISHED / _resume_key(shard)
        _print_notes(shard, console)
        try:
            datasets = shard[0].study_type.run(shard, progress, resume)
        except QueueOverflow as error:
            if fail_fast:
                raise
            if len(shard) == 1:
                lost[shard[0].point.label] = str(error)
            else:
                left[:0] = [[one] for one in shard]
            continue
        seconds = time.perf_counter() - begun
        stored = []
        for one, data in zip(shard, datasets, strict=True):
            config = one.point.requested or one.point.config
            stored.append(StoredPoint(data, manifest_of(one, data, seconds), _to_yaml(config)))
        index.store(stored, known if shard[0].point.config.rerun else None)
        shutil.rmtree(resume, ignore_errors=True)
        with contextlib.suppress(OSError):  # other shards are unfinished, or it is gone
            resume.parent.rmdir()
    progress.release()
    return lost


def _resume_key(shard: Sequence[PreparedPoint]) -> str:
    """Return the key of a shard, the name of the folder of its checkpoints."""
    words = list[str]()
    for one in map(request_of, shard):
        words += [one.name, one.key.point, *one.key.policies.values(), str(one.cells)]
    return hash_parts(*words)


def _print_notes(shard: Sequence[PreparedPoint], console: Console) -> None:
    """Print the notes on a shard's points, at most `MAX_LINES`."""
    lines = list(dict.fromkeys(line for one in shard for line in study.describe_point(one)))
    left = len(lines) - MAX_LINES
    more = [f"and so on for {left} more points"] if left > 0 else []
    display.print_lines(console, [*lines[:MAX_LINES], *more])


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


def describe_replaced(left: Sequence[PreparedPoint], index: ResultIndex) -> list[str]:
    """Return a line about points of which other versions are stored, beside those about to run."""
    others = (one.point.label for one in left if index.holds_other(request_of(one)))
    names = list(dict.fromkeys(others))
    if not names:
        return []
    more = f" and {len(names) - 1} more" if len(names) > 1 else ""
    return [
        f"{names[0]}{more} stored with other settings, data or code: kept, though results.load "
        f"gives the newest; `cqbjax stored {index.folder}` lists both, and drops what is outdated"
    ]


def _to_yaml(config: Config) -> str:
    """Return a configuration as YAML; LibYAML takes a third of Python's time."""
    dumper = getattr(yaml, "CSafeDumper", yaml.SafeDumper)
    plain = configs.to_plain(config)
    return str(yaml.dump(plain, Dumper=dumper, sort_keys=False, allow_unicode=True))
