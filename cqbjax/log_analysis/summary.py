"""What a log shows, in words and a table: `cqbjax log describe`."""

import datetime
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import polars as pl
import scipy.stats

from cqbjax.log_analysis.requests import RequestLog
from cqbjax.log_analysis.retries import Retries, measure_sensitivity

# What a log may lack -> what cannot be estimated without it.
MISSING = {
    "user": "without users, retries cannot be linked and are read only where the log marks them",
    "text": "without prompts, LLMs are compared on average and not by prompt",
    "latency": "without latencies, service times are one round",
    "cost": "without costs, policies are not compared by USD",
    "outcome": "without outcomes, satisfaction is a range: whoever does not retry was satisfied or "
    "abandoned",
    "propensity": "without propensities, they are estimated from prompts and LLMs",
}


def estimate_share(hits: float, total: float) -> tuple[float, float, float]:
    """Return a share and its 95% interval (Jeffreys), which has a width also at 0 and 1."""
    low, high = scipy.stats.beta(hits + 0.5, total - hits + 0.5).ppf([0.025, 0.975])
    return hits / total if total else np.nan, float(low), float(high)


def tabulate_models(log: RequestLog, retries: Retries | None) -> pl.DataFrame:
    """Return a row for each LLM: requests, retry rate with interval, outcomes, cost, latency."""
    retried = labelled = np.zeros(log.frame.height, bool)
    if retries is not None:
        retried, labelled = retries.retried, retries.labelled
    frame = log.frame.with_columns(retried=pl.Series(retried), labelled=pl.Series(labelled))
    rows = []
    for number, name in enumerate(log.models):
        own = frame.filter(pl.col("model") == number)
        seen = own.filter("labelled")
        rate, low, high = estimate_share(int(seen["retried"].sum()), seen.height)
        outcomes = own["outcome"].drop_nulls()
        good, worst, best = estimate_share(float(outcomes.sum()), len(outcomes))
        rows.append({
            "LLM": name, "requests": own.height, "retried": rate, "retried_low": low,
            "retried_high": high, "outcomes": len(outcomes), "positive": good,
            "positive_low": worst, "positive_high": best, "usd": own["cost"].mean(),
            "seconds": own["latency"].mean(), "failed": int(own["failed"].sum()),
        })  # fmt: skip
    return pl.DataFrame(rows, infer_schema_length=None)


def describe(path: Path, log: RequestLog, retries: Retries | None) -> Iterator[str]:
    """Yield the lines of the description of a log.

    Args:
        path: the file.
        log: from `read_log`.
        retries: from `find_retries`; None if there is no way to find them.
    """
    frame = log.frame
    users = frame.filter(pl.col("user") >= 0)["user"].n_unique()
    known = f"{users:,} users" if users else "no users"
    yield f"{path}: {frame.height:,} requests of {log.rows:,} rows, {len(log.models)} LLMs, {known}"
    if log.timed:
        first, last = (
            datetime.datetime.fromtimestamp(one, datetime.UTC).isoformat(" ", "seconds")
            for one in (frame["time"][0], frame["time"][-1])
        )
        hours = (frame["time"][-1] - frame["time"][0]) / 3600
        since = "the start" if frame["time"][-1] < 1e8 else f"{first} to {last}"
        yield f"  from {since}: {hours:,.3g} hours"
    else:
        yield "  no times: rows count in their order; arrivals and gaps cannot be estimated"
    for note in log.notes:
        yield f"  {note}"
    for reason, (count, line) in log.bad.items():
        yield f"  Left out: {count:,} rows, {reason}; the first in line {line}."
    for column, consequence in MISSING.items():
        values = frame[column]
        if (values < 0).all() if column in ("user", "text") else values.null_count() == len(values):
            yield f"  Missing: {consequence}."
    if retries is None:
        return
    yield (
        f"Retries {retries.how}: {len(retries.gaps) / frame.height:.1%} of requests, "
        f"{frame.height / (frame.height - len(retries.gaps)):.3f} attempts a query"
    )
    if log.timed and len(retries.gaps):
        median, most = np.quantile(retries.gaps, [0.5, 0.95])
        yield f"  they come {median:,.3g} s after the answer (median; 95% within {most:,.3g} s)"
    if others := measure_sensitivity(log, retries):
        listed = ", ".join(f"{label}: {rate:.1%}" for label, rate in others.items())
        yield f"  under other rules: {listed}"
