"""How many runs fit: the memory that there is, the bytes of a run, the width of a batch."""

import os
from collections.abc import Sequence

import jax

# On a CPU a batch wider than this no longer fits the caches, and a run with more state than this is
# fastest alone on its core (measured: docs/notebook/performance.md).
CPU_WIDTH = 256
CPU_BYTES_ALONE = 4_000_000
# From this many runs on a CPU gains little from more, less than from one program fewer.
CPU_NARROW = 8
GPU_WIDTH = 65_536
# The share of memory that runs may fill. A CPU's is shared with all else, and temporaries mirror
# part of a carry. On a GPU what a run keeps is within a tenth of all that its program holds, its
# temporaries included (read from compiled programs: docs/notebook/performance.md).
MEMORY_SHARE, GPU_MEMORY_SHARE = 0.4, 0.8

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
    bytes_a_device: int,
) -> int:  # fmt: skip
    """Choose how many runs each device batches at once.

    Args:
        run_bytes: bytes a run.
        runs: of the group.
        runs_a_policy: of one policy. A CPU batches no more at once, so that all groups of a sweep
            are as wide and share the program that draws their instances.
        devices: where they go.
        bytes_a_device: from `budget`.

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
    best = 1 if run_bytes > CPU_BYTES_ALONE else min(CPU_WIDTH, max(CPU_NARROW, share_a_policy))
    return min(share, fitting, best)
