"""A shard as a task for another process: what it needs to be made there, and what it does."""

import functools
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from rich.console import Console

from cqbjax.cli import _hydra
from cqbjax.core import backend
from cqbjax.engine.progress import Reporter
from cqbjax.experiments import kinds, sharding
from cqbjax.experiments.clusters import Cluster
from cqbjax.experiments.grid import Point, Ready
from cqbjax.experiments.study import Making

# Shards of a sweep on a cluster, so that several machines have something to do.
FEWEST = 8


class Task(NamedTuple):
    """A shard, to be pickled.

    Attributes:
        points: of the shard, checked.
        labels: of each point, the policies that are to run.
        folder: of the experiment, the same for all machines.
        cwd: where the command was given: the user's own modules are found there.
        fail_fast: whether a point that cannot run takes its shard down.
    """

    points: Sequence[Point]
    labels: Sequence[Sequence[str]]
    folder: Path
    cwd: str
    fail_fast: bool


def perform(task: Task) -> dict[str, str]:
    """Run and store a shard, in a process of its own.

    Returns:
        Name of a point that could not run -> why.
    """
    _set_up(task.cwd)
    making, ready = Making(_hydra.make, _hydra.make_policies, {}), list[Ready]()
    for point, labels in zip(task.points, task.labels, strict=True):
        one = kinds.ready_at(point, making)
        asked = {label: policy for label, policy in one.policies.items() if label in labels}
        ready.append(one._replace(policies=asked))
    return sharding.run_all(ready, task.folder, Reporter(), Console(quiet=True), task.fail_fast)


@functools.cache
def _set_up(cwd: str) -> None:
    """Prepare a process, once: it may be given several tasks."""
    os.chdir(cwd)
    sys.path.append(cwd)
    backend.configure()


def run_elsewhere(
    cluster: Cluster, ready: Sequence[Ready], folder: Path, progress: Reporter, fail_fast: bool
) -> dict[str, str]:
    """Run and store points on a cluster, a task a shard.

    Args:
        cluster: where.
        ready: from `sharding.left_of`.
        folder: of the experiment.
        progress: told of whole shards.
        fail_fast: whether one that cannot run takes all down.

    Returns:
        Name of a point that could not run -> why.

    Raises:
        ValueError: with `fail_fast`, for the first one.
    """
    if not ready:
        return {}
    shards = sharding.shards_of(ready, FEWEST)
    tasks = [
        Task(
            [one.point for one in shard], [list(one.policies) for one in shard], folder.resolve(),
            os.getcwd(), fail_fast,
        )
        for shard in shards
    ]  # fmt: skip
    rounds = [sum(map(sharding.rounds_of, shard)) for shard in shards]
    lost = dict[str, str]()
    progress.expect(sum(rounds))
    progress.log(f"{len(ready)} points in {len(shards)} shards on {type(cluster).__name__}")
    for done in cluster.run(perform, tasks):
        progress.advance(rounds[done.number])
        if done.reason and fail_fast:
            raise ValueError(done.reason)
        if done.reason:
            lost |= {one.point.name: done.reason for one in shards[done.number]}
        else:
            lost |= done.value
    return lost
