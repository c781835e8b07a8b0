"""Memory: what a device has, what a run and its records take, and how many runs fit in a chunk."""

import functools
import os
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from cqbjax.core import rng, simulate
from cqbjax.core.inputs import is_integer, is_number
from cqbjax.core.pytree import Signature
from cqbjax.core.recorders import STANDARD, Recorder
from cqbjax.core.types import Problem
from cqbjax.engine.spec import RecordSchedule

# On a CPU a wider chunk than this no longer fits the caches, and a run with more state than this is
# fastest alone on its core (measured: docs/notebook/performance.md).
CPU_WIDTH = 256
CPU_BYTES_ALONE = 4_000_000
# On a CPU a run in a chunk of this width takes at most three percent longer than in a wider one.
# Chunks of this width, full or not, are therefore preferred: then other numbers of seeds and rates
# do not need another program.
CPU_NARROW = 32
# What the padding runs of such a chunk may cost: a share of its runs, or products of N d^2 K
# numbers over all their rounds (half a second).
CPU_SHARE_SPARE, CPU_MOST_SPARE = 0.15, 12_500_000
GPU_WIDTH = 65_536
# The share of memory that runs may fill. A CPU's memory is shared with everything else, and
# temporaries mirror part of a carry. On a GPU the state of the runs is at least nine tenths of what
# their program holds (read from compiled programs: docs/notebook/performance.md).
MEMORY_SHARE, GPU_MEMORY_SHARE = 0.4, 0.8

# Traced shapes that are cached.
CACHE_SIZE = 64

# Runs of a policy that are stored at once: many chunks on a CPU, the widest chunk on a GPU.
CPU_SHARD = 4096


def shard_runs(devices: Sequence[jax.Device]) -> int:
    """Return how many runs of a policy a sweep simulates before it stores them."""
    return CPU_SHARD if devices[0].platform == "cpu" else GPU_WIDTH * len(devices)


def device_memory(device: jax.Device) -> int:
    """Return the bytes that a device can use: its own, or its share of the machine's."""
    stats = device.memory_stats() if device.platform != "cpu" else None
    if stats and "bytes_limit" in stats:
        return int(stats["bytes_limit"])
    return machine_memory() // len(jax.local_devices())


def machine_memory() -> int:
    """Return the bytes of memory of this machine."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def check_chunks(
    chunk: int | None, memory_gb: float | None, devices: Sequence[jax.Device] | None = None
) -> None:
    """Check what determines the chunks of a sweep.

    Raises:
        ValueError: naming chunk, memory_gb or devices.
    """
    if chunk is not None and not (is_integer(chunk) and chunk >= 1):
        raise ValueError(f"chunk={chunk} must be a whole number of runs, at least 1, or None")
    if memory_gb is not None and not (is_number(memory_gb) and 0 < memory_gb < float("inf")):
        raise ValueError(f"memory_gb={memory_gb} must be a number above 0, or None")
    listed = isinstance(devices, list | tuple) and len(devices) > 0
    if devices is not None and not (listed and all(isinstance(d, jax.Device) for d in devices)):
        raise ValueError(
            f"devices={devices} must be a list of devices of JAX, at least one, or None"
        )


def device_budget(memory_gb: float | None, devices: Sequence[jax.Device]) -> int:
    """Return the bytes that the runs of one device may fill.

    Args:
        memory_gb: what all runs on the devices may take, in 10^9 bytes; None is a share of their
            memory.
        devices: where chunks run.
    """
    if memory_gb is None:
        share = MEMORY_SHARE if devices[0].platform == "cpu" else GPU_MEMORY_SHARE
        return int(share * device_memory(devices[0]))
    return int(memory_gb * 1e9 / len(devices))


def chunk_width(
    run_bytes: int, runs: int, runs_per_policy: int, devices: Sequence[jax.Device],
    bytes_per_device: int, spare: int = 0,
) -> int:  # fmt: skip
    """Choose how many runs each device has in a chunk.

    Args:
        run_bytes: bytes of a run.
        runs: number of runs of the batch.
        runs_per_policy: number of runs of one policy. On a CPU a chunk is not wider, so that all
            batches of a sweep have the same width and share the program that draws their instances.
        devices: where chunks run.
        bytes_per_device: from `device_budget`.
        spare: padding runs per device that a CPU finishes in about half a second, and that may
            therefore be added.

    Returns:
        Runs per device and chunk, at least 1.

    Raises:
        ValueError: a single run does not fit.
    """
    fitting = bytes_per_device // run_bytes
    if fitting < 1:
        raise ValueError(
            f"memory_gb must allow a run of {run_bytes / 1e9:.3g} GB on each of {len(devices)} "
            f"devices, and it is {bytes_per_device * len(devices) / 1e9:.3g}"
        )
    share, policy_share = (-(-count // len(devices)) for count in (runs, runs_per_policy))
    if devices[0].platform != "cpu":
        return min(share, fitting, GPU_WIDTH)
    if run_bytes > CPU_BYTES_ALONE:
        return 1
    padding = -policy_share % CPU_NARROW
    if fitting >= CPU_NARROW and padding <= max(spare, CPU_SHARE_SPARE * policy_share):
        return CPU_NARROW
    return min(share, fitting, CPU_WIDTH, max(CPU_NARROW, policy_share))


@functools.lru_cache(CACHE_SIZE)
def bytes_per_run(
    policy: Signature,
    source: Signature,
    problem: Problem,
    slots: int,
    recorders: tuple[Recorder, ...] = STANDARD,
) -> int:
    """Return the bytes of a run on the device between rounds, its policy's included."""
    state = jax.eval_shape(
        lambda policy, instance: (
            policy, instance, simulate.start(policy, problem, instance, slots, recording=recorders),
        ),
        policy.shapes(), _instance_shapes(source, problem),
    )  # fmt: skip
    return _tree_bytes(state)


@functools.lru_cache(CACHE_SIZE)
def drawn_bytes(policy: Signature, problem: Problem) -> int:
    """Return the bytes that a policy with a method `draws` draws in a round (ACQB's M samples)."""
    shapes = policy.shapes()
    if not hasattr(shapes, "draws"):
        return 0
    drawn = jax.eval_shape(lambda policy: policy.draws(rng.run_key(0), problem), shapes)
    return _tree_bytes(drawn)


@functools.lru_cache(CACHE_SIZE)
def _instance_shapes(source: Signature, problem: Problem) -> Any:
    """Return the shapes of an instance, traced once for all policies."""

    def draw(source: Any) -> simulate.Instance:
        instance = simulate.draw_instance(rng.run_key(0), source, jnp.zeros(()), problem)
        return instance._replace(key=jnp.zeros(2))

    return jax.eval_shape(draw, source.shapes())


def record_bytes(recorders: tuple[Recorder, ...], problem: Problem, records: RecordSchedule) -> int:
    """Return the bytes of the records of one run."""
    count = {"round": records.per_call * records.calls, "run": 1}
    return sum(
        count[recorder.per] * _tree_bytes(shape)
        for recorder, shape in zip(recorders, record_shapes(recorders, problem), strict=True)
    )


@functools.lru_cache(CACHE_SIZE)
def record_shapes(recorders: tuple[Recorder, ...], problem: Problem) -> list[jax.ShapeDtypeStruct]:
    """Return the shape and type of one record of each recorder."""
    return jax.eval_shape(lambda: [one.read(one.start(problem)) for one in recorders])


def _tree_bytes(tree: Any) -> int:
    return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(tree))
