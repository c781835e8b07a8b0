"""The studies of the report, and what of the paper each one answers (`studies.yaml`)."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import yaml

STUDIES = Path(__file__).resolve().parent / "studies.yaml"


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
