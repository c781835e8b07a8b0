"""Make the report of stored studies: python scripts/report.py [FOLDER [NAME ...]]."""

import sys
from pathlib import Path

# The reproduction of the paper stands at the top of a checkout and is not installed.
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from reproduction.report import main  # noqa: E402

if __name__ == "__main__":
    main()
