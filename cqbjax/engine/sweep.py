"""Every policy at every arrival rate and seed, as one labelled dataset; many such in a batch."""

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import jax
import numpy as np
import xarray as xr

from cqbjax.core import backend
from cqbjax.core.labels import OPTIMAL
from cqbjax.core.recorders import Recorder
from cqbjax.core.rules import Service, Users
from cqbjax.core.setting import is_ours, with_rules
from cqbjax.core.types import Policy, Source
from cqbjax.engine import keys, plan
from cqbjax.engine.arguments import check_batch, check_ways
from cqbjax.engine.checks import check_sweep, with_yardstick
from cqbjax.engine.groups import Member
from cqbjax.engine.parts import Capacity, Part, PerSeed
from cqbjax.engine.progress import Reporter, Silent
from cqbjax.engine.runner import Estimate, Measured, compile_ahead, estimate, run_group
from cqbjax.engine.snapshots import Snapshots

# Where the paper's `optimal` need not be the best, it is a rule of ours.
YARDSTICK = "ours: the query and assortment likeliest to satisfy now"
NO_REPEATS = ", no LLM twice for a query while others remain"

# Groups whose programs are compiled at once, before the first of them runs.
AHEAD = 8


def sweep(
    policies: Mapping[str, Policy | PerSeed],
    source: Source,
    *,
    arrival_rates: Sequence[float],
    seeds: int | Sequence[int],
    horizon: int,
    assortment_size: int = 1,
    record_every: int | None = None,
    capacity: Capacity = "auto",
    chunk: int | None = None,
    memory_gb: float | None = None,
    devices: Sequence[jax.Device] | None = None,
    progress: Reporter | bool = False,
    resume: Path | str | None = None,
    record: Sequence[Recorder | str] = (),
    queries: bool = False,
    users: Sequence[Users] = (),
    service: Sequence[Service] = (),
) -> xr.Dataset:
    """Simulate every policy at every arrival rate and seed.

    Policies meet the same arrivals, contexts and choice uniforms, the optimal policy included (it
    is run whether or not it is named), so that differences are paired. Policies that differ only in
    numbers or words share one compiled program and one batch.

    Args:
        policies: label -> policy, or `PerSeed` for one that each seed has its own of.
        source: where queries come from.
        arrival_rates: [L] lambda, queries a round, each in [0, 1].
        seeds: how many (0 .. n-1), or which.
        horizon: T, rounds.
        assortment_size: K.
        record_every: record one round in this many (a divisor of T); None keeps about 250.
        capacity: queue slots. `auto` starts small and repeats a run that overflows with four
            times as many, from the same draws. A number is obeyed.
        chunk: runs a device batches at once; None plans it from memory.
        memory_gb: what the runs in memory at once may take, in 10^9 bytes; None is two fifths of
            the memory that there is.
        devices: where to run; None is all of them.
        progress: True shows a bar with rounds a second and the time left on a terminal, and writes
            a line a minute elsewhere; or what is told of compiling and of rounds done.
        resume: a folder that keeps how far each batch of runs is, and what came of those that are
            done (`snapshots`); the same sweep called again goes on from there, to the same bits.
            None keeps nothing.
        record: what is recorded beside queue length, regret, departures and exploration: names of
            `core.recorders.NAMED`, and recorders; each is a variable of its name.
        queries: whether a row a query is kept (`core.recorders.Queries`).
        users: what one does who is not satisfied (`cqbjax.dynamics`); none: the paper's user, who
            waits on.
        service: what can be done a round (`cqbjax.dynamics`); none: the paper's, one query.

    Returns:
        Dataset with dimensions `policy, arrival_rate, seed, round` and variables `queue_length`,
        `regret` (cumulative), `departures` (cumulative), `explored` (cumulative),
        `optimal_queue_length`, `seconds_per_round` and `compile_seconds` (a policy).

    Raises:
        ValueError: for input out of range, in one sentence, before anything compiles.
        ContractError: for a policy or source, none of this package's, that breaks the contract: in
            one sentence that names its label, before anything compiles where shapes and types show
            it, else after the run that does so.
        QueueOverflow: if a capacity given as a number is too small; it names a round, a run and the
            capacity that would have been enough.
        RuntimeError: in a process that was forked after a sweep.
    """
    backend.check_process()
    check_batch(chunk, memory_gb, devices)
    check_ways(progress, resume, queries)
    one = part(
        policies, with_rules(source, users, service), arrival_rates, seeds, horizon,
        assortment_size, record_every, capacity, [*record, "queries"] if queries else record,
        memory_gb, devices,
    )  # fmt: skip
    with _shown(progress) as told:
        folder = None if resume is None else Path(resume)
        return sweep_parts([one], chunk, memory_gb, devices, told, folder)[0]


def _shown(progress: Reporter | bool) -> AbstractContextManager[Reporter]:
    """Return what a sweep tells: a bar where one is asked for."""
    if progress is True:
        # Only who asks for a bar waits for its library.
        from cqbjax.engine.bars import bar

        return bar()
    return nullcontext(progress or Silent())


def part(
    policies: Mapping[str, Policy | PerSeed],
    source: Source,
    arrival_rates: Sequence[float],
    seeds: int | Sequence[int],
    horizon: int,
    assortment_size: int = 1,
    record_every: int | None = None,
    capacity: Capacity = "auto",
    record: Sequence[Recorder | str] = (),
    memory_gb: float | None = None,
    devices: Sequence[jax.Device] | None = None,
) -> Part:
    """Check what one call of `sweep` would run, and return it; arguments and errors are its own."""
    checked = check_sweep(
        policies, source, arrival_rates, seeds, horizon, assortment_size, capacity, record_every,
        record, memory_gb, devices,
    )  # fmt: skip
    problem, rates, numbers, records, recorders = checked
    every = with_yardstick(policies)
    return Part(every, source, problem, rates, numbers, records, capacity, recorders)


def sweep_parts(
    parts: Sequence[Part],
    chunk: int | None = None,
    memory_gb: float | None = None,
    devices: Sequence[jax.Device] | None = None,
    progress: Reporter | None = None,
    resume: Path | None = None,
) -> list[xr.Dataset]:
    """Simulate several parts: policies of any of them that can be are batched together.

    Args:
        parts: from `part`.
        chunk: as in `sweep`, like the rest.
        memory_gb: of all parts.
        devices: where to run.
        progress: told of all parts as one.
        resume: a folder that keeps how far each batch is.

    Returns:
        Each part's dataset, equal to `sweep` of the part alone bit for bit.

    Raises:
        ValueError: no run fits the memory.
        QueueOverflow: a part's capacity, given as a number, is too small.
    """
    check_batch(chunk, memory_gb)
    whole = plan.make(parts, chunk, memory_gb, devices)
    progress = progress or Silent()
    for group in whole.groups:
        runs = len(group.runs.seed)
        progress.expect(runs * group.part.problem.horizon)
        progress.note(whole.describe(group, group.first_slots(), runs))
    measured: dict[Member, Measured] = {}
    resumed = resume is not None and any(resume.glob("*.snapshot"))
    # A GPU's default would round float32 products to 10 bits.
    with jax.default_matmul_precision("highest"):
        for number, group in enumerate(whole.groups):
            # Of a sweep that goes on, a group that is done needs no program.
            if number % AHEAD == 0 and not resumed:
                compile_ahead(whole, whole.groups[number : number + AHEAD], progress)
            kept = None if resume is None else Snapshots(resume, keys.of_group(group))
            own = run_group(whole, group, progress, kept)
            measured |= own | {twin: own[member] for twin, member in group.twins.items()}
    return [
        _dataset({label: measured[Member(number, label)] for label in one.policies}, one)
        for number, one in enumerate(parts)
    ]


def estimates(
    parts: Sequence[Part],
    chunk: int | None = None,
    memory_gb: float | None = None,
    devices: Sequence[jax.Device] | None = None,
    progress: Reporter | None = None,
) -> list[Estimate]:
    """Reckon what `sweep_parts` would take: each group is compiled and runs for a moment.

    Args:
        parts: as in `sweep_parts`, like the rest.
        chunk: runs a device batches at once.
        memory_gb: of all parts.
        devices: where to run.
        progress: told what is being done.

    Returns:
        An estimate a group.
    """
    check_batch(chunk, memory_gb)
    whole = plan.make(parts, chunk, memory_gb, devices)
    with jax.default_matmul_precision("highest"):
        return [estimate(whole, group, progress or Silent()) for group in whole.groups]


def _dataset(measured: Mapping[str, Measured], one: Part) -> xr.Dataset:
    """Arrange a part's results along `policy, arrival_rate, seed, round`."""
    kept, problem = one.records, one.problem
    axes = ("policy", "arrival_rate", "seed", "round")
    data: dict[str, Any] = {
        recorder.name: _variable([m.recorded[recorder.name] for m in measured.values()], recorder)
        for recorder in one.recorders
    }
    for recorder in one.recorders:
        data |= _summaries(recorder, data[recorder.name], problem.horizon)
    data |= {
        "optimal_queue_length": (axes[1:], measured[OPTIMAL].recorded["queue_length"]),
        "seconds_per_round": ("policy", [m.seconds_per_round for m in measured.values()]),
        "compile_seconds": ("policy", [m.compile_seconds for m in measured.values()]),
    }
    every = f"one round in {kept.every} is recorded" if kept.every > 1 else "every round"
    coords = {
        "policy": list(measured),
        "arrival_rate": one.rates,
        "seed": one.seeds,
        "round": ("round", kept.rounds, {"thinned": every}),
    }
    attributes: dict[str, Any] = {
        "K": problem.assortment_size,
        "num_servers": problem.num_servers,
        "dim": problem.dim,
        "horizon": problem.horizon,
        "parameters": problem.parameters,
    }
    repeats = getattr(one.policies[OPTIMAL], "retry", "same") == "same"
    if is_ours(one.source) or not repeats:
        attributes["yardstick"] = YARDSTICK if repeats else f"{YARDSTICK}{NO_REPEATS}"
    return xr.Dataset(data, coords, attributes)


def _summaries(recorder: Recorder, variable: tuple[Any, ...], horizon: int) -> dict[str, Any]:
    """Return the numbers that follow from what a recorder left, with what is said of each."""
    axes, values, _ = variable
    dims = [dim for dim in axes if dim not in recorder.dims]
    return {
        name: (dims, made.values.astype(np.float32), made.attributes)
        for name, made in recorder.summaries(values, horizon).items()
    }


def _variable(of_policies: Sequence[np.ndarray], recorder: Recorder) -> tuple[Any, ...]:
    """Return what a recorder left, with dimensions and what is said of it; floats in 32 bits."""
    values = np.stack(of_policies)
    if np.issubdtype(values.dtype, np.floating):
        values = values.astype(np.float32)
    axes = ("policy", "arrival_rate", "seed", *(["round"] if recorder.per == "round" else []))
    return (*axes, *recorder.dims), values, recorder.attributes
