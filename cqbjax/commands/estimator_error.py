"""Measure how far the running estimates are from the exact minimiser.

    python scripts/estimator_error.py [DATA_DIR]

Prints a line a case and writes `results/bench/estimator.json`. Cases of prompts are those whose
data lie under DATA_DIR (`data` where none is named).
"""

import argparse
import json
from pathlib import Path

from cqbjax.bench import estimator_error
from cqbjax.commands._start import Arguments, start_plain
from cqbjax.core import files

ARGUMENTS = Arguments(description="Measure how far the running estimates are from the minimiser.")
ARGUMENTS.add_argument("data_dir", nargs="?", type=Path, default=Path("data"), help="of prompts")
TABLE = Path("results/bench/estimator.json")


def main() -> None:
    """Measure with the data of the folder that the command line names, and keep the table."""
    start_plain(measure, ARGUMENTS)


def measure(asked: argparse.Namespace) -> None:
    """Measure, print and keep."""
    measured = estimator_error.study(asked.data_dir)
    TABLE.parent.mkdir(parents=True, exist_ok=True)
    files.write_atomic(TABLE, json.dumps(measured, indent=1).encode())
