"""Run sweeps: every policy at every arrival rate and seed, as one labelled dataset per sweep."""

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import jax
import numpy as np
import xarray as xr

from cqbjax.core import backend
from cqbjax.core.contract import source_layers
from cqbjax.core.labels import LLM, OPTIMAL
from cqbjax.core.recorders import Recorder
from cqbjax.core.scenario import ServiceModel, UserModel, oracle_is_heuristic, with_dynamics
from cqbjax.engine import memory
from cqbjax.engine.batches import Member, SweepPlan, plan_sweep
from cqbjax.engine.checkpoints import Checkpoints, batch_key
from cqbjax.engine.progress import Reporter, show_progress
from cqbjax.engine.runner import Estimate, PolicyResults, compile_batches, estimate_batch, run_batch
from cqbjax.engine.spec import Capacity, SweepSpec
from cqbjax.engine.validation import build_spec, check_options, choose_seeds

# Where the paper's optimal policy need not be optimal, this note describes the rule used instead.
ORACLE_NOTE = "ours: the query and assortment likeliest to satisfy now"
NO_REPEATS = ", no LLM twice for a query while others remain"

# Batches whose programs are compiled at once, before the first of them runs.
BATCHES_AT_ONCE = 8


def sweep(
    policies: Any,
    source: Any,
    *,
    arrival_rate: Sequence[float],
    horizon: int,
    num_seeds: int | None = None,
    first_seed: int = 0,
    seeds: Sequence[int] | None = None,
    K: int = 1,
    record_every: int | None = None,
    capacity: Capacity = "auto",
    chunk: int | None = None,
    memory_gb: float | None = None,
    devices: Sequence[jax.Device] | None = None,
    progress: Reporter | bool = False,
    resume: Path | str | None = None,
    record: Sequence[Recorder | str] = (),
    queries: bool = False,
    users: Sequence[UserModel] = (),
    service: Sequence[ServiceModel] = (),
) -> xr.Dataset:
    """Simulate every policy at every arrival rate and seed.

    All policies get the same arrivals, contexts and choice uniforms, so that their differences are
    paired. The optimal policy always runs. Policies that differ only in numbers or options share
    one compiled program.

    Args:
        policies: label -> policy, or `PerSeed` for a policy that differs between seeds.
            `cqbjax.sweep` also accepts a list of labels of `cqbjax.policy`, such as
            `["acqb", "random"]`, and routers, which it trains for each seed.
        source: where queries come from; a `cqbjax.datasets.dataset_source` for routers.
        arrival_rate: [L] rates lambda, mean queries per round: in [0, 1] if at most one query
            arrives per round, else any that the source accepts.
        horizon: T, rounds.
        num_seeds: S, how many seeds.
        first_seed: the first seed; the others follow it.
        seeds: [S] any seeds, in place of `num_seeds` and `first_seed`.
        K: servers offered per query, the assortment size.
        record_every: record one round in this many (a divisor of T); None keeps about 250 records.
        capacity: queue slots. `auto` starts small and repeats an overflowing run with four times as
            many, on the same draws. A number is never increased: overflow is then an error.
        chunk: runs per device that run at once; None chooses them from memory.
        memory_gb: memory for simultaneous runs, on all devices together, in 10^9 bytes. None: two
            fifths of the memory, on a GPU four fifths.
        devices: where to run; None is all of them.
        progress: True shows a bar with rounds per second and the time left on a terminal, and
            prints a line per minute elsewhere; or a `Reporter`.
        resume: a folder of checkpoints. If the same sweep is called again after an interruption, it
            continues from them, with the same results. None stores no checkpoints.
        record: what is recorded in addition to queue length, regret, departures and exploration:
            recorders, or names from `core.recorders.OPTIONAL`. Each becomes a variable.
        queries: whether to record one row per query (`core.recorders.QueryLog`).
        users: user dynamics (`cqbjax.dynamics`); by default unsatisfied users wait again, as in the
            paper.
        service: service dynamics (`cqbjax.dynamics`); by default one query per round, as in the
            paper.

    Returns:
        Dataset with dimensions `policy, arrival_rate, seed, round` and variables `queue_length`,
        `regret` (cumulative), `departures` (cumulative), `explored` (cumulative),
        `optimal_queue_length`, `seconds_per_round` and `compile_seconds` (per policy).

    Raises:
        ValueError: an argument is out of range; one sentence, before anything compiles.
        ContractError: a user-defined policy or source breaks the contract; one sentence that names
            its label. Shapes and types are checked before anything compiles, values after the run.
        QueueOverflow: a capacity given as a number is too small; names a round and a run.
        RuntimeError: this process was forked after a sweep.
    """
    backend.check_process()
    memory.check_chunks(chunk, memory_gb, devices)
    check_options(progress, resume, queries)
    spec = build_spec(
        policies, with_dynamics(source, users, service), arrival_rate=arrival_rate,
        seeds=choose_seeds(num_seeds, first_seed, seeds), horizon=horizon, K=K,
        record_every=record_every, capacity=capacity,
        record=[*record, "queries"] if queries else record, memory_gb=memory_gb, devices=devices,
    )  # fmt: skip
    plan = plan_sweep([spec], chunk, memory_gb, devices)
    folder = None if resume is None else Path(resume)
    with show_progress() if progress is True else nullcontext(progress or Reporter()) as reporter:
        return run_plan(plan, reporter, folder)[0]


def run_plan(
    plan: SweepPlan, progress: Reporter | None = None, resume: Path | None = None
) -> list[xr.Dataset]:
    """Run the sweeps of a plan.

    Args:
        plan: from `batches.plan_sweep`.
        progress: progress of all sweeps together.
        resume: a folder of checkpoints.

    Returns:
        The dataset of each sweep, equal bit for bit to that of the sweep alone.

    Raises:
        ValueError: a single run does not fit the memory, or a checkpoint is damaged.
        QueueOverflow: a capacity given as a number is too small.
    """
    progress = progress or Reporter()
    for batch in plan.batches:
        runs = len(batch.runs.seed)
        progress.expect(runs * batch.spec.problem.horizon)
        progress.log(plan.describe(batch, batch.initial_slots(), runs))
    results: dict[Member, PolicyResults] = {}
    resumed = resume is not None and any(resume.glob("*.checkpoint"))
    # A GPU's default would round float32 products to 10 bits.
    with jax.default_matmul_precision("highest"):
        for number, batch in enumerate(plan.batches):
            # A resumed sweep compiles batch by batch: finished batches need no program.
            if number % BATCHES_AT_ONCE == 0 and not resumed:
                compile_batches(plan, plan.batches[number : number + BATCHES_AT_ONCE], progress)
            checkpoints = Checkpoints(resume, "" if resume is None else batch_key(batch))
            results |= run_batch(plan, batch, progress, checkpoints)
    return [
        _to_dataset({label: results[Member(number, label)] for label in spec.policies}, spec)
        for number, spec in enumerate(plan.specs)
    ]


def estimate_plan(plan: SweepPlan, progress: Reporter) -> list[Estimate]:
    """Estimate the time of `run_plan`: compile each batch and time one device call of it."""
    with jax.default_matmul_precision("highest"):
        return [estimate_batch(plan, batch, progress) for batch in plan.batches]


def _to_dataset(results: Mapping[str, PolicyResults], spec: SweepSpec) -> xr.Dataset:
    """Arrange the results of a sweep along `policy, arrival_rate, seed, round`."""
    records, problem = spec.records, spec.problem
    axes = ("policy", "arrival_rate", "seed", "round")
    data: dict[str, Any] = {}
    for recorder in spec.recorders:
        values = np.stack([own.recorded[recorder.name] for own in results.values()])
        if np.issubdtype(values.dtype, np.floating):
            values = values.astype(np.float32)
        run_axes = axes if recorder.per == "round" else axes[:3]
        data[recorder.name] = (*run_axes, *recorder.dims), values, recorder.attributes
    for recorder in spec.recorders:
        axes_of, values, _ = data[recorder.name]
        # A summary has the axes of the runs, not those of the recorder.
        dims = [axis for axis in axes_of if axis not in recorder.dims]
        for name, summary in recorder.summaries(values, problem.horizon).items():
            data[name] = dims, summary.values.astype(np.float32), summary.attributes
    data |= {
        "optimal_queue_length": (axes[1:], results[OPTIMAL].recorded["queue_length"]),
        "seconds_per_round": ("policy", [own.seconds_per_round for own in results.values()]),
        "compile_seconds": ("policy", [own.compile_seconds for own in results.values()]),
    }
    every = f"one round in {records.every} is recorded" if records.every > 1 else "every round"
    coords: dict[str, Any] = {
        "policy": list(results), "arrival_rate": spec.rates, "seed": spec.seeds,
        "round": ("round", records.rounds, {"thinned": every}),
    }  # fmt: skip
    if any(LLM in recorder.dims for recorder in spec.recorders):
        names = getattr(getattr(source_layers(spec.source)[-1], "names", None), "servers", None)
        coords[LLM] = list(names or (f"LLM {i}" for i in range(problem.num_servers)))
    attributes: dict[str, Any] = {
        "K": problem.assortment_size, "num_servers": problem.num_servers, "dim": problem.dim,
        "horizon": problem.horizon, "parameters": problem.parameters,
    }  # fmt: skip
    repeats = getattr(spec.policies[OPTIMAL], "retry", "same") == "same"
    if oracle_is_heuristic(spec.source) or not repeats:
        attributes["yardstick"] = ORACLE_NOTE if repeats else f"{ORACLE_NOTE}{NO_REPEATS}"
    return xr.Dataset(data, coords, attributes)
