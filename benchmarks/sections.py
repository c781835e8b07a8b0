"""The benchmark's sections: each yields rows of the report. `run` runs them."""

import functools
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import threadpoolctl

from benchmarks import cases, costs, numpy_loop, peers, processes, report
from benchmarks.measure import measure, time_calls
from tests import reference

Row = dict[str, Any]
Log = Callable[[str], None]
# Section -> its rows, of those that ran before.
Rows = Mapping[str, list[Row]]


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
    "start": lambda quick, log, _: processes.time_commands(quick, log),
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
