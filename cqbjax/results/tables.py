"""Tables as in the paper, from stored results.

A table is a long polars frame with a row for each point, arrival rate, round and policy. The CSV
file holds all of it. Markdown and the terminal show rounded numbers, each interval in the cell of
its mean, and values common to all rows once, above the table.
"""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal

import polars as pl
import xarray as xr
from rich import box
from rich.cells import cell_len
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from cqbjax.core.files import write_atomic
from cqbjax.results import frame as frames
from cqbjax.results.metrics import Metric, find_recorded, list_metrics, list_shares
from cqbjax.results.policy_styles import OTHERWISE, STYLE
from cqbjax.results.summaries import find_differing
from cqbjax.results.table_text import split_table

DIGITS = 7
# Queries per round by which a stable queue may still grow over the second half of a run.
GROWTH = 0.01

# Markdown's markup, which is written with a backslash before it.
_MARKUP = re.compile(
    r"[\\|$`*]|<(?=[A-Za-z/!?])|&(?=#?\w+;)|\[(?=[^\]]*\]\()"
    r"|~(?=\w)|(?<!\w)~(?=\S)|(?<![^\W_])_(?=\S)"
)

_SETTING = (
    "source", "stand_in", "encoder", "K", "num_servers", "slackness", "parameters", *OTHERWISE,
    "yardstick", "singletons", "load",
)  # fmt: skip
# Ends of the columns of a mean and its interval.
ENDS = {"": "mean", "_low": "low", "_high": "high"}
# Rows shown in a terminal; files hold all of them.
MAX_PRINTED = 120
# Spaces between columns in a terminal: rich's padding and divider.
COLUMN_GAP = 2


def throughput_table(
    points: Sequence[xr.Dataset], rounds: Sequence[int] = (500, 1000), reference: str = "acqb"
) -> pl.DataFrame:
    """Tabulate queue length, its gap to the oracle, throughput, time, and a reference's lead.

    Args:
        points: as `results.load_points` returns them.
        rounds: rounds of the table. If a round was not recorded, the last recorded round before it
            is used and named.
        reference: the policy that is compared with every other one, seed by seed.

    Returns:
        A row for each setting, arrival_rate, round and policy, with the number of seeds;
        length_mean and gap_mean (queries) and throughput (queries per round), each with its 95%
        interval in the columns _low and _high; seconds_per_round; `<reference>_minus`, the
        throughput of the reference minus that of the policy, with its interval and `excludes_zero`
        (null for the reference, if the reference was not run, and for a single seed); and each
        recorded metric with its interval.

    Raises:
        ValueError: no point, or a round before the first recorded one.
    """
    means = {"length_mean": "queue_length", "gap_mean": "gap", "throughput": "throughput"}
    others = {"seconds_per_round": ("seconds_per_round", "mean")}
    ahead = f"{reference}_minus"
    return _build_table(points, rounds, means, others, "throughput", reference, ahead)


def gap_table(
    points: Sequence[xr.Dataset], rounds: Sequence[int] = (2500, 5000),
    reference: str | None = None, of: Literal["gap", "length", "regret"] = "gap",
) -> pl.DataFrame:  # fmt: skip
    """Tabulate the queue length, its gap to the optimal policy, and the throughput.

    Args:
        points: as `results.load_points` returns them.
        rounds: as in `throughput_table`.
        reference: a policy that is compared with every other one, seed by seed; None: no
            comparison.
        of: the compared metric. `length` is for dynamics under which `optimal` is not an oracle:
            there is no gap then. `regret` adds the cumulative regret.

    Returns:
        A row for each setting, arrival_rate, round and policy, with the number of seeds;
        length_mean, gap_mean and regret_mean, each with its 95% interval in the columns _low and
        _high; `<of>_sd`, the standard deviation over seeds; throughput (queries per round); with a
        reference also `<reference>_<of>_minus`, the value of the reference minus that of the
        policy, which is positive if the policy is better; and each recorded metric with its
        interval.

    Raises:
        ValueError: no point, or a round before the first recorded one.
    """
    metric = "queue_length" if of == "length" else of
    means = {"length_mean": "queue_length", "gap_mean": "gap", f"{of}_mean": metric}
    if of == "length":
        del means["gap_mean"]
    others = {f"{of}_sd": (metric, "sd"), "throughput": ("throughput", "mean")}
    ahead = f"{reference}_{of}_minus"
    return _build_table(points, rounds, means, others, metric, reference, ahead)


def load_table(points: Sequence[xr.Dataset], most: float = GROWTH) -> pl.DataFrame:
    """Tabulate the largest arrival rate at which the queue of each policy is stable.

    A queue is stable if it grows by at most `most` queries per round over the second half of the
    run, averaged over seeds: (Q(T) - Q(T/2)) / (T/2) <= most. A policy is stable up to a rate if
    its queue is stable at this rate and at all smaller rates that were run.

    Args:
        points: as `results.load_points` returns them, over several arrival rates.
        most: the largest growth of a stable queue, in queries per round.

    Returns:
        A row for each policy and combination of the other keys in which points differ, with
        `rates`, the number of rates; `stable_up_to`, the largest rate up to which it is stable
        (null if not even at the smallest); `next`, the smallest rate above it; and `growth`,
        `growth_low`, `growth_high`, the growth at `next` with its 95% interval over seeds.

    Raises:
        ValueError: no point, or no recorded round in the first half.
    """
    grown = frames.tabulate_growth(points, "queue_length", [frames.LAST])
    if (2 * grown["since"] > grown["round"]).any():
        raise ValueError("points hold no round of their first half: record more of them.")
    a_round = pl.col("values") / (pl.col("round") - pl.col("since"))
    by = [*find_differing(points), "policy"]
    rows = frames.add_attributes(
        frames.drop_point_intervals(frames.summarise(grown.with_columns(a_round))), points, by[:-1]
    )
    high, rate = pl.col("mean") > most, pl.col("arrival_rate")
    too_much = rate.filter(high).min()
    there = {"growth": "mean", "growth_low": "low", "growth_high": "high"}
    return (
        rows.sort("arrival_rate", maintain_order=True).group_by(by, maintain_order=True)
        .agg(
            rates=pl.len(), stable_up_to=rate.filter((rate < too_much) | too_much.is_null()).max(),
            next=too_much, **{name: pl.col(of).filter(high).first() for name, of in there.items()},
        )
    )  # fmt: skip


def save_table(
    frame: pl.DataFrame, stem: Path, caption: str, recorded: Mapping[str, Metric] | None = None
) -> tuple[Path, Path]:
    """Write `stem`.csv, unrounded, and `stem`.md, rounded, each atomically.

    Args:
        frame: the table.
        stem: path of both files without the ending.
        caption: the title of the Markdown.
        recorded: recorded metrics, whose columns are moved to separate tables if there are many.
    """
    stem = Path(stem)
    common, sections = split_table(frame, recorded or {})
    lines = [f"**{_escape_markdown(caption)}**", ""]
    lines += [f"In all rows: {_escape_markdown(common)}.", ""] if common else []
    for number, one in enumerate(sections):
        lines += [""] * bool(number) + ([_escape_markdown(one.legend), ""] if one.legend else [])
        aligned = ["---" if words else "---:" for words in one.words]
        for cells in (one.headers, aligned, *one.rows):
            lines.append(f"| {' | '.join(map(_escape_markdown, cells))} |")
    csv, markdown = stem.with_name(f"{stem.name}.csv"), stem.with_name(f"{stem.name}.md")
    write_csv(csv, frame)
    write_atomic(markdown, ("\n".join(lines) + "\n").encode())
    return csv, markdown


def _escape_markdown(text: str) -> str:
    """Return a text as Markdown without markup."""
    return _MARKUP.sub(r"\\\g<0>", text.replace("\n", " "))


def write_csv(path: Path, frame: pl.DataFrame) -> None:
    """Write a table as CSV, with the significant digits of a float32."""
    # Rounding in float32 would lose the last of them.
    exact = frame.with_columns(pl.selectors.float().cast(pl.Float64))
    rounded = exact.with_columns(pl.selectors.float().round_sig_figs(DIGITS))
    write_atomic(path, rounded.write_csv)


def print_table(
    frame: pl.DataFrame, title: str, console: Console | None = None,
    recorded: Mapping[str, Metric] | None = None,
) -> None:  # fmt: skip
    """Print a table, unless it has no rows: as `save_table` writes it, as wide as the console.

    Columns that do not fit follow in further tables with the same leading columns; if not even one
    fits, each row becomes a list of its values.
    """
    common, sections = split_table(frame, recorded or {})
    console = console or Console()
    if sections:
        console.print(f"[bold]{escape(title)}[/]", highlight=False)
    if sections and common:
        console.print(f"In all rows: {common}.", markup=False, highlight=False)
    for one in sections:
        # In a narrow table the headers wrap, and the numbers do not. Rich would shrink both.
        cells = zip(one.headers, *one.rows, strict=True)
        widths = [max(map(cell_len, [*header.split(), *column])) for header, *column in cells]
        folded = _fold_columns(widths, one.lead, console.width)
        for columns in folded:
            grid = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0))
            spare = console.width + COLUMN_GAP - sum(widths[i] + COLUMN_GAP for i in columns)
            for i in columns:
                more = min(spare, max(0, cell_len(one.headers[i]) - widths[i]))
                spare -= more
                side: Literal["left", "right"] = "left" if one.words[i] else "right"
                grid.add_column(escape(one.headers[i]), justify=side, width=widths[i] + more)
            for row in one.rows[:MAX_PRINTED]:
                grid.add_row(*(escape(row[i]) for i in columns))
            console.print(grid, "")
        if not folded:
            for row in one.rows[:MAX_PRINTED]:
                values = map(": ".join, zip(one.headers, row, strict=True))
                console.print("\n  ".join(values), markup=False, highlight=False)
        if len(one.rows) > MAX_PRINTED:
            console.print(f"{len(one.rows) - MAX_PRINTED:,} more rows are in the table's files")
        if one.legend:
            console.print(one.legend, markup=False, highlight=False)


def _fold_columns(columns: Sequence[int], leading: int, width: int) -> list[list[int]]:
    """Return the columns of each table that fits the width, or an empty list if one does not.

    Args:
        columns: width of each column.
        leading: number of columns that each table begins with.
        width: width of the console.
    """
    widths = [COLUMN_GAP + least for least in columns]
    lead, others = list(range(leading)), range(leading, len(widths))
    free = width + COLUMN_GAP - sum(widths[i] for i in lead)
    if max((widths[i] for i in others), default=0) > free:
        return []
    folded: list[list[int]] = [[]]
    for i in others:
        if sum(widths[j] for j in [*folded[-1], i]) > free:
            folded.append([])
        folded[-1].append(i)
    return [[*lead, *some] for some in folded]


def _build_table(
    points: Sequence[xr.Dataset], rounds: Sequence[int], means: dict[str, str],
    others: dict[str, tuple[str, str]], compared: str, reference: str | None, ahead: str,
) -> pl.DataFrame:  # fmt: skip
    """Put metrics side by side, with the difference of one of them to that of the reference.

    Rows are sorted by setting, rate and round; policies are in the order of legends.

    Args:
        points: as `results.load_points` returns them.
        rounds: rounds of the table.
        means: column -> the metric of its mean, which has an interval.
        others: further columns -> metric and statistic.
        compared: the metric whose difference to the reference is a column.
        reference: label of a policy; None: no comparison.
        ahead: name of that column.
    """
    recorded = list(find_recorded(points))
    names = [*means.values(), *(name for name, _ in others.values()), *recorded]
    values = frames.tabulate_runs(points, list(dict.fromkeys(names)), rounds)
    if reference is not None:
        lead = frames.subtract_policies(values.filter(metric=compared), reference)
        values = pl.concat([values, lead.with_columns(metric=pl.lit(ahead))])
        recorded.append(ahead)
    columns = {f"{c}{end}": (means[c], of) for c in means for end, of in ENDS.items()} | others
    columns |= {f"{c}{end}": (c, of) for c in recorded for end, of in ENDS.items()}
    wide = frames.summarise(values, list_shares(list_metrics(points))).group_by(
        "point", "arrival_rate", "round", "policy", maintain_order=True
    ).agg(
        seeds=pl.col("n").max(),
        **{c: pl.col(of).filter(metric=name).first() for c, (name, of) in columns.items()},
    )  # fmt: skip
    if reference is not None:
        low, high = (pl.col(f"{ahead}_{end}") for end in ("low", "high"))
        wide = wide.with_columns(excludes_zero=(low > 0) | (high < 0))
    settings = [key for key in _SETTING if any(one.attrs.get(key, "") != "" for one in points)]
    settings += [key for key in find_differing(points) if key not in _SETTING]
    made = frames.add_attributes(frames.drop_point_intervals(wide), points, settings)
    rank = pl.col("policy").replace_strict({x: i for i, x in enumerate(STYLE)}, default=len(STYLE))
    order = sorted(made.columns[: made.columns.index("policy")], key=OTHERWISE.__contains__)
    return made.sort([*order, rank, pl.col("policy")], nulls_last=True)
