"""One chunk of a group's runs over the horizon: begun, advanced call by call, what came of it."""

import functools
import time
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from cqbjax.core import contract, faults, simulate
from cqbjax.core.files import arrays_digest
from cqbjax.core.recorders import QueueLength, Recorder
from cqbjax.core.types import Problem
from cqbjax.engine import programs
from cqbjax.engine.groups import Group, Runs
from cqbjax.engine.parts import Part, Records
from cqbjax.engine.progress import Reporter
from cqbjax.engine.snapshots import Snapshots


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


def run_chunk(
    compiled: programs.Programs, group: Group, runs: Runs, real: int, progress: Reporter,
    kept: Snapshots, slots: int,
) -> tuple[Outcome, float]:  # fmt: skip
    """Run one chunk over the whole horizon, or what is left of it; its last runs may be padding.

    Returns:
        What came of its runs, and the seconds that were spent on them before.
    """
    progress.doing("running", group.labels[0])
    records, name = group.part.records, _name(runs, slots)
    none = _nothing(group.part.recorders, group.part.problem, len(runs.seed))
    policy, instance, carry = begin(compiled, group, runs)
    begun, rounds = time.perf_counter(), records.per_call * records.every
    stage = kept.load(name, _Stage(0.0, carry, none)) or _Stage(0.0, carry, none)
    before, first = float(stage.seconds), stage.recorded[QueueLength.name].shape[1]
    first //= records.per_call
    progress.advance(real * rounds * first)
    for call in range(first, records.calls):
        carry, made = stage.carry, list[dict[str, Any]]()
        for stretch, few in compiled.stretches(1 + call * rounds):
            carry, some = compiled.advance(policy, instance, carry, stretch)
            made.append(_first(group.part, some, few))
        _check_actions(group, runs, carry.breach)
        recorded = _behind(group.part, stage.recorded, *made)
        stage = _Stage(before + time.perf_counter() - begun, carry, recorded)
        progress.advance(real * rounds)
        if (np.asarray(carry.overflow) > 0).all():
            # Every run here is to be repeated: what is left of it is worth nothing.
            left = records.calls - call - 1
            progress.expect(-real * rounds * left)
            stage = stage._replace(recorded=_behind(group.part, recorded, *made * left))
            break
        kept.save(name, stage)
    own = stage.carry
    outcome = Outcome(stage.recorded, np.asarray(own.overflow), np.asarray(own.peak))
    outcome = jax.tree.map(lambda leaf: leaf[:real], outcome)
    kept.save(f"{name}.done", (stage.seconds, outcome), always=True)
    kept.drop(name)
    return outcome, before


def finished(group: Group, runs: Runs, kept: Snapshots, slots: int) -> tuple[Outcome, float] | None:
    """Return what came of a chunk that was done before, and the seconds that it took; or None."""
    zero = np.zeros(len(runs.seed), np.int32)
    none = _nothing(group.part.recorders, group.part.problem, len(zero))
    done = kept.load(f"{_name(runs, slots)}.done", (0.0, Outcome(none, zero, zero)))
    return None if done is None else (done[1], float(done[0]))


def _name(runs: Runs, slots: int) -> str:
    return f"{slots}-{arrays_digest(runs)}"


def _nothing(recording: tuple[Recorder, ...], problem: Problem, runs: int) -> dict[str, Any]:
    """Return what is recorded before the first round: [runs, 0, ...], or [runs, ...] of a run."""
    lead = {"round": (runs, 0), "run": (runs,)}
    return {
        one.name: np.zeros(lead[one.per] + of.shape, of.dtype)
        for one, of in zip(recording, _read(recording, problem), strict=True)
    }


def recorded_bytes(recording: tuple[Recorder, ...], problem: Problem, records: Records) -> int:
    """Return the bytes of what is recorded of one run."""
    rounds = {"round": records.total, "run": 1}
    return sum(
        rounds[one.per] * of.size * of.dtype.itemsize
        for one, of in zip(recording, _read(recording, problem), strict=True)
    )


def records_alike(recording: tuple[Recorder, ...], one: Problem, two: Problem) -> bool:
    """Tell whether what is recorded of a run has the same shape in two problems."""
    return _read(recording, one) == _read(recording, two)


@functools.lru_cache(programs.MOST_KEPT)
def _read(recording: tuple[Recorder, ...], problem: Problem) -> list[jax.ShapeDtypeStruct]:
    """Return the shapes and types of what recorders read."""
    return jax.eval_shape(lambda: [one.read(one.start(problem)) for one in recording])


def _first(part: Part, recorded: dict[str, Any], few: int) -> dict[str, Any]:
    """Return as many records of rounds as there are, on the host; and what is of a run."""
    return {
        one.name: np.asarray(recorded[one.name])[:, :few]
        if one.per == "round"
        else recorded[one.name]
        for one in part.recorders
    }


def _behind(part: Part, *recorded: dict[str, Any]) -> dict[str, Any]:
    """Put records of rounds behind one another; of a run the last stand."""
    return {
        one.name: np.concatenate([some[one.name] for some in recorded], axis=1)
        if one.per == "round"
        else np.asarray(recorded[-1][one.name])
        for one in part.recorders
    }


def begin(compiled: programs.Programs, group: Group, runs: Runs) -> tuple[Any, Any, Any]:
    """Return the policies, the instances and the carries before round 1 of a chunk's runs."""
    policy, numbers = take(group.policies, runs.policy), take(group.numbers, runs.member)
    seeds, rates = runs.seed.astype(np.int32), runs.rate.astype(jnp.result_type(float))
    instance = compiled.draw(seeds, rates, numbers, group.tables, *compiled.until)
    _check_instances(group, runs, instance)
    return policy, instance, compiled.start(policy, instance)


def _check_instances(group: Group, runs: Runs, instance: simulate.Instance) -> None:
    """Refuse an instance that no run can be made of; this package's sources draw none."""
    for whose, said, found in faults.of_draws(group.part.source, group.part.problem, instance):
        for run in np.flatnonzero(found)[:1]:
            raise contract.ContractError(
                f"{whose}: {said[found[run] - 1]}, and those of {told(runs, run)} do not"
            )


def _check_actions(group: Group, runs: Runs, breach: contract.Breach | None) -> None:
    """Refuse a policy with an action that breaks the contract; this package's are not watched."""
    if breach is None:
        return
    for run in np.flatnonzero(np.asarray(breach.round))[:1]:
        round_, slot, servers = (np.asarray(leaf[run]) for leaf in breach)
        said = contract.sentence(group.part.problem, int(round_), int(slot), servers)
        label = group.members[runs.member[run]].label
        raise contract.ContractError(f"policy {label}, {told(runs, run)}: {said}")


def told(runs: Runs, run: Any) -> str:
    """Say which run it is."""
    return f"seed {runs.seed[run]}, arrival_rate {runs.rate[run]:g}"


def take(tree: Any, index: Any) -> Any:
    """Return the runs of a tree at these positions."""
    return jax.tree.map(lambda leaf: leaf[index], tree)
