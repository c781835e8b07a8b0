"""What a user waits for: whole processes timed from outside, caches empty and full."""

import os
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import xarray as xr

from benchmarks.measure import child
from cqbjax.results import store as results

# docs/notebook/performance.md sets their seconds beside those of earlier code.
COMMANDS = {
    "composing": ("run", "experiment=synthetic", "--cfg", "job"),
    "first study": ("run", "experiment=synthetic", "K=1", "num_seeds=20", "name=first"),
    "synthetic study": ("run", "experiment=synthetic", "num_seeds=100"),
}
QUICK = ("num_seeds=2", "horizon=40", "policy=[random]")


def rows(quick: bool) -> Iterator[dict[str, Any]]:
    """Time each command cold, then warm.

    Args:
        quick: a tiny study, to see that all works.

    Yields:
        A row a command and cache: `command`, `caches` (cold or warm), `seconds` of the whole
        process, `simulated`, the share of it that was simulation by the stored result.
    """
    for name, (command, *words) in COMMANDS.items():
        if quick and name == "synthetic study":
            continue
        small = QUICK if quick and name != "composing" else ()
        with tempfile.TemporaryDirectory(prefix="bench_start_") as folder:
            for caches in ("cold", "warm"):
                # Results of their own, too: what is stored is not run again.
                results_dir = Path(folder) / caches
                stored = () if name == "composing" else (f"results_dir={results_dir}",)
                seconds = timed([command, *words, *small, *stored], Path(folder) / "cache")
                share = None
                if stored:
                    share = _simulated(results.load_points(results_dir)) / seconds
                yield {"command": name, "caches": caches, "seconds": seconds, "simulated": share}


def _simulated(points: Sequence[xr.Dataset]) -> float:
    """Return the seconds in which a study's points were simulated, compiling apart."""
    return sum(
        float(point.seconds_per_round.sum())
        * point.sizes["arrival_rate"]
        * point.sizes["seed"]
        * point.attrs["horizon"]
        for point in points
    )


def timed(words: list[str], cache: Path) -> float:
    """Run a command of the package with a cache folder of its own, and return the seconds.

    Raises:
        RuntimeError: it failed.
    """
    environment = {**os.environ, "XDG_CACHE_HOME": str(cache)}
    environment.pop("JAX_COMPILATION_CACHE_DIR", None)
    begun = time.perf_counter()
    child(["-m", "cqbjax.cli", *words], " ".join(words), environment)
    return time.perf_counter() - begun
