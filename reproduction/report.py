"""Make the report: the paper's figures, tables and claims from stored results, and a page of them.

python scripts/report.py                            # all that is stored under results/
python scripts/report.py FOLDER [NAME ...]          # another results_dir, some experiments
python scripts/report.py --missing smoke            # run first what is missing; or cpu, or paper
python scripts/report.py --missing cpu --dry-run    # say what that would take, and no more

Where arrays are stored, figures and tables are drawn again and the study's extract is written.
Where they are not, the extract that is there speaks for it. The page is report/index.html.
"""

import argparse
import importlib.util
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from cqbjax.cli._start import SOME_LEFT_OUT, start_plain
from cqbjax.cli.report import ReportArguments, draw_again, say

if TYPE_CHECKING:
    from rich.console import Console

    from cqbjax.experiments.configs import Config
    from cqbjax.results.points import StoredPoint


# Of the page alone: the extra `report`.
LIBRARIES = ("bokeh", "itables")
SIZES = ("smoke", "cpu", "paper")

ARGUMENTS = ReportArguments("Draw what is stored, set it beside the paper, write the page.")
_add = ARGUMENTS.add_argument
_add("--missing", choices=SIZES, metavar="SIZE",
     help=f"run first the studies that have no result: {', '.join(SIZES)}")  # fmt: skip
_add("--dry-run", action="store_true", help="with --missing: say what that would take, no more")
_add("--data-dir", metavar="FOLDER", help="with --missing: of prepared data")
_add("--cache-dir", metavar="FOLDER", help="with --missing: of fits that are kept")


def main() -> None:
    """Make the report that the command line names."""
    start_plain(report, ARGUMENTS)


def report(asked: argparse.Namespace) -> None:
    """Run what is missing if that is asked for, then draw, compare, judge and write the page.

    Raises:
        ValueError: nothing is stored, or nothing of the names asked for.
        SystemExit: of status `SOME_LEFT_OUT`, where a study could not run or be drawn, or the
            page's libraries are not installed.
    """
    from cqbjax.experiments import showing

    console, left_out = showing.console(), False
    alone = [key for key in ("dry_run", "data_dir", "cache_dir") if getattr(asked, key)]
    if alone and not asked.missing:
        raise ValueError(
            f"--{alone[0].replace('_', '-')} goes with --missing: add it, or leave it out"
        )
    if asked.missing:
        from reproduction import missing

        left_out = bool(missing.run(asked, console))
        if asked.dry_run:
            return
    left_out |= _draw_again(asked.root, asked.names, console)
    absent = [name for name in LIBRARIES if importlib.util.find_spec(name) is None]
    say(_conclude(asked.root, console, page=not absent), console)
    if absent:
        said = f"no page: {', '.join(absent)} not installed; pip install 'cqbjax[report]'"
        print(said, file=sys.stderr)
    if left_out or absent:
        raise SystemExit(SOME_LEFT_OUT)


def _draw_again(root: Path, names: Sequence[str], console: "Console") -> bool:
    """Draw what is stored, with the paper's numbers; studies of the report leave an extract.

    Returns:
        Whether any was left out.

    Raises:
        ValueError: neither arrays nor an extract are stored, or nothing of the names.
    """
    from cqbjax.experiments import configs
    from reproduction import extracts
    from reproduction.paper import beside, catalogue

    def extract(name: str, stored: "Sequence[StoredPoint]", config: "Config") -> list[Path]:
        made = extracts.extract(stored, configs.plain(config))
        return extracts.write(made, _extracts(root) / name)

    # A checkout has extracts in place of arrays.
    if not names and not any((root / "data").glob("*/")) and extracts.read_all(_extracts(root)):
        return False
    reported = {one.name for one in catalogue.studies()}
    return draw_again(root, names, console, beside.show, reported, extract)


def _conclude(root: Path, console: "Console", page: bool) -> list[Path]:
    """Compare with the paper's numbers, judge its claims, write both and, if asked, the page.

    Returns:
        The files written.
    """
    from cqbjax.core.files import write_atomic
    from cqbjax.results import tables
    from reproduction import extracts
    from reproduction.paper import catalogue, claims, comparison

    by_study, listed = extracts.read_all(_extracts(root)), catalogue.studies()
    if not by_study:
        return []
    compared = comparison.beside(by_study, listed)
    judged = claims.judge_all(by_study, compared, root / "tables")
    whole = root / "tables" / "paper.csv"
    write_atomic(whole, compared.write_csv)
    counts, caption = comparison.counts(compared), "The paper's printed numbers beside ours"
    written = [
        whole,
        *tables.save_table(counts, root / "tables" / "paper_counts", caption),
        *tables.save_table(judged, root / "tables" / "claims", "The claims of the paper's text"),
    ]
    for verdict, many in judged["verdict"].value_counts(sort=True).iter_rows():
        console.print(f"claims: {many} {verdict}", markup=False)
    if page:
        from reproduction.page import build

        path = root / "report" / "index.html"
        written.append(build.build(by_study, compared, judged, listed, path))
    return written


def _extracts(root: Path) -> Path:
    return root / "report" / "extracts"
