"""The output of a study: figures, tables, and where the time went."""

import os
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import xarray as xr
from rich.console import Console

from cqbjax.experiments.configs import Config
from cqbjax.experiments.study_types import StudyOutput, StudyType

# Returns the output of a study: a caller of `run` or `report` may extend that of its type.
Show = Callable[[StudyType, Sequence[xr.Dataset], Config], StudyOutput]

# Columns of an output that is not a terminal.
FILE_WIDTH = 150


def make_console() -> Console:
    """Return a console that is as wide as the terminal, or as COLUMNS; wider for a file."""
    return Console(width=None if sys.stdout.isatty() or "COLUMNS" in os.environ else FILE_WIDTH)


def print_lines(console: Console, lines: Iterable[str]) -> None:
    """Print lines as they are: not folded, and without markup."""
    for line in lines:
        console.print(line, markup=False, soft_wrap=True)


def write_output(
    shown: StudyOutput, config: Config, stem: str, console: Console | None = None
) -> list[Path]:
    """Write the output of a study, then print its tables.

    Args:
        shown: from `StudyType.show`.
        config: configuration of the study; `results_dir` and `figure` are read.
        stem: file name without ending, below `figures/` and `tables/` of `results_dir`.
        console: where tables are printed.

    Returns:
        The files written.
    """
    from cqbjax.figures import save_figure, save_paper_figure
    from cqbjax.results import tables
    from cqbjax.results.frame import drop_point_intervals

    written: list[Path] = []
    folders = [Path(config.results_dir) / name for name in ("tables", "figures")]
    frames = {name: drop_point_intervals(table.frame) for name, table in shown.tables.items()}
    for name, table in shown.tables.items():
        path, frame = folders[0] / "_".join(filter(None, (stem, name))), frames[name]
        if table.caption:
            written += tables.save_table(frame, path, table.caption, table.recorded)
        else:
            written.append(path.with_name(f"{path.name}.csv"))
            tables.write_csv(written[-1], frame)
    for name, figure in shown.figures.items():
        path = folders[1] / "_".join(filter(None, (stem, name)))
        save = save_paper_figure if config.get("figure") == "paper" else save_figure
        written.append(save(figure, path))
    # Nothing is lost if the output is no longer read.
    for name, table in shown.tables.items():
        if table.printed:
            tables.print_table(frames[name], table.caption, console, table.recorded)
    return written


def build_table(points: Sequence[xr.Dataset], config: Config) -> Any:
    """Return the table of a study."""
    from cqbjax.results import tables

    horizons = {int(point.attrs["horizon"]) for point in points}
    # With several horizons, `table_rounds` holds the rounds of the first one.
    end = {max(horizons)} if len(horizons) > 1 else set()
    rounds = sorted({min(int(t), max(horizons)) for t in config.table_rounds} | end)
    if config.table == "throughput":
        return tables.throughput_table(points, rounds, config.get("compared") or "acqb")
    return tables.gap_table(points, rounds, config.get("compared"), config.table)
