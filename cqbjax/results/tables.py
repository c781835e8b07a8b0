"""Tables as in the paper, from stored results.

A table is a long polars frame: a row a point, arrival rate, round and policy. The CSV holds it
whole; Markdown and the terminal show it rounded, an interval in one cell with its mean, and what is
the same in all rows once, above.
"""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal

import polars as pl
import xarray as xr
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from cqbjax.core.files import write_atomic
from cqbjax.results.frame import (
    LAST,
    add_attributes,
    drop_point_intervals,
    subtract_policies,
    summarise,
    tabulate_growth,
    tabulate_runs,
)
from cqbjax.results.metrics import Metric, find_recorded, list_metrics, list_shares
from cqbjax.results.names import OTHERWISE, STYLE
from cqbjax.results.summaries import find_differing
from cqbjax.results.table_text import TEXTS, split_table

DIGITS = 7
# Queries a round by which a queue that is borne may still grow over the second half of a run.
GROWTH = 0.01

# What Markdown takes for markup: each is written with a backslash before it.
_MARKUP = re.compile(
    r"[\\|$`*]|<(?=[A-Za-z/!?])|&(?=#?\w+;)|\[(?=[^\]]*\]\()"
    r"|~(?=\w)|(?<!\w)~(?=\S)|(?<![^\W_])_(?=\S)"
)

_SETTING = (
    "source", "stand_in", "encoder", "K", "num_servers", "slackness", "parameters", *OTHERWISE,
    "yardstick", "singletons", "load",
)  # fmt: skip
# A terminal shows so many rows; files hold all.
MOST_PRINTED = 120


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
    columns = _name_interval_columns("throughput", "throughput")
    columns["seconds_per_round"] = ("seconds_per_round", "mean")
    return _build_table(points, rounds, columns, "throughput", reference, f"{reference}_minus")


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
    return _tabulate_means("gap", "gap", points, rounds, reference)


def length_table(
    points: Sequence[xr.Dataset], rounds: Sequence[int] = (2500, 5000), reference: str | None = None
) -> pl.DataFrame:
    """Tabulate the queue length itself, for worlds in which no policy that is run is the optimum.

    As `gap_table`, its columns `length_mean` and so on.
    """
    return _tabulate_means("length", "queue_length", points, rounds, reference)


def regret_table(
    points: Sequence[xr.Dataset], rounds: Sequence[int] = (2500, 5000), reference: str | None = None
) -> pl.DataFrame:
    """Tabulate the cumulative regret: as `gap_table`, its columns `regret_mean` and so on."""
    return _tabulate_means("regret", "regret", points, rounds, reference)


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
    grown = tabulate_growth(points, "queue_length", [LAST])
    if (2 * grown["since"] > grown["round"]).any():
        raise ValueError("points hold no round of their first half: record more of them.")
    a_round = pl.col("values") / (pl.col("round") - pl.col("since"))
    by = [*find_differing(points), "policy"]
    rows = add_attributes(
        drop_point_intervals(summarise(grown.with_columns(a_round))), points, by[:-1]
    )
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


def save_table(
    frame: pl.DataFrame, stem: Path, caption: str, apart: Mapping[str, Metric] | None = None
) -> tuple[Path, Path]:
    """Write `stem`.csv, unrounded, and `stem`.md, to be read, each whole or not at all.

    Args:
        frame: the table.
        stem: of both files.
        caption: what it is.
        apart: columns that the Markdown has in tables of their own where they are many.
    """
    stem = Path(stem)
    shared, parts = split_table(frame, apart or {})
    lines = [f"**{_escape_markdown(caption)}**", ""]
    lines += [f"In all rows: {_escape_markdown(shared)}.", ""] if shared else []
    for number, part in enumerate(parts):
        lines += [""] * bool(number) + ([_escape_markdown(part.legend), ""] if part.legend else [])
        aligned = ["---" if header in TEXTS else "---:" for header in part.headers]
        for cells in (part.headers, aligned, *part.rows):
            lines.append(f"| {' | '.join(map(_escape_markdown, cells))} |")
    csv, markdown = stem.with_name(f"{stem.name}.csv"), stem.with_name(f"{stem.name}.md")
    write_csv(csv, frame)
    write_atomic(markdown, ("\n".join(lines) + "\n").encode())
    return csv, markdown


def _escape_markdown(text: str) -> str:
    """Return a text as Markdown that reads as the text does."""
    return _MARKUP.sub(r"\\\g<0>", text.replace("\n", " "))


def write_csv(path: Path, frame: pl.DataFrame) -> None:
    """Write a table with all the digits that a float32 has, and no more."""
    # In float32 itself the rounding would cost the last of them.
    exact = frame.with_columns(pl.selectors.float().cast(pl.Float64))
    rounded = exact.with_columns(pl.selectors.float().round_sig_figs(DIGITS))
    write_atomic(path, rounded.write_csv)


def print_table(
    frame: pl.DataFrame, title: str, console: Console | None = None,
    apart: Mapping[str, Metric] | None = None,
) -> None:  # fmt: skip
    """Print a table to the terminal, or to a given console, as `save_table`'s Markdown reads."""
    shared, parts = split_table(frame, apart or {})
    console = console or Console()
    for number, part in enumerate(parts):
        # Escaped, for rich would take an interval's brackets for markup.
        alike = f"In all rows: {shared}." if shared and not number else ""
        said = f"{alike} {part.legend}".strip()
        table = Table(title=None if number else escape(title), caption=escape(said) or None)
        for header, *cells in zip(part.headers, *part.rows, strict=True):
            # Where room is short, let the headers break and not the numbers.
            side: Literal["left", "right"] = "left" if header in TEXTS else "right"
            table.add_column(
                escape(header), justify=side, min_width=max(map(len, cells), default=0)
            )
        for cells in part.rows[:MOST_PRINTED]:
            table.add_row(*map(escape, cells))
        console.print(table)
        if len(part.rows) > MOST_PRINTED:
            console.print(f"{len(part.rows) - MOST_PRINTED:,} more rows are in the table's files")


def _list_setting_columns(points: Sequence[xr.Dataset]) -> list[str]:
    """Return the attributes of points that a row begins with."""
    present = [key for key in _SETTING if any(point.attrs.get(key, "") != "" for point in points)]
    return present + [key for key in find_differing(points) if key not in _SETTING]


def _name_interval_columns(column: str, metric: str) -> dict[str, tuple[str, str]]:
    """Return the columns of a metric's mean and interval, and where each stands."""
    ends = {f"{column}_{end}": (metric, end) for end in ("low", "high")}
    return {column: (metric, "mean"), **ends}


def _tabulate_means(
    name: str, metric: str, points: Sequence[xr.Dataset], rounds: Sequence[int],
    reference: str | None,
) -> pl.DataFrame:  # fmt: skip
    """Tabulate mean and standard deviation of a metric, under a name, and the throughput."""
    columns = _name_interval_columns(f"{name}_mean", metric)
    columns |= {f"{name}_sd": (metric, "sd"), "throughput": ("throughput", "mean")}
    return _build_table(points, rounds, columns, metric, reference, f"{reference}_{name}_minus")


def _build_table(
    points: Sequence[xr.Dataset], rounds: Sequence[int], columns: dict[str, tuple[str, str]],
    compared: str, reference: str | None, ahead: str,
) -> pl.DataFrame:  # fmt: skip
    """Lay the rows of metrics side by side, and the reference's less the policy's of one of them.

    Sorted by setting, rate and round, policies in the order of the legends.
    """
    for name in find_recorded(points):
        columns |= _name_interval_columns(name, name)
    values = tabulate_runs(
        points, list(dict.fromkeys(name for name, _ in columns.values())), rounds
    )
    if reference is not None:
        apart = subtract_policies(values.filter(metric=compared), reference)
        values = pl.concat([values, apart.with_columns(metric=pl.lit(ahead))])
        columns |= _name_interval_columns(ahead, ahead)
    wide = summarise(values, list_shares(list_metrics(points))).group_by(
        "point", "arrival_rate", "round", "policy", maintain_order=True
    ).agg(
        seeds=pl.col("n").max(),
        **{c: pl.col(of).filter(metric=name).first() for c, (name, of) in columns.items()},
    )  # fmt: skip
    if reference is not None:
        low, high = (pl.col(f"{ahead}_{end}") for end in ("low", "high"))
        wide = wide.with_columns(excludes_zero=(low > 0) | (high < 0))
    made = add_attributes(drop_point_intervals(wide), points, _list_setting_columns(points))
    rank = pl.col("policy").replace_strict({x: i for i, x in enumerate(STYLE)}, default=len(STYLE))
    order = sorted(made.columns[: made.columns.index("policy")], key=OTHERWISE.__contains__)
    return made.sort([*order, rank, pl.col("policy")], nulls_last=True)
