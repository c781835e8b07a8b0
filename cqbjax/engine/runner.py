"""Run batches: chunk by chunk over the horizon, and overflowing runs again with more slots."""

import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from cqbjax.core import conformance, contract
from cqbjax.core.files import arrays_digest
from cqbjax.core.queueing import QueueOverflow
from cqbjax.core.recorders import QueueLength
from cqbjax.engine import batches, memory, programs
from cqbjax.engine.batches import Batch, Member, Runs, SweepPlan, take
from cqbjax.engine.checkpoints import Checkpoints
from cqbjax.engine.progress import Reporter
from cqbjax.engine.spec import SweepSpec


class RunResults(NamedTuple):
    """The results of some runs.

    Attributes:
        recorded: name -> [runs, R, ...], or [runs, ...] for a recorder that is read once per run.
        overflow: [runs] first round without a free slot, 0 if there was none.
    """

    recorded: dict[str, np.ndarray]
    overflow: np.ndarray


class _ChunkState(NamedTuple):
    """An unfinished chunk.

    Attributes:
        seconds: spent on it.
        carry: carry of the scan at the beginning of the next round.
        recorded: name -> [runs, R so far, ...], or [runs, ...].
    """

    seconds: Any
    carry: Any
    recorded: dict[str, Any]


class PolicyResults(NamedTuple):
    """The results of one policy.

    Attributes:
        recorded: name -> [L, S, R, ...], or [L, S, ...] for a recorder that is read once per run.
        seconds_per_round: seconds of simulation per round of one run.
        compile_seconds: of lowering and compiling the programs of its batch. Programs compile at
            the same time, so the sum over batches may exceed the time that passed.
    """

    recorded: Mapping[str, np.ndarray]
    seconds_per_round: float
    compile_seconds: float


class Seconds(NamedTuple):
    """Seconds of one attempt, for compiling and for running."""

    compiling: float
    running: float


class Estimate(NamedTuple):
    """An estimate for one batch.

    Attributes:
        description: a line with its runs, bytes per run, runs per chunk, chunks and queue slots.
        compiling: seconds, already spent.
        running: seconds of all runs, if none overflows.
    """

    description: str
    compiling: float
    running: float


def compile_batches(plan: SweepPlan, some: Sequence[Batch], progress: Reporter) -> None:
    """Compile the programs of the first attempts of some batches, before any of them runs."""
    programs.compile_all(
        [plan.program_spec(batch, batch.initial_slots()) for batch in some],
        lambda number: progress.set_activity("compiling", some[number].labels[0]),
    )


def run_batch(
    plan: SweepPlan, batch: Batch, progress: Reporter, checkpoints: Checkpoints
) -> dict[Member, PolicyResults]:
    """Run one batch, repeating overflowing runs with more slots.

    Args:
        plan: plan of the sweep.
        batch: a batch of the plan.
        progress: counts rounds and shows what is compiled or run.
        checkpoints: where unfinished chunks are loaded and stored.

    Raises:
        QueueOverflow: a capacity given as a number is too small.
        ValueError: a checkpoint is damaged.
    """
    runs, slots, problem = batch.runs, batch.initial_slots(), batch.spec.problem
    finished: list[tuple[np.ndarray, RunResults]] = []
    spent: list[Seconds] = []
    left = batch.order
    while len(left):
        results, seconds = attempt(plan, batch, take(runs, left), slots, progress, checkpoints)
        spent.append(seconds)
        lost = results.overflow > 0
        if batch.spec.capacity != "auto" and lost.any():
            _raise_overflow(batch, take(runs, left), results, slots)
        finished.append((left[~lost], take(results, ~lost)))
        left, slots = left[lost], batches.grow_slots(slots, problem.max_queries)
        if len(left):
            progress.expect(len(left) * problem.horizon)
            progress.log(plan.describe(batch, slots, len(left)))
    back = np.argsort(np.concatenate([index for index, _ in finished]))
    recorded = take(_concatenate([results for _, results in finished]), back).recorded
    return _split_by_member(batch, recorded, spent, progress)


def estimate_batch(plan: SweepPlan, batch: Batch, progress: Reporter) -> Estimate:
    """Compile the programs of a batch, time one device call of a chunk, and extrapolate."""
    slots, count = batch.initial_slots(), len(batch.runs.seed)
    progress.set_activity("compiling", batch.labels[0])
    begun = time.perf_counter()
    spec = plan.program_spec(batch, slots)
    compiled = programs.compile_one(spec)
    compiling = time.perf_counter() - begun
    chunks = [index for index, _ in _chunk_indices(count, spec.runs)]
    # A chunk in the middle has neither the highest rate nor the lowest.
    middle = batch.order[chunks[len(chunks) // 2]]
    progress.set_activity("running", batch.labels[0])
    policy, instance, carry = start_chunk(compiled, batch, take(batch.runs, middle))
    jax.block_until_ready(carry)
    begun = time.perf_counter()
    for stretch, _ in compiled.stretches(1):
        carry, _ = compiled.advance(policy, instance, carry, stretch)
    jax.block_until_ready(carry)
    running = (time.perf_counter() - begun) * batch.spec.records.calls * len(chunks)
    return Estimate(plan.describe(batch, slots, count), compiling, running)


def attempt(
    plan: SweepPlan, batch: Batch, runs: Runs, slots: int, progress: Reporter,
    checkpoints: Checkpoints,
) -> tuple[RunResults, Seconds]:  # fmt: skip
    """Run some runs of a batch with this many slots, compiling unless every chunk is stored."""
    spec = plan.program_spec(batch, slots)
    begun, waited, compiling = time.perf_counter(), 0.0, 0.0
    compiled: programs.Programs | None = None
    done: list[tuple[RunResults, float]] = []
    for index, real in _chunk_indices(len(runs.seed), spec.runs):
        chunk = take(runs, index)
        name = f"{slots}-{arrays_digest(chunk)}"
        none = np.zeros(len(index), np.int32)
        like = 0.0, RunResults(_empty_records(batch.spec, len(index)), none)
        stored = checkpoints.load(f"{name}.done", like)
        if stored is not None:
            done.append((stored[1], float(stored[0])))
            progress.advance(real * batch.spec.problem.horizon)
            continue
        if compiled is None:
            progress.set_activity("compiling", batch.labels[0])
            asked = time.perf_counter()
            compiled = programs.compile_one(spec)
            waited, compiling = time.perf_counter() - asked, compiled.seconds
        done.append(run_chunk(compiled, batch, chunk, real, progress, checkpoints, name))
    running = time.perf_counter() - begun - waited
    progress.run_seconds += running
    earlier = sum(seconds for _, seconds in done)
    return _concatenate([results for results, _ in done]), Seconds(compiling, running + earlier)


def run_chunk(
    compiled: programs.Programs, batch: Batch, runs: Runs, real: int, progress: Reporter,
    checkpoints: Checkpoints, name: str,
) -> tuple[RunResults, float]:  # fmt: skip
    """Run one chunk over the horizon, or over what is left of it after its checkpoint.

    Args:
        compiled: programs.
        batch: batch of the runs.
        runs: runs of the chunk.
        real: how many of its first runs count; the others are padding.
        progress: counts rounds done.
        checkpoints: where the chunk is loaded and stored.
        name: name of the chunk in its checkpoints.

    Returns:
        The results of its runs, and the seconds that were spent on them in an earlier process.
    """
    progress.set_activity("running", batch.labels[0])
    spec, records = batch.spec, batch.spec.records
    empty = _empty_records(spec, len(runs.seed))
    policy, instance, carry = start_chunk(compiled, batch, runs)
    begun, rounds = time.perf_counter(), records.per_call * records.every
    state = checkpoints.load(name, _ChunkState(0.0, carry, empty)) or _ChunkState(0.0, carry, empty)
    before, first = float(state.seconds), state.recorded[QueueLength.name].shape[1]
    first //= records.per_call
    progress.advance(real * rounds * first)
    for call in range(first, records.calls):
        carry, made = state.carry, list[dict[str, Any]]()
        for stretch, count in compiled.stretches(1 + call * rounds):
            carry, recorded = compiled.advance(policy, instance, carry, stretch)
            for one in spec.recorders:
                values = np.asarray(recorded[one.name])
                recorded[one.name] = values[:, :count] if one.per == "round" else values
            made.append(recorded)
        _check_actions(batch, runs, carry.breach)
        # If every run of the chunk has to be repeated, its other rounds are not needed.
        lost = (np.asarray(carry.overflow) > 0).all()
        left = records.calls - call - 1 if lost else 0
        recorded = _append_records(spec, state.recorded, *made * (1 + left))
        state = _ChunkState(before + time.perf_counter() - begun, carry, recorded)
        progress.advance(real * rounds)
        if lost:
            progress.expect(-real * rounds * left)
            break
        checkpoints.save(name, state)
    carry = state.carry
    results = RunResults(state.recorded, np.asarray(carry.overflow))
    results = take(results, slice(real))
    checkpoints.save(f"{name}.done", (state.seconds, results), always=True)
    checkpoints.drop(name)
    return results, before


def _empty_records(spec: SweepSpec, runs: int) -> dict[str, Any]:
    """Return the records before the first round: [runs, 0, ...], or [runs, ...] per run."""
    axes = {"round": (runs, 0), "run": (runs,)}
    shapes = memory.record_shapes(spec.recorders, spec.problem)
    return {
        recorder.name: np.zeros(axes[recorder.per] + shape.shape, shape.dtype)
        for recorder, shape in zip(spec.recorders, shapes, strict=True)
    }


def _append_records(spec: SweepSpec, *recorded: dict[str, Any]) -> dict[str, Any]:
    """Concatenate records of rounds; of the records of runs, return the last."""
    return {
        one.name: np.concatenate([some[one.name] for some in recorded], axis=1)
        if one.per == "round"
        else np.asarray(recorded[-1][one.name])
        for one in spec.recorders
    }


def start_chunk(compiled: programs.Programs, batch: Batch, runs: Runs) -> tuple[Any, Any, Any]:
    """Return the policies, the instances and the carries of some runs before round 1.

    Raises:
        ContractError: a user-defined source drew an instance that cannot be run.
    """
    policy, numbers = take(batch.policies, runs.policy), take(batch.numbers, runs.member)
    seeds, rates = runs.seed.astype(np.int32), runs.rate.astype(jnp.result_type(float))
    instance = compiled.draw(seeds, rates, numbers, batch.tables, *compiled.extents)
    spec = batch.spec
    for name, sentences, found in conformance.find_faults(spec.source, spec.problem, instance):
        for run in np.flatnonzero(found)[:1]:
            raise contract.ContractError(
                f"{name}: {sentences[found[run] - 1]}, and those of {_describe_run(runs, run)} do "
                "not"
            )
    return policy, instance, compiled.start(policy, instance)


def _check_actions(batch: Batch, runs: Runs, breach: contract.Breach | None) -> None:
    """Raise if a user-defined policy returned an action that breaks the contract."""
    if breach is None:  # a policy of this package
        return
    for run in np.flatnonzero(np.asarray(breach.round))[:1]:
        round_, slot, servers = (np.asarray(leaf[run]) for leaf in breach)
        sentence = contract.describe_breach(batch.spec.problem, int(round_), int(slot), servers)
        label = batch.members[runs.member[run]].label
        raise contract.ContractError(f"policy {label}, {_describe_run(runs, run)}: {sentence}")


def _describe_run(runs: Runs, run: Any) -> str:
    return f"seed {runs.seed[run]}, arrival_rate {runs.rate[run]:g}"


def _split_by_member(
    batch: Batch, recorded: dict[str, np.ndarray], spent: list[Seconds], progress: Reporter
) -> dict[Member, PolicyResults]:
    """Return the results of each member and its duplicates, and log the speed of the batch."""
    compiling, running = (sum(seconds) for seconds in zip(*spent, strict=True))
    horizon = batch.spec.problem.horizon
    rounds = len(batch.runs.seed) * horizon
    # A run counts for each point that has it, so that the seconds of all points add up.
    runs = {
        member: spec.runs_per_policy
        for member, spec in zip(batch.members, batch.specs, strict=True)
    }
    counted = rounds + horizon * sum(runs[member] for member in batch.duplicates.values())
    progress.log(
        f"{', '.join(batch.labels)}: {rounds:,} rounds in {running:.1f} s, "
        f"{rounds / running:,.0f} a second, after {compiling:.1f} s of compiling"
    )
    results, begin = {}, 0
    for member, spec in zip(batch.members, batch.specs, strict=True):
        end, shape = begin + spec.runs_per_policy, (spec.rates.size, spec.seeds.size)
        own = {
            name: values[begin:end].reshape(*shape, *values.shape[1:])
            for name, values in recorded.items()
        }
        results[member] = PolicyResults(own, running / counted, compiling)
        begin = end
    return results | {other: results[member] for other, member in batch.duplicates.items()}


def _raise_overflow(batch: Batch, runs: Runs, results: RunResults, slots: int) -> None:
    first = np.flatnonzero(results.overflow > 0)[0]
    raise QueueOverflow(
        f"capacity={slots} overflowed in round {results.overflow[first]} of policy "
        f"{batch.members[runs.member[first]].label}, {_describe_run(runs, first)}; "
        "raise it, or use capacity=auto"
    )


def _concatenate(results: Sequence[RunResults]) -> RunResults:
    return jax.tree.map(lambda *leaves: np.concatenate(leaves), *results)


def _chunk_indices(count: int, size: int) -> Iterator[tuple[np.ndarray, int]]:
    """Yield the positions of each chunk and how many count; the others repeat the last run."""
    for start in range(0, count, size):
        real = min(size, count - start)
        yield np.minimum(start + np.arange(size), count - 1), real
