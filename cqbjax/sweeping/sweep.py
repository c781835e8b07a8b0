"""Every policy at every arrival rate and seed, as one labelled dataset."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
import xarray as xr

from cqbjax.policies.baselines import Optimal
from cqbjax.sweeping import checkpoint, plan
from cqbjax.sweeping.checkpoint import Measured
from cqbjax.sweeping.checks import check_sweep
from cqbjax.sweeping.plan import Capacity, Group, PerSeed, Plan, Records
from cqbjax.sweeping.progress import Reporter, Silent
from cqbjax.sweeping.runner import run_group
from cqbjax.types import Policy, Problem, Source

# The label of the policy that regret is measured against.
OPTIMAL = "optimal"


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
    progress: Reporter | None = None,
    resume: Path | None = None,
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
        progress: told of compiling and of rounds done.
        resume: a folder that keeps each group of policies as soon as it is finished; the same sweep
            called again takes it from there. None keeps nothing.

    Returns:
        Dataset with dimensions `policy, arrival_rate, seed, round` and variables `queue_length`,
        `regret` (cumulative), `departures` (cumulative), `explored` (cumulative),
        `optimal_queue_length`, `seconds_per_round` and `compile_seconds` (a policy).

    Raises:
        ValueError: for input out of range, in one sentence, before anything compiles.
        QueueOverflow: if a capacity given as a number is too small; it names a round, a run and the
            capacity that would have been enough.
    """
    numbers = plan.seed_numbers(seeds)
    rates = np.asarray(arrival_rates, float)
    problem = check_sweep(
        policies, source, rates.tolist(), numbers, horizon, assortment_size, capacity, chunk,
        memory_gb,
    )  # fmt: skip
    records = plan.choose_records(horizon, record_every)
    # The yardstick of every sweep runs even unasked.
    wanted = {**policies} if OPTIMAL in policies else {**policies, OPTIMAL: Optimal()}
    whole = plan.make(
        wanted, source, problem, rates, numbers, records, capacity, chunk, memory_gb,
        devices or jax.devices(),
    )  # fmt: skip
    progress = progress or Silent()
    progress.expect(len(wanted) * whole.runs_a_policy * horizon)
    for group in whole.groups:
        runs = len(group.labels) * whole.runs_a_policy
        progress.note(whole.describe(group, whole.first_slots(group), runs))
    measured: dict[str, Measured] = {}
    # A GPU's default would round float32 products to 10 bits.
    with jax.default_matmul_precision("highest"):
        for group in whole.groups:
            measured.update(_finished(whole, group, progress, resume))
    ordered = {label: measured[label] for label in wanted}
    return _dataset(ordered, rates, numbers, records, problem)


def _finished(
    whole: Plan, group: Group, progress: Reporter, resume: Path | None
) -> dict[str, Measured]:
    """Take a group from the folder of finished ones, or run it and keep it there."""
    if resume is None:
        return run_group(whole, group, progress)
    follows_from = (
        group.stacked, whole.source, whole.problem, whole.records.rounds, whole.rates, whole.seeds
    )  # fmt: skip
    path = resume / f"{checkpoint.key(group.labels, whole.capacity, *follows_from)}.npz"
    kept = checkpoint.load(path)
    if kept is None:
        kept = run_group(whole, group, progress)
        checkpoint.save(path, kept)
    else:
        progress.note(f"{', '.join(kept)}: finished before, taken from {path}")
        progress.advance(len(kept) * whole.runs_a_policy * whole.problem.horizon)
    return kept


def _dataset(
    measured: Mapping[str, Measured],
    rates: np.ndarray,
    seeds: np.ndarray,
    kept: Records,
    problem: Problem,
) -> xr.Dataset:
    """Arrange results along `policy, arrival_rate, seed, round`."""
    totals = jax.tree.map(lambda *leaves: np.stack(leaves), *(m.totals for m in measured.values()))
    axes = ("policy", "arrival_rate", "seed", "round")
    data: dict[str, Any] = {
        "queue_length": (axes, totals.queue_length, {"units": "queries", "is": "Q(t+1)"}),
        "regret": (axes, totals.regret.astype(np.float32), {"is": "cumulative"}),
        "departures": (axes, totals.departures, {"units": "queries", "is": "cumulative"}),
        "explored": (axes, totals.explored, {"units": "rounds", "is": "cumulative"}),
        "optimal_queue_length": (axes[1:], measured[OPTIMAL].totals.queue_length),
        "seconds_per_round": ("policy", [m.seconds_per_round for m in measured.values()]),
        "compile_seconds": ("policy", [m.compile_seconds for m in measured.values()]),
    }
    every = f"one round in {kept.every} is recorded" if kept.every > 1 else "every round"
    coords = {
        "policy": list(measured),
        "arrival_rate": rates,
        "seed": seeds,
        "round": ("round", kept.rounds, {"thinned": every}),
    }
    attributes = {
        "K": problem.assortment_size,
        "num_servers": problem.num_servers,
        "dim": problem.dim,
        "horizon": problem.horizon,
        "parameters": problem.parameters,
    }
    return xr.Dataset(data, coords, attributes)
