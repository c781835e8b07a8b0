"""The form of every routing dataset: a table of prompts by servers, with scores and costs.

Readers return a table that may lack scores (NaN). `drop_missing` drops servers or prompts on
request, counts them and checks the rest. Missing scores are never filled in.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np

from cqbjax.core.labels import USER_DATA


class TableError(ValueError):
    """The content of a dataset breaks its schema."""


@dataclasses.dataclass(frozen=True)
class RoutingTable:
    """Scores and costs of N servers (LLMs) on P prompts.

    Attributes:
        name: name of the table, such as "RouterBench slice".
        prompt_ids: [P] unique.
        prompts: [P] texts, which are embedded.
        origins: [P] evaluation or source that each prompt comes from.
        servers: [N] LLM names, unique.
        performance: [P, N] float64 in [0, 1].
        cost: [P, N] float64, USD per query, not negative.
        proxy_note: for a proxy dataset, a text that names the dataset it replaces; otherwise empty.
        provenance: one of the constants in `core.labels`.
        notes: what was merged or dropped, with counts, one sentence each.
        in_file_order: whether row i is row i of one file; errors then name it.
    """

    name: str
    prompt_ids: tuple[str, ...]
    prompts: tuple[str, ...]
    origins: tuple[str, ...]
    servers: tuple[str, ...]
    performance: np.ndarray
    cost: np.ndarray
    proxy_note: str = ""
    provenance: str = USER_DATA
    notes: tuple[str, ...] = ()
    in_file_order: bool = True

    @property
    def num_prompts(self) -> int:
        """P."""
        return len(self.prompt_ids)

    @property
    def num_servers(self) -> int:
        """N."""
        return len(self.servers)


def check_cells(
    scores: np.ndarray, cost: np.ndarray, file: str, prompt_ids: Sequence[str],
    servers: Sequence[str], labels: tuple[str, str] = ("column 'score|{}'", "column 'cost|{}'"),
    numbered: bool = True, allow_missing: bool = True,
) -> None:  # fmt: skip
    """Check every score and cost of a table.

    Args:
        scores: [P, N]; NaN is missing.
        cost: [P, N] USD per query.
        file: file or folder of the table.
        prompt_ids: [P].
        servers: [N].
        labels: what an error calls the score and the cost of the LLM `{}`.
        numbered: whether rows are those of the file, counted from 1 below a header.
        allow_missing: let a score be NaN; its cost may then be NaN too.

    Raises:
        TableError: naming file, row and column of the first wrong cell.
    """
    missing, (score, price) = np.isnan(scores), labels
    # NaN compares false, so a missing score is not also out of range.
    for wrong, values, label, rule in (
        (missing & (not allow_missing), scores, score, "is missing, every score must be in [0, 1]"),
        ((scores < 0) | (scores > 1), scores, score, "must be in [0, 1], got {}"),
        (cost < 0, cost, price, "must not be negative, got {}"),
        (~np.isfinite(cost) & ~missing, cost, price, "is missing or not finite, got {}"),
    ):
        if wrong.any():
            i, j = np.argwhere(wrong)[0]
            row = f"prompt id {prompt_ids[i]!r}"
            row = f"row {i + 1} ({row})" if numbered else row
            cell, rule = label.format(servers[j]), rule.format(values[i, j])
            more = f" ({wrong.sum():,} such cells)" if wrong.sum() > 1 else ""
            raise TableError(f"{file}: {row}, {cell} {rule}{more}.")


def check_table(table: RoutingTable, file: str = "", allow_missing: bool = False) -> RoutingTable:
    """Check shapes, names and every cell of a table, and return it.

    Args:
        table: to check.
        file: file or folder that an error names; the table's name when empty.
        allow_missing: let a score be NaN; its cost may then be NaN too.

    Raises:
        TableError: one sentence naming file, row and column.
    """
    where, shape = file or table.name, (table.num_prompts, table.num_servers)
    if table.num_servers < 2:
        raise TableError(f"{where}: at least 2 servers are needed, got {table.num_servers}.")
    if table.num_prompts < 1:
        raise TableError(f"{where}: no prompt is left, at least 1 is needed.")
    for column in ("prompts", "origins"):
        if (rows := len(getattr(table, column))) != table.num_prompts:
            raise TableError(f"{where}: {column} has {rows} rows for {shape[0]} prompt ids.")
    for column in ("performance", "cost"):
        array = getattr(table, column)
        if array.shape != shape or array.dtype != np.float64:
            raise TableError(
                f"{where}: {column} must be float64 of shape {shape}, "
                f"got {array.dtype} of shape {array.shape}."
            )
    check_unique(table.prompt_ids, where, "prompt_id")
    if len(set(table.servers)) < table.num_servers:
        twice = next(name for name in table.servers if table.servers.count(name) > 1)
        raise TableError(f"{where}: two servers are named {twice!r}, names must be unique.")
    of, numbered = ("column '{}|{{}}'", True) if table.in_file_order else ("{} of {{!r}}", False)
    check_cells(
        table.performance, table.cost, where, table.prompt_ids, table.servers,
        (of.format("score"), of.format("cost")), numbered, allow_missing,
    )  # fmt: skip
    return table


def check_unique(names: Sequence[str], file: str, column: str) -> None:
    """Check that a column holds every name once.

    Raises:
        TableError: naming file, both rows and column.
    """
    rows: dict[str, int] = {}
    for row, name in enumerate(names, 1):
        first = rows.setdefault(name, row)
        if first != row:
            raise TableError(
                f"{file}: rows {first} and {row}, column {column!r}: {name!r} occurs twice, "
                f"must be unique."
            )


def drop_missing(
    table: RoutingTable, drop_servers_below: float | None = None,
    drop_incomplete_prompts: bool = False, file: str = "",
) -> tuple[RoutingTable, np.ndarray]:  # fmt: skip
    """Return a table without missing scores; drop only what the arguments ask for.

    Args:
        table: from a reader; scores may be NaN.
        drop_servers_below: drop servers that have a score for less than this share of the prompts,
            in (0, 1]; None: drop no server.
        drop_incomplete_prompts: then drop prompts that still lack a score.
        file: file or folder that an error names.

    Returns:
        The validated table, whose notes say what was dropped, and its rows [P'] in the old table,
        ascending; index embeddings with them.

    Raises:
        TableError: a score is missing after the requested drops, or too little remains.
    """
    missing = np.isnan(table.performance)
    columns, rows = np.ones(table.num_servers, bool), np.ones(table.num_prompts, bool)
    if drop_servers_below is not None:
        if not 0 < drop_servers_below <= 1:
            raise ValueError(
                f"drop_servers_below must be in (0, 1] or None, got {drop_servers_below}."
            )
        columns = 1.0 - missing.mean(axis=0) >= drop_servers_below
    if drop_incomplete_prompts:
        rows = ~missing[:, columns].any(axis=1)
    notes = [
        f"dropped server {table.servers[j]} ({missing[:, j].sum():,} scores missing)"
        for j in np.flatnonzero(~columns)
    ]
    if not rows.all():
        notes.append(f"dropped {(~rows).sum():,} prompts with a missing score")
    remaining = take(table, np.flatnonzero(rows), np.flatnonzero(columns))
    remaining = dataclasses.replace(remaining, notes=(*table.notes, *notes))
    return check_table(remaining, file), np.flatnonzero(rows)


def take(
    table: RoutingTable,
    rows: Sequence[int] | np.ndarray,
    columns: Sequence[int] | np.ndarray | None = None,
) -> RoutingTable:
    """Return the table with these rows and, when given, these columns, in this order."""
    columns = np.arange(table.num_servers) if columns is None else np.asarray(columns, int)
    rows = np.asarray(rows, int)
    changed: dict[str, Any] = {
        name: tuple(getattr(table, name)[i] for i in rows)
        for name in ("prompt_ids", "prompts", "origins")
    }
    for name in ("performance", "cost"):
        changed[name] = getattr(table, name)[np.ix_(rows, columns)]
    return dataclasses.replace(table, servers=tuple(table.servers[j] for j in columns), **changed)
