"""What grows with the rounds of a run, and with the prompts and pool of a table: time and memory.

Each row is a process of its own, so that the most memory that it ever held is its own.
"""

import math
import resource
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.cases import ACQB
from benchmarks.measure import Clock, elsewhere
from cqbjax.core.types import Source
from cqbjax.engine.sweep import sweep
from cqbjax.sources import Routing, Synthetic

HORIZONS, PROMPTS = (10_000, 100_000, 1_000_000), (10_000, 100_000)
# A table of EmbedLLM's LLMs whose embeddings are as long as those of a large sentence encoder.
SERVERS, DIM, ROUNDS, POOLS = 112, 768, 50, (250, 4000)
RECORDS = 50
OWN = Path("/proc/self/status")


def asked(quick: bool) -> list[dict[str, int]]:
    """Return what is run: rounds of a run at d = 5, N = 5; then prompts of a table, and its pools.

    Args:
        quick: one of each, and short.
    """
    some = [(200, 0, 0), (10, 1000, 20)]
    if not quick:
        some = [(horizon, 0, 0) for horizon in HORIZONS]
        some += [(ROUNDS, prompts, 1000) for prompts in PROMPTS]
        some += [(ROUNDS, PROMPTS[-1], pool) for pool in POOLS]
    return [dict(zip(("rounds", "prompts", "pool"), one, strict=True)) for one in some]


def table(prompts: int, pool: int) -> Source:
    """Return a generated table: random unit vectors, and utilities of no meaning."""
    draws = np.random.default_rng(0)
    contexts = draws.standard_normal((prompts, DIM), np.float32)
    contexts /= np.linalg.norm(contexts, axis=1, keepdims=True)
    utilities = draws.standard_normal((prompts, SERVERS), np.float32)
    return Routing(contexts=contexts, utilities=utilities, pool_size=pool)  # type: ignore[arg-type]


def measured(rounds: int, prompts: int, pool: int) -> dict[str, Any]:
    """Run ACQB once on one core and return its seconds and the memory of this process, in MB."""
    import jax

    source: Source = table(prompts, pool) if prompts else Synthetic()
    before = _memory()
    clock, begun = Clock(), time.perf_counter()
    sweep(
        {"acqb": ACQB}, source, arrival_rate=[0.7], num_seeds=1, horizon=rounds, chunk=1,
        record_every=max(1, rounds // RECORDS), devices=jax.devices()[:1], progress=clock,
    )  # fmt: skip
    whole = time.perf_counter() - begun
    spans = [span for span in clock.finish() if span.label == "acqb"]
    running = sum(span.seconds for span in spans if span.doing == "running")
    return {
        "rounds": rounds, "prompts": prompts, "pool": pool,
        "seconds": round(whole, 2), "running": round(running, 3),
        "table_mb": round(before), "peak_mb": round(_memory()),
    }  # fmt: skip


def rows(quick: bool, cache: Path, say: Callable[[str], None]) -> Iterator[dict[str, Any]]:
    """Run each in a process of its own.

    Args:
        quick: two short ones, to see that all works.
        cache: JAX's compilation cache.
        say: is told what comes next.

    Yields:
        A row a run: `rounds`, `prompts` and `pool` of its table (0: synthetic, d = 5, N = 5),
        `seconds` of the whole sweep, compiling and the optimal policy included, `running`, the
        seconds in which ACQB ran, `table_mb`, the most memory held before it, `peak_mb`, the most
        ever, and `exponent`, by which power of what grows `running` grew since the row above.

    Raises:
        RuntimeError: a run failed.
    """
    before: dict[str, Any] = {}
    for one in asked(quick):
        say(f"one run: {one}")
        row = elsewhere(measured, cache, **one)
        yield row | {"exponent": _exponent(before, row)}
        before = row


def _exponent(before: dict[str, Any], row: dict[str, Any]) -> float | None:
    """Return the slope of log seconds by log of the one thing that differs; None: not one."""
    if not before:
        return None
    grew = [row[k] / before[k] for k in ("rounds", "prompts", "pool") if row[k] != before[k] > 0]
    if len(grew) != 1 or (row["prompts"] > 0) != (before["prompts"] > 0):
        return None
    return round(math.log(row["running"] / before["running"]) / math.log(grew[0]), 2)


def _memory() -> float:
    """Return the most memory that this process ever held, in 10^6 bytes.

    Linux counts in `getrusage` what the process held that began this one; its own is told apart.
    """
    if OWN.is_file():
        (line,) = [line for line in OWN.read_text().splitlines() if line.startswith("VmHWM")]
        return int(line.split()[1]) * 1024 / 1e6
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e6
