"""Measure how far the running estimates are from the exact minimiser.

    python scripts/estimator_error.py [DATA_DIR]

Prints a line a case and writes `results/bench/estimator.json`. Cases of prompts are those whose
data lie under DATA_DIR (`data` where none is named).
"""

import json
import sys
from pathlib import Path

from cqbjax.bench import estimator_error
from cqbjax.core import files


def main() -> None:
    """Measure with the data of the folder that the command line names, and keep the table."""
    measured = estimator_error.study(Path(sys.argv[1] if len(sys.argv) > 1 else "data"))
    target = Path("results/bench/estimator.json")
    target.parent.mkdir(parents=True, exist_ok=True)
    files.write_atomic(target, json.dumps(measured, indent=1).encode())
