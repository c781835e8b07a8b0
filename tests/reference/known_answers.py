"""Simulate scenarios whose mean queue is known, and write both numbers side by side.

    python -m tests.reference.known_answers
    python -m tests.reference.known_answers --loads 0.6 --seeds 30 --relaxations 40

Writes `results/tables/known_answers.{csv,md}` and `results/figures/known_answers.png`: a row a
scenario and load, with the 95% interval over seeds. The relaxation time of a queue grows with its
load, and the runs grow with it.
"""

import argparse
from pathlib import Path

import numpy as np
import polars as pl
import xarray as xr
from matplotlib.figure import Figure

from cqbjax.cli._command import Arguments, run_plain
from cqbjax.core import backend
from cqbjax.core.files import check_writable
from cqbjax.engine.progress import show_progress
from cqbjax.experiments import display
from cqbjax.figures import save_figure
from cqbjax.figures.panels import PRINTED_POINTS, fonts
from cqbjax.results import tables
from cqbjax.results.summaries import mean_ci
from tests.reference import known_queues

ARGUMENTS = Arguments(description="Compare simulated mean queues with known ones.")
_add = ARGUMENTS.add_argument
_add("--loads", nargs="+", type=float, default=[0.6, 0.8, 0.95], metavar="RHO", help="in (0, 0.99]")
_add("--seeds", type=int, default=120, metavar="N", help="independent runs, at least 2")
_add(
    "--relaxations", type=int, default=100, metavar="N",
    help="relaxation times that a run lasts; 5 more are left out at its start",
)  # fmt: skip
_add("--results", type=Path, default=Path("results"), metavar="FOLDER", help="where to write")
# At higher loads the truncated chains have too few states.
MOST_LOAD = 0.99
CAPTION = "Mean queue length, known and simulated"
WIDTH, ROW, REST = 7.0, 0.23, 1.2  # inches
# The rows of the picture, in words that need no page.
ROWS = {
    "one success rate": "all queries alike",
    "Poisson many a round": "Poisson arrivals in each round",
    "batches of one or two": "one or two arrive together",
    "two classes, oldest first": "easy and hard queries, oldest first",
    "two classes, newest first": "easy and hard queries, newest first",
    "two classes, likeliest first": "easy and hard queries, easy first",
    "at most two attempts": "users leave after two attempts",
    "giving up by chance": "users leave by chance after a failure",
    "leaving unserved": "users leave while they wait",
    "attempts of two rounds": "an answer takes two rounds",
    "attempts of two rounds on average": "an answer takes two rounds on average",
    "three served a round": "three queries served per round",
    "three served, leaving unserved": "three served, users leave while they wait",
    "back in the next round": "users come back in the next round",
    "back after five rounds on average": "users come back after five rounds on average",
}
BLUE, GREY = "#0072B2", "#555555"


def main() -> None:
    """Simulate at the loads that the command line names."""
    run_plain(compare, ARGUMENTS)


def compare(asked: argparse.Namespace) -> None:
    """Simulate, write, draw and print.

    Raises:
        ValueError: naming the argument that is out of range.
    """
    check(asked)
    for name in ("tables", "figures"):
        check_writable(asked.results / name, "--results")
    backend.configure()
    table = simulate_table(asked)
    stem = asked.results / "tables" / "known_answers"
    written: tuple[Path, ...] = tables.save_table(table, stem, CAPTION)
    written += (save_figure(draw(table), asked.results / "figures" / "known_answers"),)
    console = display.make_console()
    tables.print_table(table, CAPTION, console)
    console.print(", ".join(map(str, written)), markup=False)


def check(asked: argparse.Namespace) -> None:
    """Validate the arguments.

    Raises:
        ValueError: naming the argument and what is allowed.
    """
    for load in asked.loads:
        if not 0 < load <= MOST_LOAD:
            raise ValueError(f"--loads {load:g} must lie in (0, {MOST_LOAD}]")
    if asked.seeds < 2:
        raise ValueError(f"--seeds {asked.seeds} must be at least 2, for an interval")
    if asked.relaxations < 1:
        raise ValueError(f"--relaxations {asked.relaxations} must be at least 1")


def simulate_table(asked: argparse.Namespace) -> pl.DataFrame:
    """Return a row a scenario and load, the simulated mean with its 95% interval.

    `error` is the simulated mean minus the known one, in percent of the known one.
    """
    rows = []
    with show_progress() as progress:
        for load in sorted(set(asked.loads)):
            means = known_queues.simulated(
                known_queues.KNOWN, load, asked.seeds, asked.relaxations, progress
            )
            for one in known_queues.KNOWN:
                interval = mean_ci(xr.DataArray(means[one.name], dims="seed"))
                middle, low, high = (float(interval[end]) for end in ("mean", "low", "high"))
                exact = one.expected(one.rate(load))
                rows.append({
                    "scenario": one.name, "closed_form": one.formula, "load": load,
                    "arrival_rate": one.rate(load), "seeds": asked.seeds, "known": exact,
                    "simulated": middle, "simulated_low": low, "simulated_high": high,
                    "error": 100 * (middle / exact - 1), "error_low": 100 * (low / exact - 1),
                    "error_high": 100 * (high / exact - 1),
                })  # fmt: skip
    order = {one.name: place for place, one in enumerate(known_queues.KNOWN)}
    return pl.DataFrame(rows).sort(pl.col("scenario").replace_strict(order), "load")


def draw(table: pl.DataFrame) -> Figure:
    """Draw by how many percent each simulated mean is off, with its interval: a panel a load."""
    names = table["scenario"].unique(maintain_order=True).to_list()
    loads = sorted(set(table["load"]))
    with fonts(PRINTED_POINTS):
        figure = Figure(figsize=(WIDTH, ROW * len(names) + REST), layout="constrained")
        panels = figure.subplots(1, len(loads), sharey=True, sharex=True, squeeze=False)[0]
        at = np.arange(len(names))
        for panel, load in zip(panels, loads, strict=True):
            rows = table.filter(pl.col("load") == load)
            middle, low, high = (rows[f"error{end}"].to_numpy() for end in ("", "_low", "_high"))
            panel.axvline(0, color=GREY, linewidth=0.8)
            panel.errorbar(
                middle, at, xerr=[middle - low, high - middle], fmt="o", color=BLUE, markersize=4
            )
            panel.set_title(f"load {load:g}", loc="left")
        panels[0].set_yticks(at, [ROWS.get(name, name) for name in names])
        panels[0].invert_yaxis()
        figure.supxlabel(
            "Simulated minus exact mean queue length, in percent of the exact one\n"
            "The rows of a load share their random draws, so their errors lean the same way.",
            fontsize=PRINTED_POINTS,
        )
        held = ((table["error_low"] <= 0) & (table["error_high"] >= 0)).sum()
        figure.suptitle(
            f"{held} of {table.height} simulated mean queue lengths agree with exact ones\n"
            f"(95% intervals over {table['seeds'][0]} seeds)",
            x=0.01, ha="left", weight="bold",
        )  # fmt: skip
    return figure


if __name__ == "__main__":
    main()
