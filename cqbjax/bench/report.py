"""The benchmark's report: JSON, the terminal, Markdown."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from cqbjax.core.files import write_atomic

TITLES = {
    "start": "What a user waits for: whole processes, and how much of it was simulation",
    "throughput": "Rounds a second (runs x rounds / seconds, compiling apart)",
    "numpy": "Against NumPy loops on one core, measured in the same process",
    "growth": "How the cost grows",
    "compile": "Compiling, and finding it again in the cache",
    "sweep": "A sweep of many points, whole process; its rounds alone at the speeds above",
    "worlds": "What worlds, recorders and rows of queries cost, of the round they are set against "
    "(d=5 N=5 K=1; medians and quartiles of ratios of interleaved runs)",
    "peers": "The same work by others: rounds a second, compiling apart (medians; one run on one "
    "core, a batch on all)",
    "parts": "Parts of a round of ACQB at d=5 N=5, 128 runs: processor time and floor of a "
    "round-run, microseconds",
    "floor": "ACQB against what bandwidth allows: bytes that a round has to move, over a streaming "
    "add of as many bytes as the runs keep",
    "long": "One run of ACQB as rounds, prompts and pool grow, a process each (pool 0: d=5 N=5; "
    "tables: generated, d=768 N=112)",
    "device": "GPU: bytes a second against a measured copy (floor: N d^2 4 bytes a round-run)",
    "study": "The offline study whole, compiling included (random embeddings of the same shapes)",
    "targets": "Targets",
    # Of a report of programs compiled for a device (`compiled_for`).
    "programs": "Compiled: a round of all runs (a turn: of a loop over waiting queries)",
    "speed": "Modelled, not measured: rounds a second by runs on one device, one turn a round",
    "memory": "Compiled: bytes a run, temporary ones included, and the widest batch",
    "kernels": "Compiled: the largest kernels of a round, bytes of one run",
}
# What a page shows of a section; the rest is in the report.
ON_PAGES = {
    "peers": ("work", "peer", "peer_rounds_a_second", "peer_batch_rounds_a_second",
              "run_rounds_a_second", "batch_rounds_a_second"),
}  # fmt: skip
COMPILED = ("programs", "speed", "memory", "kernels")
EMPTY = {
    "sweep": "only from the command",
    "device": "no GPU here: nothing measured",
    "study": "only on a GPU, or with --study",
}
HEADERS = {
    "rounds_a_second": "rounds/s", "whole_rounds_a_second": "first chunk, repeats in",
    "compile_seconds": "compile s", "seconds_a_round": "loop a round",
    "peer_rounds_a_second": "peer, one run", "peer_batch_rounds_a_second": "peer, a batch",
    "run_rounds_a_second": "cqbjax, one run", "batch_rounds_a_second": "cqbjax, a batch",
    "seconds_a_round_run": "a round-run", "run_cost_over_row_above": "a run / row above",
    "cold_seconds": "cold s", "second_process_seconds": "second process s", "seconds": "s",
    "simulated": "simulation", "rounds_alone": "its rounds alone s",
    "composing": "composing, checking s",
    "share": "second / cold",
    "floor_bytes_a_round": "floor bytes", "bytes_a_second": "bytes/s",
    "copy_bytes_a_second": "copy bytes/s", "share_of_floor": "share of floor",
    "shapes_of": "shapes of",
    "kernels_a_round": "kernels a round", "kernels_a_record": "and a record",
    "bytes_a_round_run": "kB a round-run", "kernels_a_turn": "kernels a turn",
    "bytes_a_turn_run": "kB a turn-run", "temporary_bytes": "temporary MB",
    "bytes_a_run": "bytes/run", "written_a_run": "of it written anew",
    "temporary_share": "of it temporary", "widest": "widest batch",
    "planned_bytes_a_run": "planned bytes/run",
    "planned_share": "planned / compiled",
}  # fmt: skip
TEXTS = ("command", "caches", "case", "policy", "loop", "axis", "what", "bound", "met", "shapes_of",
         "kernel", "shape", "against", "work", "peer", "ours", "part")  # fmt: skip
SHARES = ("cost", "cost_from", "cost_to", "simulated", "repeated", "share", "share_of_floor",
          "temporary_share", "planned_share")  # fmt: skip
UNITS = {"bytes_a_round_run": 1e3, "bytes_a_turn_run": 1e3, "temporary_bytes": 1e6,
         "written_a_run": 1e3}  # fmt: skip


class Section(NamedTuple):
    """A section as text.

    Attributes:
        title: above the table.
        columns: keys of the rows.
        headers: one a column.
        rows: cells, one a column.
    """

    title: str
    columns: list[str]
    headers: list[str]
    rows: list[list[str]]


def save(report: dict[str, Any], path: Path) -> None:
    """Write a report as JSON, whole or not at all."""
    write_atomic(Path(path), (json.dumps(report, indent=1, allow_nan=False) + "\n").encode())


def load(path: Path) -> dict[str, Any]:
    """Read a report.

    Raises:
        ValueError: the file is missing or is no report of this schema.
    """
    from cqbjax.bench.sections import SCHEMA

    path = Path(path)
    if not path.is_file():
        raise ValueError(f"{path} is missing: it should hold a report of the benchmark")
    try:
        report = json.loads(path.read_text())
    except json.JSONDecodeError as error:
        raise ValueError(f"{path} is no JSON: {error}") from error
    if not isinstance(report, dict) or report.get("schema") != SCHEMA:
        raise ValueError(f"{path} is no report of the benchmark with schema {SCHEMA}")
    return report


def machine_name(report: dict[str, Any]) -> str:
    """Return a file name for the machine, such as `intel_xeon_2_devices`."""
    if "compiled_for" in report:
        return re.sub(r"[^a-z0-9]+", "_", f"compiled for {report['compiled_for']}".lower())
    machine = report["machine"]
    gpu = machine["platform"] == "gpu"
    words = machine["device_kind"] if gpu else f"{machine['cpu']} {machine['num_devices']} devices"
    return re.sub(r"[^a-z0-9]+", "_", re.sub(r"\((r|tm)\)", "", words.lower())).strip("_")


def heading(report: dict[str, Any]) -> str:
    """Say on what machine, with which versions and when it was measured."""
    machine = report["machine"]
    versions = ", ".join(f"{name} {version}" for name, version in report["versions"].items())
    gpu = machine["platform"] == "gpu"
    devices = f"{machine['num_devices']} x {machine['device_kind']}; " if gpu else ""
    quick = " QUICK: shows that all works, no figure to quote." if report["quick"] else ""
    if "compiled_for" in report:
        return (
            f"Compiled for one {report['compiled_for']}, **not measured**: no such device was at "
            f"hand. {versions}; {report['finished']}; took {report['seconds']:.0f} s on "
            f"{machine['cpu']}.{quick}"
        )
    return (
        f"{devices}{machine['cpu']}, {machine['cpu_cores']} cores, {machine['num_devices']} JAX "
        f"device{'s' * (machine['num_devices'] > 1)} ({machine['platform']}); {versions}; "
        f"{report['finished']}; took {report['seconds']:.0f} s.{quick}"
    )


def show(report: dict[str, Any], console: Console | None = None) -> None:
    """Print a report to the terminal."""
    console = console or Console()
    console.print(escape(heading(report)))
    for name, section in _sections(report):
        if not section.rows:
            console.print(f"{escape(section.title)}: {EMPTY.get(name, 'not run')}")
            continue
        table = Table(title=escape(section.title))
        for column, header in zip(section.columns, section.headers, strict=True):
            table.add_column(escape(header), justify="left" if column in TEXTS else "right")
        for cells in section.rows:
            table.add_row(*map(escape, cells))
        console.print(table)


def markdown(report: dict[str, Any], folder: Path = Path("results/bench")) -> Path:
    """Write a report as Markdown tables, `<machine>.md` in `folder`, and return the file."""
    lines = ["# Benchmark", "", heading(report), ""]
    for name, section in _sections(report):
        lines += [f"## {section.title}", "", _grid(name, section), ""]
    path = Path(folder) / f"{machine_name(report)}.md"
    write_atomic(path, "\n".join(lines).encode())
    return path


def table(report: dict[str, Any], name: str) -> str:
    """Return one section of a report as a Markdown table for a page, by columns of `ON_PAGES`."""
    whole = dict(_sections(report))[name]
    kept = [whole.columns.index(column) for column in ON_PAGES.get(name, whole.columns)]
    columns, headers, *rows = (
        [cells[i] for i in kept] for cells in (whole.columns, whole.headers, *whole.rows)
    )
    return _grid(name, Section(whole.title, columns, headers, rows))


def _grid(name: str, section: Section) -> str:
    """Write a section as a Markdown table, or say why there is none."""
    if not section.rows:
        return f"–, {EMPTY.get(name, 'not run')}"
    aligned = ["---" if c in TEXTS else "---:" for c in section.columns]
    lines = (section.headers, aligned, *section.rows)
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def _sections(report: dict[str, Any]) -> Iterator[tuple[str, Section]]:
    """Yield each section as text."""
    compiled = "compiled_for" in report
    for name, title in TITLES.items():
        if (name in COMPILED) != compiled:
            continue
        rows = report["sections"].get(name, [])  # an older report lacks a newer section
        columns = list(rows[0]) if rows else []
        headers = [HEADERS.get(column, column) for column in columns]
        cells = [[_text(column, row[column]) for column in columns] for row in rows]
        yield name, Section(title, columns, headers, cells)


def _text(column: str, value: Any) -> str:
    """Write one number to be read."""
    if value is None:
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int) and column not in UNITS:
        return f"{value:,}"
    if not isinstance(value, int | float):
        return str(value)
    if column in UNITS:
        value /= UNITS[column]
    if column in SHARES:
        return f"{value:.1%}"
    if column in ("seconds_a_round_run", "seconds_a_round"):
        return f"{1e3 * value:.3g} ms" if value >= 1e-3 else f"{1e6 * value:.3g} µs"
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"
