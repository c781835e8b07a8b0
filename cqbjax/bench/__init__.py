"""The benchmark: what it runs, how it is timed, how it is shown. `scripts/bench.py` runs it."""

from cqbjax.bench.report import load, markdown, save, show
from cqbjax.bench.sections import SECTIONS, run

__all__ = ["SECTIONS", "load", "markdown", "run", "save", "show"]
