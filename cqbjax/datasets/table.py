"""The one form every routing dataset takes: prompts x servers, with a score and a cost a cell.

Readers give a table that may still lack scores (NaN); `complete` drops what the caller asks to be
dropped, counts it, and checks the rest. Nothing is filled in and nothing is dropped unasked.
"""

import dataclasses
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from cqbjax.core.labels import OWN


class TableError(ValueError):
    """A dataset's content is not what its schema promises."""


@dataclasses.dataclass(frozen=True)
class RoutingTable:
    """Hold what N servers (LLMs) scored and cost on P prompts.

    Attributes:
        name: what the table is, e.g. "RouterBench slice".
        prompt_ids: [P] unique.
        prompts: [P] the text that is embedded.
        origins: [P] where each prompt came from (evaluation or source name).
        servers: [N] LLM names, unique.
        performance: [P, N] float64 in [0, 1].
        cost: [P, N] float64, USD a query, not negative.
        stand_in: what this table stands in for, in words; empty for the thing itself.
        provenance: whose its data are, of those in `core.labels`.
        notes: what was merged or dropped on the way here, counted, one sentence each.
        in_order: whether row i is that of one file, as errors then say.
    """

    name: str
    prompt_ids: tuple[str, ...]
    prompts: tuple[str, ...]
    origins: tuple[str, ...]
    servers: tuple[str, ...]
    performance: np.ndarray
    cost: np.ndarray
    stand_in: str = ""
    provenance: str = OWN
    notes: tuple[str, ...] = ()
    in_order: bool = True

    @property
    def num_prompts(self) -> int:
        """Return P."""
        return len(self.prompt_ids)

    @property
    def num_servers(self) -> int:
        """Return N."""
        return len(self.servers)


class Dropped(NamedTuple):
    """Say what `complete` took away.

    Attributes:
        servers: names of the dropped servers, each with its number of missing scores.
        prompts: number of prompts dropped.
        kept_rows: [P'] rows of the old table that remain, ascending: index embeddings with it.
    """

    servers: tuple[tuple[str, int], ...]
    prompts: int
    kept_rows: np.ndarray

    def sentences(self) -> tuple[str, ...]:
        """Return the report in words, empty when nothing was dropped."""
        lines = [
            f"dropped server {name} ({lacks:,} scores missing)" for name, lacks in self.servers
        ]
        if self.prompts:
            lines.append(f"dropped {self.prompts:,} prompts with a missing score")
        return tuple(lines)


def check_table(table: RoutingTable, file: str = "", allow_missing: bool = False) -> None:
    """Refuse a table that breaks its own contract.

    Args:
        table: the table to look at.
        file: file or folder to name in the error; the table's name when empty.
        allow_missing: let a score be NaN (its cost may then be NaN too).

    Raises:
        TableError: one sentence naming file, row and column.
    """
    where = file or table.name
    _check_shape(table, where)
    check_unique(table.prompt_ids, where, "prompt_id")
    if len(set(table.servers)) < table.num_servers:
        twice = next(name for name in table.servers if table.servers.count(name) > 1)
        raise TableError(f"{where}: two servers are named {twice!r}, names must be unique.")
    labels = (
        {} if table.in_order else {"score_label": "score of {!r}", "cost_label": "cost of {!r}"}
    )
    check_cells(
        table.performance, table.cost, table.prompt_ids, table.servers, where, allow_missing,
        **labels, rows=table.in_order,
    )  # fmt: skip


def check_cells(
    scores: np.ndarray,
    cost: np.ndarray,
    prompt_ids: Sequence[str],
    servers: Sequence[str],
    file: str,
    allow_missing: bool = True,
    score_label: str = "column 'score|{}'",
    cost_label: str = "column 'cost|{}'",
    rows: bool = True,
) -> None:
    """Refuse the first bad cell: of a whole table, or of one of its files before they are joined.

    Args:
        scores: [P, N]; NaN is missing.
        cost: [P, N] USD a query.
        prompt_ids: [P], for the error.
        servers: [N].
        file: where the rows stand.
        allow_missing: let a score be NaN (its cost may then be NaN too).
        score_label: how the file calls the score of the LLM `{}`.
        cost_label: how it calls the cost.
        rows: whether rows are those of the file, counted from 1 below a header.

    Raises:
        TableError: one sentence naming file, row and column.
    """
    missing = np.isnan(scores)
    unallowed = missing & (not allow_missing)
    # NaN compares false, so a missing score is not also reported as being out of range.
    outside, no_cost = (scores < 0) | (scores > 1), ~np.isfinite(cost) & ~missing
    for bad, values, label, rule in (
        (unallowed, scores, score_label, "is missing, every score must be in [0, 1]"),
        (outside, scores, score_label, "must be in [0, 1], got {value}"),
        (cost < 0, cost, cost_label, "must not be negative, got {value}"),
        (no_cost, cost, cost_label, "is missing or not finite, got {value}"),
    ):
        refuse_first(bad, values, prompt_ids, servers, file, label, rule, rows)


def refuse_first(
    bad: np.ndarray,
    values: np.ndarray,
    prompt_ids: Sequence[str],
    servers: Sequence[str],
    file: str,
    label: str,
    rule: str,
    rows: bool = True,
) -> None:
    """Refuse the first cell of [P, N] that is bad, by file, row and column."""
    if not bad.any():
        return
    i, j = (int(index) for index in np.argwhere(bad)[0])
    more = f" ({int(bad.sum()):,} such cells)" if bad.sum() > 1 else ""
    row = f"row {i + 1} (prompt id {prompt_ids[i]!r})" if rows else f"prompt id {prompt_ids[i]!r}"
    raise TableError(
        f"{file}: {row}, {label.format(servers[j])} {rule.format(value=values[i, j])}{more}."
    )


def check_unique(names: Sequence[str], file: str, column: str) -> None:
    """Refuse the first name that stands in two rows, by file, both rows and column.

    Raises:
        TableError: one sentence.
    """
    rows: dict[str, int] = {}
    for row, name in enumerate(names, 1):
        first = rows.setdefault(name, row)
        if first != row:
            raise TableError(
                f"{file}: rows {first} and {row}, column {column!r}: {name!r} occurs twice, "
                f"must be unique."
            )


def complete(
    table: RoutingTable,
    drop_servers_below: float | None = None,
    drop_incomplete_prompts: bool = False,
    file: str = "",
) -> tuple[RoutingTable, Dropped]:
    """Return a table without missing scores, dropping only what the arguments ask for.

    Args:
        table: as read; scores may be NaN.
        drop_servers_below: drop servers that scored less than this share of the prompts, in
            (0, 1]; None drops none.
        drop_incomplete_prompts: then drop prompts that still lack a score.
        file: file or folder to name in an error.

    Returns:
        The checked table, its notes grown by what was dropped, and the same as a record.

    Raises:
        TableError: a score is missing and was not asked to be dropped, or too little remains.
    """
    missing = np.isnan(table.performance)
    columns = np.ones(table.num_servers, bool)
    if drop_servers_below is not None:
        if not 0 < drop_servers_below <= 1:
            raise ValueError(
                f"drop_servers_below must be in (0, 1] or None, got {drop_servers_below}."
            )
        columns = 1.0 - missing.mean(axis=0) >= drop_servers_below
    rows = np.ones(table.num_prompts, bool)
    if drop_incomplete_prompts:
        rows = ~missing[:, columns].any(axis=1)
    lacking = tuple((table.servers[j], int(missing[:, j].sum())) for j in np.flatnonzero(~columns))
    dropped = Dropped(lacking, int((~rows).sum()), np.flatnonzero(rows))
    kept = take(table, dropped.kept_rows, np.flatnonzero(columns))
    kept = dataclasses.replace(kept, notes=table.notes + dropped.sentences())
    check_table(kept, file)
    return kept, dropped


def take(
    table: RoutingTable,
    rows: Sequence[int] | np.ndarray,
    columns: Sequence[int] | np.ndarray | None = None,
) -> RoutingTable:
    """Return the table restricted to these rows and, when given, these columns, in this order."""
    columns = np.arange(table.num_servers) if columns is None else np.asarray(columns, int)
    rows = np.asarray(rows, int)
    return dataclasses.replace(
        table,
        prompt_ids=tuple(table.prompt_ids[i] for i in rows),
        prompts=tuple(table.prompts[i] for i in rows),
        origins=tuple(table.origins[i] for i in rows),
        servers=tuple(table.servers[j] for j in columns),
        performance=table.performance[np.ix_(rows, columns)],
        cost=table.cost[np.ix_(rows, columns)],
    )


def _check_shape(table: RoutingTable, where: str) -> None:
    if table.num_servers < 2:
        raise TableError(f"{where}: at least 2 servers are needed, got {table.num_servers}.")
    if table.num_prompts < 1:
        raise TableError(f"{where}: no prompt is left, at least 1 is needed.")
    shape = (table.num_prompts, table.num_servers)
    for column in ("prompts", "origins"):
        rows = len(getattr(table, column))
        if rows != table.num_prompts:
            raise TableError(f"{where}: {column} has {rows} rows for {shape[0]} prompt ids.")
    for column in ("performance", "cost"):
        array = getattr(table, column)
        if array.shape != shape or array.dtype != np.float64:
            raise TableError(
                f"{where}: {column} must be float64 of shape {shape}, "
                f"got {array.dtype} of shape {array.shape}."
            )
