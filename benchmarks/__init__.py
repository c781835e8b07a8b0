"""The benchmark: its cases, timings and report. `scripts/bench.py` runs it."""

from benchmarks.report import heading, load, markdown, save, show, table
from benchmarks.sections import SECTIONS, run

__all__ = ["SECTIONS", "heading", "load", "markdown", "run", "save", "show", "table"]
