"""Every number that the paper prints, beside ours, with the difference that chance allows.

The paper prints means of ten runs (WildChat: five) and no intervals. Of two means of independent
runs, m of the paper's and n of ours, the difference has the standard error
s sqrt(1 / m + 1 / n), with s our standard deviation between seeds. The paper's mean is *inside*
when it is no farther from ours than Student's t quantile times that, and half a unit of its last
printed digit. A standard deviation of the paper's is inside when the ratio of variances is between
the 2.5% and 97.5% quantiles of F(m - 1, n - 1), with the same half unit. Both tests assume that
runs are normally distributed.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import polars as pl
from scipy.special import fdtri

from cqbjax.core.labels import GENERATED, PAPER
from cqbjax.results.summaries import t_quantile
from reproduction.extracts import Extract
from reproduction.paper import printed
from reproduction.paper.catalogue import ReportStudy
from reproduction.paper.claims import is_user_data

RUNS = {"WildChat-1M": 5}
MOST_RUNS = 10  # of the paper's other tables
# Half a unit of the last digit that the paper prints.
HALF_UNIT = {"gap_mean": 0.05, "gap_sd": 0.05, "throughput": 5e-4, "seconds_per_round": 5e-5}
METRIC = {"gap_mean": "gap", "gap_sd": "gap"}
COLUMNS = {
    "dataset": pl.String, "table": pl.String, "K": pl.Int64, "arrival_rate": pl.Float64,
    "round": pl.Int64, "policy": pl.String, "statistic": pl.String, "paper": pl.Float64,
    "runs": pl.Int64, "study": pl.String, "stand_in": pl.String, "provenance": pl.String,
    "our_rate": pl.Float64, "seeds": pl.Int64, "ours": pl.Float64, "difference": pl.Float64,
    "standard_error": pl.Float64, "allowed": pl.Float64, "inside": pl.Boolean, "note": pl.String,
}  # fmt: skip
NOT_TIMED = "not judged: the paper times one run in a script, ours are a batch"


class OurNumber(NamedTuple):
    """A number of ours: mean and sd between n seeds, at an arrival rate."""

    n: int
    mean: float
    sd: float | None
    rate: float


def compare(extracts: Mapping[str, Extract], listed: Sequence[ReportStudy]) -> pl.DataFrame:
    """Return every number of the paper's tables beside ours.

    Args:
        extracts: by the names of their studies.
        listed: the studies of the report; those with a `dataset` are compared with its numbers.

    Returns:
        A row a printed number and study that answers it (one without ours where there is none):
        `COLUMNS`. `standard_error` is the standard error of a mean of `runs` runs from our sd
        (of a `gap_sd`: of such a standard deviation, s / sqrt(2 (m - 1))); `allowed` is the largest
        difference that chance allows; `note` gives the reason for a missing number or verdict.
    """
    of_paper = printed.read()
    each = of_paper.group_by("dataset", "K").agg(pl.col("arrival_rate").unique().sort())
    rates = {(dataset, size): of_size for dataset, size, of_size in each.iter_rows()}
    rows = []
    for theirs in of_paper.iter_rows(named=True):
        names = [one.name for one in listed if one.dataset == theirs["dataset"]]
        rows += _rows(theirs, names, extracts, rates[theirs["dataset"], theirs["K"]])
    return pl.DataFrame(rows, schema=COLUMNS)


def _rows(
    theirs: Mapping[str, Any], names: Sequence[str], extracts: Mapping[str, Extract],
    rates: Sequence[float],
) -> list[dict[str, Any]]:  # fmt: skip
    """Return a row a study that answers a printed number, or one row without ours."""
    row = {key: theirs.get(key) for key in COLUMNS} | {"paper": theirs["value"]}
    row["runs"] = RUNS.get(theirs["dataset"], MOST_RUNS)
    # Users' own data answer no number of the paper's.
    run = [extracts[name] for name in names if name in extracts]
    run = [made for made in run if not is_user_data(made)]
    if not run:
        return [row | {"note": f"not run: {' or '.join(names) or 'no study answers it'}"}]
    rows = []
    for made in run:
        origin = {key: made.notes[key] for key in ("stand_in", "provenance")}
        one = row | {"study": made.notes["name"], **origin}
        ours = _find_ours(made, theirs, rates)
        rows.append(one | ({"note": ours} if isinstance(ours, str) else judge(one, ours)))
    # Studies without the number need no row where another study has it.
    return [one for one in rows if one["ours"] is not None] or rows[:1]


def _find_ours(made: Extract, theirs: Mapping[str, Any], rates: Sequence[float]) -> OurNumber | str:
    """Return our number in a setting of the paper's, or the reason why there is none."""
    name, settings = made.notes["name"], [one["setting"] for one in made.notes["points"]]
    # The paper's synthetic points have its N, slackness and parameters.
    same = [all(one.get(k, v) == v for k, v in printed.SYNTHETIC.items()) for one in settings]
    points = [
        i for i, one in enumerate(settings) if one.get("K") == theirs["K"]
        and not one.get("arrivals") and ("slackness" not in one or same[i])
    ]  # fmt: skip
    if not points:
        return f"{name} has not run at K = {theirs['K']}"
    run = sorted({rate for number in points for rate in made.notes["points"][number]["rates"]})
    chosen = [rate for rate in run if np.isclose(rate, theirs["arrival_rate"])]
    if made.notes["provenance"] != PAPER and len(run) == len(rates):
        # Proxy datasets have their own rates: low is compared with low, high with high.
        chosen = [run[rates.index(theirs["arrival_rate"])]]
    if not chosen:
        return f"{name} has not run at rate {theirs['arrival_rate']:g}"
    if theirs["round"] not in made.notes["rounds"]:
        return f"{name} has not run to round {theirs['round']:,}"
    rows = made.numbers.filter(
        pl.col("point").is_in(points), arrival_rate=chosen[0], round=theirs["round"],
        policy=theirs["policy"], metric=METRIC.get(theirs["statistic"], theirs["statistic"]),
    ).to_dicts()  # fmt: skip
    if not rows:
        return f"{name} has no policy {theirs['policy']} at K = {theirs['K']}"
    return OurNumber(rows[0]["n"], rows[0]["mean"], rows[0]["sd"], chosen[0])


def judge(row: Mapping[str, Any], ours: OurNumber) -> dict[str, Any]:
    """Return the columns of a comparison of a printed number with ours."""
    statistic, m, n = row["statistic"], row["runs"], ours.n
    sd = None if ours.sd is None or np.isnan(ours.sd) else float(ours.sd)
    value = sd if statistic == "gap_sd" else ours.mean
    made: dict[str, Any] = {"our_rate": ours.rate, "seeds": n, "ours": value}
    if value is None:
        return made | {"note": "a single seed has no standard deviation"}
    made["difference"] = value - row["paper"]
    if statistic == "seconds_per_round":
        return made | {"note": NOT_TIMED}
    if sd is None:
        return made | {"note": "not judged: a single seed"}
    half = HALF_UNIT[statistic]
    if statistic == "gap_sd":
        made["standard_error"] = sd / np.sqrt(2 * (m - 1))
        # The ratio of two equal variances lies between these quantiles in 95 of 100 cases.
        low, high = (sd * np.sqrt(fdtri(m - 1, n - 1, end)) for end in (0.025, 0.975))
        inside = bool(low - half <= row["paper"] <= high + half)
    else:
        made["standard_error"] = sd / np.sqrt(m)
        # In 95 of 100 cases a mean of m runs lies no farther from one of n.
        reach = float(t_quantile(n) * sd * np.sqrt(1 / m + 1 / n))
        made["allowed"] = reach + half
        inside = bool(abs(made["difference"]) <= made["allowed"])
    if row["provenance"] == GENERATED:
        # Generated numbers can equal the paper's by chance alone.
        return made | {"note": "not judged: made-up data"}
    if not np.isclose(ours.rate, row["arrival_rate"]):
        other = f"not judged: {ours.rate:g} queries a round in place of {row['arrival_rate']:g}"
        return made | {"note": other}
    return made | {"inside": inside}


def count(frame: pl.DataFrame) -> pl.DataFrame:
    """Count, by dataset and study, the printed numbers, ours beside them, judged, and inside."""
    return frame.group_by("dataset", "study", "stand_in", maintain_order=True).agg(
        printed=pl.len(), ours=pl.col("ours").count(), judged=pl.col("inside").count(),
        inside=pl.col("inside").sum(),
    )  # fmt: skip
