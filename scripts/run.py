"""Run one study: python scripts/run.py experiment=synthetic [key=value ...]."""

import sys
from pathlib import Path

# The reproduction of the paper stands at the top of a checkout and is not installed.
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from reproduction.run import main  # noqa: E402

if __name__ == "__main__":
    main()
