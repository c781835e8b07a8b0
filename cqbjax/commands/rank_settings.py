"""Rank settings over the tables of several sensitivity studies, as a preset for all is chosen.

    python scripts/rank_settings.py results/tables/sensitivity_*.csv

Each K and arrival rate of each table is a cell of equal weight. Written beside the first table:
`sensitivity_ranked.csv` and `.md`, the settings that are in all cells by their geometric mean of
Q - Q* over the preset's.
"""

from collections.abc import Sequence
from pathlib import Path

import polars as pl

from cqbjax.commands._start import Arguments, start_plain
from cqbjax.datasets.readers.compact import read_frame
from cqbjax.results import tables
from cqbjax.studies import ranking, showing

ARGUMENTS = Arguments(description="Rank settings over several sensitivity studies.")
ARGUMENTS.add_argument("files", nargs="+", type=Path, help="tables/sensitivity_NAME.csv")


def read(files: Sequence[Path]) -> dict[str, pl.DataFrame]:
    """Return name -> study.

    Raises:
        ValueError: naming a file that is none, that cannot be read, or whose name another has.
    """
    paths: dict[str, Path] = {}
    for file in files:
        name = file.stem.removeprefix("sensitivity_")
        if name in paths:
            raise ValueError(f"{paths[name]} and {file} have one name, each needs its own")
        if not file.is_file():
            raise ValueError(f"{file}: no such file")
        paths[name] = file
    return {name: read_frame(file) for name, file in paths.items()}


def main() -> None:
    """Rank over the tables that the command line names."""
    start_plain(lambda asked: rank(asked.files), ARGUMENTS)


def rank(files: Sequence[Path]) -> None:
    """Rank, write and print.

    Raises:
        ValueError: naming a file that cannot be ranked.
    """
    studies = read(files)
    made = ranking.ranked(studies)
    caption = f"Settings of ACQB over {', '.join(studies)}: mean of Q - Q* over the preset's"
    written = tables.save_table(made, files[0].parent / "sensitivity_ranked", caption)
    console = showing.console()
    tables.print_table(made, caption, console)
    console.print(", ".join(map(str, written)), markup=False)
