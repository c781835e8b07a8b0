"""Rank settings over the tables of several sensitivity studies, as a preset for all is chosen.

    python scripts/rank_settings.py results/tables/tuning_routerbench.csv \
        results/tables/tuning_mmlu_pro.csv

Each K and arrival rate of each table is a cell of equal weight. Written beside the first table:
`tuning_ranked.csv` and `.md`, the settings that are in all cells by their geometric mean of
Q - Q* over the preset's.
"""

import sys
from pathlib import Path

import polars as pl

from cqbjax import sensitivity, study, tables


def main(files: list[Path]) -> None:
    """Rank, write and print."""
    if not files:
        sys.exit("error: name at least one tables/tuning_NAME.csv")
    absent = [str(file) for file in files if not file.is_file()]
    if absent:
        sys.exit(f"error: {', '.join(absent)}: no such file")
    cells = {file.stem.removeprefix("tuning_"): pl.read_csv(file) for file in files}
    made = sensitivity.ranked(cells)
    caption = f"Settings of ACQB over {', '.join(cells)}: mean of Q - Q* over the preset's"
    written = tables.save_table(made, files[0].parent / "tuning_ranked", caption)
    console = study.console()
    tables.print_table(made, caption, console)
    console.print(", ".join(map(str, written)), markup=False)


if __name__ == "__main__":
    try:
        main([Path(word) for word in sys.argv[1:]])
    except ValueError as error:
        sys.exit(f"error: {error}")
