"""The benchmark's sections: each yields rows of the report. `run` runs them."""

import dataclasses
import functools
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import threadpoolctl

from benchmarks import cases, costs, numpy_loop, peers, processes, report, roofline
from benchmarks.measure import call_in_process, compile_again, measure, time_calls
from tests import reference

Row = dict[str, Any]


@dataclasses.dataclass
class Bench:
    """One run of the benchmark: its options, and the rows so far.

    Attributes:
        quick: few and short cases.
        cache: the compilation cache of this process, empty at its start.
        log: receives a line before each step.
        composing: words of a sweep -> seconds of composing and validating it; without it the
            section `sweep` is left out.
        rows: by section.
    """

    quick: bool
    cache: Path
    log: Callable[[str], None]
    composing: Callable[[Sequence[str]], float] | None = None
    rows: dict[str, list[Row]] = dataclasses.field(
        default_factory=lambda: {name: [] for name in SECTIONS}
    )

    def find_speeds(self, label: str) -> dict[str, float]:
        """Return problem -> the most rounds a second that were measured of a policy."""
        own = [row for row in self.rows["throughput"] if row["policy"] == label]
        steady = [(row["case"], row["rounds_a_second"]) for row in own if row["rounds_a_second"]]
        return dict(sorted(steady, key=lambda one: one[1]))


def measure_throughput(bench: Bench) -> Iterator[Row]:
    """Measure rounds a second by batch width."""
    for case in cases.throughput(bench.quick):
        bench.log(f"{case.name}: {', '.join(case.policies)}, batch {case.batch}")
        yield from measure(case)


def compare_numpy(bench: Bench) -> Iterator[Row]:
    """Compare with NumPy loops on one core: a lean one, and the reference."""
    for name, case in cases.problems(bench.quick).items():
        # Pairs are expensive at d = 384, and early rounds are the loops' cheapest.
        small = case.bytes_a_run("acqb") < 1_000_000
        long = small or (case.assortment_size == 1 and not bench.quick)
        rounds = case.horizon if long else 20 if bench.quick else 200
        run = numpy_loop.record(case.source, case.assortment_size, case.arrival_rate, rounds)
        bench.log(f"{name}: NumPy loops, {rounds} rounds")
        loops: dict[str, Callable[..., Any]] = {"lean loop": numpy_loop.play}
        if case.source.problem(1, 1).num_servers < 100:
            loops["reference"] = functools.partial(reference.simulate, "acqb")
        speed = bench.find_speeds("acqb").get(name)
        for loop, play in loops.items():
            with threadpoolctl.threadpool_limits(1):
                seconds = time_calls(lambda: play(*run), 1)[0] / rounds  # noqa: B023
            yield {
                "case": name, "loop": loop, "rounds": rounds, "seconds_a_round": seconds,
                "rounds_a_second": speed, "ratio": speed and speed * seconds,
            }  # fmt: skip


def measure_growth(bench: Bench) -> Iterator[Row]:
    """Measure the cost of a round as one size grows; batch widths are in `throughput`."""
    for axis, values in cases.growth(bench.quick).items():
        before = None
        for value, case in values:
            bench.log(f"growth: {axis} {value}")
            (row,) = measure(case)
            seconds = 1 / (row["rounds_a_second"] or row["whole_rounds_a_second"])
            run = seconds * case.horizon
            others = ("case", "horizon", "batch", "devices", "repeated")
            yield {
                "axis": axis, "value": value, "seconds_a_round_run": seconds,
                "run_cost_over_row_above": before and run / before,
                **{key: row[key] for key in others},
            }  # fmt: skip
            before = run


def time_compiling(bench: Bench) -> Iterator[Row]:
    """Compile each static shape in this process, then in a second one with the same cache."""
    for case in cases.compiled(bench.quick):
        bench.log(f"{case.name}: compiling, and again in a second process")
        same = {"policy": "acqb", "case": case.name, "batch": case.batch, "horizon": case.horizon}
        rows = [row for row in bench.rows["throughput"] if same.items() <= row.items()]
        first = rows[0]["compile_seconds"] if rows else compile_again(case)
        second = call_in_process(compile_again, bench.cache, case=case)
        row = {"case": case.name, "batch": case.batch, "cold_seconds": first}
        yield row | {"second_process_seconds": second, "share": second / first}


def time_sweep(bench: Bench) -> Iterable[Row]:
    """Time a sweep of 1,000 points."""
    if bench.composing is None:
        return []
    bench.log("a sweep of 1,000 points, with empty caches and with full ones")
    speeds = {x: bench.find_speeds(x).get("d=5 N=5 K=1") for x in processes.LABELS}
    return processes.time_sweep(bench.quick, speeds, bench.composing)


SECTIONS: dict[str, Callable[[Bench], Iterable[Row]]] = {
    "start": lambda bench: processes.time_commands(bench.quick, bench.log),
    "throughput": measure_throughput, "numpy": compare_numpy, "growth": measure_growth,
    "compile": time_compiling, "sweep": time_sweep,
    "worlds": lambda bench: costs.rows(bench.quick, bench.log),
    "peers": lambda bench: peers.rows(bench.quick, bench.log),
    "floor": lambda bench: roofline.rows(bench.quick, bench.log),
    "long": lambda bench: processes.time_long_runs(bench.quick, bench.cache, bench.log),
}  # fmt: skip


def run(
    cache: Path, quick: bool = False, only: Sequence[str] = (), log: Callable[[str], None] = print,
    composing: Callable[[Sequence[str]], float] | None = None,
) -> dict[str, Any]:  # fmt: skip
    """Run the benchmark and return the report, JSON values only.

    Args:
        cache: an empty folder, JAX's compilation cache in this process (`backend.configure`).
        quick: few and short cases: shows that all works.
        only: sections to run; all if empty.
        log: receives a line before each step.
        composing: as in `Bench`.

    Raises:
        ValueError: `only` names an unknown section.
    """
    for name in only:
        if name not in SECTIONS:
            raise ValueError(f"section {name} is unknown; choose from {', '.join(SECTIONS)}")
    begun, bench = time.perf_counter(), Bench(quick, cache, log, composing)
    for name, rows in SECTIONS.items():
        if not only or name in only:
            bench.rows[name] = list(rows(bench))
    return report.assemble(quick, begun, bench.rows, only=list(only))
