"""What a user waits for: whole processes timed from outside, caches empty and full."""

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

# Of these the earlier code took the seconds that the ratios of docs/performance.md are to.
COMMANDS = {
    "composing": ("run", "experiment=synthetic", "--cfg", "job"),
    "first study": ("run", "experiment=synthetic", "K=1", "num_seeds=20", "name=first"),
    "synthetic study": ("run", "experiment=synthetic", "num_seeds=100"),
}
QUICK = ("num_seeds=2", "horizon=40", "policy=[random]")
# The simulator's own share of a line such as `simulation 9.1 s of 30.2 s (30%)`.
SHARE_LINE = "simulation "


def rows(quick: bool) -> Iterator[dict[str, Any]]:
    """Time each command cold, then warm.

    Args:
        quick: a tiny study, to see that all works.

    Yields:
        A row a command and cache: `command`, `caches` (cold or warm), `seconds` of the whole
        process, `simulated`, the share of it that the study itself says was simulation.
    """
    for name, (command, *words) in COMMANDS.items():
        if quick and name == "synthetic study":
            continue
        small = QUICK if quick and name != "composing" else ()
        with tempfile.TemporaryDirectory(prefix="bench_start_") as folder:
            stored = () if name == "composing" else (f"results_dir={folder}/results",)
            for caches in ("cold", "warm"):
                seconds, said = timed([command, *words, *small, *stored], Path(folder) / "cache")
                yield {
                    "command": name, "caches": caches, "seconds": seconds,
                    "simulated": simulated(said),
                }  # fmt: skip


def timed(words: list[str], cache: Path) -> tuple[float, str]:
    """Run a command of the package with a cache folder of its own: seconds, and what it printed.

    Raises:
        RuntimeError: it failed.
    """
    environment = {**os.environ, "XDG_CACHE_HOME": str(cache)}
    environment.pop("JAX_COMPILATION_CACHE_DIR", None)
    begun = time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-m", "cqbjax.commands", *words],
        capture_output=True, text=True, check=False, env=environment,
    )  # fmt: skip
    seconds = time.perf_counter() - begun
    if done.returncode:
        raise RuntimeError(f"{' '.join(words)} failed: {done.stderr.strip()[-300:]}")
    return seconds, done.stdout


def simulated(said: str) -> float | None:
    """Return the share of simulation that a study printed, None where there is none."""
    for line in said.splitlines():
        if line.startswith(SHARE_LINE):
            return float(line.rpartition("(")[2].partition("%")[0]) / 100
    return None
