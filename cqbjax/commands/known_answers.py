"""Simulate worlds whose mean queue is known, and set the known beside the simulated.

    python scripts/known_answers.py
    python scripts/known_answers.py --loads 0.6 --seeds 30 --relaxations 40

Writes `results/tables/known_answers.{csv,md}` and `results/figures/known_answers.png`: a row a
world and load, with the 95% interval over seeds. A queue remembers for long where load is high, and
runs are as many times as long.
"""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from cqbjax.commands._start import Arguments, start_plain

if TYPE_CHECKING:
    import polars as pl

ARGUMENTS = Arguments(description="Set known queues beside simulated ones.")
_add = ARGUMENTS.add_argument
_add("--loads", nargs="+", type=float, default=[0.6, 0.8, 0.95], metavar="RHO", help="in (0, 0.99]")
_add("--seeds", type=int, default=120, metavar="N", help="independent runs, at least 2")
_add(
    "--relaxations", type=int, default=100, metavar="N",
    help="how many times as long as the queue remembers a run is, 5 more left out at its start",
)  # fmt: skip
_add("--results", type=Path, default=Path("results"), metavar="FOLDER", help="where to write")
# At higher ones a chain has too few states.
MOST_LOAD = 0.99
CAPTION = "Mean queue length, known and simulated"


def main() -> None:
    """Simulate at the loads that the command line names."""
    start_plain(compare, ARGUMENTS)


def compare(asked: argparse.Namespace) -> None:
    """Simulate, write, draw and print.

    Raises:
        ValueError: naming what is out of range.
    """
    check(asked)
    from cqbjax.core import backend
    from cqbjax.core.files import check_writable
    from cqbjax.figures import files, known_answers
    from cqbjax.results import tables
    from cqbjax.studies import showing

    for name in ("tables", "figures"):
        check_writable(asked.results / name, "--results")
    backend.configure()
    table = simulated(asked)
    stem = asked.results / "tables" / "known_answers"
    written: tuple[Path, ...] = tables.save_table(table, stem, CAPTION)
    figure = known_answers.draw_apart(table, CAPTION)
    written += files.save(figure, asked.results / "figures" / "known_answers")
    console = showing.console()
    tables.print_table(table, CAPTION, console)
    console.print(", ".join(map(str, written)), markup=False)


def check(asked: argparse.Namespace) -> None:
    """Refuse what cannot be simulated.

    Raises:
        ValueError: naming it and what is allowed.
    """
    for load in asked.loads:
        if not 0 < load <= MOST_LOAD:
            raise ValueError(f"--loads {load:g} must lie in (0, {MOST_LOAD}]")
    if asked.seeds < 2:
        raise ValueError(f"--seeds {asked.seeds} must be at least 2, for an interval")
    if asked.relaxations < 1:
        raise ValueError(f"--relaxations {asked.relaxations} must be at least 1")


def simulated(asked: argparse.Namespace) -> "pl.DataFrame":
    """Return the table: a row a world and load, the simulated mean with its 95% interval.

    `apart` is the simulated mean less the known one, in percent of it.
    """
    import polars as pl
    import xarray as xr

    from cqbjax.results.summaries import mean_ci
    from cqbjax.sweeping.bars import bar
    from cqbjax.testing import known

    rows = []
    with bar() as progress:
        for load in sorted(set(asked.loads)):
            means = known.simulated(known.KNOWN, load, asked.seeds, asked.relaxations, progress)
            for one in known.KNOWN:
                interval = mean_ci(xr.DataArray(means[one.name], dims="seed"))
                middle, low, high = (float(interval[end]) for end in ("mean", "low", "high"))
                exact = one.expected(one.rate(load))
                rows.append({
                    "world": one.name, "closed_form": one.formula, "load": load,
                    "arrival_rate": one.rate(load), "seeds": asked.seeds, "known": exact,
                    "simulated": middle, "simulated_low": low, "simulated_high": high,
                    "apart": 100 * (middle / exact - 1), "apart_low": 100 * (low / exact - 1),
                    "apart_high": 100 * (high / exact - 1),
                })  # fmt: skip
    order = {one.name: place for place, one in enumerate(known.KNOWN)}
    return pl.DataFrame(rows).sort(pl.col("world").replace_strict(order), "load")
