"""What can be told of a sweep's arguments by looking: each refusal names its key."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

from cqbjax.core import mnl
from cqbjax.core.given import is_number, is_whole, rounded
from cqbjax.core.rng import MOST_SEED
from cqbjax.engine.parts import Capacity

MOST_ROUNDS = 2**30


def check_labels(policies: Any) -> None:
    """Refuse policies without labels, and labels that nobody could read."""
    if not isinstance(policies, Mapping):
        kind = type(policies).__name__
        raise ValueError(f"policies must map a label to each policy, and it is of type {kind}")
    if not policies:
        raise ValueError("policies must name at least one policy")
    for label in policies:
        if not isinstance(label, str) or not label.strip() or not label.isprintable():
            raise ValueError(f"policies: label {label!r} must be a word, with letters to read")


def check_batch(
    chunk: int | None, memory_gb: float | None, devices: Sequence[jax.Device] | None = None
) -> None:
    """Refuse a batch that cannot be.

    Raises:
        ValueError: naming chunk, memory_gb or devices.
    """
    if chunk is not None and not (is_whole(chunk) and chunk >= 1):
        raise ValueError(f"chunk={chunk} must be a whole number of runs, at least 1, or None")
    if memory_gb is not None and not (is_number(memory_gb) and 0 < memory_gb < float("inf")):
        raise ValueError(f"memory_gb={memory_gb} must be a number above 0, or None")
    listed = isinstance(devices, list | tuple) and len(devices) > 0
    if devices is not None and not (listed and all(isinstance(d, jax.Device) for d in devices)):
        raise ValueError(
            f"devices={devices} must be a list of devices of JAX, at least one, or None"
        )


def check_runs(horizon: int, capacity: Capacity) -> None:
    """Refuse what is no number of rounds, or of queue slots."""
    if not is_whole(horizon) or not 1 <= horizon <= MOST_ROUNDS:
        raise ValueError(
            f"horizon={horizon!r} must be a whole number of rounds, at least 1 and at most 2^30"
        )
    if capacity != "auto" and not (is_whole(capacity) and 1 <= capacity < MOST_SEED):
        raise ValueError(
            f"capacity={capacity} must be `auto` or a whole number of slots, at least 1"
        )


def check_seeds(seeds: np.ndarray) -> None:
    """Refuse no seed, one given twice, and what is none: [S]."""
    if len(seeds) < 1:
        raise ValueError("num_seeds must be at least 1")
    if len(np.unique(seeds)) < len(seeds) or seeds.min() < 0:
        raise ValueError("seeds must be distinct and not negative")
    if seeds.max() >= MOST_SEED:
        raise ValueError("seeds must be below 2^31")


def check_rates(arrival_rates: Sequence[float], most: int) -> None:
    """Refuse what is no list of distinct rates, at most so many queries a round."""
    listed = np.ndim(arrival_rates) == 1 and not isinstance(arrival_rates, str)
    if not listed or not all(map(is_number, arrival_rates)):
        raise ValueError(f"arrival_rate={arrival_rates!r} must be a list of numbers")
    if not len(arrival_rates):
        raise ValueError("arrival_rate must name at least one rate")
    if len({rounded(float(rate)) for rate in arrival_rates}) < len(arrival_rates):
        raise ValueError("arrival_rate must name distinct rates, and to 12 digits two are the same")
    for rate in arrival_rates:
        if not 0.0 <= rate <= most:
            raise ValueError(f"arrival_rate={rate:g} must lie in [0, {most}] queries a round")


def check_assortments(num_servers: int, assortment_size: int) -> None:
    """Refuse K of N servers that cannot be, or has too many assortments to count."""
    if not is_whole(assortment_size):
        raise ValueError(f"K={assortment_size!r} must be a whole number")
    if not 1 <= assortment_size <= num_servers:
        raise ValueError(f"K={assortment_size} must lie in 1..N, and N={num_servers} servers")
    if mnl.num_assortments(num_servers, assortment_size) >= 2**31:
        raise ValueError(
            f"K={assortment_size} of N={num_servers} servers gives 2^31 assortments or more, too "
            "many for the round-robin; lower K"
        )


def check_ways(progress: Any, resume: Any, queries: Any) -> None:
    """Refuse what is neither a switch, nor what tells of progress, nor a folder."""
    if not isinstance(queries, bool):
        raise ValueError(f"queries={queries!r} must be True or False")
    if not isinstance(progress, bool) and not hasattr(progress, "expect"):
        raise ValueError(f"progress={progress!r} must be True, False or a Reporter")
    if resume is not None and not isinstance(resume, str | Path):
        raise ValueError(f"resume={resume!r} must be a folder, or None")
