"""List what is stored of an experiment, and drop what was computed otherwise since.

python scripts/stored.py results/data/synthetic
python scripts/stored.py results/data/synthetic --drop outdated
"""

import argparse
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cqbjax.cli._start import Arguments, start_plain

ARGUMENTS = Arguments(description="List what is stored of an experiment.")
ARGUMENTS.add_argument("folder", type=Path, help="of the experiment: results/data/NAME")
ARGUMENTS.add_argument(
    "--drop", choices=["outdated"],
    help="delete the files all of whose runs newer ones have replaced",
)  # fmt: skip


def main() -> None:
    """Print a line a computation of each point: its cache key, its date and its policies."""
    start_plain(listed, ARGUMENTS)


def listed(asked: argparse.Namespace) -> None:
    """List what a folder holds, and drop what is outdated if that is asked."""
    from cqbjax.results.index import ResultIndex

    folder, drop = asked.folder, asked.drop is not None
    index = ResultIndex(folder)
    for error in index.unreadable.values():
        raise error
    if not index.manifests:
        raise ValueError(f"nothing is stored in {folder}: give the folder of an experiment")
    entries = index.computations()
    for newest, one in entries:
        state = "newest  " if newest else "outdated"
        made, labels = one["finished"][:16].replace("T", " "), ", ".join(one["policies"])
        print(f"{one['key'][:8]}  {made}  {state}  {one['point']}: {labels}{_runs(one)}")
    old = index.outdated()
    counts = f"{len(entries)} points in {len(index.manifests)} files"
    print(f"{counts}; newer runs have replaced all of {len(old)} files")
    for file in old if drop else ():
        file.unlink(missing_ok=True)
        print(f"dropped {file}")


def _runs(manifest: Mapping[str, Any]) -> str:
    """Return the arrival rates and seeds of a point, where others can be added."""
    cells = manifest.get("cells")
    if cells is None:
        return ""
    rates, seeds = ", ".join(f"{rate:g}" for rate in cells["arrival_rate"]), cells["seed"]
    return f"; rate {rates}; seeds {min(seeds)} to {max(seeds)}"
