"""List what is stored of an experiment, and delete outdated results.

python scripts/stored.py results/data/synthetic
python scripts/stored.py results/data/synthetic --drop outdated
"""

import argparse
import functools
from pathlib import Path

from cqbjax.cli._command import Arguments, run_plain

ARGUMENTS = Arguments(description="List what is stored of an experiment.")
ARGUMENTS.add_argument("folder", type=Path, help="of the experiment: results/data/NAME")
ARGUMENTS.add_argument(
    "--drop", choices=["outdated"],
    help="delete the files all of whose runs newer ones have replaced",
)  # fmt: skip


def list_stored(arguments: argparse.Namespace) -> None:
    """Print a line for each result: its cache key, its date, its policies, rates and seeds.

    Raises:
        ValueError: nothing is stored in the folder, or a file cannot be read.
    """
    from cqbjax.results.index import ResultIndex

    folder = arguments.folder
    index = ResultIndex(folder)
    for error in index.unreadable.values():
        raise error
    if not index.manifests:
        raise ValueError(f"nothing is stored in {folder}: give the folder of an experiment")
    entries = index.computations()
    for newest, one in entries:
        state = "newest  " if newest else "outdated"
        time, labels = one["finished"][:16].replace("T", " "), ", ".join(one["policies"])
        text = f"{one['key'][:8]}  {time}  {state}  {one['point']}: {labels}"
        cells = one.get("cells")
        if cells is not None:  # rates and seeds can be added to this point
            rates, seeds = ", ".join(f"{rate:g}" for rate in cells["arrival_rate"]), cells["seed"]
            text += f"; rate {rates}; seeds {min(seeds)} to {max(seeds)}"
        print(text)
    outdated = index.outdated()
    counts = f"{len(entries)} points in {len(index.manifests)} files"
    print(f"{counts}; newer runs have replaced all of {len(outdated)} files")
    for file in outdated if arguments.drop else ():
        file.unlink(missing_ok=True)
        print(f"dropped {file}")


main = functools.partial(run_plain, list_stored, ARGUMENTS)
