"""What the paper has, and what became of it here.

`studies.yaml` has the studies of the report and what each one answers; `items.yaml` every figure,
table, algorithm and numbered statement of the paper.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import yaml

HERE = Path(__file__).resolve().parent
STUDIES, ITEMS = HERE / "studies.yaml", HERE / "items.yaml"
# What can have become of a figure, table or statement of the paper.
STATES = {
    "again": "run again, as the paper describes it",
    "drawn": "drawn by us",
    "stand-in": "run on data that stand in for the paper's, which are not at hand",
    "measured": "measured or counted in runs",
    "computed": "computed from its own constants",
    "tested": "held by a test",
    "assumed": "an assumption, and no result",
    "known": "a known inequality, taken as it is",
    "missing": "not done; the note says what is there",
}


class Listed(NamedTuple):
    """A study of the report.

    Attributes:
        name: of the experiment.
        answers: the paper's figure or tables.
        sizes: size -> words added to the command that runs it; `paper` has none.
        minutes: size -> about what that takes on two cores.
        dataset: of the paper's, whose printed numbers stand beside ours; empty for none.
    """

    name: str
    answers: str
    sizes: Mapping[str, Sequence[str]]
    minutes: Mapping[str, float]
    dataset: str = ""


def studies() -> list[Listed]:
    """Return the studies, in the order of the report."""
    return [Listed(**one) for one in yaml.safe_load(STUDIES.read_text())]


class Item(NamedTuple):
    """A figure, table, algorithm or numbered statement of the paper.

    Attributes:
        label: of the TeX source; empty where it has none.
        kind: `figure`, `table`, `algorithm`, or what the source calls the statement.
        number: as the paper compiles.
        line: of the source, where its label stands, or where it begins.
        what: it shows or says.
        state: of `STATES`.
        command: that makes it again, computes it or tests it; empty where none does.
        see: where the outcome stands, a path from the root of the repository; empty for nowhere.
        note: what is not as the paper has it.
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


def items() -> list[Item]:
    """Return what the paper has: figures, tables, algorithms, then statements in its order."""
    return [Item(**one) for one in yaml.safe_load(ITEMS.read_text())]
