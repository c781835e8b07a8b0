"""Whole processes, timed from outside: commands."""

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from cqbjax.results import store as results

# docs/notebook/performance.md compares their seconds with those of earlier code.
COMMANDS = {
    "composing": ("run", "experiment=synthetic", "--cfg", "job"),
    "first study": ("run", "experiment=synthetic", "K=1", "num_seeds=20", "name=first"),
    "synthetic study": ("run", "experiment=synthetic", "num_seeds=100"),
}
QUICK = ("num_seeds=2", "horizon=40", "policy=[random]")

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
