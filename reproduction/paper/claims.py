"""The claims of the paper's text, each with a verdict computed from results (`claims.yaml`).

A rule decides a claim: it counts comparisons in a study's extract. It takes the extract and the
arguments of the claim (`with`), and returns the number of comparisons as claimed and against the
claim, and the numbers in words. `count_rows` does so for the tables that experiments on the
theorems leave below `results/tables`.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import polars as pl
import yaml

from cqbjax.core.labels import GENERATED, PAPER, USER_DATA
from cqbjax.results.frame import add_interval
from cqbjax.results.policy_styles import find_style
from reproduction.extracts import Extract, add_metrics
from reproduction.paper import printed
from reproduction.theory import bounds, slopes

CLAIMS = Path(__file__).resolve().parent / "claims.yaml"
HOLDS, IN_PART, FAILS = "holds", "holds in part", "does not hold"
UNDECIDED, CANNOT, NOT_RUN = "undecided", "cannot be tested here", "not run yet"
VERDICTS = (HOLDS, IN_PART, FAILS, UNDECIDED, CANNOT, NOT_RUN)
COLUMNS = (
    "verdict", "section", "line", "quote", "data", "test", "refuted", "evidence", "n", "id",
)  # fmt: skip
Arguments = Mapping[str, Any]
# Digits of evidence by metric.
_DIGITS = {"throughput": 4, "gap": 2, "regret": 2, "queue_length": 2}
BOUNDS = {
    "at_most": "at most", "at_least": "at least", "below": "below", "equals": "exactly",
    "nears": "at the last round nearer to",
}  # fmt: skip
THEOREM = "theorem"
MOST_LISTED = 4  # comparisons that evidence names
# Columns that identify a row of a table, and those that evidence shows.
_SETTING = ("table", "K", "num_servers", "slackness", "parameters", "arrival_rate", "policy",
            "first", "last")  # fmt: skip
_SHOWN = ("K", "parameters", "arrival_rate", "policy", "first", "last", "round")
_INTERVAL = ("mean", "low", "high")


class Found(NamedTuple):
    """The outcome of a rule.

    Attributes:
        yes: comparisons as claimed.
        all: comparisons; 0 where there is nothing to compare.
        text: the evidence in words.
        seeds: the fewest of any comparison; 0 if unknown.
        against: comparisons that show the opposite.
        study: its name.
        stand_in: description of a proxy dataset, or empty.
        provenance: of the data, a constant of `core.labels`.
    """

    yes: int
    all: int
    text: str
    seeds: int = 0
    against: int = 0
    study: str = ""
    stand_in: str = ""
    provenance: str = ""


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
    """Judge by one rule, from the paper's own data; real proxy data are evidence, no verdict."""
    rule, asked, run = claim["rule"], claim.get("with", {}), claim.get("studies", ())
    if rule == "none":
        return Judged(CANNOT, claim["reason"])
    if rule == "proven":
        return Judged(HOLDS, f"proven by {', '.join(asked['tests'])}")
    if rule == "tabled":
        findings = [count_rows(asked, tables)]
        if not findings[0].all:
            return Judged(NOT_RUN, findings[0].text)
    elif rule == "value":
        findings = _count_inside(asked, compared)
    elif rule in RULES:
        made = [extracts[name] for name in run if name in extracts]
        found = [RULES[rule](one, asked) for one in made if not is_user_data(one)]
        findings = [one for one in found if one.all]
    else:
        known = ", ".join([*RULES, "tabled", "value", "proven", "none"])
        raise ValueError(f"claim {claim['id']} has rule {rule}; choose from {known}")
    own = [one for one in findings if one.provenance == PAPER]
    others = [one for one in findings if one.provenance != PAPER]
    seeds = min((one.seeds for one in own or others), default=0) or None
    if own:
        return Judged(_verdict(own, claim), _join_texts([*own, *others]), seeds)
    if others:
        real = [one for one in others if one.provenance != GENERATED]
        outcome = _verdict(real, claim) if real else "not judged, they are made up"
        text = f"{claim['data']}: not available. On proxy data: {outcome}. {_join_texts(others)}"
        return Judged(CANNOT, text, seeds)
    return Judged(NOT_RUN, f"no result of {', '.join(run)}")


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


def is_user_data(made: Extract) -> bool:
    """Return whether a study ran on a user's own data, about which the paper claims nothing."""
    return bool(made.notes["provenance"] == USER_DATA)


def compare_paired(made: Extract, asked: Arguments) -> Found:
    """Compare a policy with others, paired by seed: as claimed where the 95% interval shows it.

    Arguments: policy, others, metrics, rounds (`last`, or those of the table), and, for claims
    about some settings alone, where (key -> value). The evidence counts leads of the mean, too.
    """
    rows = _select(made, made.paired, asked, asked["metrics"], asked["others"])
    rows = add_interval(rows.filter(reference=asked["policy"])).drop_nulls("low")
    known = add_metrics(made.notes.get("metrics", {}))
    more = pl.col("metric").is_in([name for name, one in known.items() if one.better == "more"])
    mean, *ends = (pl.when(more).then(name).otherwise(-pl.col(name)) for name in _INTERVAL)
    rows = rows.with_columns(
        better=pl.min_horizontal(ends) > 0, worse=pl.max_horizontal(ends) < 0, by_mean=mean > 0
    )
    yes, by_mean, against = (int(rows[name].sum()) for name in ("better", "by_mean", "worse"))
    text = (
        f"{find_style(asked['policy']).name} is ahead in {yes} of {rows.height} paired comparisons"
    )
    text += f" ({by_mean} by the mean)" + (f", behind in {against}" if against else "")
    failing = rows.filter(~pl.col("better"))
    if failing.height:
        text += f"; not ahead of {_list_failing(failing, made)}"
    return _found(made, yes, rows.height, text, against)


def rank_means(made: Extract, asked: Arguments) -> Found:
    """Rank policies by their means in every setting: as claimed where the policy's rank is.

    Arguments: policy, others, metric, rank (1 is first), and rounds.
    """
    labels = [asked["policy"], *asked["others"]]
    rows = _select(made, made.numbers, asked, [asked["metric"]], labels)
    rank = pl.col("mean").rank("min").over("point", "arrival_rate", "round")
    ranked = rows.with_columns(rank=rank).filter(policy=asked["policy"])
    yes = int((ranked["rank"] <= asked["rank"]).sum())
    return _found(made, yes, ranked.height, describe_ranks(ranked["rank"], asked))


def describe_ranks(ranks: pl.Series, asked: Arguments) -> str:
    """Describe how often a policy is among the first `rank`, and its rank in each setting."""
    ordinal = "first" if asked["rank"] == 1 else f"among the first {asked['rank']}"
    often = f"{int((ranks <= asked['rank']).sum())} of {len(ranks)} settings"
    each = ", ".join(str(int(rank)) for rank in ranks)
    return f"{find_style(asked['policy']).name} is {ordinal} in {often} (ranks {each})"


def check_growth(made: Extract, asked: Arguments) -> Found:
    """Test whether the gap to the optimal queue still grows: stable where growth is not shown.

    Arguments: policy. Growth is from half the rounds to the last, paired by seed.
    """
    rows = _select(made, made.numbers, {}, ["gap_growth"], [asked["policy"]])
    rows = add_interval(rows).drop_nulls("low")
    grown = ", ".join(
        f"{_describe(row, made)} {row['mean']:+.2f} [{row['low']:.2f}, {row['high']:.2f}]"
        for row in rows.to_dicts()
    )
    text = f"growth of the gap over the second half of the rounds: {grown}"
    return _found(made, int((rows["low"] <= 0).sum()), rows.height, text)


def compare_exploration(made: Extract, asked: Arguments) -> Found:
    """Compare how often a policy explored with its decaying rate.

    Round t explores if a query came in round t - 1 and E(t - 1) = 1, so that until T
    lambda * sum over u = 1, ..., T - 1 of min(1, c1 / sqrt(u + 1)) rounds are expected.

    Arguments: policy, rounds, and to. `rate`: as claimed where the mean lies within three standard
    errors of the expectation. `bound`: where it is not above the paper's bound 2 c1 sqrt(T) on the
    sum of rates by more than that.
    """
    rows = _select(made, made.numbers, asked, ["explored"], [asked["policy"]]).to_dicts()
    yes, parts = 0, []
    for row in rows:
        config = made.notes["points"][row["point"]]["config"]
        c1 = config.get("policy", {}).get(asked["policy"], {}).get("c1")
        if c1 is None:
            continue
        error = row["sd"] / np.sqrt(row["n"])
        if asked["to"] == "bound":
            limit, word = 2 * c1 * float(np.sqrt(row["round"])), "at most"
            yes += bool(row["mean"] - 3 * error <= limit)
        else:
            rate = np.minimum(1, c1 / np.sqrt(np.arange(1, row["round"]) + 1))
            limit, word = row["arrival_rate"] * float(rate.sum()), "expected"
            yes += bool(abs(row["mean"] - limit) <= 3 * error)
        parts.append(f"{_describe(row, made)} {row['mean']:.2f} +- {error:.2f}, {word} {limit:.2f}")
    return _found(made, yes, len(parts), f"rounds explored: {'; '.join(parts)}")


def compare_with_bound(made: Extract, asked: Arguments) -> Found:
    """Compare a policy's mean with a bound. Arguments: policy, metric, bound, and rounds."""
    rows = _select(made, made.numbers, asked, [asked["metric"]], [asked["policy"]])
    most = f"{max(rows['mean'].to_list()):.3g}" if rows.height else "none"
    text = f"the largest of {rows.height} means is {most}, the bound {asked['bound']:g}"
    return _found(made, int((rows["mean"] <= asked["bound"]).sum()), rows.height, text)


def _select(
    made: Extract, frame: pl.DataFrame, asked: Arguments, metrics: Sequence[str],
    policies: Sequence[str],
) -> pl.DataFrame:  # fmt: skip
    """Return the rows of metrics and policies at the rounds and settings of the claim."""
    rounds, wanted = made.notes["rounds"], asked.get("where", {}).items()
    settings = [point["setting"] for point in made.notes["points"]]
    chosen = {
        "round": rounds[-1:] if asked.get("rounds", "last") == "last" else rounds,
        "point": [i for i, one in enumerate(settings) if all(one.get(k) == v for k, v in wanted)],
        "metric": metrics, "policy": policies,
    }  # fmt: skip
    return frame.filter(pl.col(column).is_in(values) for column, values in chosen.items())


def _found(made: Extract, yes: int, every: int, text: str, against: int | None = None) -> Found:
    notes, seeds = made.notes, min(point["seeds"] for point in made.notes["points"])
    against = every - yes if against is None else against
    text = f"{notes['name']} (n = {seeds}): {text}"
    origin = notes["name"], notes["stand_in"], notes["provenance"]
    return Found(yes, every, text, seeds, against, *origin)


def _describe(row: Mapping[str, Any], made: Extract) -> str:
    """Describe the setting of a row by the keys in which settings of its study differ."""
    points = made.notes["points"]
    setting, parts = points[row["point"]]["setting"], []
    for key, value in setting.items():
        if len({str(point["setting"].get(key)) for point in points}) > 1:
            parts.append(f"{'N' if key == 'num_servers' else key} = {value}")
    if len(points[row["point"]]["rates"]) > 1:
        parts.append(f"rate {row['arrival_rate']:g}")
    return ", ".join([*parts, f"T = {row['round']:,}"])


def _list_failing(rows: pl.DataFrame, made: Extract) -> str:
    """List comparisons that are not as claimed, the worst first."""
    share = pl.when(pl.col("worse")).then(0).otherwise(1)
    some = rows.sort(share, maintain_order=True).head(MOST_LISTED).to_dicts()
    parts = []
    for row in some:
        digits = _DIGITS.get(row["metric"], 3)
        interval = f"[{row['low']:.{digits}f}, {row['high']:.{digits}f}]"
        parts.append(
            f"{find_style(row['policy']).name} in {row['metric']} ({_describe(row, made)}: "
            f"{row['mean']:+.{digits}f} {interval})"
        )
    rest = rows.height - len(some)
    return "; ".join(parts) + (f"; and {rest} more" if rest else "")


def count_rows(asked: Arguments, tables: Path) -> Found:
    """Count the rows of tables that are as claimed.

    `where` selects rows. `column` is compared, with its interval _low to _high where it has one:

        at_most     the interval does not lie above: it begins at or below the number, or at
                    `theorem`, the slope of Theorem 6's own bound over the row's rounds
        at_least    likewise
        below       all of the interval is below the number
        equals      the value is the number
        nears       of each setting, at the last round: the interval contains the number, or is
                    nearer to it than the whole interval of the round before

    Args:
        asked: `tables`, `where`, `column`, one of `BOUNDS`, `dim` where that is `theorem`, and `of`
            where a column has the total.
        tables: their folder.
    """
    (bound,) = [key for key in BOUNDS if key in asked]
    rows = _table_rows(asked, tables)
    if not rows:
        named = ", ".join(f"tables/{name}.csv" for name in asked["tables"])
        return Found(0, 0, f"no such row in {named}")
    number, of_theorem = asked[bound], asked[bound] == THEOREM
    for row in rows:
        row["limit"] = _theorem_slope(row, asked["dim"]) if of_theorem else float(number)
    verdicts = _compare_with_last(rows, number) if bound == "nears" else [
        {"at_most": row["low"] <= row["limit"], "at_least": row["high"] >= row["limit"],
         "below": row["high"] < row["limit"],
         "equals": row["low"] == row["high"] == row["limit"]}[bound]
        for row in rows
    ]  # fmt: skip
    limit = "the slope of Theorem 6's own bound" if of_theorem else f"{number:g}"
    text = f"{asked['column']} {BOUNDS[bound]} {limit} in {sum(verdicts)} of {len(verdicts)}: "
    text += "; ".join(_describe_row(row, of_theorem) for row in rows)
    seeds = min(int(row.get("seeds") or 0) for row in rows)
    yes, every = sum(verdicts), len(verdicts)
    return Found(yes, every, text, seeds, every - yes, provenance=PAPER)


def _table_rows(asked: Arguments, tables: Path) -> list[dict[str, Any]]:
    """Return the selected rows, with `value`, `low`, `high` (or the value), `total` and `table`."""
    column, rows = asked["column"], list[dict[str, Any]]()
    for name in asked["tables"]:
        path = tables / f"{name}.csv"
        frame = pl.read_csv(path, infer_schema_length=None) if path.is_file() else pl.DataFrame()
        if not {column, *asked["where"]} <= set(frame.columns):
            continue
        for row in frame.drop_nulls(column).filter(**asked["where"]).to_dicts():
            value, low, high = (row.get(f"{column}{end}") for end in ("", "_low", "_high"))
            low, high = (value, value) if low is None else (low, high)
            own = {"table": name, "value": value, "low": low, "high": high}
            rows.append(row | own | {"total": row.get(asked.get("of", ""))})
    return rows


def _theorem_slope(row: Mapping[str, Any], dim: int) -> float:
    blocks = row["num_servers"] if row["parameters"] == "disjoint" else 1
    constants = bounds.Constants(
        dim=blocks * dim, assortment_size=row["K"], slackness=row["slackness"],
        arrival_rate=row["arrival_rate"], sigma=1.0,  # the bound does not depend on sigma
    )  # fmt: skip
    return slopes.bound_slope(constants, row["first"], row["last"])


def _compare_with_last(rows: Sequence[Mapping[str, Any]], wanted: float) -> list[bool]:
    """Return, for each setting, whether the last round is at a number or nearer than the previous.

    A single round must be at the number.
    """
    by_setting: dict[Any, list[Mapping[str, Any]]] = {}
    for row in rows:
        by_setting.setdefault(tuple(row.get(key) for key in _SETTING), []).append(row)
    verdicts = []
    for some in by_setting.values():
        *before, last = sorted(some, key=lambda row: row["round"])
        # Of the interval before, the least distance; of the last one, the largest.
        distances = [max(row["low"] - wanted, wanted - row["high"], 0.0) for row in before[-1:]]
        farthest = max(abs(last[end] - wanted) for end in ("low", "high"))
        there = last["low"] <= wanted <= last["high"]
        verdicts.append(bool(there or farthest < sum(distances)))
    return verdicts


def _describe_row(row: Mapping[str, Any], with_limit: bool) -> str:
    where = ", ".join(f"{key} {row[key]}" for key in _SHOWN if key in row)
    if row["total"] is not None:
        return f"{row['table']} ({where}) {row['value']:,} of {row['total']:,}"
    text = f"{row['table']} ({where}) {row['value']:.4g}"
    if row["low"] != row["high"]:
        text += f" [{row['low']:.4g}, {row['high']:.4g}]"
    return f"{text}, the bound's {row['limit']:.4g}" if with_limit else text


RULES: dict[str, Callable[[Extract, Arguments], Found]] = {
    "ahead": compare_paired, "leads": rank_means, "stable": check_growth,
    "explores": compare_exploration, "at_most": compare_with_bound,
}  # fmt: skip
