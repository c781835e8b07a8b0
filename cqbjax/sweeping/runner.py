"""One group's runs from first to last: chunk by chunk, overflowing runs again with more slots."""

import functools
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from cqbjax.core import contract, recorders, simulate
from cqbjax.core.files import arrays_digest
from cqbjax.core.pytree import kind_of
from cqbjax.core.queueing import QueueOverflow
from cqbjax.core.recorders import QueueLength
from cqbjax.sweeping import groups, programs
from cqbjax.sweeping.checkpoint import Measured
from cqbjax.sweeping.groups import Group, Member, Runs
from cqbjax.sweeping.parts import Part
from cqbjax.sweeping.plan import Plan
from cqbjax.sweeping.progress import Reporter
from cqbjax.sweeping.snapshots import Snapshots


class Outcome(NamedTuple):
    """What came out of a set of runs.

    Attributes:
        recorded: name -> [runs, R, ...], or [runs, ...] of what is read at a run's end.
        overflow: [runs] first round without a free slot, 0 if there was none.
        peak: [runs] longest queue.
    """

    recorded: dict[str, np.ndarray]
    overflow: np.ndarray
    peak: np.ndarray


class Spent(NamedTuple):
    """Seconds of one attempt, compiling and running."""

    compiling: float
    running: float


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
        parts.append((left[~lost], _take(outcome, ~lost)))
        left, slots = left[lost], groups.more_slots(slots, horizon)
        if len(left):
            progress.expect(len(left) * horizon)
            progress.note(sweep.describe(group, slots, len(left)))
    back = np.argsort(np.concatenate([index for index, _ in parts]))
    recorded = _take(_joined([outcome for _, outcome in parts]), back).recorded
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
    chunks = [index for index, _ in _chunks(count, shape.batch)]
    middle = group.order[chunks[len(chunks) // 2]]  # neither of the highest rate nor of the lowest
    progress.doing("running", group.labels[0])
    policy, instance, carry = _begin(compiled, group, runs.take(middle))
    jax.block_until_ready(carry)
    begun = time.perf_counter()
    jax.block_until_ready(compiled.advance(policy, instance, carry, np.int32(1)))
    stretch = time.perf_counter() - begun
    running = stretch * group.part.records.calls * len(chunks)
    return Estimate(sweep.describe(group, slots, count), compiling, running)


def attempt(
    sweep: Plan, group: Group, runs: Runs, slots: int, progress: Reporter,
    kept: Snapshots | None = None,
) -> tuple[Outcome, Spent]:  # fmt: skip
    """Compile what some runs of a group need at this many slots, and run them."""
    progress.doing("compiling", group.labels[0])
    begun = time.perf_counter()
    shape = sweep.shape(group, slots)
    compiled = programs.compiled(shape)
    ready = time.perf_counter()
    kept = kept or Snapshots(None)
    chunks = [
        _run_chunk(compiled, group, runs.take(index), real, progress, kept, slots)
        for index, real in _chunks(len(runs.seed), shape.batch)
    ]
    running = time.perf_counter() - ready
    progress.simulated += running
    earlier = sum(before for _, before in chunks)
    return _joined([outcome for outcome, _ in chunks]), Spent(ready - begun, running + earlier)


def run_batch(
    function: Callable[..., Any], devices: tuple[jax.Device, ...], fixed: Any,
    arguments: tuple[Any, ...], label: str, progress: Reporter,
) -> tuple[Any, Spent]:  # fmt: skip
    """Run a batch that no sweep makes: compiled, or taken as it was compiled, and run once.

    Args:
        function: of (devices, fixed, *arguments), as in `programs.compiled_batch`.
        devices: where it runs.
        fixed: what it depends on besides its arguments, hashable.
        arguments: trees of arrays.
        label: what is run, for the progress.
        progress: is told; who calls says how many rounds these are.

    Returns:
        What the function returns, and the seconds that it took.
    """
    progress.doing("compiling", label)
    begun = time.perf_counter()
    program = programs.compiled_batch(function, devices, fixed, *map(kind_of, arguments))
    ready = time.perf_counter()
    progress.doing("running", label)
    made = jax.block_until_ready(program(*arguments))
    spent = Spent(ready - begun, time.perf_counter() - ready)
    progress.simulated += spent.running
    return made, spent


class _Stage(NamedTuple):
    """How far a chunk is.

    Attributes:
        seconds: spent on it.
        carry: at the beginning of the next round.
        recorded: name -> [runs, R so far, ...], or [runs, ...] of a run.
    """

    seconds: Any
    carry: Any
    recorded: dict[str, Any]


def _run_chunk(
    compiled: programs.Programs, group: Group, runs: Runs, real: int, progress: Reporter,
    kept: Snapshots, slots: int,
) -> tuple[Outcome, float]:  # fmt: skip
    """Run one chunk over the whole horizon, or what is left of it; its last runs may be padding.

    Returns:
        What came of its runs, and the seconds that were spent on them before.
    """
    progress.doing("running", group.labels[0])
    records, name = group.part.records, f"{slots}-{arrays_digest(runs)}"
    zero = np.zeros(len(runs.seed), np.int32)
    none = _nothing(group.part, len(zero))
    if (done := kept.load(f"{name}.done", (0.0, Outcome(none, zero, zero)))) is not None:
        progress.advance(real * group.part.problem.horizon)
        return done[1], float(done[0])
    policy, instance, carry = _begin(compiled, group, runs)
    begun, rounds = time.perf_counter(), records.per_call * records.every
    stage = kept.load(name, _Stage(0.0, carry, none)) or _Stage(0.0, carry, none)
    before, first = float(stage.seconds), stage.recorded[QueueLength.name].shape[1]
    first //= records.per_call
    progress.advance(real * rounds * first)
    for call in range(first, records.calls):
        carry, made = compiled.advance(policy, instance, stage.carry, np.int32(1 + call * rounds))
        _check_actions(group, runs, carry.breach)
        recorded = _behind(group.part, stage.recorded, made)
        stage = _Stage(before + time.perf_counter() - begun, carry, recorded)
        progress.advance(real * rounds)
        if (np.asarray(carry.overflow) > 0).all():
            # Every run here is to be repeated: what is left of it is worth nothing.
            left = records.calls - call - 1
            progress.expect(-real * rounds * left)
            stage = stage._replace(recorded=_behind(group.part, recorded, *[made] * left))
            break
        kept.save(name, stage)
    own = stage.carry
    outcome = Outcome(stage.recorded, np.asarray(own.overflow), np.asarray(own.peak))
    outcome = jax.tree.map(lambda leaf: leaf[:real], outcome)
    kept.save(f"{name}.done", (stage.seconds, outcome), always=True)
    kept.drop(name)
    return outcome, before


def _nothing(part: Part, runs: int) -> dict[str, Any]:
    """Return what is recorded before the first round: [runs, 0, ...], or [runs, ...] of a run."""

    def blank(per: str) -> Any:
        return recorders.read(part.recorders, recorders.start(part.recorders, part.problem), per)

    shapes = {per: jax.eval_shape(functools.partial(blank, per)) for per in ("round", "run")}
    by_round = {
        name: np.zeros((runs, 0, *of.shape), of.dtype) for name, of in shapes["round"].items()
    }
    by_run = {name: np.zeros((runs, *of.shape), of.dtype) for name, of in shapes["run"].items()}
    return by_round | by_run


def _behind(part: Part, *recorded: dict[str, Any]) -> dict[str, Any]:
    """Put records of rounds behind one another; of a run the last stand."""
    return {
        one.name: np.concatenate([some[one.name] for some in recorded], axis=1)
        if one.per == "round"
        else np.asarray(recorded[-1][one.name])
        for one in part.recorders
    }


def _begin(compiled: programs.Programs, group: Group, runs: Runs) -> tuple[Any, Any, Any]:
    """Return the policies, the instances and the carries before round 1 of a chunk's runs."""
    policy, numbers = _take(group.policies, runs.policy), _take(group.numbers, runs.member)
    seeds, rates = runs.seed.astype(np.int32), runs.rate.astype(jnp.result_type(float))
    instance = compiled.draw(seeds, rates, numbers, group.tables)
    _check_instances(group, runs, instance)
    return policy, instance, compiled.start(policy, instance)


def _check_instances(group: Group, runs: Runs, instance: simulate.Instance) -> None:
    """Refuse an instance that no run can be made of; this package's sources draw none."""
    source, problem = group.part.source, group.part.problem
    if not contract.is_foreign(source):
        return
    faults = np.asarray(contract.instance_faults(problem, instance.world, instance.arrives))
    for run in np.flatnonzero(faults)[:1]:
        raise contract.ContractError(
            f"source {type(source).__name__}: {contract.INSTANCE[faults[run] - 1]}, and those of "
            f"{_told(runs, run)} do not"
        )


def _check_actions(group: Group, runs: Runs, breach: contract.Breach | None) -> None:
    """Refuse a policy with an action that breaks the contract; this package's are not watched."""
    if breach is None:
        return
    for run in np.flatnonzero(np.asarray(breach.round))[:1]:
        round_, slot, servers = (np.asarray(leaf[run]) for leaf in breach)
        said = contract.sentence(group.part.problem, int(round_), int(slot), servers)
        label = group.members[runs.member[run]].label
        raise contract.ContractError(f"policy {label}, {_told(runs, run)}: {said}")


def _told(runs: Runs, run: Any) -> str:
    """Say which run it is."""
    return f"seed {runs.seed[run]}, arrival_rate {runs.rate[run]:g}"


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
        enough = groups.more_slots(enough, group.part.problem.horizon)
        again, _ = attempt(sweep, group, runs.take(lost), enough, progress)
        peak, lost = again.peak.max(), lost[again.overflow > 0]
    raise QueueOverflow(
        f"capacity={slots} overflowed in round {outcome.overflow[first]} of policy "
        f"{group.members[runs.member[first]].label}, {_told(runs, first)}; capacity={peak} would "
        "have been enough, or use capacity=auto"
    )


def _take(tree: Any, index: Any) -> Any:
    """Return the runs of a tree at these positions."""
    return jax.tree.map(lambda leaf: leaf[index], tree)


def _joined(outcomes: list[Outcome]) -> Outcome:
    """Put the runs of several outcomes behind one another."""
    return jax.tree.map(lambda *leaves: np.concatenate(leaves), *outcomes)


def _chunks(count: int, size: int) -> Iterator[tuple[np.ndarray, int]]:
    """Yield positions of each chunk, padded by repeating the last run, and how many are real."""
    for start in range(0, count, size):
        real = min(size, count - start)
        yield np.minimum(start + np.arange(size), count - 1), real
