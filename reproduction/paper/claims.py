"""The claims of the paper's text, each with a verdict computed from results (`claims.yaml`)."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import polars as pl
import yaml

from cqbjax.core.labels import GENERATED, PAPER
from cqbjax.results.policy_styles import find_style
from reproduction.extracts import Extract
from reproduction.paper import printed
from reproduction.paper.rules import RULES, Found, count_rows, describe_ranks, is_user_data

CLAIMS = Path(__file__).resolve().parent / "claims.yaml"
HOLDS, IN_PART, FAILS = "holds", "holds in part", "does not hold"
UNDECIDED, CANNOT, NOT_RUN = "undecided", "cannot be tested here", "not run yet"
VERDICTS = (HOLDS, IN_PART, FAILS, UNDECIDED, CANNOT, NOT_RUN)
COLUMNS = (
    "verdict", "section", "line", "quote", "data", "test", "refuted", "evidence", "n", "id",
)  # fmt: skip


class Judged(NamedTuple):
    """The outcome for a claim.

    Attributes:
        verdict: of `VERDICTS`.
        evidence: the numbers, in words.
        n: seeds, the fewest of the deciding studies; None where no study decided.
    """

    verdict: str
    evidence: str
    n: int | None = None


def read() -> list[dict[str, Any]]:
    """Return the claims, in the order of the file."""
    return yaml.safe_load(CLAIMS.read_text())


def judge_all(
    extracts: Mapping[str, Extract], compared: pl.DataFrame, tables: Path
) -> pl.DataFrame:
    """Return every claim with its verdict.

    Args:
        extracts: by the names of their studies.
        compared: from `comparison.compare`.
        tables: the folder with the tables of experiments on the theorems.

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
    """Judge one claim; of a sentence with several parts, each part separately.

    Raises:
        ValueError: its rule is unknown.
    """
    inputs = extracts, compared, tables
    parts = [{**claim, **part} for part in claim.get("parts", ())]
    each = [_judge_part(part, *inputs) for part in parts]
    judged = _join(parts, each) if parts else _judge_part(claim, *inputs)
    if judged.verdict == NOT_RUN and "unavailable" in claim:
        judged = judged._replace(verdict=CANNOT, evidence=claim["unavailable"])
    evidence = [judged.evidence]
    if "seen" in claim:  # observations that decide nothing
        evidence.append(f"What is seen: {_judge_part(claim['seen'], *inputs).evidence}")
    if "printed" in claim:
        asked = claim["printed"]
        rows = printed.read().filter(pl.col("table").is_in(asked["tables"]), statistic="gap_mean")
        rank = pl.col("value").rank("min").over("table", "dataset", "round")
        own = rows.with_columns(rank=rank).filter(policy=asked["policy"])
        evidence.append(f"In the paper's own table {describe_ranks(own['rank'], asked)}")
    if "note" in claim:
        evidence.append(claim["note"])
    return judged._replace(evidence=". ".join(evidence))


def _join(parts: Sequence[Mapping[str, Any]], each: Sequence[Judged]) -> Judged:
    """Judge a sentence by its parts: it holds if all of them do."""
    verdicts = {one.verdict for one in each}
    if len(verdicts) == 1:
        (verdict,) = verdicts
    elif {HOLDS, IN_PART} & verdicts:
        verdict = IN_PART
    else:
        verdict = next(one for one in (FAILS, UNDECIDED, NOT_RUN, CANNOT) if one in verdicts)
    texts = [
        f"{part['about']}: {one.verdict} ({one.evidence})"
        for part, one in zip(parts, each, strict=True)
    ]
    decided = [one for one in each if one.verdict not in (CANNOT, NOT_RUN)] or each
    seeds = [one.n for one in decided if one.n is not None]
    return Judged(verdict, ". ".join(texts), min(seeds, default=None))


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
        found = count_rows(asked, tables)
        held = HOLDS if found.yes == found.all else IN_PART if found.yes else FAILS
        return Judged(held if found.all else NOT_RUN, found.text, found.seeds or None)
    if rule == "value":
        return _decide(_count_inside(asked, compared), claim)
    if rule not in RULES:
        known = ", ".join([*RULES, "tabled", "value", "proven", "none"])
        raise ValueError(f"claim {claim['id']} has rule {rule}; choose from {known}")
    run = [extracts[name] for name in claim["studies"] if name in extracts]
    findings = [RULES[rule](made, asked) for made in run if not is_user_data(made)]
    return _decide([one for one in findings if one.all], claim)


def _decide(findings: Sequence[Found], claim: Mapping[str, Any]) -> Judged:
    """Return a verdict from the paper's own data; real proxy data are evidence, no verdict."""
    own = [one for one in findings if one.provenance == PAPER]
    others = [one for one in findings if one.provenance != PAPER]
    if own:
        text = _join_texts([*own, *others])
        return Judged(_verdict(own, claim), text, min(one.seeds for one in own))
    if others:
        real = [one for one in others if one.provenance != GENERATED]
        outcome = _verdict(real, claim) if real else "not judged, they are made up"
        text = f"{claim['data']}: not available. On proxy data: {outcome}. {_join_texts(others)}"
        return Judged(CANNOT, text, min(one.seeds for one in others))
    return Judged(NOT_RUN, f"no result of {', '.join(claim['studies'])}")


def _verdict(findings: Sequence[Found], claim: Mapping[str, Any]) -> str:
    yes, every = sum(one.yes for one in findings), sum(one.all for one in findings)
    if claim.get("with", {}).get("share") == "most":
        return HOLDS if 2 * yes > every else FAILS
    if yes:
        return HOLDS if yes == every else IN_PART
    # Intervals that show no lead do not show that there is none.
    return FAILS if any(one.against for one in findings) else UNDECIDED


def _join_texts(findings: Iterable[Found]) -> str:
    return ". ".join(f.text + f" [data: {f.stand_in}]" * bool(f.stand_in) for f in findings)


def _count_inside(asked: Mapping[str, Any], compared: pl.DataFrame) -> list[Found]:
    """Count the printed numbers that lie inside the allowed distance from ours, by study."""
    rows = compared.filter(
        pl.col("policy").is_in(asked["policies"]), pl.col("ours").is_not_null(),
        dataset=asked["dataset"], round=asked["round"], statistic=asked["statistic"],
    )  # fmt: skip
    findings = []
    for (study,), some in rows.group_by("study", maintain_order=True):
        yes, judged = int(some["inside"].sum()), int(some["inside"].count())
        parts = [
            f"{find_style(row['policy']).name} {row['ours']:.1f}, paper {row['paper']:.1f} "
            f"(allowed {row['allowed']:.1f} from ours)"
            for row in some.to_dicts()
        ]
        seeds = int(some["seeds"].to_numpy().min())
        text = f"{study} (n = {seeds}): {'; '.join(parts)}"
        origin = str(study), some["stand_in"][0] or "", some["provenance"][0]
        findings.append(Found(yes, judged, text, seeds, judged - yes, *origin))
    return findings
