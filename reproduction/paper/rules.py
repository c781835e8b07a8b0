"""What decides a claim of the paper's text: small rules on extracts, each a count of comparisons.

A rule takes what the claim asks for (`claims.yaml`) and a study's extract, and returns how many of
its comparisons are as claimed, how many are against it, and what was seen.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import polars as pl

from cqbjax.core.labels import OWN
from cqbjax.results.frame import with_interval
from cqbjax.results.names import style_of
from reproduction.extracts import Extract, described

# Digits of what is said.
_DIGITS = {"throughput": 4, "gap": 2, "regret": 2, "queue_length": 2}


class Found(NamedTuple):
    """What a rule found in one study.

    Attributes:
        study: its name.
        stand_in: what its data stand in for, in words.
        provenance: whose they are, of those in `core.labels`.
        seeds: how many, the fewest of its points.
        yes: comparisons that are as claimed.
        against: comparisons that say the opposite.
        all: comparisons.
        said: in words.
    """

    study: str
    stand_in: str
    provenance: str
    seeds: int
    yes: int
    against: int
    all: int
    said: str


def is_own(made: Extract) -> bool:
    """Say whether a study ran on data of somebody's own, of which the paper says nothing."""
    return bool(made.notes["provenance"] == OWN)


def ahead(made: Extract, asked: Mapping[str, Any]) -> Found:
    """Compare a policy with others, paired by seed: as claimed where the 95% interval says so.

    Asks for: policy, others, metrics, rounds (`last`, or those of the table), and, where the claim
    is about some settings alone, where (key -> value). How many means are ahead is said beside it.
    """
    rows = with_interval(
        made.paired.filter(
            pl.col("policy").is_in(asked["others"]), pl.col("metric").is_in(asked["metrics"]),
            pl.col("round").is_in(_rounds(made, asked)),
            pl.col("point").is_in(_points(made, asked)), reference=asked["policy"],
        )
    ).filter(pl.col("low").is_not_null())  # fmt: skip
    known = described(made.notes.get("metrics", {}))
    more = pl.col("metric").is_in([name for name, one in known.items() if one.better == "more"])
    better = pl.when(more).then(pl.col("low") > 0).otherwise(pl.col("high") < 0)
    worse = pl.when(more).then(pl.col("high") < 0).otherwise(pl.col("low") > 0)
    by_mean = pl.when(more).then(pl.col("mean") > 0).otherwise(pl.col("mean") < 0)
    rows = rows.with_columns(better=better, worse=worse, by_mean=by_mean)
    yes, against = int(rows["better"].sum()), int(rows["worse"].sum())
    name = style_of(asked["policy"]).name
    said = f"{name} is ahead in {yes} of {rows.height} paired comparisons"
    said += f" ({int(rows['by_mean'].sum())} by the mean)"
    said += f", behind in {against}" if against else ""
    failing = rows.filter(~pl.col("better"))
    if failing.height:
        said += f"; not ahead of {_list_failing(failing, made)}"
    return _found(made, yes, against, rows.height, said)


def leads(made: Extract, asked: Mapping[str, Any]) -> Found:
    """Rank policies by their means in every setting: as claimed where the policy's rank is.

    Asks for: policy, others, metric, rank (1 is first), and rounds.
    """
    labels = [asked["policy"], *asked["others"]]
    rows = _numbers(made, asked, asked["metric"], labels)
    ranked = rows.with_columns(
        rank=pl.col("mean").rank("min").over("point", "arrival_rate", "round")
    ).filter(policy=asked["policy"])
    yes = int((ranked["rank"] <= asked["rank"]).sum())
    return _found(made, yes, ranked.height - yes, ranked.height, ranks(ranked["rank"], asked))


def ranks(places: pl.Series, asked: Mapping[str, Any]) -> str:
    """Say how often a policy is among the first `rank`, and its rank in each setting."""
    ordinal = "first" if asked["rank"] == 1 else f"among the first {asked['rank']}"
    often = f"{int((places <= asked['rank']).sum())} of {len(places)} settings"
    each = ", ".join(str(int(rank)) for rank in places)
    return f"{style_of(asked['policy']).name} is {ordinal} in {often} (ranks {each})"


def settled(made: Extract, asked: Mapping[str, Any]) -> Found:
    """Ask whether the gap to the optimal queue still grows: stable where no growth can be told.

    Asks for: policy. Growth is from half the rounds to the last, paired by seed.
    """
    rows = with_interval(_numbers(made, {}, "gap_growth", [asked["policy"]]))
    rows = rows.filter(pl.col("low").is_not_null())
    yes = int((rows["low"] <= 0).sum())
    grown = ", ".join(
        f"{_where(row, made)} {row['mean']:+.2f} [{row['low']:.2f}, {row['high']:.2f}]"
        for row in rows.to_dicts()
    )
    said = f"growth of the gap over the second half of the rounds: {grown}"
    return _found(made, yes, rows.height - yes, rows.height, said)


def explores(made: Extract, asked: Mapping[str, Any]) -> Found:
    """Compare how often a policy explored with what its decaying rate gives.

    Round t explores if a query came in round t - 1 and E(t - 1) = 1, so that until T
    lambda * sum over u = 1, ..., T - 1 of min(1, c1 / sqrt(u + 1)) rounds are expected.

    Asks for: policy, rounds, and to. `rate`: as claimed where the mean lies within three standard
    errors of what is expected. `bound`: where it is not above the paper's bound 2 c1 sqrt(T) on the
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
        parts.append(f"{_where(row, made)} {row['mean']:.2f} +- {error:.2f}, {word} {limit:.2f}")
    said = f"rounds explored: {'; '.join(parts)}"
    return _found(made, yes, len(parts) - yes, len(parts), said)


def at_most(made: Extract, asked: Mapping[str, Any]) -> Found:
    """Compare a policy's mean with a bound. Asks for: policy, metric, bound, and rounds."""
    rows = _numbers(made, asked, asked["metric"], [asked["policy"]])
    yes = int((rows["mean"] <= asked["bound"]).sum())
    most = f"{max(rows['mean'].to_list()):.3g}" if rows.height else "none"
    said = f"the largest of {rows.height} means is {most}, the bound {asked['bound']:g}"
    return _found(made, yes, rows.height - yes, rows.height, said)


RULES: dict[str, Callable[[Extract, Mapping[str, Any]], Found]] = {
    "ahead": ahead, "leads": leads, "settled": settled, "explores": explores, "at_most": at_most,
}  # fmt: skip


def _rounds(made: Extract, asked: Mapping[str, Any]) -> list[int]:
    rounds = list(made.notes["rounds"])
    return rounds[-1:] if asked.get("rounds", "last") == "last" else rounds


def _points(made: Extract, asked: Mapping[str, Any]) -> list[int]:
    """Return the points whose settings are those asked for; all where nothing is."""
    wanted = asked.get("where", {}).items()
    settings = [point["setting"] for point in made.notes["points"]]
    return [i for i, one in enumerate(settings) if all(one.get(k) == v for k, v in wanted)]


def _numbers(
    made: Extract, asked: Mapping[str, Any], metric: str, policies: Sequence[str]
) -> pl.DataFrame:
    """Return the means of a metric at the rounds asked for."""
    at = pl.col("round").is_in(_rounds(made, asked)), pl.col("policy").is_in(policies)
    return made.numbers.filter(*at, metric=metric)


def _found(made: Extract, yes: int, against: int, every: int, said: str) -> Found:
    seeds = min(point["seeds"] for point in made.notes["points"])
    return Found(
        made.notes["name"], made.notes["stand_in"], made.notes["provenance"], seeds, yes, against,
        every,
        f"{made.notes['name']} (n = {seeds}): {said}",
    )  # fmt: skip


def _where(row: Mapping[str, Any], made: Extract) -> str:
    """Say which setting a row is of, as far as settings of its study differ."""
    points = made.notes["points"]
    setting = points[row["point"]]["setting"]
    several = {
        key for key in setting if len({str(point["setting"].get(key)) for point in points}) > 1
    }
    parts = [f"{_LETTERS.get(key, key)} = {setting[key]}" for key in setting if key in several]
    if len(points[row["point"]]["rates"]) > 1:
        parts.append(f"rate {row['arrival_rate']:g}")
    return ", ".join([*parts, f"T = {row['round']:,}"])


_LETTERS = {"num_servers": "N"}


def _list_failing(rows: pl.DataFrame, made: Extract, most: int = 4) -> str:
    """Say which comparisons are not as claimed, the worst first."""
    share = pl.when(pl.col("worse")).then(0).otherwise(1)
    some = rows.sort(share, maintain_order=True).head(most).to_dicts()
    parts = []
    for row in some:
        digits = _DIGITS.get(row["metric"], 3)
        interval = f"[{row['low']:.{digits}f}, {row['high']:.{digits}f}]"
        parts.append(
            f"{style_of(row['policy']).name} in {row['metric']} ({_where(row, made)}: "
            f"{row['mean']:+.{digits}f} {interval})"
        )
    rest = rows.height - len(some)
    return "; ".join(parts) + (f"; and {rest} more" if rest else "")
