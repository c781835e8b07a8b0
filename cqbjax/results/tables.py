"""Tables as in the paper, from stored results.

A table is a long polars frame: a row a point, arrival rate, round and policy. The CSV holds it
whole; Markdown and the terminal show it rounded, an interval in one cell with its mean, and what is
the same in all rows once, above.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import polars as pl
import xarray as xr
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from cqbjax.core.files import write_atomic
from cqbjax.results.cells import Cells, side_by_side
from cqbjax.results.names import STYLE, style_of
from cqbjax.results.summaries import differing, mean_ci, mean_sd, queue_regret, throughput
from cqbjax.store.shards import RUN_DIMS, more

_SETTING = ("source", "stand_in", "K", "num_servers", "slackness", "parameters", "arrivals")
_HEADERS = {
    "num_servers": "N", "slackness": "ε", "arrival_rate": "λ", "stand_in": "data",
    "seconds_per_round": "time a round (whole run)", "excludes_zero": "excludes 0",
    "gap_mean": "gap μ", "gap_sd": "gap σ", "over_fixed": "over best fixed",
    "once_chosen": "chosen once", "once_departure_gain": "departure gained by it",
    "once_utility_gain": "utility gained by it",
}  # fmt: skip
_TEXTS = ("policy", "source", "statistic", "rule", "data", "features", "chosen", "chosen once")
# A terminal shows so many rows; files hold all.
MOST_PRINTED = 120
_DECIMALS = {
    "gap_minus": 2, "gap": 1, "throughput": 3, "minus": 5, "value": 4, "change": 4, "departure": 4,
    "utility": 4, "over_fixed": 4,
}  # fmt: skip


def throughput_table(
    points: Sequence[xr.Dataset], rounds: Sequence[int] = (500, 1000), reference: str = "acqb"
) -> pl.DataFrame:
    """Tabulate throughput, wall-clock time, and how far the reference policy is ahead.

    Args:
        points: as `results.load_points` returns them.
        rounds: at which rounds; the last recorded one that is not later is taken, and named.
        reference: the policy compared with every other one, seed by seed.

    Returns:
        By setting, arrival_rate, round and policy: seeds, throughput (queries a round) with its
        95% interval _low and _high, seconds_per_round, and `<reference>_minus` this policy's
        throughput with its interval and `excludes_zero` (null for the reference itself, where it
        was not run, and for a single seed).

    Raises:
        ValueError: no point, or a round before the first recorded one.
    """
    rows, keys = [], _setting(points)
    for some in side_by_side(points, rounds):
        departures = throughput(some.data)
        columns = _interval("throughput", mean_ci(departures))
        columns["seconds_per_round"] = some.data["seconds_per_round"]
        columns |= _recorded(some.data)
        rows += _compared(some, keys, columns, departures, reference, f"{reference}_minus")
    return _frame(rows, {"excludes_zero": pl.Boolean})


def gap_table(
    points: Sequence[xr.Dataset], rounds: Sequence[int] = (2500, 5000), reference: str | None = None
) -> pl.DataFrame:
    """Tabulate the queue length gap to the optimal policy and the throughput, as the paper does.

    Args:
        points: as `results.load_points` returns them.
        rounds: at which rounds; the last recorded one that is not later is taken, and named.
        reference: a policy compared with every other one, seed by seed, or none.

    Returns:
        By setting, arrival_rate, round and policy: seeds, gap_mean with its 95% interval _low and
        _high and gap_sd over seeds, in queries, and throughput, in queries a round; with a
        reference also `<reference>_gap_minus` this policy's, as in `throughput_table`: above zero
        the policy has the shorter queue.

    Raises:
        ValueError: no point, or a round before the first recorded one.
    """
    rows, keys = [], _setting(points)
    for some in side_by_side(points, rounds):
        gap = queue_regret(some.data)
        columns = _interval("gap_mean", mean_ci(gap))
        columns["gap_sd"] = mean_sd(gap)["sd"]
        columns["throughput"] = mean_ci(throughput(some.data))["mean"]
        columns |= _recorded(some.data)
        if reference is None:
            rows += _rows(some, keys, columns)
        else:
            ahead = f"{reference}_gap_minus"
            rows += _compared(some, keys, columns, gap, reference, ahead)
    return _frame(rows, {} if reference is None else {"excludes_zero": pl.Boolean})


def save_table(frame: pl.DataFrame, stem: Path, caption: str) -> tuple[Path, Path]:
    """Write `stem`.csv, unrounded, and `stem`.md, to be read, each whole or not at all."""
    stem = Path(stem)
    shared, headers, rows = _readable(frame)
    lines = [f"**{caption}**", "", *([f"In all rows: {shared}.", ""] if shared else [])]
    aligned = ["---" if header in _TEXTS else "---:" for header in headers]
    for cells in (headers, aligned, *rows):
        lines.append(f"| {' | '.join(cell.replace('|', '/') for cell in cells)} |")
    csv, markdown = stem.with_name(f"{stem.name}.csv"), stem.with_name(f"{stem.name}.md")
    write_atomic(csv, frame.write_csv().encode())
    write_atomic(markdown, ("\n".join(lines) + "\n").encode())
    return csv, markdown


def print_table(frame: pl.DataFrame, title: str, console: Console | None = None) -> None:
    """Print a table to the terminal, or to a given console, as `save_table`'s Markdown reads."""
    shared, headers, rows = _readable(frame)
    # Escaped, for rich would take an interval's brackets for markup.
    caption = escape(f"In all rows: {shared}.") if shared else None
    table = Table(title=escape(title), caption=caption)
    for header, *cells in zip(headers, *rows, strict=True):
        # Where room is short, let the headers break and not the numbers.
        side: Literal["left", "right"] = "left" if header in _TEXTS else "right"
        table.add_column(escape(header), justify=side, min_width=max(map(len, cells), default=0))
    for cells in rows[:MOST_PRINTED]:
        table.add_row(*map(escape, cells))
    console = console or Console()
    console.print(table)
    if len(rows) > MOST_PRINTED:
        console.print(f"{len(rows) - MOST_PRINTED:,} more rows are in the table's files")


def _recorded(data: xr.Dataset) -> dict[str, xr.DataArray]:
    """Return columns of what else was recorded of a run, at the round or over all of it."""
    names = more(data, ("point", *RUN_DIMS[:-1]))
    return {key: of for name in names for key, of in _interval(name, mean_ci(data[name])).items()}


def _setting(points: Sequence[xr.Dataset]) -> list[str]:
    """Return the attributes of points that a row begins with."""
    present = [key for key in _SETTING if any(point.attrs.get(key, "") != "" for point in points)]
    return present + [key for key in differing(points) if key not in _SETTING]


def _rows(
    some: Cells, keys: Sequence[str], columns: Mapping[str, xr.DataArray]
) -> list[dict[str, Any]]:
    """Return a row a point, arrival rate and policy: its setting, and its numbers in `columns`."""
    numbers = {name: some.by_policy(column) for name, column in columns.items()}
    seeds, rows = some.data.sizes["seed"], []
    for i, attributes in enumerate(some.attributes):
        setting = {key: attributes.get(key) for key in keys}
        for j, rate in enumerate(some.rates[i].tolist()):
            for k, label in enumerate(some.policies):
                row = {"arrival_rate": rate, "round": some.round, "policy": label, "seeds": seeds}
                rows.append(setting | row | {name: of[i][j][k] for name, of in numbers.items()})
    return rows


def _compared(
    some: Cells, keys: Sequence[str], columns: Mapping[str, xr.DataArray], values: xr.DataArray,
    reference: str, ahead: str,
) -> list[dict[str, Any]]:  # fmt: skip
    """Return the rows with the reference's values less the policy's, paired by seed."""
    known = reference in some.policies
    if known:
        apart = mean_ci(values.sel(policy=reference, drop=True) - values)
        columns = {**columns, **_interval(ahead, apart)}
    rows = []
    for row in _rows(some, keys, columns):
        if not known or row["policy"] == reference:
            row |= dict.fromkeys((ahead, f"{ahead}_low", f"{ahead}_high"))
        rows.append(row | {"excludes_zero": _excludes_zero(row, ahead)})
    return rows


def _interval(name: str, summary: xr.Dataset) -> dict[str, xr.DataArray]:
    """Return the columns of a mean and its interval."""
    parts = {name: "mean", f"{name}_low": "low", f"{name}_high": "high"}
    return {column: summary[part] for column, part in parts.items()}


def _excludes_zero(row: Mapping[str, Any], difference: str) -> bool | None:
    """Say whether the interval of a difference lies to one side of zero; None without one."""
    low, high = row[f"{difference}_low"], row[f"{difference}_high"]
    return None if low is None else low > 0 or high < 0


def _frame(rows: Sequence[Mapping[str, Any]], types: Mapping[str, Any]) -> pl.DataFrame:
    """Collect rows sorted by setting, rate and round, policies in the order of the legends."""
    frame = pl.DataFrame(rows, infer_schema_length=None)
    # A column that is empty throughout has no type of its own.
    empty = [
        pl.col(c).cast(types.get(c, pl.Float64)) for c in frame.columns if frame[c].is_null().all()
    ]
    rank = pl.col("policy").replace_strict({x: i for i, x in enumerate(STYLE)}, default=len(STYLE))
    order = frame.columns[: frame.columns.index("policy")]
    return frame.with_columns(empty).sort([*order, rank, pl.col("policy")], nulls_last=True)


def _readable(frame: pl.DataFrame) -> tuple[str, list[str], list[list[str]]]:
    """Round, join intervals with their means, and take out what is the same in all rows."""
    parts = {f"{c}{end}" for c in frame.columns for end in ("_low", "_high")}
    ends = [frame.columns.index(c) for c in ("policy", "statistic") if c in frame.columns]
    setting = frame.columns[: min(ends, default=0)]
    same = [c for c in setting if frame.height > 1 and frame[c].n_unique() == 1]
    same += [c for c in ("seeds", "stand_in") if c in frame.columns and frame[c].n_unique() == 1]
    same = list(dict.fromkeys(same))
    shown = [c for c in frame.columns if c not in same and c not in parts]
    shared = "; ".join(f"{_header(c, [])} {_cell_text(c, frame[c][0])}" for c in same)
    rows = [[_joined(c, row) for c in shown] for row in frame.iter_rows(named=True)]
    return shared, [_header(c, frame.columns) for c in shown], rows


def _header(column: str, columns: Sequence[str]) -> str:
    ours = column.removeprefix("paper_")  # stands right beside ours
    name = _HEADERS.get(ours, ours)
    if ours.endswith("_gap_minus"):
        name = f"{style_of(ours.removesuffix('_gap_minus')).name}'s gap minus policy's"
    elif ours.endswith("_minus"):
        name = f"{style_of(ours.removesuffix('_minus')).name} minus policy"
    name = f"{name} [95% CI]" if f"{column}_low" in columns else name
    return "paper" if column != ours else name


def _joined(column: str, row: Mapping[str, Any]) -> str:
    text = _cell_text(column, row[column])
    if row.get(f"{column}_low") is None:
        return text
    low, high = (_cell_text(column, row[f"{column}_{end}"]) for end in ("low", "high"))
    return f"{text} [{low}, {high}]"


def _cell_text(column: str, value: Any) -> str:
    if value is None:
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if column == "policy":
        return style_of(value).name
    if column.endswith("seconds_per_round"):
        if value == 0:
            return "≈ 0"  # as the paper rounds it
        return f"{1e3 * value:.3g} ms" if value >= 1e-3 else f"{1e6 * value:.3g} µs"
    if isinstance(value, float):
        decimals = next((d for part, d in _DECIMALS.items() if part in column), None)
        # Adding zero turns a rounded -0.0 into 0.0.
        return (
            f"{value:.3g}" if decimals is None else f"{round(value, decimals) + 0.0:.{decimals}f}"
        )
    return str(value)
