"""The claims of the paper's text, each with a verdict computed from results (`claims.yaml`)."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import polars as pl
import yaml

from cqbjax.paper import printed
from cqbjax.paper.rules import RULES, Found, ranks
from cqbjax.results.extracts import Extract
from cqbjax.results.names import style_of

CLAIMS = Path(__file__).resolve().parent / "claims.yaml"
HOLDS, IN_PART, FAILS = "holds", "holds in part", "does not hold"
UNDECIDED, CANNOT, NOT_RUN = "not told apart", "cannot be tested here", "not run yet"
VERDICTS = (HOLDS, IN_PART, FAILS, UNDECIDED, CANNOT, NOT_RUN)
COLUMNS = ("verdict", "section", "line", "quote", "data", "test", "evidence", "n", "id")
_BOUNDS = {
    "at_most": "at most", "at_least": "at least", "equals": "exactly", "rises": "rises",
}  # fmt: skip
# What tells a table's rows from one another, where it has the column.
_SETTING = ("K", "parameters", "arrival_rate", "policy", "first", "last", "round")


class Judged(NamedTuple):
    """What came of a claim.

    Attributes:
        verdict: of `VERDICTS`.
        evidence: the numbers, in words.
        n: seeds, the fewest of the studies that decided; None where none did.
    """

    verdict: str
    evidence: str
    n: int | None = None


def read() -> list[dict[str, Any]]:
    """Return the claims, in the order of the file."""
    listed: list[dict[str, Any]] = yaml.safe_load(CLAIMS.read_text())
    return listed


def judge_all(
    extracts: Mapping[str, Extract], compared: pl.DataFrame, tables: Path
) -> pl.DataFrame:
    """Return every claim with its verdict.

    Args:
        extracts: by the names of their studies.
        compared: from `comparison.beside`.
        tables: the folder of tables, where theory's experiments leave theirs.

    Returns:
        `COLUMNS`, a row a claim, in the order of the paper's text.
    """
    rows = []
    for claim in sorted(read(), key=lambda one: one["line"]):
        judged = judge(claim, extracts, compared, tables)
        rows.append({**{key: claim.get(key) for key in COLUMNS}, **judged._asdict()})
    return pl.DataFrame(rows, infer_schema_length=None).select(COLUMNS)


def judge(
    claim: Mapping[str, Any], extracts: Mapping[str, Extract], compared: pl.DataFrame, tables: Path
) -> Judged:
    """Judge one claim.

    Raises:
        ValueError: its rule is unknown.
    """
    rule, asked = claim["rule"], claim.get("with", {})
    if rule == "none":
        judged = Judged(CANNOT, claim["reason"])
    elif rule == "proven":
        judged = Judged(HOLDS, f"proven by {', '.join(asked['tests'])}")
    elif rule == "tabled":
        judged = _tabled(asked, tables)
    elif rule == "value":
        judged = _decide(_values(asked, compared), claim)
    elif rule in RULES:
        run = [extracts[name] for name in claim["studies"] if name in extracts]
        findings = [RULES[rule](made, asked) for made in run]
        judged = _decide([one for one in findings if one.all], claim)
    else:
        known = ", ".join([*RULES, "tabled", "value", "proven", "none"])
        raise ValueError(f"claim {claim['id']} has rule {rule}; choose from {known}")
    more = [_printed(claim["printed"])] if "printed" in claim else []
    more += [claim["note"]] if "note" in claim else []
    return judged._replace(evidence=". ".join([judged.evidence, *more]))


def _decide(findings: Sequence[Found], claim: Mapping[str, Any]) -> Judged:
    """Give a verdict from the paper's own data; stand-ins say how it fares on them, no more."""
    own = [one for one in findings if not one.stand_in]
    others = [one for one in findings if one.stand_in]
    if own:
        verdict = _verdict(own, claim)
        return Judged(verdict, _said([*own, *others]), min(one.seeds for one in own))
    missing = [name for name in claim["studies"] if name not in {one.study for one in findings}]
    if others:
        there = f"{claim['data']}: not at hand. On data that stand in: {_verdict(others, claim)}"
        return Judged(CANNOT, f"{there}. {_said(others)}", min(one.seeds for one in others))
    return Judged(NOT_RUN, f"no result of {', '.join(missing)}")


def _verdict(findings: Sequence[Found], claim: Mapping[str, Any]) -> str:
    yes, every = sum(one.yes for one in findings), sum(one.all for one in findings)
    if claim.get("with", {}).get("share") == "most":
        return HOLDS if 2 * yes > every else FAILS
    if yes:
        return HOLDS if yes == every else IN_PART
    # That no interval shows a lead is not yet that there is none.
    return FAILS if any(one.against for one in findings) else UNDECIDED


def _said(findings: Iterable[Found]) -> str:
    parts = []
    for one in findings:
        parts.append(f"{one.said} [data: {one.stand_in}]" if one.stand_in else one.said)
    return ". ".join(parts)


def _values(asked: Mapping[str, Any], compared: pl.DataFrame) -> list[Found]:
    """Count the printed numbers that lie inside what ours allow, by study."""
    rows = compared.filter(
        pl.col("policy").is_in(asked["policies"]), pl.col("ours").is_not_null(),
        dataset=asked["dataset"], round=asked["round"], statistic=asked["statistic"],
    )  # fmt: skip
    findings = []
    for (study,), some in rows.group_by("study", maintain_order=True):
        yes, judged = int(some["inside"].sum()), int(some["inside"].count())
        parts = [
            f"{style_of(row['policy']).name} {row['ours']:.1f}, paper {row['paper']:.1f} "
            f"(allowed {row['allowed']:.1f} from ours)"
            for row in some.to_dicts()
        ]
        seeds = int(some["seeds"].to_numpy().min())
        said = f"{study} (n = {seeds}): {'; '.join(parts)}"
        findings.append(
            Found(str(study), some["stand_in"][0] or "", seeds, yes, judged - yes, judged, said)
        )
    return findings


def _tabled(asked: Mapping[str, Any], tables: Path) -> Judged:
    """Judge by tables that experiments on the theorems leave."""
    (bound,) = [key for key in _BOUNDS if key in asked]
    rows = _rows(asked, tables)
    if not rows:
        named = ", ".join(f"tables/{name}.csv" for name in asked["tables"])
        return Judged(NOT_RUN, f"no such row in {named}")
    if bound == "rises":
        yes, every = _risen(rows)
    else:
        yes, every = sum(_within(row, bound, float(asked[bound])) for row in rows), len(rows)
    verdict = HOLDS if yes == every else IN_PART if yes else FAILS
    wanted = f"{_BOUNDS[bound]} {asked[bound]:g}" if bound != "rises" else _BOUNDS[bound]
    said = f"{asked['column']} {wanted} in {yes} of {every}: {'; '.join(map(_told, rows))}"
    return Judged(verdict, said, min(row["n"] for row in rows) or None)


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


def _told(row: Mapping[str, Any]) -> str:
    where = ", ".join(f"{key} {value}" for key, value in row["where"].items())
    if row["of"] is not None:
        return f"{row['table']} ({where}) {row['value']:,} of {row['of']:,}"
    told = f"{row['table']} ({where}) {row['value']:.4g}"
    exact = row["low"] == row["high"]
    return told if exact else f"{told} [{row['low']:.4g}, {row['high']:.4g}]"


def _within(row: Mapping[str, Any], bound: str, value: float) -> bool:
    """Tell whether an interval allows a bound: it is broken where the interval is beyond it."""
    if bound == "equals":
        return bool(row["low"] == row["high"] == value)
    return bool(row["low"] <= value if bound == "at_most" else row["high"] >= value)


def _risen(rows: Sequence[Mapping[str, Any]]) -> tuple[int, int]:
    """Count, in each setting, the rounds at which a value is above that of the round before."""
    apart: dict[str, list[tuple[int, float]]] = {}
    for row in rows:
        setting = {key: value for key, value in row["where"].items() if key != "round"}
        apart.setdefault(f"{row['table']} {setting}", []).append(
            (row["where"]["round"], row["value"])
        )
    yes = every = 0
    for pairs in apart.values():
        values = [value for _, value in sorted(pairs)]
        steps = [after > before for before, after in zip(values, values[1:], strict=False)]
        yes, every = yes + sum(steps), every + len(steps)
    return yes, every


def _printed(asked: Mapping[str, Any]) -> str:
    """Say how the paper's own printed means rank a policy."""
    rows = printed.read().filter(pl.col("table").is_in(asked["tables"]), statistic="gap_mean")
    rank = pl.col("value").rank("min").over("table", "dataset", "round")
    own = rows.with_columns(rank=rank).filter(policy=asked["policy"])
    return f"In the paper's own table {ranks(own['rank'], asked)}"
