"""Measure how fast the simulator is on this machine: python scripts/bench.py [--quick]."""

import sys
from pathlib import Path

# The benchmarks stand at the top of a checkout and are not installed.
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.command import main  # noqa: E402

if __name__ == "__main__":
    main()
