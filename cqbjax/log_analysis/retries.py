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
from cqbjax.logs.linking import LinkingRule, link_conversations
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
        how: how they were found, in words.
        rule: the linking rule, or None if the log marks retries.
    """

    before: np.ndarray
    query: np.ndarray
    attempt: np.ndarray
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
    frame = log.frame
    marked = _read_marked(frame)
    if marked is not None:
        return _follow(*marked, None)
    for what, column in (("user", "user"), ("prompt", "text")):
        if (frame[column] < 0).all() or (what == "prompt" and not log.with_prompts):
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
        f"linked: same user, cosine of {kind} at least {rule.threshold:g}, within {max_gap:g} s "
        "of the answer"
    )
    return _follow(before, how, rule)


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
    rows = frame.with_columns(row=pl.int_range(pl.len()))
    if (frame["retry_of"] != 0).any():
        first = rows.filter(pl.col("request") != 0).unique("request", keep="first")
        found = rows["retry_of"].replace_strict(first["request"], first["row"], default=-1)
        before = found.to_numpy()
        return np.where(before < np.arange(len(before)), before, -1), "as the log says (retry_of)"
    if (frame["chain"] != 0).any():
        one = pl.when(pl.col("chain") != 0).then(pl.col("row").shift(1).over("chain"))
        return rows.select(one.fill_null(-1)).to_series().to_numpy(), "as the log says (chain)"
    least = frame["attempt"].min()
    if least is not None and frame["attempt"].max() != least:
        again = (pl.col("attempt") > least).fill_null(False)
        how = "as the log says (attempt): of the user's request before"
    elif frame["regenerated"].any():
        again = pl.col("regenerated").shift(1).over("user").fill_null(False)
        how = "as the log says (regenerated): the user's next request"
    else:
        return None
    one = pl.when(again & (pl.col("user") >= 0)).then(pl.col("row").shift(1).over("user"))
    return rows.select(one.fill_null(-1)).to_series().to_numpy(), how


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
    chains = link_conversations(linked, vectors, rule)
    members = rows["row"].to_numpy()[chains.members].astype(np.int64)
    later = np.setdiff1d(np.arange(len(members)), chains.first)
    before[members[later]] = members[later - 1]
    if log.timed:
        time, ended = log.frame["time"].to_numpy(), log.frame["ended"].to_numpy()
        before[(before >= 0) & (time - ended[before] > max_gap)] = -1
    return before


def _follow(before: np.ndarray, how: str, rule: LinkingRule | None) -> Retries:
    """Return the retries with the first row and the number of attempts of each query."""
    query, attempt = np.arange(len(before)), np.ones(len(before), np.int64)
    for row in np.flatnonzero(before >= 0):  # in order: a retry comes after what it retries
        query[row] = query[before[row]]
        attempt[row] = attempt[before[row]] + 1
    return Retries(before, query, attempt, how, rule)


def find_retried(retries: Retries) -> np.ndarray:
    """Return whether each request was retried: [n] bool."""
    return np.isin(np.arange(len(retries.before)), retries.before)


def find_labelled(log: RequestLog, retries: Retries, max_gap: float = MAX_GAP) -> np.ndarray:
    """Return the requests whose retry would be in the log: [n] bool.

    The last ones are left out, within the time in which 95% of the retries come, since the log
    ends before some of their users return.
    """
    if not log.timed:
        return np.ones(log.frame.height, bool)
    time, ended = log.frame["time"].to_numpy(), log.frame["ended"].to_numpy()
    gaps = measure_gaps(log, retries)
    longest = float(np.quantile(gaps, 0.95)) if len(gaps) else 0.0
    return ended <= time.max() - min(longest, max_gap)


def measure_gaps(log: RequestLog, retries: Retries) -> np.ndarray:
    """Return the seconds between the answers and their retries, not negative."""
    rows = np.flatnonzero(retries.before >= 0)
    time, ended = log.frame["time"].to_numpy(), log.frame["ended"].to_numpy()
    return np.maximum(time[rows] - ended[retries.before[rows]], 0.0)


def measure_sensitivity(
    log: RequestLog, retries: Retries, max_gap: float
) -> list[tuple[str, float]]:
    """Return the retry rate under other rules of linking; empty if the log marks retries."""
    if retries.rule is None:
        return []
    vectors, rates = similarity_vectors(log), []
    for threshold in (min(retries.rule.threshold + 0.1, 0.99), retries.rule.threshold - 0.1, 1.0):
        before = _link(log, LinkingRule(threshold), vectors, max_gap)
        label = "identical prompts" if threshold == 1 else f"cosine at least {threshold:.2g}"
        rates.append((label, float((before >= 0).mean())))
    gaps = measure_gaps(log, retries)
    for share in (0.5, 0.1) if log.timed else ():
        rate = float((gaps <= share * max_gap).sum() / log.frame.height)
        rates.append((f"within {share * max_gap:g} s", rate))
    return rates
