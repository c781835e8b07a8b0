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
from cqbjax.results.frame import LAST, against, growth, labelled, long, summarised
from cqbjax.results.metrics import own_arrays
from cqbjax.results.names import OTHERWISE, STYLE, style_of
from cqbjax.results.summaries import differing

# Queries a round by which a queue that is borne may still grow over the second half of a run.
GROWTH = 0.01

_SETTING = (
    "source",
    "stand_in",
    "K",
    "num_servers",
    "slackness",
    "parameters",
    *OTHERWISE,
    "yardstick",
)
_HEADERS = {
    "closed_form": "closed form", "apart": "apart, %",
    "num_servers": "N", "slackness": "ε", "arrival_rate": "λ", "stand_in": "data",
    "seconds_per_round": "time a round (whole run)", "excludes_zero": "excludes 0",
    "gap_mean": "gap μ", "gap_sd": "gap σ", "over_fixed": "over best fixed",
    "once_chosen": "chosen once", "once_departure_gain": "departure gained by it",
    "once_utility_gain": "utility gained by it",
}  # fmt: skip
_TEXTS = (
    "policy", "source", "statistic", "rule", "data", "features", "chosen", "chosen once",
    "world", "closed form",
)  # fmt: skip
# A terminal shows so many rows; files hold all.
MOST_PRINTED = 120
_DECIMALS = {
    "gap_minus": 2, "gap": 1, "throughput": 3, "minus": 5, "value": 4, "change": 4, "departure": 4,
    "utility": 4, "over_fixed": 4,
    "known": 3, "simulated": 3, "apart": 1,
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
        95% interval _low and _high, seconds_per_round, `<reference>_minus` this policy's
        throughput with its interval and `excludes_zero` (null for the reference itself, where it
        was not run, and for a single seed), and each array of one's own with its interval.

    Raises:
        ValueError: no point, or a round before the first recorded one.
    """
    columns = _interval("throughput", "throughput")
    columns["seconds_per_round"] = ("seconds_per_round", "mean")
    return _table(points, rounds, columns, "throughput", reference, f"{reference}_minus")


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
        the policy has the shorter queue; and each array of one's own with its interval.

    Raises:
        ValueError: no point, or a round before the first recorded one.
    """
    columns = _interval("gap_mean", "gap")
    columns |= {"gap_sd": ("gap", "sd"), "throughput": ("throughput", "mean")}
    return _table(points, rounds, columns, "gap", reference, f"{reference}_gap_minus")


def load_table(points: Sequence[xr.Dataset], most: float = GROWTH) -> pl.DataFrame:
    """Tabulate the largest arrival rate that each policy bears.

    A rate is borne if the queue grows by at most `most` queries a round over the second half of
    the run, in the mean over seeds: (Q(T) - Q(T/2)) / (T/2). A policy bears a load if it bears it
    and every smaller one that was run.

    Args:
        points: as `results.load_points` returns them, over several arrival rates.
        most: in queries a round.

    Returns:
        By every other key in which points differ and policy: `rates`, how many were run, `borne`,
        the largest that is borne (null if the smallest is not), `next`, the smallest above it, and
        `growth`, `growth_low`, `growth_high` there, with its 95% interval over seeds.

    Raises:
        ValueError: no point, or no half that was recorded.
    """
    grown = growth(points, "queue_length", [LAST])
    if (2 * grown["since"] > grown["round"]).any():
        raise ValueError("points hold no round of their first half: record more of them.")
    a_round = pl.col("values") / (pl.col("round") - pl.col("since"))
    by = [*differing(points), "policy"]
    rows = labelled(summarised(grown.with_columns(a_round)), points, by[:-1])
    high, rate = pl.col("mean") > most, pl.col("arrival_rate")
    too_much = rate.filter(high).min()
    there = {"growth": "mean", "growth_low": "low", "growth_high": "high"}
    return (
        rows.sort("arrival_rate", maintain_order=True).group_by(by, maintain_order=True)
        .agg(
            rates=pl.len(), borne=rate.filter((rate < too_much) | too_much.is_null()).max(),
            next=too_much, **{name: pl.col(of).filter(high).first() for name, of in there.items()},
        )
    )  # fmt: skip


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


def _setting(points: Sequence[xr.Dataset]) -> list[str]:
    """Return the attributes of points that a row begins with."""
    present = [key for key in _SETTING if any(point.attrs.get(key, "") != "" for point in points)]
    return present + [key for key in differing(points) if key not in _SETTING]


def _interval(column: str, metric: str) -> dict[str, tuple[str, str]]:
    """Return the columns of a metric's mean and interval, and where each stands."""
    ends = {f"{column}_{end}": (metric, end) for end in ("low", "high")}
    return {column: (metric, "mean"), **ends}


def _table(
    points: Sequence[xr.Dataset], rounds: Sequence[int], columns: dict[str, tuple[str, str]],
    compared: str, reference: str | None, ahead: str,
) -> pl.DataFrame:  # fmt: skip
    """Lay the rows of metrics side by side, and the reference's less the policy's of one of them.

    Sorted by setting, rate and round, policies in the order of the legends.
    """
    for name in own_arrays(points):
        columns |= _interval(name, name)
    values = long(points, list(dict.fromkeys(name for name, _ in columns.values())), rounds)
    if reference is not None:
        apart = against(values.filter(metric=compared), reference)
        values = pl.concat([values, apart.with_columns(metric=pl.lit(ahead))])
        columns |= _interval(ahead, ahead)
    wide = summarised(values).group_by(
        "point", "arrival_rate", "round", "policy", maintain_order=True
    ).agg(
        seeds=pl.col("n").max(),
        **{c: pl.col(of).filter(metric=name).first() for c, (name, of) in columns.items()},
    )  # fmt: skip
    if reference is not None:
        low, high = (pl.col(f"{ahead}_{end}") for end in ("low", "high"))
        wide = wide.with_columns(excludes_zero=(low > 0) | (high < 0))
    made = labelled(wide, points, _setting(points))
    rank = pl.col("policy").replace_strict({x: i for i, x in enumerate(STYLE)}, default=len(STYLE))
    order = made.columns[: made.columns.index("policy")]
    return made.sort([*order, rank, pl.col("policy")], nulls_last=True)


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
