"""A table as text: rounded numbers, intervals in the cells of their means, common values apart."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import polars as pl
import yaml

from cqbjax.core.labels import OPTIMAL
from cqbjax.results.metrics import Metric
from cqbjax.results.policy_styles import find_style, sort_policies

HEADERS = yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text())["headers"]
# Quantities of which a reference policy's value minus another's is a column.
COMPARED = ("gap", "length", "regret")
# Significant digits of the largest number in a cell, and decimals of any number.
DIGITS, MAX_DECIMALS = 3, 12
# In place of an interval, and the reason.
NONE, WHY_NONE = "[–]", "[–]: no interval, for a single seed or equal values of all seeds"
# Most columns of recorders in the main table; if there are more, most in each separate table.
MAX_AMONG, MAX_OWN = 3, 5
TIME = "seconds_per_round"


class TableSection(NamedTuple):
    """A table of texts.

    Attributes:
        headers: headers of the columns.
        rows: cells of each row.
        legend: descriptions of the columns that are named after arrays, and further notes.
        lead: number of leading columns, which identify a row.
        words: for each column, whether it holds text, which is aligned left.
    """

    headers: list[str]
    rows: list[list[str]]
    legend: str = ""
    lead: int = 1
    words: Sequence[bool] = ()


def split_table(
    frame: pl.DataFrame, recorded: Mapping[str, Metric]
) -> tuple[str, list[TableSection]]:
    """Round numbers, join intervals with their means, and separate values common to all rows.

    Args:
        frame: the table.
        recorded: recorded metrics, whose columns are moved to separate tables if there are many.

    Returns:
        The values common to all rows, as text, and the tables that have rows.
    """
    ends = {f"{c}{end}" for c in frame.columns for end in ("_low", "_high")}
    after = [frame.columns.index(c) for c in ("policy", "statistic") if c in frame.columns]
    setting = frame.columns[: min(after, default=0)]
    same = [c for c in setting if frame.height > 1 and frame[c].n_unique() == 1]
    same += [c for c in ("seeds", "stand_in") if c in frame.columns and frame[c].n_unique() == 1]
    same = list(dict.fromkeys(same))
    hidden = {*same, *ends, "excludes_zero"}
    # A difference from a policy that does not run is null in all rows.
    hidden |= {c for c in frame.columns if c.endswith("_minus") and not frame[c].count()}
    # The time of a round is the same in all rounds, unless the paper's is beside it.
    timed = TIME in frame.columns and f"paper_{TIME}" not in frame.columns
    shown = [c for c in frame.columns if c not in hidden and not (timed and c == TIME)]
    common = [f"{_format_header(c)} {_format_cell(c, frame[c][0], setting=True)}" for c in same]
    if any(f"{c}_low" in ends for c in shown):
        common.append("[ ] 95% confidence intervals")
    others = [c for c in shown if c in recorded]
    if len(others) <= MAX_AMONG:
        others = []
    lead = [c for c in shown if c in (*setting, "policy", "statistic")]
    main = [*lead, *(c for c in shown if c not in (*others, *lead))]
    times = _describe_times(frame) if timed else ""
    sections = [_build_section(frame, main, lead, times, recorded)]
    # A metric of a whole run has values in the last round only.
    of_run = [c for c in others if recorded[c].of_run]
    for some in ([c for c in others if c not in of_run], of_run):
        for first in range(0, len(some), MAX_OWN):
            columns = some[first : first + MAX_OWN]
            rows = frame.filter(pl.any_horizontal(pl.col(columns).is_not_null()))
            legends = dict(_describe_metric(name, recorded[name]) for name in columns)
            legend = "; ".join(f"{name}: {label}" for name, label in legends.items())
            sections.append(_build_section(rows, [*lead, *columns], lead, f"{legend}.", recorded))
    return "; ".join(common), [section for section in sections if section.rows]


def _build_section(
    frame: pl.DataFrame, columns: Sequence[str], lead: Sequence[str], legend: str,
    recorded: Mapping[str, Metric],
) -> TableSection:  # fmt: skip
    """Return some columns of a table as text."""
    setting = set(lead)
    rows = [
        [_format_interval(c, row, c in setting) for c in columns]
        for row in frame.iter_rows(named=True)
    ]
    if any(cell.endswith(NONE) for row in rows for cell in row):
        legend = f"{legend} {WHY_NONE}.".strip()
    words = [frame.schema[c] == pl.String for c in columns]
    headers = [_format_header(c) for c in columns]
    for i, column in enumerate(columns):
        if column in recorded and recorded[column].server:
            name, _ = _describe_metric(column, recorded[column])
            headers[i] = f"{name} {recorded[column].server}"
    return TableSection(headers, rows, legend, max(1, len(lead)), words)


def _describe_metric(name: str, metric: Metric) -> tuple[str, str]:
    """Return the name and the label of a metric without its server: `traffic` of `traffic_0`."""
    if not metric.server:
        return name, metric.label
    return name.rpartition("_")[0], metric.label.replace(f", {metric.server}", "", 1)


def _describe_times(frame: pl.DataFrame) -> str:
    """Return the time of a round once: the range of each policy, equal ones together."""
    policies: dict[str, list[str]] = {}
    for label in sort_policies(frame["policy"].unique()):
        seconds = frame.filter(policy=label)[TIME].drop_nulls().sort()
        ends = dict.fromkeys(map(_format_seconds, (seconds[0], seconds[-1])))
        policies.setdefault(" to ".join(ends), []).append(find_style(label).name)
    # Names of policies contain commas.
    texts = [f"{text}: {'; '.join(names)}." for text, names in policies.items()]
    return f"Time per round over the whole run. {' '.join(texts)}"


def _format_header(column: str) -> str:
    ours = column.removeprefix("paper_")  # stands right beside ours
    if column != ours:
        return "paper"
    what = next((one for one in COMPARED if ours.endswith(f"_{one}_minus")), "throughput")
    reference = ours.removesuffix("_minus").removesuffix(f"_{what}")
    if ours.endswith("_minus"):
        return f"{find_style(reference).name}'s {what} minus policy's"
    return str(HEADERS.get(ours, ours))


def _format_interval(column: str, row: Mapping[str, Any], setting: bool) -> str:
    value, low, high = (row.get(f"{column}{end}") for end in ("", "_low", "_high"))
    text = _format_cell(column, value, setting=setting)
    if value is None or low is None or high is None:
        # The oracle has no gap to itself.
        own_gap = column == "gap_mean" and row.get("policy") == OPTIMAL
        is_mean = f"{column}_low" in row and value is not None and not own_gap
        return f"{text} {NONE}" if is_mean else text
    # Three significant digits, but at most two and at least one of the half-width.
    first = -_find_magnitude((high - low) / 2)
    decimals = max(min(_find_decimals(value, low, high), first + 1), first, 0)
    if low * high > 0:
        # An interval on one side of zero is shown there: its ends do not round to zero.
        decimals = next(
            (d for d in range(decimals, MAX_DECIMALS) if round(low, d) and round(high, d)), decimals
        )
    text, low_text, high_text = (_format_number(one, decimals) for one in (value, low, high))
    return f"{text} [{low_text}, {high_text}]"


def _find_magnitude(value: float) -> int:
    """Return the power of ten of a number's first digit."""
    return math.floor(math.log10(abs(value))) if value and math.isfinite(value) else 0


def _find_decimals(*values: float) -> int:
    """Return the decimals with which the largest of some numbers has three significant digits."""
    largest = max(map(abs, values))
    return min(max(0, DIGITS - 1 - _find_magnitude(largest)), MAX_DECIMALS) if largest else 0


def _format_number(value: float, decimals: int) -> str:
    # Adding zero turns a rounded -0.0 into 0.0.
    return f"{round(value, decimals) + 0.0:.{decimals}f}"


def _format_seconds(seconds: float) -> str:
    if seconds == 0:
        return "≈ 0"  # as the paper rounds it
    scale, unit = (1, "s") if seconds >= 1 else (1e3, "ms") if seconds >= 1e-3 else (1e6, "µs")
    return f"{_format_number(scale * seconds, max(0, 1 - _find_magnitude(scale * seconds)))} {unit}"


def _format_cell(column: str, value: Any, setting: bool = False) -> str:
    if value is None:
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if column == "policy":
        return find_style(value).name
    if column.endswith(TIME):
        return _format_seconds(value)
    if isinstance(value, float):
        return f"{value:g}" if setting else _format_number(value, _find_decimals(value))
    return str(value)
