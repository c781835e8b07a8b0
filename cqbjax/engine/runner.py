"""One group's runs from first to last: chunk by chunk, overflowing runs again with more slots."""

import time
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import jax
import numpy as np

from cqbjax.core.queueing import QueueOverflow
from cqbjax.engine import chunks, groups, programs
from cqbjax.engine.chunks import Outcome
from cqbjax.engine.groups import Group, Member, Runs
from cqbjax.engine.plan import Plan
from cqbjax.engine.progress import Reporter
from cqbjax.engine.snapshots import Snapshots


class Measured(NamedTuple):
    """One policy's results.

    Attributes:
        recorded: name -> [L, S, R, ...], or [L, S, ...] of what is read at a run's end.
        seconds_per_round: run seconds a round-run.
        compile_seconds: of lowering and compiling its group's programs. Programs compile at once,
            so that all groups together may take less.
    """

    recorded: Mapping[str, np.ndarray]
    seconds_per_round: float
    compile_seconds: float


class Spent(NamedTuple):
    """Seconds of one attempt, compiling and running."""

    compiling: float
    running: float


def compile_ahead(sweep: Plan, some: Sequence[Group], progress: Reporter) -> None:
    """Compile what the first attempts of some groups need, before any of them runs."""
    programs.compile_all(
        [sweep.shape(group, group.first_slots()) for group in some],
        lambda number: progress.doing("compiling", some[number].labels[0]),
    )


def run_group(
    sweep: Plan, group: Group, progress: Reporter, kept: Snapshots | None = None
) -> dict[Member, Measured]:
    """Run one group to the end, repeating overflowing runs with more slots.

    Args:
        sweep: what it belongs to.
        group: what runs.
        progress: told of compiling and of rounds done.
        kept: how far its chunks were, and where to keep how far they are; None keeps nothing.

    Raises:
        QueueOverflow: if a capacity given as a number is too small.
        ValueError: a snapshot is damaged.
    """
    runs, slots, horizon = group.runs, group.first_slots(), group.part.problem.horizon
    parts: list[tuple[np.ndarray, Outcome]] = []
    spent: list[Spent] = []
    left = group.order
    while len(left):
        outcome, seconds = attempt(sweep, group, runs.take(left), slots, progress, kept)
        spent.append(seconds)
        lost = outcome.overflow > 0
        if group.part.capacity != "auto" and lost.any():
            _refuse(sweep, group, runs.take(left), outcome, slots, progress)
        parts.append((left[~lost], chunks.take(outcome, ~lost)))
        left, slots = left[lost], groups.more_slots(slots, group.part.problem.most_queries)
        if len(left):
            progress.expect(len(left) * horizon)
            progress.note(sweep.describe(group, slots, len(left)))
    back = np.argsort(np.concatenate([index for index, _ in parts]))
    recorded = chunks.take(_joined([outcome for _, outcome in parts]), back).recorded
    return _measured(group, recorded, spent, progress)


class Estimate(NamedTuple):
    """What a group would take, by one short stretch of a middling chunk.

    Attributes:
        told: the group in a line: runs, bytes a run, runs a chunk, chunks, queue slots.
        compiling: seconds, spent already.
        running: seconds of all runs, if none outgrows its queue slots.
    """

    told: str
    compiling: float
    running: float


def estimate(sweep: Plan, group: Group, progress: Reporter) -> Estimate:
    """Compile a group's programs, run a middling chunk for one stretch of records, and reckon."""
    runs, slots, count = group.runs, group.first_slots(), len(group.runs.seed)
    progress.doing("compiling", group.labels[0])
    begun = time.perf_counter()
    shape = sweep.shape(group, slots)
    compiled = programs.compiled(shape)
    compiling = time.perf_counter() - begun
    indices = [index for index, _ in _chunks(count, shape.batch)]
    # Neither of the highest rate nor of the lowest.
    middle = group.order[indices[len(indices) // 2]]
    progress.doing("running", group.labels[0])
    policy, instance, carry = chunks.begin(compiled, group, runs.take(middle))
    jax.block_until_ready(carry)
    begun = time.perf_counter()
    for some, _ in compiled.stretches(1):
        carry, _ = compiled.advance(policy, instance, carry, some)
    jax.block_until_ready(carry)
    stretch = time.perf_counter() - begun
    running = stretch * group.part.records.calls * len(indices)
    return Estimate(sweep.describe(group, slots, count), compiling, running)


def attempt(
    sweep: Plan, group: Group, runs: Runs, slots: int, progress: Reporter,
    kept: Snapshots | None = None,
) -> tuple[Outcome, Spent]:  # fmt: skip
    """Run some runs of a group at this many slots, compiled if any was not done before."""
    shape, kept = sweep.shape(group, slots), kept or Snapshots(None)
    begun, waited, compiling = time.perf_counter(), 0.0, 0.0
    compiled: programs.Programs | None = None
    ran: list[tuple[Outcome, float]] = []
    for index, real in _chunks(len(runs.seed), shape.batch):
        some = runs.take(index)
        done = chunks.finished(group, some, kept, slots)
        if done is None:
            if compiled is None:
                progress.doing("compiling", group.labels[0])
                asked = time.perf_counter()
                compiled = programs.compiled(shape)
                waited, compiling = time.perf_counter() - asked, compiled.seconds
            done = chunks.run_chunk(compiled, group, some, real, progress, kept, slots)
        else:
            progress.advance(real * group.part.problem.horizon)
        ran.append(done)
    running = time.perf_counter() - begun - waited
    progress.simulated += running
    earlier = sum(before for _, before in ran)
    return _joined([outcome for outcome, _ in ran]), Spent(compiling, running + earlier)


def _measured(
    group: Group, recorded: dict[str, np.ndarray], spent: list[Spent], progress: Reporter
) -> dict[Member, Measured]:
    """Return each member's results, and say how fast the group was."""
    compiling, running = (sum(seconds) for seconds in zip(*spent, strict=True))
    horizon = group.part.problem.horizon
    rounds = len(group.runs.seed) * horizon
    # A run that several points share counts for each, so that their seconds add up.
    runs = dict(zip(group.members, (part.runs_a_policy for part in group.parts), strict=True))
    shown = rounds + horizon * sum(runs[member] for member in group.twins.values())
    progress.note(
        f"{', '.join(group.labels)}: {rounds:,} rounds in {running:.1f} s, "
        f"{rounds / running:,.0f} a second, after {compiling:.1f} s of compiling"
    )
    measured, begin = {}, 0
    for member, part in zip(group.members, group.parts, strict=True):
        end, runs_of = begin + part.runs_a_policy, (part.rates.size, part.seeds.size)
        own = {
            name: values[begin:end].reshape(*runs_of, *values.shape[1:])
            for name, values in recorded.items()
        }
        measured[member] = Measured(own, running / shown, compiling)
        begin = end
    return measured


def _refuse(
    sweep: Plan, group: Group, runs: Runs, outcome: Outcome, slots: int, progress: Reporter
) -> None:
    """Raise for an overflow, after finding out what capacity would have been enough."""
    lost = np.flatnonzero(outcome.overflow > 0)
    first = lost[0]
    enough = slots
    while len(lost):
        enough = groups.more_slots(enough, group.part.problem.most_queries)
        again, _ = attempt(sweep, group, runs.take(lost), enough, progress)
        peak, lost = again.peak.max(), lost[again.overflow > 0]
    raise QueueOverflow(
        f"capacity={slots} overflowed in round {outcome.overflow[first]} of policy "
        f"{group.members[runs.member[first]].label}, {chunks.told(runs, first)}; capacity={peak} "
        "would have been enough, or use capacity=auto"
    )


def _joined(outcomes: list[Outcome]) -> Outcome:
    """Put the runs of several outcomes behind one another."""
    return jax.tree.map(lambda *leaves: np.concatenate(leaves), *outcomes)


def _chunks(count: int, size: int) -> Iterator[tuple[np.ndarray, int]]:
    """Yield positions of each chunk, padded by repeating the last run, and how many are real."""
    for start in range(0, count, size):
        real = min(size, count - start)
        yield np.minimum(start + np.arange(size), count - 1), real
