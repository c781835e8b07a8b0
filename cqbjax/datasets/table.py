"""The one form every routing dataset takes: prompts x servers, with a score and a cost a cell.

Readers give a table that may still lack scores (NaN); `complete` drops what the caller asks to be
dropped, counts it, and checks the rest. Nothing is filled in and nothing is dropped unasked.
"""

import collections
import dataclasses
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np


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
        notes: what was merged or dropped on the way here, counted, one sentence each.
    """

    name: str
    prompt_ids: tuple[str, ...]
    prompts: tuple[str, ...]
    origins: tuple[str, ...]
    servers: tuple[str, ...]
    performance: np.ndarray
    cost: np.ndarray
    stand_in: str = ""
    notes: tuple[str, ...] = ()

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


def check(table: RoutingTable, file: str = "", allow_missing: bool = False) -> None:
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
    _check_ids(table, where)
    missing = np.isnan(table.performance)
    if not allow_missing:
        _refuse_first(missing, table, where, "score", "is missing, every score must be in [0, 1]")
    # NaN compares false, so a missing score is not also reported as being out of range.
    outside = (table.performance < 0) | (table.performance > 1)
    _refuse_first(outside, table, where, "score", "must be in [0, 1], got {value}")
    _refuse_first(table.cost < 0, table, where, "cost", "must not be negative, got {value}")
    no_cost = ~np.isfinite(table.cost) & ~missing
    _refuse_first(no_cost, table, where, "cost", "is missing or not finite, got {value}")


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
    check(kept, file)
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
        if len(getattr(table, column)) != table.num_prompts:
            found = len(getattr(table, column))
            raise TableError(f"{where}: {column} has {found} rows for {shape[0]} prompt ids.")
    for column in ("performance", "cost"):
        array = getattr(table, column)
        if array.shape != shape or array.dtype != np.float64:
            raise TableError(
                f"{where}: {column} must be float64 of shape {shape}, "
                f"got {array.dtype} of shape {array.shape}."
            )


def _check_ids(table: RoutingTable, where: str) -> None:
    for column, what in (("prompt_ids", "prompt id"), ("servers", "server name")):
        name, count = collections.Counter(getattr(table, column)).most_common(1)[0]
        if count > 1:
            row = getattr(table, column).index(name)
            raise TableError(
                f"{where}: {what} {name!r} (first at {row}) occurs {count} times, must be unique."
            )


def _refuse_first(bad: np.ndarray, table: RoutingTable, where: str, column: str, rule: str) -> None:
    if not bad.any():
        return
    i, j = (int(index) for index in np.argwhere(bad)[0])
    value = (table.performance if column == "score" else table.cost)[i, j]
    more = f" ({int(bad.sum()):,} such cells)" if bad.sum() > 1 else ""
    raise TableError(
        f"{where}: row {i} (prompt id {table.prompt_ids[i]!r}), column "
        f"'{column}|{table.servers[j]}' {rule.format(value=value)}{more}."
    )
