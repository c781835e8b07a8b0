"""Many runs of a replay: batched over seeds, in segments, with a checkpoint after each.

A run that was killed goes on from its last segment and comes to the same bits: the state is kept
whole, and what is drawn in a slot is addressed by seed and slot. A queue that outgrows its places
is given more at the beginning of the segment in which it did, which is then run again.
"""

import functools
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, PartitionSpec

from cqbjax.chains import replay
from cqbjax.chains.instance import Run, Tables
from cqbjax.chains.replay import Carry, Totals
from cqbjax.chains.rules import Ranked, Scheduler
from cqbjax.core.files import write_atomic
from cqbjax.core.labels import OPTIMAL
from cqbjax.core.pytree import arrays
from cqbjax.sweeping import checkpoint
from cqbjax.sweeping.progress import Reporter, Silent
from cqbjax.sweeping.runner import run_batch

FIRST_PLACES, GROWTH = 256, 2
AXIS = "seed"


class Plan(NamedTuple):
    """How a replay is cut up.

    Attributes:
        horizon: T, slots.
        every: slots between two records.
        segment: records between two checkpoints.
    """

    horizon: int
    every: int
    segment: int

    @property
    def records(self) -> int:
        """How many records a run has."""
        return self.horizon // self.every


class Replayed(NamedTuple):
    """What came of one scheduler.

    Attributes:
        totals: each [S, R].
        seconds_per_round: run seconds a slot and run.
        compile_seconds: of its programs.
    """

    totals: Totals
    seconds_per_round: float
    compile_seconds: float


def plan(horizon: int, record_every: int | None = None, segment: int | None = None) -> Plan:
    """Return how a replay is cut up.

    Args:
        horizon: T.
        record_every: record one slot in this many; None keeps about 250 of them.
        segment: slots between two checkpoints; None is a tenth of the horizon.

    Raises:
        ValueError: naming a number that is out of range, or does not divide the next one.
    """
    for key, value in (("horizon", horizon), ("record_every", record_every), ("segment", segment)):
        if value is not None and value < 1:
            raise ValueError(f"{key}={value} must be at least 1 slot")
    every = record_every or next(
        each for each in range(max(1, horizon // 250), horizon + 1) if horizon % each == 0
    )
    if horizon % every:
        raise ValueError(f"record_every={every} must divide horizon={horizon}")
    records = horizon // every
    if segment is None:
        wanted = max(1, records // 10)
        return Plan(horizon, every, max(d for d in range(1, wanted + 1) if records % d == 0))
    if horizon % segment or segment % every:
        raise ValueError(
            f"segment={segment} must divide horizon={horizon} and be a multiple of the {every} "
            "slots between records"
        )
    return Plan(horizon, every, segment // every)


def run(
    schedulers: Mapping[str, Scheduler], tables: Tables, runs: Run, cut: Plan,
    resume: Path | None = None, progress: Reporter | None = None,
    first_places: int = FIRST_PLACES,
) -> dict[str, Replayed]:  # fmt: skip
    """Replay all runs under every scheduler, and under the clairvoyant one as `optimal`.

    Args:
        schedulers: by label.
        tables: of the log.
        runs: a batch of them [S].
        cut: from `plan`.
        resume: folder of checkpoints; None keeps none.
        progress: told of compiling and of slots done.
        first_places: places in the queue at first.

    Raises:
        ValueError: a scheduler refuses its settings, or a checkpoint is damaged.
    """
    progress = progress or Silent()
    chosen = {OPTIMAL: Ranked(by="clairvoyant"), **schedulers}
    for scheduler in chosen.values():
        if check := getattr(scheduler, "check", None):
            check(replay.problem(cut.horizon))
    tables, runs = jax.tree.map(jnp.asarray, tables), jax.tree.map(jnp.asarray, runs)
    progress.expect(len(chosen) * runs.until.shape[0] * cut.horizon)
    return {
        label: _run_one(label, arrays(scheduler), tables, runs, cut, resume, progress, first_places)
        for label, scheduler in chosen.items()
    }


def _run_one(
    label: str, scheduler: Any, tables: Tables, runs: Run, cut: Plan, resume: Path | None,
    progress: Reporter, first_places: int,
) -> Replayed:  # fmt: skip
    """Replay under one scheduler, segment by segment."""
    seeds = runs.until.shape[0]
    begin = functools.partial(_begin, scheduler, cut.horizon, seeds)
    kept = _Kept(resume, (scheduler, tables, _plain(runs), tuple(cut)), begin)
    carry, parts, spent = kept.load(first_places)
    progress.advance(len(parts) * cut.segment * cut.every * seeds)
    while len(parts) * cut.segment < cut.records:
        first = 1 + len(parts) * cut.segment * cut.every
        arguments = scheduler, tables, runs, carry, jnp.int32(first)
        made, seconds = run_batch(_segment, _devices(seeds), cut, arguments, label, progress)
        after, totals = made
        spent += seconds
        if np.any(np.asarray(after.overflow) > 0):
            places = carry.entered.shape[-1]
            progress.note(f"{label}: {places} places are too few, goes on with {GROWTH * places}")
            carry = replay.widen(carry, GROWTH * places)
            continue
        carry = after
        parts.append(jax.tree.map(np.asarray, totals))
        kept.save(carry, parts, spent)
        progress.advance(cut.segment * cut.every * seeds)
    whole: Any = [np.concatenate(field, axis=1) for field in zip(*parts, strict=True)]
    return Replayed(Totals(*whole), float(spent[1]) / (seeds * cut.horizon), float(spent[0]))


def _begin(scheduler: Any, horizon: int, seeds: int, places: int) -> Carry:
    """Return the states before slot 1: each leaf with a leading [S]."""
    one = replay.start(scheduler, horizon, places)
    return jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (seeds, *jnp.shape(leaf))), one)


class _Kept:
    """The checkpoint of one scheduler, under a hash of all that its results follow from."""

    def __init__(
        self, folder: Path | None, parts: tuple[Any, ...], begin: Callable[[int], Carry]
    ) -> None:
        self._path = None if folder is None else folder / f"{checkpoint.key(*parts)}.npz"
        self._begin = begin

    def load(self, places: int) -> tuple[Carry, list[Totals], np.ndarray]:
        """Return the state to go on from, what was recorded up to there, and the seconds spent."""
        if self._path is None or not self._path.is_file():
            return self._begin(places), [], np.zeros(2)
        try:
            with np.load(self._path, allow_pickle=False) as file:
                leaves = [jnp.asarray(file[f"carry.{i}"]) for i in range(int(file["leaves"]))]
                recorded = [
                    Totals(*(file[f"{i}.{name}"] for name in Totals._fields))
                    for i in range(int(file["segments"]))
                ]
                spent = file["spent"]
        except Exception as error:  # a zip that is torn, or an entry that is not there
            raise ValueError(
                f"{self._path}: not readable, delete it to run again: {error}"
            ) from error
        structure = jax.tree.structure(jax.eval_shape(lambda: self._begin(places)))
        return jax.tree.unflatten(structure, leaves), recorded, spent

    def save(self, carry: Carry, recorded: Sequence[Totals], spent: np.ndarray) -> None:
        """Keep a state, in place of the one before."""
        if self._path is None:
            return
        content: dict[str, Any] = {
            f"carry.{i}": np.asarray(leaf) for i, leaf in enumerate(jax.tree.leaves(carry))
        }
        content["leaves"] = np.asarray(len(content))
        for i, totals in enumerate(recorded):
            content |= {f"{i}.{name}": value for name, value in totals._asdict().items()}
        content |= {"segments": np.asarray(len(recorded)), "spent": spent}
        write_atomic(self._path, lambda file: np.savez(file, **content))


def _plain(runs: Run) -> Run:
    """Return runs whose keys are numbers, as they are hashed."""
    return runs._replace(key=jax.random.key_data(runs.key))


def _devices(seeds: int) -> tuple[jax.Device, ...]:
    """Return the devices that split the runs of so many seeds, evenly or not at all."""
    devices = jax.devices()
    count = max(n for n in range(1, len(devices) + 1) if seeds % n == 0)
    return tuple(devices[:count])


def _segment(
    devices: Sequence[jax.Device], cut: Plan, scheduler: Any, tables: Tables, runs: Run,
    carry: Carry, first: jax.Array,
) -> tuple[Carry, Totals]:  # fmt: skip
    """Advance all runs by a segment, from slot `first` on."""

    def some(scheduler: Any, tables: Tables, runs: Run, carry: Carry, first: Any) -> Any:
        def one(run: Run, carry: Carry) -> tuple[Carry, Totals]:
            return replay.advance(
                scheduler, cut.horizon, cut.every, cut.segment, tables, run, carry, first
            )

        return jax.vmap(one)(runs, carry)

    whole, along = PartitionSpec(), PartitionSpec(AXIS)
    over_devices = jax.shard_map(
        some, mesh=Mesh(np.asarray(devices), (AXIS,)),
        in_specs=(whole, whole, along, along, whole), out_specs=along, check_vma=False,
    )  # fmt: skip
    return over_devices(scheduler, tables, runs, carry, first)
