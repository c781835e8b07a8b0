"""Simulate worlds whose mean queue is known, and set the known beside the simulated.

    python scripts/known_answers.py
    python scripts/known_answers.py --loads 0.6 --seeds 30 --relaxations 40

Writes `results/tables/known_answers.{csv,md}` and `results/figures/known_answers.png`: a row a
world and load, with the 95% interval over seeds. A queue remembers for long where load is high, and
runs are as many times as long.
"""

import argparse
from pathlib import Path

from cqbjax.commands._start import Arguments, start_plain

ARGUMENTS = Arguments(description="Set known queues beside simulated ones.")
_add = ARGUMENTS.add_argument
_add("--loads", nargs="+", type=float, default=[0.6, 0.8, 0.95], metavar="RHO", help="in (0, 1)")
_add("--seeds", type=int, default=120, metavar="N", help="independent runs, at least 2")
_add(
    "--relaxations", type=int, default=100, metavar="N",
    help="how many times as long as the queue remembers a run is, 5 more left out at its start",
)  # fmt: skip
_add("--results", type=Path, default=Path("results"), metavar="FOLDER", help="where to write")
CAPTION = "Mean queue length, known and simulated"


def main() -> None:
    """Simulate at the loads that the command line names."""
    start_plain(compare, ARGUMENTS)


def compare(asked: argparse.Namespace) -> None:
    """Simulate, write, draw and print.

    Raises:
        ValueError: naming what is out of range.
    """
    _check(asked)
    from cqbjax.core import backend
    from cqbjax.figures import files, known_answers
    from cqbjax.results import tables
    from cqbjax.results.summaries import t_quantile
    from cqbjax.studies import showing
    from cqbjax.sweeping.bars import bar
    from cqbjax.testing import known

    backend.configure()
    with bar() as progress:
        means = {
            load: known.simulated(known.KNOWN, load, asked.seeds, asked.relaxations, progress)
            for load in asked.loads
        }
    table = known.table(means, t_quantile(asked.seeds))
