"""What a sweep will run, decided before anything is compiled: checks, groups, records, chunks."""

import dataclasses
import functools
import os
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np

from cqbjax import mnl, rng, simulate
from cqbjax.types import Policy, Problem, Source

MAX_RECORDS = 250
MAX_CALLS = 10
START_CAPACITY = 64
# A round over a pool of prompts costs far more than its slots, and real queues grow longer.
START_CAPACITY_POOL = 256
# Overflowing runs are repeated with this many times the slots: a compilation costs more than slots.
GROWTH = 4
# On a CPU a batch wider than this no longer fits the caches, and a run with more state than this is
# fastest alone on its core (measured: docs/performance.md).
CPU_WIDTH = 256
CPU_BYTES_ALONE = 4_000_000
GPU_WIDTH = 65_536
# The share of memory that runs may fill; the rest is for temporaries, which mirror part of a carry.
MEMORY_SHARE = 0.4

Capacity = int | Literal["auto"]


class QueueOverflow(ValueError):
    """A query found no free slot at the capacity that was asked for."""


@dataclasses.dataclass(frozen=True)
class PerSeed:
    """A policy that differs from seed to seed, in its leaves alone: trained on each seed's split.

    Attributes:
        policies: [S] one policy a seed, in the order of the sweep's seeds.
    """

    policies: Sequence[Policy]


@dataclasses.dataclass(frozen=True)
class Group:
    """Policies that share one compiled program: they differ in float leaves alone.

    Attributes:
        labels: the policies' labels.
        stacked: one policy whose leaves have two leading axes, over `labels` and over seeds; the
            second is of length 1 where all seeds share one policy.
        per_seed: whether each seed has a policy of its own.
    """

    labels: tuple[str, ...]
    stacked: Any
    per_seed: bool


@dataclasses.dataclass(frozen=True)
class Records:
    """Which rounds are recorded, and how many per device call.

    Attributes:
        every: one round in this many is recorded.
        per_call: records of one device call.
        calls: device calls over the horizon.
    """

    every: int
    per_call: int
    calls: int

    @property
    def rounds(self) -> np.ndarray:
        """Return the recorded rounds, [R], counting from 1."""
        return self.every * np.arange(1, self.per_call * self.calls + 1)


def seed_numbers(seeds: int | Sequence[int]) -> np.ndarray:
    """Return the seeds as an array.

    Raises:
        ValueError: if they are not integers.
    """
    if isinstance(seeds, int | np.integer):
        return np.arange(seeds)
    numbers = np.asarray(seeds)
    if numbers.size and not np.issubdtype(numbers.dtype, np.integer):
        raise ValueError("seeds must be integers")
    return numbers.astype(int)


def check(
    policies: Mapping[str, Policy | PerSeed],
    source: Source,
    arrival_rates: Sequence[float],
    seeds: np.ndarray,
    horizon: int,
    assortment_size: int,
    capacity: Capacity,
    chunk: int | None = None,
    memory_gb: float | None = None,
) -> Problem:
    """Refuse what cannot run, in one sentence that names the key, before anything compiles.

    Returns:
        The problem's shapes.

    Raises:
        ValueError: for the first key that is out of range.
    """
    _check_runs(seeds, horizon, capacity)
    if chunk is not None and chunk < 1:
        raise ValueError(f"chunk={chunk} must be at least 1 run, or None")
    if memory_gb is not None and not 0 < memory_gb < float("inf"):
        raise ValueError(f"memory_gb={memory_gb} must be a number above 0, or None")
    _check_rates(arrival_rates)
    if not policies:
        raise ValueError("policies must name at least one policy")
    _check_assortments(source.problem(1, horizon).num_servers, assortment_size)
    for rate in arrival_rates:
        source.check(seeds, rate, assortment_size)
    problem = source.problem(assortment_size, horizon)
    for label, policy in policies.items():
        _check_policy(label, policy, seeds, problem)
    return problem


def _check_runs(seeds: np.ndarray, horizon: int, capacity: Capacity) -> None:
    if horizon < 1:
        raise ValueError(f"horizon={horizon} must be at least 1 round")
    if len(seeds) < 1:
        raise ValueError("num_seeds must be at least 1")
    if len(set(seeds.tolist())) < len(seeds) or seeds.min() < 0:
        raise ValueError("seeds must be distinct and not negative")
    if seeds.max() >= 2**31:
        raise ValueError("seeds must be below 2^31")
    if capacity != "auto" and not isinstance(capacity, int | np.integer):
        raise ValueError(f"capacity={capacity} must be `auto` or a whole number of slots")
    if capacity != "auto" and capacity < 1:
        raise ValueError(f"capacity={capacity} must be `auto` or at least 1 slot")


def _check_rates(arrival_rates: Sequence[float]) -> None:
    if not arrival_rates:
        raise ValueError("arrival_rate must name at least one rate")
    if len(set(arrival_rates)) < len(arrival_rates):
        raise ValueError("arrival_rate must name distinct rates")
    for rate in arrival_rates:
        if not 0.0 <= rate <= 1.0:
            raise ValueError(f"arrival_rate={rate:g} must lie in [0, 1] queries a round")


def _check_assortments(num_servers: int, assortment_size: int) -> None:
    if not 1 <= assortment_size <= num_servers:
        raise ValueError(f"K={assortment_size} must lie in 1..N, and N={num_servers} servers")
    if mnl.num_assortments(num_servers, assortment_size) >= 2**31:
        raise ValueError(
            f"K={assortment_size} of N={num_servers} servers gives 2^31 assortments or more, too "
            "many for the round-robin; lower K"
        )


def _check_policy(
    label: str, policy: Policy | PerSeed, seeds: np.ndarray, problem: Problem
) -> None:
    each = policy.policies if isinstance(policy, PerSeed) else (policy,)
    if isinstance(policy, PerSeed) and len(each) != len(seeds):
        raise ValueError(f"policy {label} is for {len(each)} seeds, and the sweep has {len(seeds)}")
    for seed, one in zip(seeds, each, strict=False):
        if _signature(one) != _signature(each[0]):
            raise ValueError(
                f"policy {label} of seed {seed} must have the structure and the shapes of that "
                f"of seed {seeds[0]}"
            )
        if hasattr(one, "check"):
            one.check(problem)
    # A policy that is not defined for these shapes says so here.
    contexts = jax.ShapeDtypeStruct(problem.contexts_shape, jnp.result_type(float))
    jax.eval_shape(functools.partial(each[0].init, problem), contexts)


def _signature(policy: Policy) -> tuple[Any, tuple[tuple[int, ...], ...]]:
    """Return what decides the compiled program: static structure and the leaves' shapes."""
    return jax.tree.structure(policy), tuple(np.shape(leaf) for leaf in jax.tree.leaves(policy))


def _stack(trees: Sequence[Any]) -> Any:
    """Stack trees of equal structure along a new first axis."""
    return jax.tree.map(lambda *x: jnp.stack([jnp.asarray(leaf, float) for leaf in x]), *trees)


def group(policies: Mapping[str, Policy | PerSeed]) -> list[Group]:
    """Collect policies of equal static structure, so that each structure compiles once."""
    members: dict[Any, list[tuple[str, Any]]] = {}
    for label, policy in policies.items():
        per_seed = isinstance(policy, PerSeed)
        each = policy.policies if isinstance(policy, PerSeed) else (policy,)
        members.setdefault((_signature(each[0]), per_seed), []).append((label, _stack(each)))
    return [
        Group(tuple(label for label, _ in same), _stack([policy for _, policy in same]), per_seed)
        for (_, per_seed), same in members.items()
    ]


def records(horizon: int, every: int | None = None) -> Records:
    """Choose the recorded rounds: the last one always, and at most about `MAX_RECORDS`.

    Args:
        horizon: T.
        every: a divisor of the horizon; None chooses the smallest that keeps the records few.

    Raises:
        ValueError: if `every` does not divide the horizon.
    """
    if every is None:
        divisors = [n for n in range(1, horizon + 1) if horizon % n == 0]
        fitting = [n for n in divisors if horizon // n <= MAX_RECORDS]
        # A prime horizon has no divisor between 1 and itself: then every round is kept.
        every = fitting[0] if fitting[0] <= 4 * max(1, horizon // MAX_RECORDS) else 1
    if every < 1 or horizon % every:
        raise ValueError(f"record_every={every} must divide horizon={horizon}")
    count = horizon // every
    calls = max(n for n in range(1, MAX_CALLS + 1) if count % n == 0)
    return Records(every, count // calls, calls)


def first_slots(problem: Problem, capacity: Capacity) -> int:
    """Return the queue slots of a run's first attempt."""
    if capacity != "auto":
        return int(capacity)
    start = START_CAPACITY_POOL if problem.pooled else START_CAPACITY
    return min(start, problem.horizon)


def bytes_a_run(policy: Policy, source: Source, problem: Problem, capacity: int) -> int:
    """Return the bytes that one run keeps on the device between rounds, its policy's included."""

    def begin() -> tuple[Any, ...]:
        key = rng.run_key(0)
        rate = jnp.zeros(())
        instance = simulate.prepare(key, source, rate, problem)._replace(key=jnp.zeros(2))
        return instance, simulate.start(policy, problem, instance, capacity), policy

    shapes = jax.eval_shape(begin)
    return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(shapes))


def memory_bytes(device: jax.Device) -> int:
    """Return the memory that one device can use: its own, or its share of the machine's."""
    stats = device.memory_stats() if device.platform != "cpu" else None
    if stats and "bytes_limit" in stats:
        return int(stats["bytes_limit"])
    machine = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return machine // len(jax.local_devices())


def budget(memory_gb: float | None, devices: Sequence[jax.Device]) -> int:
    """Return the bytes that the runs of one device may fill.

    Args:
        memory_gb: what all runs in memory at once may take, in 10^9 bytes; None is a share of the
            memory that there is.
        devices: where they go.
    """
    if memory_gb is None:
        return int(MEMORY_SHARE * memory_bytes(devices[0]))
    return int(memory_gb * 1e9 / len(devices))


def width(run_bytes: int, num_runs: int, devices: Sequence[jax.Device], bytes_a_device: int) -> int:
    """Choose how many runs each device batches at once.

    Args:
        run_bytes: bytes a run.
        num_runs: runs altogether.
        devices: where they go.
        bytes_a_device: from `budget`.

    Returns:
        Runs a device and chunk, at least 1.

    Raises:
        ValueError: not even one run fits.
    """
    share = -(-num_runs // len(devices))
    fitting = bytes_a_device // run_bytes
    if fitting < 1:
        raise ValueError(
            f"memory_gb must allow a run of {run_bytes / 1e9:.3g} GB on each of {len(devices)} "
            f"devices, and it is {bytes_a_device * len(devices) / 1e9:.3g}"
        )
    if devices[0].platform == "cpu":
        best = 1 if run_bytes > CPU_BYTES_ALONE else CPU_WIDTH
    else:
        best = GPU_WIDTH
    return min(share, fitting, best)


def describe(labels: Sequence[str], run_bytes: int, runs: int, each: int, devices: int) -> str:
    """Say in a line what a group will take: bytes a run, runs a chunk, chunks.

    Args:
        labels: of the group.
        run_bytes: bytes a run.
        runs: runs of the group.
        each: runs that a device batches at once.
        devices: how many.
    """
    chunk = each * devices
    return (
        f"{', '.join(labels)}: {runs:,} runs of {run_bytes / 1e6:,.2f} MB, {chunk:,} a chunk on "
        f"{devices} device{'s' if devices > 1 else ''} ({chunk * run_bytes / 1e6:,.0f} MB), "
        f"{-(-runs // chunk):,} chunk{'s' if runs > chunk else ''}"
    )
