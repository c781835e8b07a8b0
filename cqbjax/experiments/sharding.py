"""A study shard by shard: points that run and are stored together.

A shard is what can be lost, retried, or done by another process. Its points go through one call of
their kind (`Kind.run`), so that those of a sweep share batches; then they are stored, and are never
run again. Its size bounds the memory that a study takes, however many points that has.
"""

import contextlib
import shutil
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import xarray as xr
from rich.console import Console

from cqbjax.core import code
from cqbjax.core.files import content_key
from cqbjax.core.labels import OPTIMAL
from cqbjax.core.queueing import QueueOverflow
from cqbjax.engine.progress import Reporter
from cqbjax.experiments import manifests, storing, study
from cqbjax.experiments.grid import Ready
from cqbjax.results import pieces

UNFINISHED = ".unfinished"
# Of a shard's points so many are told of.
MOST_TOLD = 6


def left_of(ready: Sequence[Ready], folder: Path) -> list[Ready]:
    """Return the points that are not stored yet, each with the policies that are not.

    Raises:
        ValueError: the folder holds results of another experiment.
    """
    stock = storing.Stock(folder, ready[0].point.config.name)
    with code.at_once():
        return [one for each in ready if (one := stock.left(each)).policies]


def shards_of(ready: Sequence[Ready], fewest: int = 1) -> list[list[Ready]]:
    """Divide points into shards, as their kind does; see `Kind.shards`."""
    return ready[0].kind.shards(ready, fewest) if ready else []


def most_bytes(ready: Sequence[Ready]) -> int:
    """Return the bytes of the arrays that are in memory together until they are stored."""
    return max((sum(one.kind.size(one) for one in shard) for shard in shards_of(ready)), default=0)


def run_all(
    ready: Sequence[Ready], folder: Path, progress: Reporter, console: Console, fail_fast: bool
) -> dict[str, str]:
    """Run and store points, shard by shard.

    Of a shard in which a point cannot run, each runs by itself, so that the others are stored.

    Args:
        ready: from `left_of`.
        folder: of the experiment.
        progress: told of fits, compiling and rounds.
        console: told of what is left out and of the dataset.
        fail_fast: whether a point that cannot run takes all down.

    Returns:
        Name of a point that could not run -> why.

    Raises:
        ValueError: a file cannot be written; with `fail_fast`, also that of such a point.
    """
    lost, left, known = dict[str, str](), shards_of(ready), set(pieces.found(folder))
    progress.reserve(sum(map(rounds_of, ready)))
    while left:
        shard = left.pop(0)
        begun, resume = time.perf_counter(), _unfinished(shard, folder)
        _tell(shard, console)
        try:
            every = shard[0].kind.run(shard, progress, resume)
        except QueueOverflow as error:
            if fail_fast:
                raise
            if len(shard) == 1:
                lost[shard[0].point.name] = str(error)
            else:
                left[:0] = [[one] for one in shard]
            continue
        seconds = time.perf_counter() - begun
        made = [manifests.Finished(*each, seconds) for each in zip(shard, every, strict=True)]
        storing.store(made, folder, known)
        shutil.rmtree(resume, ignore_errors=True)
        with contextlib.suppress(OSError):  # other shards are unfinished, or it is gone
            resume.parent.rmdir()
    progress.release()
    return lost


def _unfinished(shard: Sequence[Ready], folder: Path) -> Path:
    """Return where what is finished of a shard is kept, so that it goes on where it was stopped."""
    return folder / UNFINISHED / content_key(*(word for one in shard for word in _words(one)))


def _tell(shard: Sequence[Ready], console: Console) -> None:
    """Say what is to be said of a shard's points, of the first ones in full."""
    lines = list(dict.fromkeys(line for one in shard for line in study.told_of(one)))
    for line in lines[:MOST_TOLD]:
        console.print(line, markup=False, soft_wrap=True)
    if len(lines) > MOST_TOLD:
        console.print(f"and so on for {len(lines) - MOST_TOLD} more points")


def read_back(
    ready: Sequence[Ready], folder: Path, rounds: Sequence[int] | None = None
) -> list[xr.Dataset]:
    """Return points as they are stored, with the policies that they have here.

    Args:
        ready: points of a study that have run; the folder may hold more.
        folder: of the experiment.
        rounds: as in `results.load_points`.
    """
    stock = storing.Stock(folder, ready[0].point.config.name)
    names = [one.point.name for one in ready]
    contents = [one.kind.content(one) for one in ready]
    points = []
    for one, point in zip(ready, stock.read(names, contents, rounds), strict=True):
        asked = {*one.policies, OPTIMAL}
        shown = [label for label in point.policy.values if label in asked]
        points.append(point.sel(policy=shown).assign_attrs(one.told or {}))
    return points


def rounds_of(one: Ready) -> int:
    """Return the rounds that a point simulates."""
    return int(one.kind.rounds(one))


def _words(one: Ready) -> Iterator[str]:
    content = one.kind.content(one)
    yield from (one.point.name, content.point, *content.policies.values())
