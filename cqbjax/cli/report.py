"""Draw the figures and tables of stored studies again.

cqbjax report                        # all that is stored under results/
cqbjax report FOLDER [NAME ...]      # another results_dir, some experiments
cqbjax report --figure paper         # PDFs for LaTeX, in place of the stored `figure`
"""

import argparse
import functools
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from cqbjax.cli._command import SOME_LEFT_OUT, Arguments, run_plain
from cqbjax.core.inputs import suggest_names

if TYPE_CHECKING:
    from rich.console import Console

    from cqbjax.experiments.configs import Config
    from cqbjax.experiments.display import Show
    from cqbjax.results.files import StoredPoint

    # Takes the name, points and configuration of an experiment, and returns the files written.
    Extract = Callable[[str, Sequence[StoredPoint], Config], list[Path]]


class ReportArguments(Arguments):
    """The arguments of every report: a folder of results, and experiments in it."""

    def __init__(self, description: str) -> None:
        super().__init__(description=description)
        add = self.add_argument
        add("root", nargs="?", type=Path, default=Path("results"), help="folder of results")
        add("names", nargs="*", metavar="NAME", help="experiments to draw; default: all")
        add("--figure", choices=("page", "paper"), help="replaces the key of the same name")


ARGUMENTS = ReportArguments("Draw the figures and tables of stored studies again.")


def report(arguments: argparse.Namespace) -> None:
    """Draw each stored experiment again.

    Raises:
        ValueError: nothing is stored, or no experiment of these names.
        SystemExit: of status `SOME_LEFT_OUT`, if an experiment could not be drawn.
    """
    from cqbjax.experiments import display

    left_out = draw_again(arguments, display.make_console())
    print("no page: it compares with the paper, and is made by scripts/report.py in a checkout")
    if left_out:
        raise SystemExit(SOME_LEFT_OUT)


def draw_again(
    arguments: argparse.Namespace, console: "Console", show: "Show | None" = None,
    extracts: "Mapping[str, Extract] | None" = None,
) -> bool:  # fmt: skip
    """Draw each experiment below `root/data`, with the configuration that is stored beside it.

    An experiment that cannot be drawn, such as a torn one, is named on the error stream.

    Args:
        arguments: `root`, the folder of results; `names` of experiments, by default all; `figure`,
            which replaces the stored key.
        console: prints tables and the files written.
        show: returns the tables and figures, in place of the method of the study's type.
        extracts: name of an experiment -> function that writes further files of it.

    Returns:
        Whether an experiment was left out.

    Raises:
        ValueError: nothing is stored there, or no experiment of these names.
    """
    root, names = arguments.root, arguments.names
    keys = {"results_dir": str(root)} | ({"figure": arguments.figure} if arguments.figure else {})
    folders = sorted(path for path in (root / "data").glob("*") if path.is_dir())
    if not folders:
        raise ValueError(f"{root} has no folder data/ with results{_find_results(root)}")
    chosen = [folder for folder in folders if not names or folder.name in names]
    if not chosen:
        stored_names = [folder.name for folder in folders]
        message = f"no experiment {' '.join(names)} is stored in {root / 'data'}"
        raise ValueError(f"{message}{suggest_names(names[0], stored_names)}")

    from cqbjax.cli._instantiate import make
    from cqbjax.experiments import configs, display, study_types, validation
    from cqbjax.results import store as results
    from cqbjax.results.index import ResultIndex

    left_out = False
    for folder in chosen:
        extract = (extracts or {}).get(folder.name)
        try:
            config = configs.parse_yaml(results.read_config(folder))
            if "kind" not in config:
                raise ValueError("it was stored by an older version: run it again, or move it away")
            kind = study_types.make_study_type(config, make)
            rates = validation.to_list(config.arrival_rate)
            panels = len(ResultIndex(folder).newest()) * len(rates)
            # An extract needs all rounds.
            rounds = None if extract else kind.select_rounds(config, panels)
            stored = results.stored_points(folder, rounds)
            config, points = config.with_values(keys), [one.point for one in stored]
            shown = show(kind, points, config) if show else kind.show(points, config)
            written = display.write_output(shown, config, folder.name, console)
            written += extract(folder.name, stored, config) if extract else []
            display.print_lines(console, map(str, written))
        except ValueError as error:
            print(f"{folder.name} left out: {error}", file=sys.stderr)
            left_out = True
    return left_out


def _find_results(root: Path) -> str:
    """Return the end of an error that names the folder of results that was probably meant."""
    for folder in (root / "results", *root.resolve().parents):
        if any((folder / "data").glob("*/*.nc")):
            words = [folder, root.name] if root.resolve().parent == folder / "data" else [folder]
            return f": give {' '.join(map(str, words))}"
    return ": give the results_dir of a study, results by default"


main = functools.partial(run_plain, report, ARGUMENTS)
