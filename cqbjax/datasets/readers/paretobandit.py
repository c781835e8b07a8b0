"""ParetoBandit's examples as its Python package holds them: JSON lines, one per prompt.

A line is `{prompt, source, arms: {LLM: {reward, cost, ...}, ...}, ...}`, the cost in USD per query.
LLMs are named without their makers, and prompts by their hashes, as in the compact file.
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
    """Read the examples of a folder, the files of `FILES` one after another.

    Args:
        path: the folder, or one of its files.

    Returns:
        The table in the files' order; its LLMs are sorted by name.

    Raises:
        TableError: one sentence naming file, row and the fault.
    """
    path = pathlib.Path(path)
    files = [path] if path.is_file() else [path / name for name in FILES]
    rows = [row for file in files for row in _read_rows(file)]
    # "maker/name" -> "name".
    servers = {arm: arm.rpartition("/")[2] for arm in (rows[0][1]["arms"] if rows else ())}
    arms = sorted(servers, key=servers.__getitem__)
    cells = np.array([_read_cells(*row, arms) for row in rows]).reshape(-1, len(arms), 2)
    prompts = tuple(str(row["prompt"]) for _, row in rows)
    ids = tuple(hashlib.sha256(p.encode()).hexdigest()[:ID_LETTERS] for p in prompts)
    first: dict[str, str] = {}
    for prompt_id, (where, _) in zip(ids, rows, strict=True):
        if first.setdefault(prompt_id, where) != where:
            raise TableError(
                f"{where} has the prompt of {first[prompt_id]}, each must stand there once."
            )
    table = RoutingTable(
        name="ParetoBandit", prompt_ids=ids, prompts=prompts,
        origins=tuple(str(row["source"]) for _, row in rows),
        servers=tuple(servers[arm] for arm in arms),
        performance=cells[..., 0], cost=cells[..., 1],
    )  # fmt: skip
    check_table(table, str(path))
    return table


def _read_rows(file: pathlib.Path) -> list[tuple[str, dict[str, Any]]]:
    """Return the lines of a file, each with its file and row in words."""
    if not file.is_file():
        raise TableError(f"{file}: no such file.")
    rows = []
    try:
        # A prompt may hold characters that `splitlines` takes for the end of a line.
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
        rows.append((where, row))
    return rows


def _read_cells(where: str, row: dict[str, Any], arms: list[str]) -> list[list[float]]:
    """Return reward and cost of each LLM."""
    if set(row["arms"]) != set(arms):
        first, here = (", ".join(sorted(names)) for names in (arms, row["arms"]))
        raise TableError(f"{where} is of {here}, and the first row of {first}.")
    error = f"{where} must have a reward in [0, 1] and a cost of at least 0 in numbers of each LLM."
    try:
        cells = [[float(row["arms"][arm][key]) for key in ("reward", "cost")] for arm in arms]
    except (KeyError, TypeError, ValueError) as cause:
        raise TableError(error) from cause
    if not all(0 <= reward <= 1 and 0 <= cost < float("inf") for reward, cost in cells):
        raise TableError(error)
    return cells
