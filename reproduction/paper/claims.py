"""The claims of the paper's text, each with a verdict computed from results (`claims.yaml`)."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import polars as pl
import yaml

from cqbjax.core.labels import GENERATED, PAPERS
from cqbjax.results.names import style_of
from reproduction.extracts import Extract
from reproduction.paper import printed, tabled
from reproduction.paper.rules import RULES, Found, is_own, ranks

CLAIMS = Path(__file__).resolve().parent / "claims.yaml"
HOLDS, IN_PART, FAILS = "holds", "holds in part", "does not hold"
UNDECIDED, CANNOT, NOT_RUN = "not told apart", "cannot be tested here", "not run yet"
VERDICTS = (HOLDS, IN_PART, FAILS, UNDECIDED, CANNOT, NOT_RUN)
COLUMNS = (
    "verdict", "section", "line", "quote", "data", "test", "refuted", "evidence", "n", "id",
)  # fmt: skip


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
    """Judge one claim, each part of its sentence by itself where it has several.

    Raises:
        ValueError: its rule is unknown.
    """
    inputs = extracts, compared, tables
    if "parts" in claim:
        parts = [{**claim, **part} for part in claim["parts"]]
        each = [_judge_part(part, *inputs) for part in parts]
        judged = _joined([part["says"] for part in parts], each)
    else:
        judged = _judge_part(claim, *inputs)
    more = [_seen(claim["seen"], *inputs)] if "seen" in claim else []
    more += [_printed(claim["printed"])] if "printed" in claim else []
    more += [claim["note"]] if "note" in claim else []
    return judged._replace(evidence=". ".join([judged.evidence, *more]))


def _joined(says: Sequence[str], parts: Sequence[Judged]) -> Judged:
    """Judge a sentence by its parts: it holds if all of it does."""
    verdicts = {one.verdict for one in parts}
    if len(verdicts) == 1:
        (verdict,) = verdicts
    elif {HOLDS, IN_PART} & verdicts:
        verdict = IN_PART
    else:
        verdict = next(one for one in (FAILS, UNDECIDED, NOT_RUN, CANNOT) if one in verdicts)
    said = [
        f"{about}: {one.verdict} ({one.evidence})" for about, one in zip(says, parts, strict=True)
    ]
    decided = [one for one in parts if one.verdict not in (CANNOT, NOT_RUN)] or parts
    seeds = [one.n for one in decided if one.n is not None]
    return Judged(verdict, ". ".join(said), min(seeds, default=None))


def _seen(asked: Mapping[str, Any], *inputs: Any) -> str:
    """Say what is seen of a claim that nothing here decides."""
    return f"What is seen: {_judge_part(asked, *inputs).evidence}"


def _judge_part(
    claim: Mapping[str, Any], extracts: Mapping[str, Extract], compared: pl.DataFrame, tables: Path
) -> Judged:
    """Judge by one rule."""
    rule, asked = claim["rule"], claim.get("with", {})
    if rule == "none":
        return Judged(CANNOT, claim["reason"])
    if rule == "proven":
        return Judged(HOLDS, f"proven by {', '.join(asked['tests'])}")
    if rule == "tabled":
        found = tabled.count(asked, tables)
        held = HOLDS if found.yes == found.all else IN_PART if found.yes else FAILS
        return Judged(held if found.all else NOT_RUN, found.said, found.seeds)
    if rule == "value":
        return _decide(_values(asked, compared), claim)
    if rule not in RULES:
        known = ", ".join([*RULES, "tabled", "value", "proven", "none"])
        raise ValueError(f"claim {claim['id']} has rule {rule}; choose from {known}")
    run = [extracts[name] for name in claim["studies"] if name in extracts]
    run = [made for made in run if not is_own(made)]
    return _decide([one for one in (RULES[rule](made, asked) for made in run) if one.all], claim)


def _decide(findings: Sequence[Found], claim: Mapping[str, Any]) -> Judged:
    """Give a verdict from the paper's own data; real stand-ins say how it fares, no more."""
    own = [one for one in findings if one.provenance == PAPERS]
    others = [one for one in findings if one.provenance != PAPERS]
    if own:
        verdict = _verdict(own, claim)
        return Judged(verdict, _said([*own, *others]), min(one.seeds for one in own))
    missing = [name for name in claim["studies"] if name not in {one.study for one in findings}]
    if others:
        real = [one for one in others if one.provenance != GENERATED]
        fares = _verdict(real, claim) if real else "not judged, they are made up"
        there = f"{claim['data']}: not at hand. On data that stand in: {fares}"
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
    parts = (one.said + f" [data: {one.stand_in}]" * bool(one.stand_in) for one in findings)
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
        whose = some["stand_in"][0] or "", some["provenance"][0]
        findings.append(Found(str(study), *whose, seeds, yes, judged - yes, judged, said))
    return findings


def _printed(asked: Mapping[str, Any]) -> str:
    """Say how the paper's own printed means rank a policy."""
    rows = printed.read().filter(pl.col("table").is_in(asked["tables"]), statistic="gap_mean")
    rank = pl.col("value").rank("min").over("table", "dataset", "round")
    own = rows.with_columns(rank=rank).filter(policy=asked["policy"])
    return f"In the paper's own table {ranks(own['rank'], asked)}"
