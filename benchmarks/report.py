"""The benchmark's report as JSON, on the terminal and in Markdown; `report.yaml` has the words."""

import datetime
import importlib.metadata
import json
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import yaml
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from cqbjax.core import backend
from cqbjax.core.files import write_atomic

SCHEMA = 1
VERSIONS = ("cqbjax", "jax", "jaxlib", "numpy")
WORDS = yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text())
SECTIONS: dict[str, dict[str, Any]] = WORDS["sections"]
COLUMNS: dict[str, dict[str, Any]] = WORDS["columns"]


class Section(NamedTuple):
    """A section as text.

    Attributes:
        name: its key in a report.
        title: above the table.
        columns: keys of the rows.
        rows: cells, one a column; the first row has the headers.
    """

    name: str
    title: str
    columns: list[str]
    rows: list[list[str]]

    def is_text(self) -> list[bool]:
        """Return whether each column holds text, which is aligned to the left."""
        return [COLUMNS.get(column, {}).get("as") == "text" for column in self.columns]

    def to_markdown(self) -> str:
        """Return the section as a Markdown table, or the reason why it has no rows."""
        if len(self.rows) == 1:
            return "–, not run"
        aligned = ["---" if text else "---:" for text in self.is_text()]
        lines = (self.rows[0], aligned, *self.rows[1:])
        return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def assemble(
    quick: bool, begun: float, sections: dict[str, list[dict[str, Any]]], **fields: Any
) -> dict[str, Any]:
    """Return a report, JSON values only: rows by section, with the machine and the time.

    Args:
        quick: whether cases were few and short.
        begun: when measuring began, by `time.perf_counter`.
        sections: name -> rows.
        fields: further fields of the report.
    """
    versions = {name: importlib.metadata.version(name) for name in VERSIONS}
    finished = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    return {"schema": SCHEMA, "quick": quick} | fields | {
        "machine": backend.describe(), "versions": versions, "finished": finished,
        "seconds": time.perf_counter() - begun, "sections": sections,
    }  # fmt: skip


def save(report: dict[str, Any], path: Path) -> None:
    """Write a report as JSON, atomically."""
    text = json.dumps(report, separators=(",", ":"), allow_nan=False)
    write_atomic(Path(path), f"{text}\n".encode())


def load(path: Path) -> dict[str, Any]:
    """Read a report.

    Raises:
        ValueError: the file is missing or is no report of this schema.
    """
    try:
        report = json.loads(Path(path).read_text())
    except (OSError, ValueError) as error:
        raise ValueError(f"{path} is missing, or no JSON: {error}") from error
    if not isinstance(report, dict) or report.get("schema") != SCHEMA:
        raise ValueError(f"{path} is no report of the benchmark with schema {SCHEMA}")
    return report


def machine_name(report: dict[str, Any]) -> str:
    """Return a file name for the machine, such as `intel_xeon_2_devices`."""
    machine = report["machine"]
    words = f"{machine['cpu']} {machine['num_devices']} devices"
    words = machine["device_kind"] if machine["platform"] == "gpu" else words
    if "compiled_for" in report:
        words = f"compiled for {report['compiled_for']}"
    return re.sub(r"[^a-z0-9]+", "_", re.sub(r"\((r|tm)\)", "", words.lower())).strip("_")


def heading(report: dict[str, Any]) -> str:
    """Describe the machine, the versions and the time of a report."""
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
    for section in _sections(report):
        headers, *rows = section.rows
        if not rows:
            console.print(f"{escape(section.title)}: not run")
            continue
        table = Table(title=escape(section.title))
        for header, text in zip(headers, section.is_text(), strict=True):
            table.add_column(escape(header), justify="left" if text else "right")
        for cells in rows:
            table.add_row(*map(escape, cells))
        console.print(table)


def markdown(report: dict[str, Any], folder: Path = Path("results/bench")) -> Path:
    """Write a report as Markdown tables, `<machine>.md` in `folder`, and return the file."""
    lines = ["# Benchmark", "", heading(report), ""]
    for section in _sections(report):
        lines += [f"## {section.title}", "", section.to_markdown(), ""]
    path = Path(folder) / f"{machine_name(report)}.md"
    write_atomic(path, "\n".join(lines).encode())
    return path


def table(report: dict[str, Any], name: str) -> str:
    """Return one section of a report as a Markdown table for a page: its columns `on_pages`."""
    (whole,) = [section for section in _sections(report) if section.name == name]
    chosen = [whole.columns.index(c) for c in SECTIONS[name].get("on_pages", whole.columns)]
    columns, *rows = ([cells[i] for i in chosen] for cells in (whole.columns, *whole.rows))
    return whole._replace(columns=columns, rows=rows).to_markdown()


def _sections(report: dict[str, Any]) -> Iterator[Section]:
    """Yield each section as text."""
    compiled = "compiled_for" in report
    for name, words in SECTIONS.items():
        if words.get("compiled", False) != compiled:
            continue
        rows = report["sections"].get(name, [])  # an older report lacks a newer section
        columns = list(rows[0]) if rows else []
        headers = [COLUMNS.get(column, {}).get("header", column) for column in columns]
        cells = [[_text(column, row[column]) for column in columns] for row in rows]
        yield Section(name, words["title"], columns, [headers, *cells])


def _text(column: str, value: Any) -> str:
    """Format one value."""
    form, unit = (COLUMNS.get(column, {}).get(key) for key in ("as", "unit"))
    if value is None:
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int) and not unit:
        return f"{value:,}"
    if not isinstance(value, int | float):
        return str(value)
    value /= unit or 1
    if form == "share":
        return f"{value:.1%}"
    if form == "time":
        return f"{1e3 * value:.3g} ms" if value >= 1e-3 else f"{1e6 * value:.3g} µs"
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"
