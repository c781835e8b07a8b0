"""A table as it is read: numbers rounded, intervals beside their means, what is alike said once."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import polars as pl
import yaml

from cqbjax.results.metrics import Metric
from cqbjax.results.names import find_style

WORDS = yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text())
HEADERS, TEXTS, DECIMALS = WORDS["headers"], WORDS["texts"], WORDS["decimals"]
# What a table is of that has means and standard deviations.
MEANS = ("gap", "length", "regret")
# Further decimals that an end of an interval may take until it is not zero.
MOST_MORE = 8
# Where there is no interval, and why.
NONE, WHY_NONE = "[–]", "[–]: of one seed, or of seeds that are all alike, which tell no interval"
# Columns of recorders that stand among the others, and in a table of their own where they are more.
MOST_AMONG, MOST_APART = 3, 5


class TableSection(NamedTuple):
    """A table that a reader can take in.

    Attributes:
        headers: of its columns.
        rows: their cells.
        legend: what its columns are, where they are called by names of arrays.
    """

    headers: list[str]
    rows: list[list[str]]
    legend: str = ""


def split_table(frame: pl.DataFrame, apart: Mapping[str, Metric]) -> tuple[str, list[TableSection]]:
    """Round, join intervals with their means, and take out what is the same in all rows.

    Args:
        frame: the table.
        apart: columns that are in tables of their own where they are many, with what they are.

    Returns:
        What is the same in all rows, and the tables.
    """
    parts = {f"{c}{end}" for c in frame.columns for end in ("_low", "_high")}
    after = [frame.columns.index(c) for c in ("policy", "statistic") if c in frame.columns]
    setting = frame.columns[: min(after, default=0)]
    same = [c for c in setting if frame.height > 1 and frame[c].n_unique() == 1]
    same += [c for c in ("seeds", "stand_in") if c in frame.columns and frame[c].n_unique() == 1]
    same = list(dict.fromkeys(same))
    shown = [c for c in frame.columns if c not in same and c not in parts]
    shared = "; ".join(f"{_format_header(c, [])} {_format_cell(c, frame[c][0])}" for c in same)
    others = [c for c in shown if c in apart]
    if len(others) <= MOST_AMONG:
        others = []
    made = [_build_section(frame, [c for c in shown if c not in others])]
    lead = [c for c in shown if c in (*setting, "policy")]
    # What is of a run's end has nothing to say of earlier rounds.
    ends = [c for c in others if apart[c].of_run]
    for some in ([c for c in others if c not in ends], ends):
        for first in range(0, len(some), MOST_APART):
            own = some[first : first + MOST_APART]
            rows = frame.filter(pl.any_horizontal(pl.col(own).is_not_null()))
            legend = "; ".join(f"{name}: {apart[name].label}" for name in own)
            made.append(_build_section(rows, [*lead, *own], f"{legend}."))
    return shared, made


def _build_section(frame: pl.DataFrame, shown: Sequence[str], legend: str = "") -> TableSection:
    """Return some columns of a table as text."""
    rows = [[_format_interval(c, row) for c in shown] for row in frame.iter_rows(named=True)]
    if any(cell.endswith(NONE) for row in rows for cell in row):
        legend = f"{legend} {WHY_NONE}.".strip()
    return TableSection([_format_header(c, frame.columns) for c in shown], rows, legend)


def _format_header(column: str, columns: Sequence[str]) -> str:
    ours = column.removeprefix("paper_")  # stands right beside ours
    name = HEADERS.get(ours, ours)
    of = next((one for one in MEANS if ours.endswith(f"_{one}_minus")), None)
    if of:
        name = f"{find_style(ours.removesuffix(f'_{of}_minus')).name}'s {of} minus policy's"
    elif ours.endswith("_minus"):
        name = f"{find_style(ours.removesuffix('_minus')).name} minus policy"
    name = f"{name} [95% CI]" if f"{column}_low" in columns else name
    return "paper" if column != ours else name


def _format_interval(column: str, row: Mapping[str, Any]) -> str:
    text = _format_cell(column, row[column])
    if row.get(f"{column}_low") is None:
        is_mean = f"{column}_low" in row and row[column] is not None
        return f"{text} {NONE}" if is_mean else text
    ends = [row[f"{column}_{end}"] for end in ("low", "high")]
    told = row[column], *ends
    decimals = _find_decimals(column)
    if decimals is not None and ends[0] * ends[1] > 0:
        # An interval on one side of zero is shown there: no end of it is rounded to zero.
        decimals += next(
            (m for m in range(MOST_MORE) if all(round(e, decimals + m) for e in ends)), 0
        )
    text, low, high = (_format_cell(column, value, decimals) for value in told)
    return f"{text} [{low}, {high}]"


def _find_decimals(column: str) -> int | None:
    return next((number for part, number in DECIMALS.items() if part in column), None)


def _format_cell(column: str, value: Any, decimals: int | None = None) -> str:
    if value is None:
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if column == "policy":
        return find_style(value).name
    if column.endswith("seconds_per_round"):
        if value == 0:
            return "≈ 0"  # as the paper rounds it
        return f"{1e3 * value:.3g} ms" if value >= 1e-3 else f"{1e6 * value:.3g} µs"
    if isinstance(value, float):
        decimals = _find_decimals(column) if decimals is None else decimals
        # Adding zero turns a rounded -0.0 into 0.0.
        return (
            f"{value:.3g}" if decimals is None else f"{round(value, decimals) + 0.0:.{decimals}f}"
        )
    return str(value)
