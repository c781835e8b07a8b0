"""The rules that decide claims of the paper's text: each counts comparisons.

A rule takes the arguments of the claim (`claims.yaml`: `with`) and a study's extract. It returns
the number of comparisons as claimed and against the claim, and the numbers in words. `count_rows`
does so for the tables that experiments on the theorems leave below `results/tables`.
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import polars as pl

from cqbjax.core.labels import USER_DATA
from cqbjax.results.frame import add_interval
from cqbjax.results.policy_styles import find_style
from reproduction.extracts import Extract, add_metrics
from reproduction.theory import bounds, slopes

Arguments = Mapping[str, Any]
# Digits of evidence by metric.
_DIGITS = {"throughput": 4, "gap": 2, "regret": 2, "queue_length": 2}
BOUNDS = {
    "at_most": "at most", "at_least": "at least", "below": "below", "equals": "exactly",
    "nears": "at the last round nearer to",
}  # fmt: skip
THEOREM = "theorem"
MOST_LISTED = 4  # comparisons that evidence names
# Columns that identify a row of a table; those that evidence shows.
_SETTING = ("K", "num_servers", "slackness", "parameters", "arrival_rate", "policy", "first",
            "last", "round")  # fmt: skip
_SHOWN = ("K", "parameters", "arrival_rate", "policy", "first", "last", "round")


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


def is_user_data(made: Extract) -> bool:
    """Return whether a study ran on a user's own data, about which the paper claims nothing."""
    return bool(made.notes["provenance"] == USER_DATA)


def compare_paired(made: Extract, asked: Arguments) -> Found:
    """Compare a policy with others, paired by seed: as claimed where the 95% interval shows it.

    Arguments: policy, others, metrics, rounds (`last`, or those of the table), and, for claims
    about some settings alone, where (key -> value). The evidence counts leads of the mean, too.
    """
    chosen = {"policy": asked["others"], "metric": asked["metrics"]}
    chosen |= {"round": _rounds(made, asked), "point": _points(made, asked)}
    conditions = [pl.col(column).is_in(values) for column, values in chosen.items()]
    rows = add_interval(made.paired.filter(*conditions, reference=asked["policy"]))
    rows = rows.filter(pl.col("low").is_not_null())
    known = add_metrics(made.notes.get("metrics", {}))
    more = pl.col("metric").is_in([name for name, one in known.items() if one.better == "more"])
    rows = rows.with_columns(
        better=pl.when(more).then(pl.col("low") > 0).otherwise(pl.col("high") < 0),
        worse=pl.when(more).then(pl.col("high") < 0).otherwise(pl.col("low") > 0),
        by_mean=pl.when(more).then(pl.col("mean") > 0).otherwise(pl.col("mean") < 0),
    )
    yes, against = int(rows["better"].sum()), int(rows["worse"].sum())
    name = find_style(asked["policy"]).name
    text = f"{name} is ahead in {yes} of {rows.height} paired comparisons"
    text += f" ({int(rows['by_mean'].sum())} by the mean)"
    text += f", behind in {against}" if against else ""
    failing = rows.filter(~pl.col("better"))
    if failing.height:
        text += f"; not ahead of {_list_failing(failing, made)}"
    return _found(made, yes, rows.height, text, against)


def rank_means(made: Extract, asked: Arguments) -> Found:
    """Rank policies by their means in every setting: as claimed where the policy's rank is.

    Arguments: policy, others, metric, rank (1 is first), and rounds.
    """
    labels = [asked["policy"], *asked["others"]]
    rows = _numbers(made, asked, asked["metric"], labels)
    rank = pl.col("mean").rank("min").over("point", "arrival_rate", "round")
    ranked = rows.with_columns(rank=rank).filter(policy=asked["policy"])
    yes = int((ranked["rank"] <= asked["rank"]).sum())
    return _found(made, yes, ranked.height, describe_ranks(ranked["rank"], asked))


def describe_ranks(places: pl.Series, asked: Arguments) -> str:
    """Describe how often a policy is among the first `rank`, and its rank in each setting."""
    ordinal = "first" if asked["rank"] == 1 else f"among the first {asked['rank']}"
    often = f"{int((places <= asked['rank']).sum())} of {len(places)} settings"
    each = ", ".join(str(int(rank)) for rank in places)
    return f"{find_style(asked['policy']).name} is {ordinal} in {often} (ranks {each})"


def check_growth(made: Extract, asked: Arguments) -> Found:
    """Test whether the gap to the optimal queue still grows: stable where growth is not shown.

    Arguments: policy. Growth is from half the rounds to the last, paired by seed.
    """
    rows = add_interval(_numbers(made, {}, "gap_growth", [asked["policy"]]))
    rows = rows.filter(pl.col("low").is_not_null())
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
    rows = _numbers(made, asked, "explored", [asked["policy"]]).to_dicts()
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
    rows = _numbers(made, asked, asked["metric"], [asked["policy"]])
    most = f"{max(rows['mean'].to_list()):.3g}" if rows.height else "none"
    text = f"the largest of {rows.height} means is {most}, the bound {asked['bound']:g}"
    return _found(made, int((rows["mean"] <= asked["bound"]).sum()), rows.height, text)


RULES: dict[str, Callable[[Extract, Arguments], Found]] = {
    "ahead": compare_paired, "leads": rank_means, "stable": check_growth,
    "explores": compare_exploration, "at_most": compare_with_bound,
}  # fmt: skip


def _rounds(made: Extract, asked: Arguments) -> list[int]:
    rounds = list(made.notes["rounds"])
    return rounds[-1:] if asked.get("rounds", "last") == "last" else rounds


def _points(made: Extract, asked: Arguments) -> list[int]:
    """Return the points with the settings of the claim; all where it names none."""
    wanted = asked.get("where", {}).items()
    settings = [point["setting"] for point in made.notes["points"]]
    return [i for i, one in enumerate(settings) if all(one.get(k) == v for k, v in wanted)]


def _numbers(made: Extract, asked: Arguments, metric: str, policies: Sequence[str]) -> pl.DataFrame:
    """Return the means of a metric at the rounds of the claim."""
    at = pl.col("round").is_in(_rounds(made, asked)), pl.col("policy").is_in(policies)
    return made.numbers.filter(*at, metric=metric)


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
    if bound == "nears":
        verdicts = _compare_with_last(rows, float(number))
    else:
        for row in rows:
            row["limit"] = _theorem_slope(row, asked["dim"]) if of_theorem else float(number)
        verdicts = [_is_within(row, bound) for row in rows]
    limit = "the slope of Theorem 6's own bound" if of_theorem else f"{number:g}"
    text = f"{asked['column']} {BOUNDS[bound]} {limit} in {sum(verdicts)} of {len(verdicts)}: "
    text += "; ".join(_describe_row(row, of_theorem) for row in rows)
    seeds = min(row["n"] for row in rows)
    return Found(sum(verdicts), len(verdicts), text, seeds)


def _table_rows(asked: Arguments, tables: Path) -> list[dict[str, Any]]:
    """Return the selected rows: value, low and high (the value where there is no interval)."""
    column, rows = asked["column"], list[dict[str, Any]]()
    for name in asked["tables"]:
        path = tables / f"{name}.csv"
        frame = pl.read_csv(path, infer_schema_length=None) if path.is_file() else pl.DataFrame()
        if not {column, *asked["where"]} <= set(frame.columns):
            continue
        for row in frame.filter(pl.col(column).is_not_null(), **asked["where"]).to_dicts():
            low, high = row.get(f"{column}_low"), row.get(f"{column}_high")
            ends = (row[column], row[column]) if low is None else (low, high)
            rows.append(
                {"table": name, "value": row[column], "low": ends[0], "high": ends[1],
                 "of": row.get(asked.get("of", "")), "n": int(row.get("seeds") or 0),
                 "where": {key: row[key] for key in _SETTING if key in row}}
            )  # fmt: skip
    return rows


def _theorem_slope(row: Mapping[str, Any], dim: int) -> float:
    where = row["where"]
    blocks = where["num_servers"] if where["parameters"] == "disjoint" else 1
    constants = bounds.Constants(
        dim=blocks * dim, assortment_size=where["K"], slackness=where["slackness"],
        arrival_rate=where["arrival_rate"], sigma=1.0,  # the bound does not depend on sigma
    )  # fmt: skip
    return slopes.bound_slope(constants, where["first"], where["last"])


def _is_within(row: Mapping[str, Any], bound: str) -> bool:
    """Return whether an interval allows a bound: it does not lie beyond the bound."""
    low, high, limit = row["low"], row["high"], row["limit"]
    allowed = {"at_most": low <= limit, "at_least": high >= limit, "below": high < limit}
    return bool((allowed | {"equals": low == high == limit})[bound])


def _compare_with_last(rows: Sequence[Mapping[str, Any]], wanted: float) -> list[bool]:
    """Return, for each setting, whether the last round is at a number or nearer than the previous.

    A single round must be at the number.
    """
    by_setting: dict[str, list[Mapping[str, Any]]] = {}
    for row in rows:
        setting = {key: value for key, value in row["where"].items() if key != "round"}
        by_setting.setdefault(f"{row['table']} {setting}", []).append(row)
    verdicts = []
    for some in by_setting.values():
        *before, last = sorted(some, key=lambda row: row["where"]["round"])
        # Of the interval before, the least distance; of the last one, the largest.
        distances = [max(row["low"] - wanted, wanted - row["high"], 0.0) for row in before[-1:]]
        farthest = max(abs(last[end] - wanted) for end in ("low", "high"))
        there = last["low"] <= wanted <= last["high"]
        verdicts.append(bool(there or farthest < sum(distances)))
    return verdicts


def _describe_row(row: Mapping[str, Any], with_limit: bool) -> str:
    where = ", ".join(f"{key} {row['where'][key]}" for key in _SHOWN if key in row["where"])
    if row["of"] is not None:
        return f"{row['table']} ({where}) {row['value']:,} of {row['of']:,}"
    text = f"{row['table']} ({where}) {row['value']:.4g}"
    if row["low"] != row["high"]:
        text += f" [{row['low']:.4g}, {row['high']:.4g}]"
    return f"{text}, the bound's {row['limit']:.4g}" if with_limit else text
