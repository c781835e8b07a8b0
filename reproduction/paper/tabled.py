"""Claims that tables decide, which experiments on the theorems leave below `results/tables`.

`where` picks rows, `column` is judged, with its interval _low to _high where there is one, by

    at_most     nothing of the interval shows more: it begins at or below the number, or at
                `theorem`, the slope of Theorem 6's own bound over the row's rounds
    at_least    likewise
    below       all of the interval is below the number
    equals      the value is the number
    nears       of each setting, at the last round: the interval has the number in it, or is nearer
                to it than the interval of the round before, none of one in the other
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import polars as pl

from reproduction.theory import conditions, slopes

BOUNDS = {
    "at_most": "at most", "at_least": "at least", "below": "below", "equals": "exactly",
    "nears": "at the last round nearer to",
}  # fmt: skip
THEOREM = "theorem"
# What tells a table's rows from one another, where it has the column.
_SETTING = ("K", "num_servers", "slackness", "parameters", "arrival_rate", "policy", "first",
            "last", "round")  # fmt: skip
# Of them what is said of a row.
_SAID = ("K", "parameters", "arrival_rate", "policy", "first", "last", "round")


class Counted(NamedTuple):
    """What rows of tables say of a claim.

    Attributes:
        yes: rows, or settings, that are as claimed.
        all: all of them; 0 where no table has such a row.
        said: in words.
        seeds: the fewest; None where a table names none.
    """

    yes: int
    all: int
    said: str
    seeds: int | None = None


def count(asked: Mapping[str, Any], tables: Path) -> Counted:
    """Count the rows that are as claimed.

    Args:
        asked: `tables`, `where`, `column`, one of `BOUNDS`, `dim` where that is `theorem`, and `of`
            where a column says of how many.
        tables: their folder.
    """
    (bound,) = [key for key in BOUNDS if key in asked]
    rows = _rows(asked, tables)
    if not rows:
        named = ", ".join(f"tables/{name}.csv" for name in asked["tables"])
        return Counted(0, 0, f"no such row in {named}")
    if bound == "nears":
        verdicts = _nearer(rows, float(asked[bound]))
    else:
        rows = [row | {"limit": _limit(row, bound, asked)} for row in rows]
        verdicts = [_within(row, bound) for row in rows]
    wanted = f"{BOUNDS[bound]} {_number(asked[bound])}"
    said = f"{asked['column']} {wanted} in {sum(verdicts)} of {len(verdicts)}: "
    least = min(row["n"] for row in rows) or None
    told = "; ".join(_told(row, asked[bound] == THEOREM) for row in rows)
    return Counted(sum(verdicts), len(verdicts), said + told, least)


def _number(bound: Any) -> str:
    return "the slope of Theorem 6's own bound" if bound == THEOREM else f"{bound:g}"


def _rows(asked: Mapping[str, Any], tables: Path) -> list[dict[str, Any]]:
    """Return the rows asked for: value, low and high (the value where there is no interval)."""
    column, rows = asked["column"], list[dict[str, Any]]()
    for name in asked["tables"]:
        path = tables / f"{name}.csv"
        if not path.is_file():
            continue
        frame = pl.read_csv(path, infer_schema_length=None)
        if not {column, *asked["where"]} <= set(frame.columns):
            continue
        for row in frame.filter(**asked["where"]).iter_rows(named=True):
            if row[column] is not None:
                low, high = row.get(f"{column}_low"), row.get(f"{column}_high")
                ends = (row[column], row[column]) if low is None else (low, high)
                where = {key: row[key] for key in _SETTING if key in row}
                rows.append(
                    {"table": name, "value": row[column], "low": ends[0], "high": ends[1],
                     "of": row.get(asked.get("of", "")), "n": int(row.get("seeds") or 0),
                     "where": where}
                )  # fmt: skip
    return rows


def _limit(row: Mapping[str, Any], bound: str, asked: Mapping[str, Any]) -> float:
    """Return the number that a row is held against."""
    if asked[bound] != THEOREM:
        return float(asked[bound])
    where = row["where"]
    blocks = where["num_servers"] if where["parameters"] == "disjoint" else 1
    constants = conditions.Constants(
        dim=blocks * asked["dim"], assortment_size=where["K"], slackness=where["slackness"],
        arrival_rate=where["arrival_rate"], sigma=1.0,  # of which the bound has none
    )  # fmt: skip
    return slopes.of_bound(constants, where["first"], where["last"])


def _within(row: Mapping[str, Any], bound: str) -> bool:
    """Tell whether an interval allows a bound: it is broken where the interval is beyond it."""
    allowed = {
        "at_most": row["low"] <= row["limit"],
        "at_least": row["high"] >= row["limit"],
        "below": row["high"] < row["limit"],
        "equals": row["low"] == row["high"] == row["limit"],
    }
    return bool(allowed[bound])


def _nearer(rows: Sequence[Mapping[str, Any]], wanted: float) -> list[bool]:
    """Tell, in each setting, whether the last round is at a number or nearer than the one before.

    A single round says nothing of nearing: it must be there.
    """
    apart: dict[str, list[Mapping[str, Any]]] = {}
    for row in rows:
        setting = {key: value for key, value in row["where"].items() if key != "round"}
        apart.setdefault(f"{row['table']} {setting}", []).append(row)
    verdicts = []
    for some in apart.values():
        *_, before, last = [None, *sorted(some, key=lambda row: row["where"]["round"])]
        assert last is not None
        there = last["low"] <= wanted <= last["high"]
        farthest = max(abs(last[end] - wanted) for end in ("low", "high"))
        crossed = before is None or before["low"] <= wanted <= before["high"]
        nearest = 0.0 if crossed else min(abs(before[end] - wanted) for end in ("low", "high"))
        verdicts.append(bool(there or farthest < nearest))
    return verdicts


def _told(row: Mapping[str, Any], own_limit: bool) -> str:
    where = ", ".join(f"{key} {row['where'][key]}" for key in _SAID if key in row["where"])
    if row["of"] is not None:
        return f"{row['table']} ({where}) {row['value']:,} of {row['of']:,}"
    told = f"{row['table']} ({where}) {row['value']:.4g}"
    if row["low"] != row["high"]:
        told += f" [{row['low']:.4g}, {row['high']:.4g}]"
    return f"{told}, the bound's {row['limit']:.4g}" if own_limit else told
