"""Catalogue of the paper's items and of the studies that reproduce them.

`studies.yaml` lists the studies of the report, with the figure or tables that each reproduces.
`items.yaml` lists every figure, table, algorithm and numbered statement of the paper.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import yaml

HERE = Path(__file__).resolve().parent
STUDIES, ITEMS = HERE / "studies.yaml", HERE / "items.yaml"
# States of a figure, table or statement of the paper.
STATES: dict[str, str] = yaml.safe_load((HERE / "states.yaml").read_text())


class ReportStudy(NamedTuple):
    """A study of the report.

    Attributes:
        name: name of the experiment.
        answers: the paper's figure or tables.
        sizes: size -> arguments added to the command that runs it; `paper` adds no arguments.
        minutes: size -> approximate time on two cores.
        dataset: dataset of the paper whose printed numbers are compared with ours; "" if none.
    """

    name: str
    answers: str
    sizes: Mapping[str, Sequence[str]]
    minutes: Mapping[str, float]
    dataset: str = ""


def load_studies() -> list[ReportStudy]:
    """Return the studies, in the order of the report."""
    return [ReportStudy(**one) for one in yaml.safe_load(STUDIES.read_text())]


class PaperItem(NamedTuple):
    """A figure, table, algorithm or numbered statement of the paper.

    Attributes:
        label: label in the TeX source, or "".
        kind: `figure`, `table`, `algorithm`, or the environment of the statement.
        number: number in the compiled paper.
        line: line of the label in the source, or of the beginning.
        what: short description.
        state: key of `STATES`.
        command: command that reproduces, computes or tests it, or "".
        see: file with the outcome, a path from the root of the repository, or "".
        note: difference from the paper.
    """

    label: str
    kind: str
    number: int
    line: int
    what: str
    state: str
    command: str = ""
    see: str = ""
    note: str = ""


def load_items() -> list[PaperItem]:
    """Return the items of the paper: figures, tables, algorithms, then statements in order."""
    return [PaperItem(**one) for one in yaml.safe_load(ITEMS.read_text())]
