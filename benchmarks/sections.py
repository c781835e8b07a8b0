"""The benchmark's sections: each returns rows for the report."""

import dataclasses
import functools
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax

from benchmarks import (
    cases,
    costs,
    floors,
    gridding,
    long,
    numpy_loop,
    parts,
    peers,
    report,
    starting,
)
from benchmarks.measure import compile_again, copy_bytes_a_second, elsewhere, measure
from benchmarks.targets import compare
from cqbjax.engine.sweep import sweep
from tests import reference

Row = dict[str, Any]
Rows = list[Row]
SECTIONS = (
    "start", "throughput", "numpy", "growth", "compile", "sweep", "worlds", "peers", "parts",
    "floor", "long", "device", "study", "targets",
)  # fmt: skip


@dataclasses.dataclass
class Bench:
    """One run of the benchmark: what was asked for, and the rows so far.

    Attributes:
        quick: few and short cases.
        cache: the compilation cache of this process, empty at its start.
        study_wanted: time the whole offline study although this is no GPU.
        say: is told what comes next.
        composing: seconds in which the sweep of these words is composed and checked; without it
            the section `sweep` is left out.
        rows: by section.
        gpu: whether a GPU runs it.
    """

    quick: bool
    cache: Path
    study_wanted: bool
    say: Callable[[str], None]
    composing: Callable[[Sequence[str]], float] | None = None
    rows: dict[str, Rows] = dataclasses.field(default_factory=lambda: {x: [] for x in SECTIONS})
    gpu: bool = dataclasses.field(default_factory=lambda: jax.devices()[0].platform == "gpu")

    def start(self) -> Rows:
        """Time whole processes, as a user waits for them."""
        self.say("whole commands, with empty caches and with full ones")
        return list(starting.rows(self.quick))

    def throughput(self) -> Rows:
        """Rounds a second by batch width."""
        rows: Rows = []
        for case in cases.throughput(self.quick):
            self.say(f"{case.name}: {', '.join(case.policies)}, batch {case.batch}")
            rows += measure(case)
        return rows

    def bests(self) -> dict[str, Row]:
        """Return problem -> the fastest row of ACQB, of what was measured."""
        steady = [row for row in self.rows["throughput"] if row["rounds_a_second"]]
        steady.sort(key=lambda row: row["rounds_a_second"])
        return {row["case"]: row for row in steady if row["policy"] == "acqb"}

    def numpy(self) -> Rows:
        """Compare with NumPy loops on one core: our own lean one, and the reference."""
        rows = []
        for name, case in cases.problems(self.quick).items():
            # Pairs are dear at d = 384, and early rounds are the loops' cheapest.
            small = case.bytes_a_run("acqb") < 1_000_000
            long = small or (case.assortment_size == 1 and not self.quick)
            rounds = case.horizon if long else 20 if self.quick else 200
            run = numpy_loop.record(case.source, case.assortment_size, case.arrival_rate, rounds)
            self.say(f"{name}: NumPy loops, {rounds} rounds")
            timed = {"lean loop": numpy_loop.seconds_a_round(numpy_loop.play, run)}
            if case.source.problem(1, 1).num_servers < 100:
                obvious = functools.partial(reference.simulate, "acqb")
                timed["reference"] = numpy_loop.seconds_a_round(obvious, run)
            best = self.bests().get(name)
            speed = best["rounds_a_second"] if best else None
            for loop, seconds in timed.items():
                row = {"case": name, "loop": loop, "rounds": rounds, "seconds_a_round": seconds}
                row |= {"rounds_a_second": speed, "ratio": speed and speed * seconds}
                rows.append(row)
        return rows

    def growth(self) -> Rows:
        """Cost of a round as one thing grows; batch widths are in `throughput`."""
        rows: Rows = []
        for axis, values in cases.growth(self.quick).items():
            before = None
            for value, case in values:
                self.say(f"growth: {axis} {value}")
                (row,) = measure(case)
                seconds = 1 / (row["rounds_a_second"] or row["whole_rounds_a_second"])
                run = seconds * case.horizon
                kept = ("case", "horizon", "batch", "devices", "repeated")
                rows.append(
                    {"axis": axis, "value": value, "seconds_a_round_run": seconds,
                     "run_cost_over_row_above": before and run / before}
                    | {key: row[key] for key in kept}
                )  # fmt: skip
                before = run
        return rows

    def compile(self) -> Rows:
        """Compile each static shape in this process, then in a second one with the same cache."""
        rows = []
        for number, case in enumerate(cases.compiled(self.quick)):
            self.say(f"{case.name}: compiling, and again in a second process")
            same = ("acqb", case.name, case.batch, case.horizon)
            cold = [
                row["compile_seconds"] for row in self.rows["throughput"]
                if (row["policy"], row["case"], row["batch"], row["horizon"]) == same
            ]  # fmt: skip
            first = cold[0] if cold else compile_again(case)
            second = elsewhere(recompiled, self.cache, quick=self.quick, number=number)
            row = {"case": case.name, "batch": case.batch, "cold_seconds": first}
            rows.append(row | {"second_process_seconds": second, "share": second / first})
        return rows

    def sweep(self) -> Rows:
        """Time a sweep of 1,000 points."""
        if self.composing is None:
            return []
        self.say("a sweep of 1,000 points, with empty caches and with full ones")
        small = [row for row in self.rows["throughput"] if row["case"] == "d=5 N=5 K=1"]
        speeds = {
            label: max((row["rounds_a_second"] or 0 for row in small if row["policy"] == label),
                       default=0)
            for label in gridding.LABELS
        }  # fmt: skip
        return list(gridding.rows(self.quick, speeds, self.composing))

    def worlds(self) -> Rows:
        """Return what worlds and recorders cost, in percent of the paper's round."""
        return list(costs.rows(self.quick, self.say))

    def parts(self) -> Rows:
        """Time the parts of a round at d = 5, each beside the least that it could take."""
        return list(parts.rows(self.quick, self.say))

    def floor(self) -> Rows:
        """Set rounds a second beside what this machine's bandwidth would allow."""
        return list(floors.rows(self.quick, self.say))

    def long(self) -> Rows:
        """Let one run's rounds, and a table's prompts, grow: seconds and memory."""
        return list(long.rows(self.quick, self.cache, self.say))

    def peers(self) -> Rows:
        """Set the same work by others beside ours."""
        return list(peers.rows(self.quick, self.say))

    def device(self) -> Rows:
        """On a GPU: bytes a second against a measured copy. Nothing elsewhere."""
        if not self.gpu:
            return []
        copied, rows = copy_bytes_a_second(), []
        for name in cases.problems(self.quick):
            row = self.bests().get(name)
            if row is None or row["d"] < 100:
                continue
            floor = 4 * row["N"] * row["d"] ** 2
            reached = floor * row["rounds_a_second"]
            rows.append(
                {"case": name, "batch": row["batch"], "floor_bytes_a_round": floor,
                 "bytes_a_second": reached, "copy_bytes_a_second": copied,
                 "share_of_floor": reached / copied}
            )  # fmt: skip
        return rows

    def study(self) -> Rows:
        """Time the whole offline study of the paper, compiling included."""
        if not self.study_wanted and not self.gpu:
            return []
        seeds, horizon = (2, 50) if self.quick else (10, 5000)
        rows, begun = [], time.perf_counter()
        for dataset, servers in cases.STUDY_SERVERS.items():
            for size, (source, policies, rates) in cases.study(servers).items():
                self.say(f"offline study: N={servers} K={size}")
                start = time.perf_counter()
                sweep(policies, source, arrival_rate=rates, num_seeds=seeds, horizon=horizon,
                      K=size)  # fmt: skip
                row = {"shapes_of": dataset, "N": servers, "K": size, "policies": len(policies)}
                row |= {"rates": len(rates), "seeds": seeds, "horizon": horizon}
                rows.append(row | {"seconds": time.perf_counter() - start})
        whole = {"shapes_of": "all", "seconds": time.perf_counter() - begun}
        return [*rows, {key: whole.get(key) for key in rows[0]}]

    def targets(self) -> Rows:
        """Set what was measured beside what was asked for."""
        speeds = {name: row["rounds_a_second"] for name, row in self.bests().items()}
        return compare(self.rows, speeds, self.gpu, self.quick)


def run(
    cache: Path,
    quick: bool = False,
    only: Sequence[str] = (),
    study: bool = False,
    say: Callable[[str], None] = print,
    composing: Callable[[Sequence[str]], float] | None = None,
) -> dict[str, Any]:
    """Run the benchmark and return the report, JSON values only.

    Args:
        cache: an empty folder, JAX's compilation cache in this process (`backend.configure`).
        quick: few and short cases: shows that all works, reaches no target.
        only: sections to run; none named is all of them. `targets` always is.
        study: time the offline study on a CPU too.
        say: is told what comes next.
        composing: as in `Bench`.

    Raises:
        ValueError: `only` names no section.
    """
    for name in only:
        if name not in SECTIONS:
            raise ValueError(f"section {name} is unknown; choose from {', '.join(SECTIONS)}")
    begun, bench = time.perf_counter(), Bench(quick, cache, study, say, composing)
    for name in SECTIONS:
        if not only or name in only or name == "targets":
            bench.rows[name] = getattr(bench, name)()
    return report.made(quick, begun, bench.rows, only=list(only))


def recompiled(quick: bool, number: int) -> float:
    """Compile one of `cases.compiled` with a cache that another process filled: seconds."""
    return compile_again(cases.compiled(quick)[number])
