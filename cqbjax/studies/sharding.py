"""A sweep shard by shard: points that run and are stored together.

A shard is what can be lost, retried, or done by another process. Its points go through one call of
the simulator, so that those of one program share a batch; then they are stored, and are never run
again. Its size bounds the memory that a sweep takes, however many points that has.
"""

import shutil
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import jax
import xarray as xr
from rich.console import Console

from cqbjax.core.files import content_key
from cqbjax.core.labels import OPTIMAL
from cqbjax.core.queueing import QueueOverflow
from cqbjax.studies import manifests, storing, study
from cqbjax.studies.grid import Ready
from cqbjax.sweeping import memory
from cqbjax.sweeping.chunks import recorded_bytes
from cqbjax.sweeping.parts import choose_records
from cqbjax.sweeping.progress import Prepaid, Reporter

# Of the arrays of a shard, in bytes.
MOST_BYTES = 500_000_000
BYTES_A_RECORD = 17  # queue length, regret, departures, explored, and a share of the optimal one
UNFINISHED = ".unfinished"
# Of a shard's points so many are told of.
MOST_TOLD = 6


def left_of(ready: Sequence[Ready], folder: Path) -> list[Ready]:
    """Return the points that are not stored yet, each with the policies that are not.

    Raises:
        ValueError: the folder holds results of another experiment.
    """
    stock = storing.Stock(folder, ready[0].point.config.name)
    return [one for each in ready if (one := stock.left(each)).policies]


def shards_of(ready: Sequence[Ready], fewest: int = 1) -> list[list[Ready]]:
    """Divide points into shards, in their order.

    Args:
        ready: the points; the first one's `shard_runs` says how many runs of a policy a shard has.
        fewest: shards to make, where there are points enough.
    """
    most_runs = _most_runs(ready, fewest)
    shards: list[list[Ready]] = []
    runs, size = 0, 0
    for one in ready:
        own, own_size = _runs(one), _bytes(one)
        if not shards or runs + own > most_runs or size + own_size > MOST_BYTES:
            shards.append([])
            runs, size = 0, 0
        shards[-1].append(one)
        runs, size = runs + own, size + own_size
    return shards


def most_bytes(ready: Sequence[Ready]) -> int:
    """Return the bytes of the arrays that are in memory together until they are stored."""
    return max((sum(map(_bytes, shard)) for shard in shards_of(ready)), default=0)


def _most_runs(ready: Sequence[Ready], fewest: int) -> int:
    """Return how many runs of a policy a shard has at most."""
    asked = ready[0].point.config.get("shard_runs") if ready else None
    share = -(-sum(map(_runs, ready)) // fewest)
    return int(asked or min(memory.shard_runs(jax.devices()), max(1, share)))


def run_all(
    ready: Sequence[Ready], folder: Path, progress: Reporter, console: Console, fail_fast: bool
) -> dict[str, str]:
    """Train, run and store points, shard by shard.

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
    whole, lost = Prepaid(progress, sum(map(rounds_of, ready))), dict[str, str]()
    for shard in shards_of(ready):
        lost |= run_what_can(shard, folder, whole, console, fail_fast)
    whole.close()
    return lost


def run_what_can(
    ready: Sequence[Ready], folder: Path, progress: Reporter, console: Console, fail_fast: bool
) -> dict[str, str]:
    """Run a shard; if one of its points cannot, each by itself, so that the others are stored.

    Returns:
        Name of a point that could not run -> why.
    """
    try:
        run_shard(ready, folder, progress, console)
    except QueueOverflow as error:
        if fail_fast:
            raise
        if len(ready) == 1:
            return {ready[0].point.name: str(error)}
        lost = (run_what_can([one], folder, progress, console, False) for one in ready)
        return {name: why for of_one in lost for name, why in of_one.items()}
    return {}


def run_shard(ready: Sequence[Ready], folder: Path, progress: Reporter, console: Console) -> None:
    """Train, run and store the points of a shard.

    What is finished of it is kept until then, so that the same shard goes on where it was stopped.
    """
    begun, trained = time.perf_counter(), []
    lines = list(dict.fromkeys(line for one in ready for line in study.told_of(one)))
    for line in lines[:MOST_TOLD]:
        console.print(line, markup=False, soft_wrap=True)
    if len(lines) > MOST_TOLD:
        console.print(f"and so on for {len(lines) - MOST_TOLD} more points")
    for one in ready:
        policies = study.train(one.point, one.source, one.policies, progress)
        trained.append(one._replace(policies=policies))
    words = [word for one in ready for word in _words(one)]
    resume = folder / UNFINISHED / content_key(*words)
    every = study.run(trained, progress, resume)
    seconds = time.perf_counter() - begun
    storing.store(
        [
            manifests.Finished(
                one.point, manifests.content_of(one), data, seconds, study.tuned(*one[:3])
            )
            for one, data in zip(ready, every, strict=True)
        ],
        folder,
    )
    shutil.rmtree(resume, ignore_errors=True)
    if resume.parent.is_dir() and not any(resume.parent.iterdir()):
        resume.parent.rmdir()


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
    contents = [manifests.content_of(one) for one in ready]
    points = []
    for one, point in zip(ready, stock.read(names, contents, rounds), strict=True):
        shown = {*one.policies, OPTIMAL}
        points.append(point.sel(policy=[x for x in point.policy.values if x in shown]))
    return points


def rounds_of(one: Ready) -> int:
    """Return the round-runs of a point's policies, the optimal one's included."""
    return len({*one.policies, OPTIMAL}) * _runs(one) * int(one.point.config.horizon)


def _runs(one: Ready) -> int:
    """Return the runs of each policy of a point."""
    return len(one.point.config.arrival_rate) * int(one.point.config.num_seeds)


def _bytes(one: Ready) -> int:
    """Return the bytes of a point's arrays."""
    config = one.point.config
    records = choose_records(config.horizon, config.record_every)
    size = BYTES_A_RECORD * records.rounds.size
    if one.recorders:
        problem = study.drawn_from(one).problem(config.K, config.horizon)
        size += recorded_bytes(one.recorders, problem, records)
    return size * (len(one.policies) + 1) * _runs(one)


def _words(one: Ready) -> Iterator[str]:
    content = manifests.content_of(one)
    yield from (one.point.name, content.point, *content.policies.values())
