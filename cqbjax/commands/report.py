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

from cqbjax.commands._start import SOME_LEFT_OUT, Arguments, start_plain

if TYPE_CHECKING:
    from rich.console import Console


# Of the page alone: the extra `report`.
LIBRARIES = ("bokeh", "itables")
SIZES = ("smoke", "cpu", "paper")

ARGUMENTS = Arguments(description="Draw what is stored, set it beside the paper, write the page.")
_add = ARGUMENTS.add_argument
_add("root", nargs="?", type=Path, default=Path("results"), help="folder of results")
_add("names", nargs="*", metavar="NAME", help="experiments to draw again; all if none is named")
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
    from cqbjax.studies import showing

    console, left_out = showing.console(), False
    alone = [key for key in ("dry_run", "data_dir", "cache_dir") if getattr(asked, key)]
    if alone and not asked.missing:
        raise ValueError(
            f"--{alone[0].replace('_', '-')} goes with --missing: add it, or leave it out"
        )
    if asked.missing:
        from cqbjax.commands import _missing_studies

        left_out = bool(_missing_studies.run(asked, console))
        if asked.dry_run:
            return
    left_out |= _draw_again(asked.root, asked.names, console)
    absent = [name for name in LIBRARIES if importlib.util.find_spec(name) is None]
    _say(_conclude(asked.root, console, page=not absent), console)
    if absent:
        said = f"no page: {', '.join(absent)} not installed; pip install 'cqbjax[report]'"
        print(said, file=sys.stderr)
    if left_out or absent:
        raise SystemExit(SOME_LEFT_OUT)


def _draw_again(root: Path, names: Sequence[str], console: "Console") -> bool:
    """Draw each experiment below `root/data`, with the configuration that is stored beside it.

    Those of the report leave an extract. One that cannot be drawn, such as a torn one, is left out,
    which is said.

    Returns:
        Whether any was left out.

    Raises:
        ValueError: nothing is stored there, neither arrays nor an extract, or nothing of the names.
    """
    from cqbjax.paper import catalogue
    from cqbjax.results import extracts

    if not root.is_dir():
        raise ValueError(f"{root}: no such folder of results; report FOLDER NAME draws one of it")
    folders = sorted(path for path in (root / "data").glob("*") if path.is_dir())
    chosen = [folder for folder in folders if not names or folder.name in names]
    if not chosen and (names or not extracts.read_all(_extracts(root))):
        have = ", ".join(folder.name for folder in folders) or "none"
        asked = " ".join(["no stored experiment", *names])
        raise ValueError(f"{asked} under {root / 'data'}; there: {have}")
    reported = {one.name for one in catalogue.studies()}
    left_out = False
    for folder in chosen:
        try:
            _draw(folder, root, folder.name in reported, console)
        except ValueError as error:
            print(f"{folder.name} left out: {error}", file=sys.stderr)
            left_out = True
    return left_out


def _draw(folder: Path, root: Path, reported: bool, console: "Console") -> None:
    """Draw an experiment as its kind does, and write its extract if it is of the report."""
    from cqbjax.commands._hydra import make
    from cqbjax.results import extracts
    from cqbjax.results import stored as results
    from cqbjax.store import pieces
    from cqbjax.studies import configs, kinds, settings, showing

    count = results.count_points(folder)
    config = configs.of_yaml(results.read_config(pieces.found(folder)[0]))
    if "kind" not in config:
        raise ValueError(f"{folder} was stored by an older version: run it again, or move it away")
    kind = kinds.of(config, make)
    # An extract is of all rounds.
    panels = count * len(settings.listed(config.arrival_rate))
    stored = results.stored_points(folder, None if reported else kind.rounds_read(config, panels))
    points = [one.point for one in stored]
    config = config.at({"results_dir": str(root)})
    written = showing.write(kind.show(points, config), config, folder.name, console)
    if reported:
        made = extracts.extract(stored, configs.plain(config))
        written += extracts.write(made, _extracts(root) / folder.name)
    _say(written, console)


def _say(written: Sequence[Path], console: "Console") -> None:
    """Say which files were written, each on a line of its own."""
    for path in written:
        console.print(str(path), markup=False, soft_wrap=True)


def _conclude(root: Path, console: "Console", page: bool) -> list[Path]:
    """Compare with the paper's numbers, judge its claims, write both and, if asked, the page.

    Returns:
        The files written.
    """
    from cqbjax.core.files import write_atomic
    from cqbjax.paper import catalogue, claims, comparison
    from cqbjax.results import extracts, tables

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
        from cqbjax.page import build

        path = root / "report" / "index.html"
        written.append(build.build(by_study, compared, judged, listed, path))
    return written


def _extracts(root: Path) -> Path:
    return root / "report" / "extracts"
