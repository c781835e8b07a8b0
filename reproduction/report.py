"""Make the report: the paper's figures, tables and claims from stored results, and a page of them.

python scripts/report.py                            # all stored studies under results/
python scripts/report.py FOLDER [NAME ...]          # another results_dir, some experiments
python scripts/report.py --missing smoke            # first run missing studies; or cpu, or paper
python scripts/report.py --missing cpu --dry-run    # print what that would take, and stop

Where arrays are stored, figures and tables are drawn again and the study's extract is written.
Elsewhere the existing extract is used. The page is report/index.html.
"""

import argparse
import importlib.util
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from cqbjax.cli import report as stored_report
from cqbjax.cli._command import SOME_LEFT_OUT, run_plain
from reproduction.paper import catalogue

if TYPE_CHECKING:
    from rich.console import Console

    from cqbjax.experiments.configs import Config
    from cqbjax.results.files import StoredPoint

RUN = Path(__file__).resolve().parents[1] / "scripts" / "run.py"
# Of the page alone: the extra `report`.
LIBRARIES = ("bokeh", "itables")
EXTRACTS = Path("report") / "extracts"  # below the results
SIZES = ("smoke", "cpu", "paper")

ARGUMENTS = stored_report.ReportArguments(
    "Draw stored studies, compare them with the paper, write the page."
)
_add = ARGUMENTS.add_argument
_add("--missing", choices=SIZES, metavar="SIZE",
     help=f"first run the studies without a result: {', '.join(SIZES)}")  # fmt: skip
_add("--dry-run", action="store_true", help="with --missing: print what that would take, and stop")
_add("--data-dir", metavar="FOLDER", help="with --missing: of prepared data")
_add("--cache-dir", metavar="FOLDER", help="with --missing: of cached fits")


def main() -> None:
    """Make the report that the command line names."""
    run_plain(report, ARGUMENTS)


def report(asked: argparse.Namespace) -> None:
    """Run missing studies on request, then draw, compare, judge and write the page.

    Raises:
        ValueError: no stored study has any of the names.
        SystemExit: of status `SOME_LEFT_OUT`, where a study could not run or be drawn, or the
            page's libraries are not installed.
    """
    from cqbjax.experiments import display

    console, left_out = display.make_console(), False
    alone = [key for key in ("dry_run", "data_dir", "cache_dir") if getattr(asked, key)]
    if alone and not asked.missing:
        option = f"--{alone[0].replace('_', '-')}"
        raise ValueError(f"{option} goes with --missing: add it, or leave it out")
    if asked.missing:
        left_out = bool(run_missing(asked, console))
        if asked.dry_run:
            return
    left_out |= _draw(asked, console)
    absent = [name for name in LIBRARIES if importlib.util.find_spec(name) is None]
    written = _conclude(asked.root, console, page=not absent)
    display.print_lines(console, map(str, written))
    if absent:
        message = f"no page: {', '.join(absent)} not installed; pip install 'cqbjax[report]'"
        print(message, file=sys.stderr)
    if left_out or absent:
        raise SystemExit(SOME_LEFT_OUT)


def quote(key: str, value: object) -> str:
    """Return `key=value` for Hydra, quoted: `,`, `=` and others have a meaning in its grammar."""
    text = re.sub(r"(\\*)('|$)", lambda end: 2 * end[1] + "\\'" * bool(end[2]), str(value))
    return f"{key}='{text}'"


def run_missing(asked: argparse.Namespace, console: "Console") -> dict[str, str]:
    """Run the studies that have neither arrays nor an extract, each as `scripts/run.py` would.

    The expected time on two cores is printed first. In a dry run each study prints its own
    estimate, which compiles its programs and simulates almost nothing.

    Args:
        asked: the arguments of `report`.
        console: prints progress.

    Returns:
        Name of a study that could not run -> the reason.

    Raises:
        ValueError: a name is not a study of the report.
    """
    missing, size = find_missing(asked.root, asked.names), asked.missing
    if not missing:
        console.print("no study of the report is missing")
    for one in missing:
        added = " ".join(one.sizes.get(size, ())) or "as configured"
        line = f"{one.name}: {one.minutes[size]:g} min on two cores; {added}"
        console.print(line, markup=False, soft_wrap=True)
    if missing:
        total = sum(one.minutes[size] for one in missing)
        console.print(f"{len(missing)} studies are missing: about {total:.0f} min at size {size}")
    failed: dict[str, str] = {}
    for number, one in enumerate(missing):
        console.print(f"[{number + 1}/{len(missing)}] {one.name}", markup=False)
        words = [f"experiment={one.name}", *one.sizes.get(size, ())]
        words += [quote("results_dir", asked.root), f"dry_run={str(asked.dry_run).lower()}"]
        words += [quote(k, v) for k in ("data_dir", "cache_dir") if (v := getattr(asked, k))]
        # A process each, since each sets JAX up.
        command = [sys.executable, str(RUN), *words]
        done = subprocess.run(command, stderr=subprocess.PIPE, text=True)
        if done.returncode:
            lines = [line for line in done.stderr.splitlines() if line.strip()]
            failed[one.name] = (lines or [f"status {done.returncode}"])[-1].removeprefix("error: ")
            line = f"{one.name} left out: {failed[one.name]}"
            console.print(line, markup=False, soft_wrap=True)
    return failed


def find_missing(root: Path, names: Sequence[str]) -> list[catalogue.ReportStudy]:
    """Return the studies of the report with neither arrays nor an extract.

    Raises:
        ValueError: a name is not a study of the report.
    """
    listed = {one.name: one for one in catalogue.load_studies()}
    for name in names:
        if name not in listed:
            raise ValueError(f"{name} is no study of the report; choose from {', '.join(listed)}")
    return [
        one for name, one in listed.items()
        if (not names or name in names) and not any((root / "data" / name).glob("*.nc"))
        and not (root / EXTRACTS / name).is_dir()
    ]  # fmt: skip


def _draw(asked: argparse.Namespace, console: "Console") -> bool:
    """Draw stored studies, with the paper's numbers; write extracts of studies of the report.

    Returns:
        Whether any study was left out.

    Raises:
        ValueError: neither arrays nor an extract are stored, or none with the names.
    """
    from cqbjax.experiments import configs
    from reproduction import extracts, run

    folder = asked.root / EXTRACTS

    def extract(name: str, stored: "Sequence[StoredPoint]", config: "Config") -> list[Path]:
        return extracts.write(extracts.extract(stored, configs.to_plain(config)), folder / name)

    # A checkout has extracts and no arrays.
    if not asked.names and not any(asked.root.glob("data/*/")) and extracts.read_all(folder):
        return False
    reported = [one.name for one in catalogue.load_studies()]
    return stored_report.draw_again(asked, console, run.show, dict.fromkeys(reported, extract))


def _conclude(root: Path, console: "Console", page: bool) -> list[Path]:
    """Compare with the paper's numbers and judge its claims; return the files written.

    Args:
        root: of results.
        console: prints the number of claims by verdict.
        page: write the page, too.
    """
    from cqbjax.core.files import write_atomic
    from cqbjax.results import tables
    from reproduction import extracts
    from reproduction.paper import claims, comparison

    by_study, listed = extracts.read_all(root / EXTRACTS), catalogue.load_studies()
    if not by_study:
        return []
    compared = comparison.compare(by_study, listed)
    judged = claims.judge_all(by_study, compared, root / "tables")
    whole = root / "tables" / "paper.csv"
    write_atomic(whole, compared.write_csv)
    counts, caption = comparison.count(compared), "The paper's printed numbers beside ours"
    written = [whole, *tables.save_table(counts, root / "tables" / "paper_counts", caption)]
    caption = "The claims of the paper's text"
    written += tables.save_table(judged, root / "tables" / "claims", caption)
    for verdict, many in judged["verdict"].value_counts(sort=True).iter_rows():
        console.print(f"claims: {many} {verdict}", markup=False)
    if page:
        from reproduction.page import build

        path = root / "report" / "index.html"
        written.append(build.build(by_study, compared, judged, listed, path))
    return written
