"""How many runs fit: the memory that there is, the bytes of a run, the width of a batch."""

import functools
import os
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from cqbjax.core import rng, simulate
from cqbjax.core.pytree import Kind
from cqbjax.core.recorders import ALWAYS, Recorder
from cqbjax.core.types import Policy, Problem, Source

# On a CPU a batch wider than this no longer fits the caches, and a run with more state than this is
# fastest alone on its core (measured: docs/notebook/performance.md).
CPU_WIDTH = 256
CPU_BYTES_ALONE = 4_000_000
# Of so many runs on a CPU each takes what it takes in wider batches, within three percent; of one
# width are therefore all batches, full or not, so that other seeds and rates are no other program.
CPU_NARROW = 32
# What may be wasted on it: a share of a batch's runs, or products of N d^2 K numbers, over all
# rounds of runs that nobody asked for (half a second).
CPU_SHARE_SPARE, CPU_MOST_SPARE = 0.15, 12_500_000
GPU_WIDTH = 65_536
# The share of memory that runs may fill. A CPU's is shared with all else, and temporaries mirror
# part of a carry. On a GPU what a run keeps is within a tenth of all that its program holds, its
# temporaries included (read from compiled programs: docs/notebook/performance.md).
MEMORY_SHARE, GPU_MEMORY_SHARE = 0.4, 0.8

# Kinds of runs whose bytes are remembered.
KINDS_KEPT = 64

# Runs of a policy that are stored at once: many batches on a CPU, the widest batch on a GPU.
CPU_SHARD = 4096


def shard_runs(devices: Sequence[jax.Device]) -> int:
    """Return how many runs of a policy a sweep simulates before it stores them."""
    return CPU_SHARD if devices[0].platform == "cpu" else GPU_WIDTH * len(devices)


def memory_bytes(device: jax.Device) -> int:
    """Return the memory that one device can use: its own, or its share of the machine's."""
    stats = device.memory_stats() if device.platform != "cpu" else None
    if stats and "bytes_limit" in stats:
        return int(stats["bytes_limit"])
    return machine_bytes() // len(jax.local_devices())


def machine_bytes() -> int:
    """Return the memory of this machine."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def check_arrays(size: int) -> None:
    """Refuse results that the machine could not hold.

    Args:
        size: of what is recorded of a point, bytes.

    Raises:
        ValueError: naming what makes it smaller.
    """
    if size > machine_bytes():
        raise ValueError(
            f"what is recorded takes {size / 1e9:.4g} GB, and the machine has "
            f"{machine_bytes() / 1e9:.3g}: lower num_seeds or horizon, raise record_every, or "
            "give the seeds in several studies by first_seed"
        )


def budget(memory_gb: float | None, devices: Sequence[jax.Device]) -> int:
    """Return the bytes that the runs of one device may fill.

    Args:
        memory_gb: what all runs in memory at once may take, in 10^9 bytes; None is a share of the
            memory that there is.
        devices: where they go.
    """
    if memory_gb is None:
        share = MEMORY_SHARE if devices[0].platform == "cpu" else GPU_MEMORY_SHARE
        return int(share * memory_bytes(devices[0]))
    return int(memory_gb * 1e9 / len(devices))


def width(
    run_bytes: int, runs: int, runs_a_policy: int, devices: Sequence[jax.Device],
    bytes_a_device: int, spare: int = 0,
) -> int:  # fmt: skip
    """Choose how many runs each device batches at once.

    Args:
        run_bytes: bytes a run.
        runs: of the group.
        runs_a_policy: of one policy. A CPU batches no more at once, so that all groups of a sweep
            are as wide and share the program that draws their instances.
        devices: where they go.
        bytes_a_device: from `budget`.
        spare: runs a device that nobody asked for and that are quick enough to be run all the same
            (`spare`).

    Returns:
        Runs a device and chunk, at least 1.

    Raises:
        ValueError: not even one run fits.
    """
    fitting = bytes_a_device // run_bytes
    if fitting < 1:
        raise ValueError(
            f"memory_gb must allow a run of {run_bytes / 1e9:.3g} GB on each of {len(devices)} "
            f"devices, and it is {bytes_a_device * len(devices) / 1e9:.3g}"
        )
    share, share_a_policy = (-(-count // len(devices)) for count in (runs, runs_a_policy))
    if devices[0].platform != "cpu":
        return min(share, fitting, GPU_WIDTH)
    if run_bytes > CPU_BYTES_ALONE:
        return 1
    unasked = -share_a_policy % CPU_NARROW
    if fitting >= CPU_NARROW and unasked <= max(spare, CPU_SHARE_SPARE * share_a_policy):
        return CPU_NARROW
    return min(share, fitting, CPU_WIDTH, max(CPU_NARROW, share_a_policy))


def spare(problem: Problem) -> int:
    """Return how many runs a CPU does so quickly that they may be run unasked."""
    products = problem.num_servers * problem.dim**2 * problem.assortment_size
    return CPU_MOST_SPARE // (products * problem.horizon)


@functools.lru_cache(KINDS_KEPT)
def bytes_a_run(
    policy: Kind,
    source: Kind,
    problem: Problem,
    slots: int,
    recorders: tuple[Recorder, ...] = ALWAYS,
) -> int:
    """Return the bytes that one run keeps on the device between rounds, its policy's included."""

    def begin(policy: Policy, instance: simulate.Instance) -> tuple[Any, ...]:
        carry = simulate.start(policy, problem, instance, slots, recording=recorders)
        return instance, carry, policy

    shapes = jax.eval_shape(begin, policy.shapes(), _instance(source, problem))
    return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(shapes))


@functools.lru_cache(KINDS_KEPT)
def bytes_drawn(policy: Kind, problem: Problem) -> int:
    """Return the bytes of what a policy draws a round, where it says so, as ACQB's M samples."""

    def draw(policy: Any) -> Any:
        return policy.draws(rng.run_key(0), problem) if hasattr(policy, "draws") else ()

    drawn = jax.eval_shape(draw, policy.shapes())
    return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(drawn))


@functools.lru_cache(KINDS_KEPT)
def _instance(source: Kind, problem: Problem) -> Any:
    """Return the shapes of an instance, traced once for all policies."""

    def draw(source: Source) -> simulate.Instance:
        instance = simulate.draw_instance(rng.run_key(0), source, jnp.zeros(()), problem)
        return instance._replace(key=jnp.zeros(2))

    return jax.eval_shape(draw, source.shapes())
