"""The benchmark: what it runs, how it is timed, how it is shown. `scripts/bench.py` runs it."""

from benchmarks.report import heading, load, markdown, save, show, table
from benchmarks.sections import SECTIONS, run

__all__ = ["SECTIONS", "heading", "load", "markdown", "run", "save", "show", "table"]
