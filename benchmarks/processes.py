"""Whole processes, timed from outside: commands, a sweep of 1,000 points, and long runs."""

import math
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

from benchmarks.cases import ACQB
from benchmarks.measure import Clock, call_in_process
from cqbjax.core.labels import OPTIMAL
from cqbjax.core.types import Source
from cqbjax.engine.sweep import sweep
from cqbjax.results import store as results
from cqbjax.sources import PromptPool, Synthetic

# docs/notebook/performance.md compares their seconds with those of earlier code.
COMMANDS = {
    "composing": ("run", "experiment=synthetic", "--cfg", "job"),
    "first study": ("run", "experiment=synthetic", "K=1", "num_seeds=20", "name=first"),
    "synthetic study": ("run", "experiment=synthetic", "num_seeds=100"),
}
QUICK = ("num_seeds=2", "horizon=40", "policy=[random]")
TENTHS, RATES = [i / 10 for i in range(1, 11)], [round(0.5 + 0.02 * i, 2) for i in range(10)]
GRID = {"alpha_scale": TENTHS, "c1": TENTHS, "arrival_rate": RATES}
SEEDS, HORIZON = 20, 1000
LABELS = ("acqb", OPTIMAL)
# A table with EmbedLLM's number of LLMs and the embeddings of a large sentence encoder.
SERVERS, DIM = 112, 768
# Rounds of a run, prompts of its table (0: d = 5, N = 5 without one), and prompts of its pool.
LONG_RUNS = (
    (10_000, 0, 0), (100_000, 0, 0), (1_000_000, 0, 0), (50, 10_000, 1000), (50, 100_000, 1000),
    (50, 100_000, 250), (50, 100_000, 4000),
)  # fmt: skip
QUICK_RUNS = ((200, 0, 0), (10, 1000, 20))
RECORDS = 50
STATUS = Path("/proc/self/status")

Row = dict[str, Any]


def time_command(words: Sequence[str], cache: Path) -> float:
    """Run a command of the package with a separate cache folder, and return the seconds.

    Raises:
        RuntimeError: it failed.
    """
    environment = {**os.environ, "XDG_CACHE_HOME": str(cache)}
    environment.pop("JAX_COMPILATION_CACHE_DIR", None)
    begun = time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-m", "cqbjax.cli", *words], capture_output=True, text=True,
        check=False, env=environment, cwd=Path(__file__).resolve().parent.parent,
    )  # fmt: skip
    if done.returncode:
        raise RuntimeError(f"{' '.join(words)} failed: {done.stderr.strip()[-300:]}")
    return time.perf_counter() - begun


def time_commands(quick: bool, log: Callable[[str], None]) -> Iterator[Row]:
    """Time each command cold, then warm: whole processes, as a user waits for them.

    Args:
        quick: a tiny study.
        log: receives a line first.

    Yields:
        A row a command and cache: `command`, `caches` (cold or warm), `seconds` of the whole
        process, `simulated`, the share of simulation in them, from the stored result.
    """
    log("whole commands, with empty caches and with full ones")
    for name, (command, *words) in COMMANDS.items():
        if quick and name == "synthetic study":
            continue
        small = QUICK if quick and name != "composing" else ()
        with tempfile.TemporaryDirectory(prefix="bench_start_") as folder:
            for caches in ("cold", "warm"):
                # A results folder each: stored results would not run again.
                folder_of = Path(folder) / caches
                stored = () if name == "composing" else (f"results_dir={folder_of}",)
                seconds = time_command([command, *words, *small, *stored], Path(folder) / "cache")
                simulated = sum(
                    float(point.seconds_per_round.sum()) * point.attrs["horizon"]
                    * point.sizes["arrival_rate"] * point.sizes["seed"]
                    for point in (results.load_points(folder_of) if stored else ())
                )  # fmt: skip
                share = simulated / seconds if stored else None
                yield {"command": name, "caches": caches, "seconds": seconds, "simulated": share}


def time_sweep(
    quick: bool, speeds: Mapping[str, float | None], composing: Callable[[Sequence[str]], float]
) -> Iterator[Row]:
    """Time a sweep of 1,000 points, with empty caches and with the programs compiled.

    Args:
        quick: two values a key, and few rounds.
        speeds: rounds a second of ACQB and the optimal policy, by label, of this run.
        composing: words of a sweep -> the seconds of composing and validating it.

    Yields:
        A row for empty caches and one for full ones: `points`, `rounds` (if points shared none),
        `seconds` of the whole process, `rounds_alone`, the seconds of as many rounds at the
        throughput section's speeds, and `composing`.
    """
    seeds, horizon = (2, 40) if quick else (SEEDS, HORIZON)
    words = [f"{key}={','.join(map(str, of[: 2 if quick else None]))}" for key, of in GRID.items()]
    words += ["policy=[acqb]", f"num_seeds={seeds}", f"horizon={horizon}", "name=sweep"]
    points = (2 if quick else 10) ** len(GRID)
    each = points * seeds * horizon
    known = [speeds.get(label) for label in LABELS]
    alone = sum(each / speed for speed in known if speed) if all(known) else None
    composed = composing(words)
    with tempfile.TemporaryDirectory(prefix="bench_sweep_") as folder:
        for caches in ("cold", "warm"):
            stored = f"results_dir={Path(folder) / caches}"
            seconds = time_command(["run", "-m", *words, stored], Path(folder) / "cache")
            yield {
                "caches": caches, "points": points, "rounds": each * len(LABELS),
                "seconds": seconds, "rounds_alone": alone, "composing": composed,
            }  # fmt: skip


def measure_long_run(rounds: int, prompts: int, pool: int) -> Row:
    """Run ACQB once on one core and return its seconds and the memory of this process, in MB.

    A table holds random unit vectors and random utilities.
    """
    source: Source = Synthetic()
    if prompts:
        draws = np.random.default_rng(0)
        contexts = draws.standard_normal((prompts, DIM), np.float32)
        contexts /= np.linalg.norm(contexts, axis=1, keepdims=True)
        utilities = draws.standard_normal((prompts, SERVERS), np.float32)
        source = PromptPool(contexts=contexts, utilities=utilities, pool_size=pool)  # type: ignore[arg-type]
    before = _peak_memory()
    clock, begun = Clock(), time.perf_counter()
    sweep(
        {"acqb": ACQB}, source, arrival_rate=[0.7], num_seeds=1, horizon=rounds, chunk=1,
        record_every=max(1, rounds // RECORDS), devices=jax.devices()[:1], progress=clock,
    )  # fmt: skip
    whole = time.perf_counter() - begun
    running = sum(s.seconds for s in clock.finish() if (s.label, s.doing) == ("acqb", "running"))
    return {
        "rounds": rounds, "prompts": prompts, "pool": pool,
        "seconds": round(whole, 2), "running": round(running, 3),
        "table_mb": round(before), "peak_mb": round(_peak_memory()),
    }  # fmt: skip


def time_long_runs(quick: bool, cache: Path, log: Callable[[str], None]) -> Iterator[Row]:
    """Run each long run in a new process, whose peak memory is its own.

    Args:
        quick: two short runs.
        cache: JAX's compilation cache.
        log: receives a line before each run.

    Yields:
        A row a run: `rounds`, `prompts` and `pool` of its table (0: synthetic, d = 5, N = 5),
        `seconds` of the whole sweep, compiling and the optimal policy included, `running`, the
        seconds in which ACQB ran, `table_mb`, the peak memory before it, `peak_mb`, the peak
        memory, and `exponent`, by which power of the larger size `running` grew since the row
        above.
    """
    before: Row = {}
    for sizes in QUICK_RUNS if quick else LONG_RUNS:
        one = dict(zip(("rounds", "prompts", "pool"), sizes, strict=True))
        log(f"one run: {one}")
        row = call_in_process(measure_long_run, cache, **one)
        yield row | {"exponent": _exponent(before, row)}
        before = row


def _exponent(before: Row, row: Row) -> float | None:
    """Return the slope of log seconds by log of the one size that differs; None if several do."""
    if not before:
        return None
    grew = [row[k] / before[k] for k in ("rounds", "prompts", "pool") if row[k] != before[k] > 0]
    if len(grew) != 1 or (row["prompts"] > 0) != (before["prompts"] > 0):
        return None
    return round(math.log(row["running"] / before["running"]) / math.log(grew[0]), 2)


def _peak_memory() -> float:
    """Return the peak memory of this process, in 10^6 bytes.

    Linux's `getrusage` includes the parent's peak; /proc has the process's own.
    """
    if STATUS.is_file():
        (line,) = [line for line in STATUS.read_text().splitlines() if line.startswith("VmHWM")]
        return int(line.split()[1]) * 1024 / 1e6
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e6
