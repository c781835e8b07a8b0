"""ParetoBandit's examples as its Python package holds them: JSON lines, one a prompt.

A line is `{prompt, source, arms: {LLM: {reward, cost, ...}, ...}, ...}`, the cost in USD a query.
LLMs are called without their makers' names, and prompts by their hashes, as in the compact file.
"""

import hashlib
import json
import pathlib
from typing import Any

import numpy as np

from cqbjax.datasets.table import RoutingTable, TableError, check_table

FILES = ("val.jsonl", "test_holdout.jsonl")
KEYS = ("prompt", "source", "arms")
ID_LETTERS = 16


def read_paretobandit(path: str | pathlib.Path) -> RoutingTable:
    """Read the examples of a folder, those of `FILES` one after another.

    Args:
        path: the folder, or one of its files.

    Returns:
        The table in the files' order; its LLMs are sorted by name.

    Raises:
        TableError: one sentence naming file, row and what is wrong there.
    """
    path = pathlib.Path(path)
    files = [path] if path.is_file() else [path / one for one in FILES]
    rows = [row for file in files for row in _rows(file)]
    arms = sorted(rows[0][1]["arms"], key=_short) if rows else []
    cells = np.array([_cells(where, row, arms) for where, row in rows]).reshape(-1, len(arms), 2)
    prompts = tuple(str(row["prompt"]) for _, row in rows)
    ids = tuple(hashlib.sha256(p.encode()).hexdigest()[:ID_LETTERS] for p in prompts)
    first: dict[str, str] = {}
    for one, (where, _) in zip(ids, rows, strict=True):
        if first.setdefault(one, where) != where:
            raise TableError(f"{where} has the prompt of {first[one]}, each must stand there once.")
    table = RoutingTable(
        name="ParetoBandit",
        prompt_ids=ids,
        prompts=prompts,
        origins=tuple(str(row["source"]) for _, row in rows),
        servers=tuple(map(_short, arms)),
        performance=cells[..., 0],
        cost=cells[..., 1],
    )
    check_table(table, str(path))
    return table


def _short(arm: str) -> str:
    """Return an LLM's name without its maker's."""
    return arm.rpartition("/")[2]


def _rows(file: pathlib.Path) -> list[tuple[str, dict[str, Any]]]:
    """Return the lines of a file, each with where it stands."""
    if not file.is_file():
        raise TableError(f"{file}: no such file.")
    made = []
    try:
        # A prompt may hold what `splitlines` takes for the end of a line.
        lines = file.read_text(encoding="utf-8-sig").split("\n")
    except UnicodeDecodeError as error:
        raise TableError(f"{file}: is not UTF-8 text: {error}.") from error
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        where = f"{file}: row {number}"
        try:
            row = json.loads(line)
        except json.JSONDecodeError as error:
            raise TableError(f"{where} is no JSON, or cut short: {error}.") from error
        for key in KEYS:
            if not isinstance(row, dict) or key not in row:
                raise TableError(f"{where} has no {key!r}.")
        made.append((where, row))
    return made


def _cells(where: str, row: dict[str, Any], arms: list[str]) -> list[list[float]]:
    """Return reward and cost of each LLM."""
    if set(row["arms"]) != set(arms):
        first, here = (", ".join(sorted(one)) for one in (arms, row["arms"]))
        raise TableError(f"{where} is of {here}, and the first row of {first}.")
    said = f"{where} must have a reward in [0, 1] and a cost of at least 0 in numbers of each LLM."
    try:
        cells = [[float(row["arms"][arm][key]) for key in ("reward", "cost")] for arm in arms]
    except (KeyError, TypeError, ValueError) as error:
        raise TableError(said) from error
    if not all(0 <= reward <= 1 and 0 <= cost < float("inf") for reward, cost in cells):
        raise TableError(said)
    return cells
