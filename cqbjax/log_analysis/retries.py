"""Which request is a retry of which: what the log says, or else the linking rule.

The rule is that of `cqbjax.logs.linking`: a request is a retry of the latest unresolved earlier
one of the same user with the same or a similar prompt, if it comes within `max_gap` seconds of the
earlier answer. Without embeddings, the similarity is the cosine of TF-IDF vectors of words.
"""

from typing import NamedTuple

import numpy as np
import polars as pl

from cqbjax.log_analysis.requests import RequestLog
from cqbjax.logs.conversations import SECOND
from cqbjax.logs.linking import LinkingRule, find_retrials
from cqbjax.logs.shards import LogError

# Least cosine of TF-IDF vectors, and of embeddings; most seconds between an answer and its retry.
SIMILAR_WORDS, SIMILAR_EMBEDDINGS, MAX_GAP = 0.7, 0.95, 1800.0
DENSE = 256  # dimensions into which TF-IDF vectors are projected to compare them


class Retries(NamedTuple):
    """Retries of a log.

    Attributes:
        before: [n] the row that each request retries, -1 if it begins a query.
        query: [n] the first row of its query.
        attempt: [n] 1 for the first request of a query.
        retried: [n] bool whether each request was retried.
        labelled: [n] bool whether a retry of each request would be in the log. The last requests
            are left out, within the time in which 95% of the retries come, since the log ends
            before some of their users return.
        gaps: [retries] seconds between the answers and their retries, not negative.
        max_gap: most seconds from an answer to its retry.
        how: how they were found, in words.
        rule: the linking rule, or None if the log marks retries.
    """

    before: np.ndarray
    query: np.ndarray
    attempt: np.ndarray
    retried: np.ndarray
    labelled: np.ndarray
    gaps: np.ndarray
    max_gap: float
    how: str
    rule: LinkingRule | None


def find_retries(
    log: RequestLog, threshold: float | None = None, max_gap: float = MAX_GAP
) -> Retries:
    """Find the retries of a log.

    Args:
        log: from `read_log`.
        threshold: least cosine of two prompts; 1: they must be identical. None: the default for
            words or embeddings.
        max_gap: most seconds from an answer to its retry.

    Raises:
        LogError: the log marks no retries and has no users, or no prompts.
    """
    marked, rule = _read_marked(log.frame), None
    if marked is not None:
        before, how = marked
    else:
        for what, column in (("user", "user"), ("prompt", "text")):
            if (log.frame[column] < 0).all() or (what == "prompt" and not log.with_prompts):
                raise LogError(
                    f"the log marks no retries and has no {what}, so they cannot be linked: map a "
                    f"column with columns={{{what}: NAME}}."
                )
        kind, default = "words", SIMILAR_WORDS
        if log.embeddings is not None:
            kind, default = "embeddings", SIMILAR_EMBEDDINGS
        rule = LinkingRule(default if threshold is None else threshold)
        vectors = similarity_vectors(log) if rule.threshold < 1 else None
        before = _link(log, rule, vectors, max_gap)
        how = (
            f"linked: same user, cosine of {kind} at least {rule.threshold:g}, within {max_gap:g} "
            "s of the answer"
        )
    rows, number = np.flatnonzero(before >= 0), len(before)
    query, attempt = np.arange(number), np.ones(number, np.int64)
    for row in rows:  # in order: a retry comes after what it retries
        query[row] = query[before[row]]
        attempt[row] = attempt[before[row]] + 1
    time, ended = log.frame["time"].to_numpy(), log.frame["ended"].to_numpy()
    gaps, labelled = np.maximum(time[rows] - ended[before[rows]], 0.0), np.ones(number, bool)
    if log.timed:
        longest = float(np.quantile(gaps, 0.95)) if len(gaps) else 0.0
        labelled = ended <= time.max() - min(longest, max_gap)
    retried = np.isin(np.arange(number), before)
    return Retries(before, query, attempt, retried, labelled, gaps, max_gap, how, rule)


def similarity_vectors(log: RequestLog) -> np.ndarray:
    """Return vectors of prompts whose cosine is their similarity: [texts, d] float32."""
    if log.embeddings is not None:
        return log.embeddings
    from sklearn.feature_extraction.text import TfidfTransformer

    weighted = TfidfTransformer().fit_transform(log.words)
    project = np.random.default_rng(0).standard_normal((weighted.shape[1], DENSE), np.float32)
    return np.asarray(weighted @ (project / DENSE**0.5), np.float32)


def _read_marked(frame: pl.DataFrame) -> tuple[np.ndarray, str] | None:
    """Return the row that each request retries as the log marks it, and how; None: it does not."""
    frame = frame.with_columns(row=pl.int_range(pl.len()))
    row, previous = pl.col("row"), pl.col("row").shift(1)
    again = None
    if (frame["retry_of"] != 0).any():
        first = frame.filter(pl.col("request") != 0).unique("request", keep="first")
        found = pl.col("retry_of").replace_strict(first["request"], first["row"], default=-1)
        before, how = pl.when(found < row).then(found), "retry_of)"
    elif (frame["chain"] != 0).any():
        before, how = pl.when(pl.col("chain") != 0).then(previous.over("chain")), "chain)"
    elif frame["attempt"].drop_nulls().n_unique() > 1:
        again, how = (
            pl.col("attempt") > pl.col("attempt").min(),
            "attempt): of the user's request before",
        )
    elif frame["regenerated"].any():
        again, how = (
            pl.col("regenerated").shift(1).over("user"),
            "regenerated): the user's next request",
        )
    else:
        return None
    if again is not None:
        before = pl.when(again & (pl.col("user") >= 0)).then(previous.over("user"))
    return frame.select(before.fill_null(-1)).to_series().to_numpy(), f"as the log says ({how}"


def _link(
    log: RequestLog, rule: LinkingRule, vectors: np.ndarray | None, max_gap: float
) -> np.ndarray:
    """Apply the linking rule: [n] the row that each request retries, -1 if none.

    Requests of a user with a longer gap between them never link: each such period is linked by
    itself, which bounds the number of pairs.
    """
    gap = pl.col("time") - pl.col("ended").cum_max().shift(1).over("user")
    breaks = (gap > max_gap).fill_null(True) if log.timed else pl.lit(False)
    rows = log.frame.select("user", "text", "time", "ended").with_row_index("row")
    rows = rows.filter((pl.col("user") >= 0) & (pl.col("text") >= 0))
    rows = rows.sort("user", "row", maintain_order=True).with_columns(
        period=(breaks | (pl.col("user") != pl.col("user").shift(1)).fill_null(True)).cum_sum()
    )
    # A period of one request has no retries.
    rows = rows.filter(pl.len().over("period") > 1)
    before = np.full(log.frame.height, -1)
    if not rows.height:
        return before
    # Without times the order of the rows counts, so that an answer ends before the next request.
    scale = SECOND if log.timed else 2
    linked = rows.select(
        pl.col("row").cast(pl.Int64), "text", user="period",
        arrival=(pl.col("time") * scale).cast(pl.Int64),
        ended=(pl.col("ended") * scale).cast(pl.Int64) - 1,
    )  # fmt: skip
    linked_before, _ = find_retrials(linked, vectors, rule)
    members, later = rows["row"].to_numpy().astype(np.int64), np.flatnonzero(linked_before >= 0)
    before[members[later]] = members[linked_before[later]]
    if log.timed:
        time, ended = log.frame["time"].to_numpy(), log.frame["ended"].to_numpy()
        before[(before >= 0) & (time - ended[before] > max_gap)] = -1
    return before


def measure_sensitivity(log: RequestLog, retries: Retries) -> dict[str, float]:
    """Return the retry rate under other rules of linking; empty if the log marks retries."""
    if retries.rule is None:
        return {}
    vectors, threshold, rates = similarity_vectors(log), retries.rule.threshold, {}
    for other in (min(threshold + 0.1, 0.99), threshold - 0.1, 1.0):
        label = "identical prompts" if other == 1 else f"cosine at least {other:.2g}"
        before = _link(log, LinkingRule(other), vectors, retries.max_gap)
        rates[label] = float((before >= 0).mean())
    for longest in (0.5 * retries.max_gap, 0.1 * retries.max_gap) if log.timed else ():
        rates[f"within {longest:g} s"] = float((retries.gaps <= longest).sum() / log.frame.height)
    return rates
