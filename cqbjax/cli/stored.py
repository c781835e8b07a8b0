"""List what is stored of an experiment, and drop what was computed otherwise since.

python scripts/stored.py results/data/synthetic
python scripts/stored.py results/data/synthetic --drop outdated
"""

import argparse
from pathlib import Path

from cqbjax.cli._start import Arguments, start_plain

ARGUMENTS = Arguments(description="List what is stored of an experiment.")
ARGUMENTS.add_argument("folder", type=Path, help="of the experiment: results/data/NAME")
ARGUMENTS.add_argument(
    "--drop", choices=["outdated"],
    help="delete the pieces of which every point has been computed otherwise since",
)  # fmt: skip


def main() -> None:
    """Print a line a computation of each point: its content, when it was made, and of what."""
    start_plain(listed, ARGUMENTS)


def listed(asked: argparse.Namespace) -> None:
    """List what a folder holds, and drop what is outdated if that is asked."""
    from cqbjax.results import pieces

    folder, drop = asked.folder, asked.drop is not None
    said = {file: pieces.manifests_of(file) for file in pieces.found(folder)}
    if not said:
        raise ValueError(f"nothing is stored in {folder}: give the folder of an experiment")
    newest = pieces.newest(said)
    known = [
        (file.parent, one) for file, of_file in said.items() for one in of_file if "content" in one
    ]
    for where, one in sorted(known, key=lambda each: (each[1]["point"], pieces.stamp(each[1]))):
        state = "newest  " if newest[where, one["point"]] == one["content"] else "outdated"
        made, labels = one["finished"][:16].replace("T", " "), ", ".join(one["policies"])
        print(f"{one['content'][:8]}  {made}  {state}  {one['point']}: {labels}")
    old = pieces.outdated(said)
    print(f"{len(known)} points in {len(said)} pieces; {len(old)} pieces hold outdated ones alone")
    for file in old if drop else ():
        pieces.drop(file)
        print(f"dropped {file}")
