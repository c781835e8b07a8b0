"""The benchmark's sections: each yields rows of the report. `run` runs them."""

import functools
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import threadpoolctl

from benchmarks import cases, costs, numpy_loop, peers, report
from benchmarks.measure import measure, time_calls
from cqbjax.results import store as results
from tests import reference

# docs/notebook/performance.md compares their seconds with those of earlier code.
COMMANDS = {
    "composing": ("run", "experiment=synthetic", "--cfg", "job"),
    "first study": ("run", "experiment=synthetic", "K=1", "num_seeds=20", "name=first"),
    "synthetic study": ("run", "experiment=synthetic", "num_seeds=100"),
}
QUICK = ("num_seeds=2", "horizon=40", "policy=[random]")

Row = dict[str, Any]
Log = Callable[[str], None]
# Section -> its rows, of those that ran before.
Rows = Mapping[str, list[Row]]


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


def measure_throughput(quick: bool, log: Log) -> Iterator[Row]:
    """Measure rounds a second by batch width."""
    for case in cases.throughput(quick):
        log(f"{case.name}: {', '.join(case.policies)}, batch {case.batch}")
        yield from measure(case)


def compare_numpy(quick: bool, log: Log, before: Rows) -> Iterator[Row]:
    """Compare with NumPy loops on one core: a lean one, and the reference.

    Args:
        quick: few and short cases.
        log: receives a line before each case.
        before: with the rows of `throughput`, of which the fastest batch counts.
    """
    for name, case in cases.problems(quick).items():
        # Pairs are expensive at d = 384, and early rounds are the loops' cheapest.
        small = case.bytes_a_run("acqb") < 1_000_000
        long = small or (case.assortment_size == 1 and not quick)
        rounds = case.horizon if long else 20 if quick else 200
        run = numpy_loop.record(case.source, case.assortment_size, case.arrival_rate, rounds)
        log(f"{name}: NumPy loops, {rounds} rounds")
        loops: dict[str, Callable[..., Any]] = {"lean loop": numpy_loop.play}
        if case.source.problem(1, 1).num_servers < 100:
            loops["reference"] = functools.partial(reference.simulate, "acqb")
        measured = [
            row["rounds_a_second"] for row in before["throughput"]
            if (row["policy"], row["case"]) == ("acqb", name) and row["rounds_a_second"]
        ]  # fmt: skip
        speed = max(measured, default=None)
        for loop, play in loops.items():
            with threadpoolctl.threadpool_limits(1):
                seconds = time_calls(lambda: play(*run), 1)[0] / rounds  # noqa: B023
            yield {
                "case": name, "loop": loop, "rounds": rounds, "seconds_a_round": seconds,
                "rounds_a_second": speed, "ratio": speed and speed * seconds,
            }  # fmt: skip


SECTIONS: dict[str, Callable[[bool, Log, Rows], Iterable[Row]]] = {
    "start": lambda quick, log, _: time_commands(quick, log),
    "throughput": lambda quick, log, _: measure_throughput(quick, log),
    "numpy": compare_numpy,
    "scenarios": lambda quick, log, _: costs.rows(quick, log),
    "peers": lambda quick, log, _: peers.rows(quick, log),
}


def run(quick: bool = False, only: Sequence[str] = (), log: Log = print) -> dict[str, Any]:
    """Run the benchmark and return the report, JSON values only.

    JAX's compilation cache has to be an empty folder (`backend.configure`).

    Args:
        quick: few and short cases: shows that all works.
        only: sections to run; all if empty.
        log: receives a line before each step.

    Raises:
        ValueError: `only` names an unknown section.
    """
    for name in only:
        if name not in SECTIONS:
            raise ValueError(f"section {name} is unknown; choose from {', '.join(SECTIONS)}")
    begun, rows = time.perf_counter(), {name: list[Row]() for name in SECTIONS}
    for name, section in SECTIONS.items():
        if not only or name in only:
            rows[name] = list(section(quick, log, rows))
    return report.assemble(quick, begun, rows, only=list(only))
