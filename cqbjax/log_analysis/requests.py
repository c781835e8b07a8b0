"""Requests of a log: numbered users, features of prompts, times in seconds, and what is wrong.

Users and prompts are numbered in the order of appearance. They are recognised by Python's hash,
which has a salt of the process and is never written, and prompts are turned into features while the
log is read.
"""

import dataclasses
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import scipy.sparse

from cqbjax.core.files import sha256
from cqbjax.log_analysis.forms import UNPACKING, USUAL, FieldFinder, Fields
from cqbjax.log_analysis.rows import read_rows
from cqbjax.logs.shards import LogError

MAX_BAD = 0.05  # share of rows that may be unusable
MOST_LETTERS = 4096  # of a prompt that are looked at
WORD_FEATURES = 4096  # hashed words and pairs of words
BATCH = 1024  # prompts that are in memory as text
NUMBERS = ["propensity", "prompt_tokens", "tokens", "cost", "latency", "attempt", "status"]
NOT_NEGATIVE = ("prompt_tokens", "tokens", "cost", "latency")
IDS = ("request", "retry_of", "chain")
# The columns of the frame before its texts are parsed.
SCHEMA: dict[str, Any] = {
    **dict.fromkeys(("line", "text", "user", "copy", *IDS), pl.Int64), "empty": pl.Boolean,
    **dict.fromkeys((*NUMBERS, "time", "ended", "outcome", "model", "regenerated"),
                    pl.String),
}  # fmt: skip
# What a number is as a time -> from which size on it is that, and how many of them are a second.
UNITS = {
    "seconds from the start of the log": (0.0, 1.0), "s since 1970": (1e8, 1.0),
    "ms since 1970": (1e11, 1e3), "us since 1970": (1e14, 1e6), "ns since 1970": (1e17, 1e9),
}  # fmt: skip
VERSION = re.compile(r"([-@:](\d{4}-\d\d-\d\d|\d{4,8}|latest|v\d+))+$")


@dataclasses.dataclass(frozen=True)
class RequestLog:
    """The usable requests of a log, in the order of their times.

    Attributes:
        frame: [n] rows: `line`, `time` and `ended` in seconds (of a log without times, the number
            of the row), `user` (-1: unknown), `text` (-1: unknown), `model` as an index, `request`,
            `retry_of` and `chain` (hashes, 0: none), `attempt`, `regenerated`, `propensity`,
            `outcome` in {0, 1}, `prompt_tokens`, `tokens`, `cost`, `latency`, `failed`, `empty`.
        models: [N] names of the LLMs, most requests first.
        words: [texts, `WORD_FEATURES`] hashed counts of words and pairs.
        statistics: [texts, 9] letters, words, lines, digits, capitals, punctuation, letters that
            are not ASCII, whether there is code, and whether there is a question mark.
        embeddings: [texts, d] as given in the log, or None.
        timed: whether the log has times.
        with_prompts: whether texts are prompts, and not only a description of the request.
        form: name of the form.
        rows: rows read.
        bad: reason -> number of rows, and line of the first.
        notes: what was understood, and what is unusual; each a sentence.
        digest: hash of the file's content.
    """

    frame: pl.DataFrame
    models: tuple[str, ...]
    words: scipy.sparse.csr_matrix
    statistics: np.ndarray
    embeddings: np.ndarray | None
    timed: bool
    with_prompts: bool
    form: str
    rows: int
    bad: dict[str, tuple[int, int]]
    notes: list[str]
    digest: str


class PromptReader:
    """Numbers distinct prompts, and computes their features in batches."""

    def __init__(self) -> None:
        from sklearn.feature_extraction.text import HashingVectorizer

        self._numbers, self._pending = dict[int, int](), list[str]()
        self._words: list[Any] = []
        self._statistics: list[np.ndarray] = []
        self._embeddings: list[Sequence[float]] = []
        self._vectorizer = HashingVectorizer(
            n_features=WORD_FEATURES, ngram_range=(1, 2), token_pattern=r"[\w=]+", norm=None,
            alternate_sign=False, dtype=np.float32,
        )  # fmt: skip

    def number(self, text: str, embedding: Any) -> int:
        """Return the number of a prompt; one that is only an embedding is recognised by it."""
        vector = json.loads(embedding) if isinstance(embedding, str) else embedding
        key = hash(text or repr(vector))
        if key not in self._numbers:
            self._numbers[key] = len(self._numbers)
            # JSON may have half an emoji, which is no UTF-8.
            self._pending.append(text[:MOST_LETTERS].encode(errors="replace").decode())
            if vector is not None:
                self._embeddings.append([float(value) for value in vector])
            if len(self._pending) >= BATCH:
                self._compute_features()
        return self._numbers[key]

    def features(self) -> tuple[scipy.sparse.csr_matrix, np.ndarray, np.ndarray | None]:
        """Return words, statistics and embeddings of all prompts, at least of an empty one."""
        if self._pending or not self._words:
            self._compute_features()
        sizes = [len(one) for one in self._embeddings]
        whole = len(set(sizes)) == 1 and len(sizes) == len(self._numbers)
        vectors = np.asarray(self._embeddings, np.float32) if whole else None
        words = scipy.sparse.vstack(self._words, format="csr")
        return words, np.concatenate(self._statistics), vectors

    def _compute_features(self) -> None:
        texts = pl.Series(self._pending or [""])
        self._words.append(self._vectorizer.transform(texts))
        self._statistics.append(_compute_statistics(texts))
        self._pending = []


def _compute_statistics(texts: pl.Series) -> np.ndarray:
    """Return the statistics of prompts: [texts, 9], those of `RequestLog`."""
    text, size = texts.str, texts.str.len_chars().cast(pl.Float64)
    logs = [size, text.count_matches(r"\w+"), text.count_matches("\n")]
    kinds = (r"\d", r"\p{Lu}", r"[[:punct:]]", r"[^\x00-\x7F]")
    shares = [text.count_matches(kind) / size.clip(1) for kind in kinds]
    code = text.contains(r"```|[{};]\s*\n|\bdef |\bclass |</|#include|SELECT ").cast(pl.Float64)
    asks = text.contains(r"\?").cast(pl.Float64)
    return np.column_stack([*(np.log1p(one.to_numpy()) for one in logs), *shares, code, asks])


def read_log(
    path: Path, columns: Mapping[str, str] | None = None, models: Mapping[str, str] | None = None,
    max_bad: float = MAX_BAD,
) -> RequestLog:  # fmt: skip
    """Read the requests of a log.

    Args:
        path: the file.
        columns: what a request has (`forms.NAMES`) -> the field that holds it; what is not named
            is found by the usual names.
        models: name of an LLM -> the name that it counts as.
        max_bad: largest share of rows that may be unusable.

    Raises:
        LogError: the file cannot be read, has too many unusable rows, or `columns` names what no
            row has; one sentence.
    """
    finder, prompts, users = FieldFinder(columns or {}), PromptReader(), dict[int, int]()
    requests, bad = list[Fields](), list[tuple[str, int]]()
    frames = list[pl.DataFrame]()  # columns of texts take less memory than rows
    form, rows, with_prompts = "", 0, False
    for rows, (line, row) in enumerate(read_rows(path), 1):  # noqa: B007  the number of rows
        if isinstance(row, str):
            bad.append((row, line))
            continue
        form = form or next(name for name, some, _ in USUAL["forms"] if row.keys() >= set(some))
        try:
            found = [finder.find(flat) for flat in UNPACKING[form](row)]
            requests += [_hash_texts(line, one, prompts, users) for one in found]
            with_prompts |= any("prompt" in one or "embedding" in one for one in found)
            bad += [] if found else [("no prompt with an answer", line)]
        except (TypeError, AttributeError, KeyError, ValueError):
            bad.append((f"not of the form of the rows before, {form}", line))
        if len(requests) >= 16 * BATCH:
            frames.append(pl.DataFrame(requests, SCHEMA))
            requests.clear()
    finder.check()
    fields = [f"{what}={'/'.join(names)}" for what, names in finder.used.items()]
    notes = [f"Read as {form}: {', '.join(fields)}."] if fields else []
    raw = pl.concat([*frames, pl.DataFrame(requests, SCHEMA)])
    timed = raw["time"].null_count() < raw.height
    frame = _drop_bad(_parse(raw, models or {}, notes), timed, bad)
    reasons = _count_bad(path, rows, bad, max_bad, frame)
    frame = _sort(frame, timed, notes)
    names = tuple(frame["model"].value_counts(sort=True)["model"])
    index = pl.col("model").replace_strict(names, range(len(names)), return_dtype=pl.Int32)
    notes += _name_oddities(frame, names)
    return RequestLog(
        frame.with_columns(index), names, *prompts.features(), timed, with_prompts, form, rows,
        reasons, notes, sha256(path),
    )  # fmt: skip


def _hash_texts(line: int, found: Fields, prompts: PromptReader, users: dict[int, int]) -> Fields:
    """Return a row of `SCHEMA`, which has hashes and numbers in place of prompts and users."""
    prompt = str(found.get("prompt", found.get("context", ""))).strip()
    vector, user = found.get("embedding"), str(found.get("user", ""))
    texts = {name: str(value) for name, value in found.items() if SCHEMA.get(name) == pl.String}
    hashes = {name: hash(str(found[name])) for name in IDS if name in found}
    return texts | hashes | {
        "line": line, "user": users.setdefault(hash(user), len(users)) if user else -1,
        "text": prompts.number(prompt, vector) if prompt or vector is not None else -1,
        "copy": hash(tuple(map(str, found.values()))) if "time" in found else None,
        "empty": not str(found.get("answer", "none")).strip(),
    }  # fmt: skip


def _parse(raw: pl.DataFrame, models: Mapping[str, str], notes: list[str]) -> pl.DataFrame:
    """Return requests with their texts parsed, and note what was understood."""
    frame = raw.with_columns(
        pl.col("model").str.strip_chars().replace(dict(models)),
        pl.col("attempt", "status", "regenerated").str.to_lowercase(),
        time=parse_times(raw["time"], notes), ended=parse_times(raw["ended"], []),
        outcome=_parse_outcome(raw["outcome"], notes),
    )  # fmt: skip
    number = pl.col(NUMBERS).replace({"true": "1", "false": "0"}).str.strip_chars()
    return frame.with_columns(
        number.cast(pl.Float64, strict=False).fill_nan(None),
        pl.col(IDS).fill_null(0),
        regenerated=pl.col("regenerated").is_in([*USUAL["good"], "1", "1.0"]).fill_null(False),
        failed=pl.col("status").is_in(USUAL["failed"]).fill_null(False),
    ).with_columns(failed=pl.col("failed") | (pl.col("status") >= 400).fill_null(False))


def _drop_bad(frame: pl.DataFrame, timed: bool, bad: list[tuple[str, int]]) -> pl.DataFrame:
    """Return the usable requests, and add the reasons and lines of the others to `bad`."""
    faults = {
        "no model": pl.col("model").is_null(),
        "no time that can be read": pl.lit(timed) & pl.col("time").is_null(),
        "a propensity outside (0, 1]": ~pl.col("propensity").is_between(0, 1, closed="right"),
    } | {f"a negative {name}": pl.col(name) < 0 for name in NOT_NEGATIVE}
    for reason, fault in faults.items():
        bad += [(reason, line) for line in frame.filter(fault)["line"]]
        frame = frame.filter(~fault.fill_null(False))
    return frame


def _count_bad(
    path: Path, rows: int, bad: Iterable[tuple[str, int]], max_bad: float, frame: pl.DataFrame
) -> dict[str, tuple[int, int]]:
    """Return `RequestLog.bad`, and raise if too many rows are unusable, or none is left."""
    counts: dict[str, tuple[int, int]] = {}
    for reason, line in bad:
        count, first = counts.get(reason, (0, line))
        counts[reason] = count + 1, min(first, line)
    reasons = ", ".join(
        f"{reason} ({count:,}, first in line {line})" for reason, (count, line) in counts.items()
    )
    total = sum(count for count, _ in counts.values())
    if not frame.height:
        raise LogError(f"{path}: has no usable request: {reasons or 'it is empty'}.")
    if total > max_bad * max(rows, 1):
        raise LogError(
            f"{path}: {total:,} of {rows:,} rows cannot be used: {reasons}; max_bad={max_bad:g} "
            "is the share that may, a larger one goes on without them."
        )
    return counts


def _sort(frame: pl.DataFrame, timed: bool, notes: list[str]) -> pl.DataFrame:
    """Return requests without duplicates, by time, with latency and end, and note the changes."""
    again = (pl.col("request") != 0) & ~pl.col("request").is_first_distinct()
    again |= pl.col("copy").is_not_null() & ~pl.col("copy").is_first_distinct()
    copies, frame = frame.filter(again), frame.filter(~again)
    if copies.height:
        notes.append(
            f"{copies.height:,} duplicates are left out, the first in line {copies['line'][0]}."
        )
    if timed and (back := int((frame["time"].diff() < 0).sum())):
        notes.append(f"{back:,} rows are earlier than the row before: they are sorted by time.")
    time = pl.col("time") if timed else pl.int_range(pl.len()).cast(pl.Float64)
    took = pl.when(timed).then(pl.coalesce(pl.col("ended") - time, pl.col("latency")).clip(0))
    frame = frame.with_columns(
        time=time, latency=pl.coalesce("latency", took), ended=time + took.fill_null(0)
    )
    return frame.sort("time", "line").drop("copy", "status")


def parse_times(column: pl.Series, notes: list[str]) -> pl.Series:
    """Return times as seconds since 1970, and note what was understood.

    Text is an ISO time, in UTC without a zone. Numbers are seconds, ms, us or ns since 1970, by
    their size; small ones are seconds from the start of the log.

    Args:
        column: [n] text.
        notes: sentences, which are added to.
    """
    text = column.str.strip_chars()
    zone = text.str.extract(r"^\d{4}-\d\d-\d\d.*\d(Z|[+-]\d\d:?\d\d| ?UTC)$").str.strip_chars()
    dates = pl.when(text.str.contains(r"^\d{4}-\d\d-\d\d")).then(text.str.replace(" ?UTC$", "Z"))
    iso = pl.Series(
        pd.to_datetime(pl.select(dates).to_series(), format="ISO8601", utc=True, errors="coerce")
    )
    number = text.cast(pl.Float64, strict=False).fill_nan(None)
    least, a_second = np.array([*UNITS.values()]).T
    unit = np.searchsorted(least, number.abs().fill_null(0.0).to_numpy(), side="right") - 1
    counts = np.bincount(unit[number.is_not_null().to_numpy()], minlength=len(UNITS))
    notes += [f"Times: {n:,} numbers, {name}." for name, n in zip(UNITS, counts, strict=True) if n]
    if iso.null_count() < len(iso):
        zones = zone.fill_null("no zone, taken as UTC").filter(iso.is_not_null())
        by_zone = zones.value_counts(sort=True).iter_rows()
        listed = ", ".join(f"{name} ({count:,})" for name, count in by_zone)
        mixed = "; the zones are mixed" if zones.n_unique() > 1 else ""
        notes.append(f"Times: ISO 8601, {listed}{mixed}.")
    return (iso.dt.epoch("us") / 1e6).fill_null(number / a_second[unit])


def _parse_outcome(column: pl.Series, notes: list[str]) -> pl.Series:
    """Return outcomes in {0, 1}, null where there is none, and note what was understood."""
    text = column.str.strip_chars().str.to_lowercase()
    values = dict.fromkeys(USUAL["good"], 1.0) | dict.fromkeys(USUAL["bad"], 0.0)
    words = text.replace_strict(values, default=None, return_dtype=pl.Float64)
    number = text.cast(pl.Float64, strict=False).fill_nan(None)
    if number.null_count() < len(number):
        low, high = float(number.min() or 0), float(number.max() or 0)  # type: ignore[arg-type]
        # Of a scale of ratings, 4 of 5 and 8 of 10.
        least = 0.5 if high <= 1 else float(np.ceil(0.8 * high))
        least, shown = (1e-9, "above 0") if low < 0 else (least, f"at least {least:g}")
        notes.append(f"Outcomes: numbers from {low:g} to {high:g}; {shown} counts as satisfied.")
        number = (number >= least).cast(pl.Float64)
    return words.fill_null(number)


def _name_oddities(frame: pl.DataFrame, models: Iterable[str]) -> list[str]:
    """Return sentences on failed requests, empty answers, shared accounts and renamed LLMs."""
    notes, versions = [], dict[str, list[str]]()
    for column, what in (("failed", "requests failed"), ("empty", "answers are empty")):
        if count := int(frame[column].sum()):
            notes.append(f"{count:,} {what}: they count as attempts.")
    for name in models:
        plain = VERSION.sub("", name.lower().rpartition("/")[2])
        versions.setdefault(plain, []).append(name)
    for names in versions.values():
        if len(names) > 1:
            notes.append(
                f"{' and '.join(names)} may be one LLM renamed; models={{{names[1]}: {names[0]}}} "
                "joins them."
            )
    users = frame.filter(pl.col("user") >= 0)["user"].value_counts(sort=True)
    if users.height and users["count"][0] > max(1000, frame.height / 5):
        notes.append(
            f"One user sent {users['count'][0]:,} requests: an account that many share makes "
            "requests of different people look like retries."
        )
    return notes
