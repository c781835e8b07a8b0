"""A study shard by shard: what is stored is not computed again.

A shard is what can be lost, retried, or done by another process. Its points go through one call of
their study type (`StudyType.run`), so that those of a sweep share batches; then they are stored.
The size of a shard bounds the memory that a study takes, however many points it has.
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

from cqbjax.core import code
from cqbjax.core.files import hash_parts
from cqbjax.core.queueing import QueueOverflow
from cqbjax.engine.progress import Reporter
from cqbjax.experiments import configs, study
from cqbjax.experiments.configs import Config
from cqbjax.experiments.grid import PreparedPoint, list_seeds
from cqbjax.experiments.manifests import FOR_SHOW, FinishedPoint, manifest_of
from cqbjax.results import files
from cqbjax.results.index import Cell, IndexEntry, ResultIndex, RunRequest
from cqbjax.results.points import AXES, ResultError, StoredPoint

UNFINISHED = ".unfinished"
# Lines printed of the points of a shard, and keys printed in which a stored point differs.
MOST_LINES, MOST_KEYS = 6, 4
SEEDS = ("first_seed", "num_seeds")


def request_of(ready: PreparedPoint) -> RunRequest:
    """Return what a point asks of the store."""
    config, name = ready.point.config, ready.point.name
    key = ready.kind.cache_key(ready)
    if not ready.kind.extensible:
        return RunRequest(name, key)
    return RunRequest(name, key, config.arrival_rate, list_seeds(config))


def index_of(ready: Sequence[PreparedPoint], folder: Path) -> ResultIndex:
    """Return the index of the folder of points.

    Raises:
        ValueError: the folder holds results of another experiment.
    """
    return ResultIndex.of_study(folder, ready[0].point.config.name)


def select_missing(ready: Sequence[PreparedPoint], index: ResultIndex) -> list[PreparedPoint]:
    """Return what is not stored yet: points with some policies, arrival rates and seeds."""
    with code.cache_file_states():
        return [part for one in ready for part in _missing_of(one, index)]


def _missing_of(ready: PreparedPoint, index: ResultIndex) -> list[PreparedPoint]:
    """Return the parts of a point that are not stored, each with consecutive seeds."""
    if ready.point.config.rerun:
        return [ready]
    asked = request_of(ready)
    labels: dict[tuple[tuple[Any, ...], range] | None, list[str]] = {}
    for label, cells in index.missing(asked).items():
        for block in [None] if len(cells) == len(asked.cells) else _blocks(cells):
            labels.setdefault(block, []).append(label)
    parts = []
    for block, some in labels.items():
        part = ready._replace(policies={x: ready.policies[x] for x in ready.policies if x in some})
        if block is not None:
            rates, own = block
            values = {"arrival_rate": list(rates), "first_seed": own.start, "num_seeds": len(own)}
            config = ready.point.config
            point = dataclasses.replace(ready.point, config=config.at(values), asked=config)
            part = part._replace(point=point)
        parts.append(part)
    return parts


def _blocks(cells: Sequence[Cell]) -> Iterator[tuple[tuple[Any, ...], range]]:
    """Yield cells as arrival rates that lack the same consecutive seeds."""
    lacking: dict[Any, list[range]] = {}
    for rate, seed in cells:
        runs = lacking.setdefault(rate, [])
        if runs and runs[-1].stop == seed:
            runs[-1] = range(runs[-1].start, seed + 1)
        else:
            assert seed is not None
            runs.append(range(seed, seed + 1))
    for own in dict.fromkeys(run for runs in lacking.values() for run in runs):
        yield tuple(rate for rate, runs in lacking.items() if own in runs), own


def divide(ready: Sequence[PreparedPoint], fewest: int = 1) -> list[list[PreparedPoint]]:
    """Divide points into shards, as their study type does; see `StudyType.divide`."""
    return ready[0].kind.divide(ready, fewest) if ready else []


def most_bytes(ready: Sequence[PreparedPoint]) -> int:
    """Return the bytes of the arrays that are in memory together until they are stored."""
    return max(
        (sum(one.kind.count_bytes(one) for one in shard) for shard in divide(ready)), default=0
    )


def run_all(
    ready: Sequence[PreparedPoint], index: ResultIndex, progress: Reporter, console: Console,
    fail_fast: bool,
) -> dict[str, str]:  # fmt: skip
    """Run and store points, shard by shard.

    Of a shard in which a point cannot run, each point runs alone, so that the others are stored.

    Args:
        ready: from `select_missing`.
        index: of the experiment's folder.
        progress: receives fits, compiling and rounds.
        console: prints policies that are left out, and the dataset.
        fail_fast: whether a point that cannot run ends the study.

    Returns:
        Label of a point that could not run -> why.

    Raises:
        ValueError: a file cannot be written; with `fail_fast`, also that of such a point.
    """
    lost, left, known = dict[str, str](), divide(ready), list(index.manifests)
    progress.reserve(sum(one.kind.count_rounds(one) for one in ready))
    while left:
        shard = left.pop(0)
        begun, resume = time.perf_counter(), index.folder / UNFINISHED / _resume_key(shard)
        _print_notes(shard, console)
        try:
            every = shard[0].kind.run(shard, progress, resume)
        except QueueOverflow as error:
            if fail_fast:
                raise
            if len(shard) == 1:
                lost[shard[0].point.label] = str(error)
            else:
                left[:0] = [[one] for one in shard]
            continue
        seconds = time.perf_counter() - begun
        finished = [FinishedPoint(*each, seconds) for each in zip(shard, every, strict=True)]
        again = known if shard[0].point.config.rerun else None
        index.store([_to_store(one) for one in finished], again)
        shutil.rmtree(resume, ignore_errors=True)
        with contextlib.suppress(OSError):  # other shards are unfinished, or it is gone
            resume.parent.rmdir()
    progress.release()
    return lost


def _to_store(one: FinishedPoint) -> StoredPoint:
    point = one.ready.point
    return StoredPoint(one.data, manifest_of(one), _yaml(point.asked or point.config))


def _resume_key(shard: Sequence[PreparedPoint]) -> str:
    """Return the key of a shard, under which its finished batches are kept."""
    words = list[str]()
    for one in map(request_of, shard):
        words += [one.name, one.key.point, *one.key.policies.values(), str(one.cells)]
    return hash_parts(*words)


def _print_notes(shard: Sequence[PreparedPoint], console: Console) -> None:
    """Print what there is to say of a shard's points, of the first ones in full."""
    lines = list(dict.fromkeys(line for one in shard for line in study.describe_point(one)))
    for line in lines[:MOST_LINES]:
        console.print(line, markup=False, soft_wrap=True)
    if len(lines) > MOST_LINES:
        console.print(f"and so on for {len(lines) - MOST_LINES} more points")


def read_back(
    ready: Sequence[PreparedPoint], index: ResultIndex, rounds: Sequence[int] | None = None
) -> list[xr.Dataset]:
    """Return stored points with the policies, arrival rates and seeds that they have here.

    Args:
        ready: points of a study that have run; more may be stored.
        index: of the experiment's folder.
        rounds: as in `results.load_points`.
    """
    index.refresh()
    points = index.read([request_of(one) for one in ready], rounds)
    return [
        point.assign_attrs(one.attributes or {}) for one, point in zip(ready, points, strict=True)
    ]


def describe_replaced(left: Sequence[PreparedPoint], index: ResultIndex) -> list[str]:
    """Return a line that says in what stored points differ from those that are about to run."""
    differences, first = dict[str, str](), ""
    for ready in left:
        asked = request_of(ready)
        other, again = index.newest_other(asked), ", ".join(index.replaced(asked))
        if again:
            differences[ready.point.label] = f"another {again}"
        elif other is not None:
            first = first or _difference(other, ready)
            differences[ready.point.label] = first
    if not differences:
        return []
    name, what = next(iter(differences.items()))
    more = f" and {len(differences) - 1} more" if len(differences) > 1 else ""
    return [
        f"{name}{more} stored with {what}: kept, though results.load gives the newest; "
        f"`cqbjax stored {index.folder}` lists both, and drops what is outdated"
    ]


def _difference(other: IndexEntry, ready: PreparedPoint) -> str:
    """Return in what a stored point differs from one that is about to run."""
    try:
        ((_, _, text),) = files.read_file(other.file, [1], [other.number])
    except ResultError:
        return "damaged arrays"
    old, new = (_flatten(yaml.safe_load(one)) for one in (text, _yaml(ready.point.config)))
    hidden = {*FOR_SHOW, "policy", *((*SEEDS, AXES[0]) if ready.kind.extensible else ())}
    keys = [key for key in dict.fromkeys([*old, *new]) if key.partition(".")[0] not in hidden]
    differing = [f"{key}={old.get(key)}" for key in keys if old.get(key) != new.get(key)]
    if len(differing) > MOST_KEYS:
        differing = [*differing[:MOST_KEYS], f"and {len(differing) - MOST_KEYS} more"]
    return ", ".join(differing) or "other code or data"


def _flatten(tree: Any, above: str = "") -> dict[str, Any]:
    """Return the values of a nested configuration by their dotted keys."""
    if not isinstance(tree, dict):
        return {above: tree}
    inner = (
        _flatten(value, f"{above}.{key}" if above else str(key)) for key, value in tree.items()
    )
    return {key: value for some in inner for key, value in some.items()}


def _yaml(config: Config) -> str:
    """Return a configuration as YAML; LibYAML writes it in a third of Python's time."""
    plain = configs.to_plain(config)
    dumper = getattr(yaml, "CSafeDumper", yaml.SafeDumper)
    return str(yaml.dump(plain, Dumper=dumper, sort_keys=False, allow_unicode=True))
