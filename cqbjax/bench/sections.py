"""The benchmark's sections: each returns rows for the report."""

import datetime
import importlib.metadata
import json
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from cqbjax import backend
from cqbjax.bench import cases, numpy_loop
from cqbjax.bench.measure import compile_again, measure
from cqbjax.sweep import sweep

Row = dict[str, Any]
Rows = list[Row]
SCHEMA = 1
VERSIONS = ("cqbjax", "jax", "jaxlib", "numpy")
COPY_BYTES = 2**30
# (section, what is measured, platform, target, at least or at most)
FASTER = {
    "cpu": {"d=5 N=5 K=1": 250_000, "d=5 N=5 K=2": 100_000, "d=384 N=14 K=1": 1_500,
            "d=384 N=112 K=1": 150},
    "gpu": {"d=5 N=5 K=1": 10_000_000, "d=384 N=14 K=1": 150_000, "d=384 N=112 K=1": 20_000},
}  # fmt: skip
RATIOS = {"d=5 N=5 K=1": 40.0, "d=384 N=14 K=1": 80.0}
MOST_COMPILE_SECONDS, MOST_GROWTH, LEAST_SHARE, MOST_STUDY_SECONDS = 15.0, 11.0, 0.5, 300.0


class Bench:
    """One run of the benchmark: what was asked for, and the rows so far.

    Args:
        quick: few and short cases.
        reference: the module of the tests' reference simulator, None where there are no tests.
        cache: the compilation cache of this process, empty at its start.
        study: time the whole offline study although this is no GPU.
        say: is told what comes next.
    """

    def __init__(
        self,
        quick: bool,
        reference: ModuleType | None,
        cache: Path,
        study: bool,
        say: Callable[[str], None],
    ) -> None:
        self.quick = quick
        self.reference = reference
        self.cache = cache
        self.say = say
        self.rows: dict[str, Rows] = {name: [] for name in SECTIONS}
        self.gpu = jax.devices()[0].platform == "gpu"
        self.study_wanted = study or self.gpu

    def throughput(self) -> Rows:
        """Rounds a second by batch width."""
        found: Rows = []
        for case in cases.throughput(self.quick):
            self.say(f"{case.name}: {', '.join(case.policies)}, batch {case.batch}")
            found += measure(case)
        return found

    def best(self, name: str) -> Row | None:
        """Return the fastest row of ACQB at a problem, None if it was not measured."""
        rows = [r for r in self.rows["throughput"] if (r["case"], r["policy"]) == (name, "acqb")]
        return max(rows, key=lambda row: row["rounds_a_second"], default=None)

    def numpy(self) -> Rows:
        """Compare with NumPy loops on one core: our own lean one, and the tests' reference."""
        found = []
        for name, case in cases.problems(self.quick).items():
            small = case.bytes_a_run("acqb") < 1_000_000
            rounds = case.horizon if small else 20 if self.quick else 60
            run = numpy_loop.record(case.source, case.assortment_size, case.arrival_rate, rounds)
            constants = numpy_loop.Constants(case.assortment_size)
            self.say(f"{name}: NumPy loops, {rounds} rounds")
            timed = {"lean loop": numpy_loop.seconds_a_round(run, constants)}
            if self.reference is not None and case.source.problem(1, 1).num_servers < 100:
                timed["tests/reference.py"] = _reference_seconds(self.reference, run, constants)
            best = self.best(name)
            for loop, seconds in timed.items():
                speed = best and best["rounds_a_second"]
                row = {
                    "case": name,
                    "loop": loop,
                    "rounds": rounds,
                    "loop_seconds_a_round": seconds,
                }
                ratio = None if speed is None else speed * seconds
                found.append(row | {"rounds_a_second": speed, "ratio": ratio})
        return found

    def growth(self) -> Rows:
        """Cost of a round as one thing grows; batch widths are in `throughput`."""
        found: Rows = []
        for axis, values in cases.growth(self.quick).items():
            before = None
            for value, case in values:
                self.say(f"growth: {axis} {value}")
                (row,) = measure(case)
                seconds = 1 / row["rounds_a_second"]
                run = seconds * case.horizon
                kept = ("case", "horizon", "batch", "devices", "compile_seconds", "repeated")
                found.append(
                    {"axis": axis, "value": value, "seconds_a_round_run": seconds,
                     "run_cost_over_row_above": before and run / before}
                    | {key: row[key] for key in kept}
                )  # fmt: skip
                before = run
        return found

    def compile(self) -> Rows:
        """Compile each static shape in this process, then in a second one with the same cache."""
        found = []
        for number, case in enumerate(cases.compiled(self.quick)):
            self.say(f"{case.name}: compiling, and again in a second process")
            cold = [
                row["compile_seconds"]
                for row in self.rows["throughput"]
                if all(row[key] == getattr(case, other) for key, other in
                       (("case", "name"), ("batch", "batch"), ("horizon", "horizon")))
                and row["policy"] == "acqb"
            ]  # fmt: skip
            first = cold[0] if cold else compile_again(case)
            second = _second_process(self.quick, number, self.cache)
            row = {"case": case.name, "batch": case.batch, "cold_seconds": first}
            found.append(row | {"second_process_seconds": second, "share": second / first})
        return found

    def device(self) -> Rows:
        """On a GPU: bytes a second against a measured copy. Nothing elsewhere."""
        if not self.gpu:
            return []
        copied, found = copy_bytes_a_second(), []
        for name in cases.problems(self.quick):
            row = self.best(name)
            if row is None or row["d"] < 100:
                continue
            floor = 4 * row["N"] * row["d"] ** 2
            reached = floor * row["rounds_a_second"]
            found.append(
                {"case": name, "batch": row["batch"], "floor_bytes_a_round": floor,
                 "bytes_a_second": reached, "copy_bytes_a_second": copied,
                 "share_of_floor": reached / copied}
            )  # fmt: skip
        return found

    def study(self) -> Rows:
        """Time the whole offline study of the paper, compiling included."""
        if not self.study_wanted:
            return []
        seeds, horizon = (2, 50) if self.quick else (10, 5000)
        found, begun = [], time.perf_counter()
        for dataset, servers in cases.STUDY_SERVERS.items():
            for size, (source, policies, rates) in cases.study(servers).items():
                self.say(f"offline study: N={servers} K={size}")
                start = time.perf_counter()
                sweep(policies, source, arrival_rates=rates, seeds=seeds, horizon=horizon,
                      assortment_size=size)  # fmt: skip
                row = {"shapes_of": dataset, "N": servers, "K": size, "policies": len(policies)}
                row |= {"rates": len(rates), "seeds": seeds, "horizon": horizon}
                found.append(row | {"seconds": time.perf_counter() - start})
        whole = {"shapes_of": "all", "seconds": time.perf_counter() - begun}
        return [*found, {key: whole.get(key) for key in found[0]}]

    def targets(self) -> Rows:
        """Set what was measured beside what was asked for; a quick run's cases are not those."""
        found = []

        def add(what: str, measured: float | None, target: float, least: bool = True) -> None:
            met = None
            if measured is not None and not self.quick:
                met = measured >= target if least else measured <= target
            found.append({"what": what, "measured": measured, "target": target,
                          "bound": "at least" if least else "at most", "met": met})  # fmt: skip

        for name, speed in FASTER["gpu" if self.gpu else "cpu"].items():
            best = self.best(name)
            add(f"rounds a second, {name}", best and best["rounds_a_second"], speed)
        for row in self.rows["numpy"]:
            if row["case"] in RATIOS:
                what = f"times {row['loop']}, {row['case']}"
                add(what, row["ratio"], RATIOS[row["case"]])
        grown = [row for row in self.rows["growth"] if row["axis"] == "horizon"]
        last = grown[-1] if grown else {}
        what = f"cost of T={last.get('value', 100_000)} over the horizon before"
        add(what, last.get("run_cost_over_row_above"), MOST_GROWTH, least=False)
        for row in self.rows["compile"]:
            add(f"compile seconds, {row['case']}", row["cold_seconds"], MOST_COMPILE_SECONDS, False)
        if self.gpu:
            for row in self.rows["device"]:
                add(f"share of the floor, {row['case']}", row["share_of_floor"], LEAST_SHARE)
            total = self.rows["study"][-1]["seconds"] if self.rows["study"] else None
            add("seconds of the offline study", total, MOST_STUDY_SECONDS, least=False)
        return found


SECTIONS = ("throughput", "numpy", "growth", "compile", "device", "study", "targets")


def run(
    cache: Path,
    quick: bool = False,
    reference: ModuleType | None = None,
    only: Sequence[str] = (),
    study: bool = False,
    say: Callable[[str], None] = print,
) -> dict[str, Any]:
    """Run the benchmark and return the report, JSON values only.

    Args:
        cache: an empty folder, JAX's compilation cache in this process (`backend.configure`).
        quick: few and short cases: shows that all works, reaches no target.
        reference: the tests' reference simulator, if there is one.
        only: sections to run; none named is all of them. `targets` always is.
        study: time the offline study on a CPU too.
        say: is told what comes next.

    Raises:
        ValueError: `only` names no section.
    """
    for name in only:
        if name not in SECTIONS:
            raise ValueError(f"section {name} is unknown; choose from {', '.join(SECTIONS)}")
    begun, bench = time.perf_counter(), Bench(quick, reference, cache, study, say)
    for name in SECTIONS:
        if not only or name in only or name == "targets":
            bench.rows[name] = getattr(bench, name)()
    return {
        "schema": SCHEMA,
        "quick": quick,
        "only": list(only),
        "machine": backend.describe(),
        "versions": {name: importlib.metadata.version(name) for name in VERSIONS},
        "finished": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "seconds": time.perf_counter() - begun,
        "sections": bench.rows,
    }


def copy_bytes_a_second(size: int = COPY_BYTES, tries: int = 10) -> float:
    """Measure what the first device moves in a copy: bytes read and written, a second.

    Args:
        size: of the array, in bytes.
        tries: the fastest counts.
    """
    array = jax.device_put(jnp.zeros(size // 4, jnp.float32), jax.devices()[0])
    # A copy alone would be optimised away; one addition costs nothing beside the memory.
    copy = jax.jit(lambda x: x + 1)
    copy(array).block_until_ready()
    best = float("inf")
    for _ in range(tries):
        begun = time.perf_counter()
        copy(array).block_until_ready()
        best = min(best, time.perf_counter() - begun)
    return 2 * size / best


def _reference_seconds(
    reference: ModuleType, run: numpy_loop.Recorded, constants: numpy_loop.Constants
) -> float:
    """Time the tests' reference simulator on the same draws, on one thread: seconds a round."""
    horizon = len(run.rows)
    world = reference.World(run.contexts, run.utilities, run.rows)
    draws = reference.Draws(
        np.where(run.arrives, 0.0, 1.0), run.choice, run.explore, run.normal,
        np.zeros(horizon), np.zeros(horizon, int),
    )  # fmt: skip
    size, *numbers = constants
    settings = reference.Settings(size, "disjoint", 0.5, horizon, *numbers)
    with numpy_loop.one_thread():
        begun = time.perf_counter()
        reference.simulate("acqb", world, draws, settings)
        return (time.perf_counter() - begun) / horizon


def _second_process(quick: bool, number: int, cache: Path) -> float:
    """Compile the same case in a process of its own, with the same cache: seconds."""
    words = [sys.executable, "-m", "cqbjax.bench.again", json.dumps([quick, number, str(cache)])]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"the second process failed: {done.stderr.strip()[-300:]}")
    return float(done.stdout)
