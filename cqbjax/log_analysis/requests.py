"""Requests of a log: numbered users, features of prompts, times in seconds, and what is wrong.

Users and prompts are numbered in the order of appearance. They are recognised by a hash with a
random salt that is never written, and prompts are turned into features while the log is read.
"""

import dataclasses
import hashlib
import json
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import scipy.sparse

from cqbjax.log_analysis.forms import USUAL, FieldFinder, Fields, Form, find_form, to_number
from cqbjax.log_analysis.rows import read_rows
from cqbjax.logs.shards import LogError

MAX_BAD = 0.05  # share of rows that may be unusable
MOST_LETTERS = 4096  # of a prompt that are looked at
WORD_FEATURES = 4096  # hashed words and pairs of words
BATCH = 1024  # prompts that are in memory as text
NUMBERS = ("propensity", "prompt_tokens", "tokens", "cost", "latency")
TEXTS = ("time", "ended", "outcome", "model", "candidates")
# Least and largest epoch seconds, and the factor of a unit; a smaller number counts from the start.
UNITS = {"s": (1e8, 1.0), "ms": (1e11, 1e3), "us": (1e14, 1e6), "ns": (1e17, 1e9)}
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


# Reason -> number of unusable rows, and line of the first.
BadRows = dict[str, tuple[int, int]]


def add_bad(bad: BadRows, reason: str, line: int, count: int = 1) -> None:
    """Count unusable rows, the first of which has this line."""
    counted, first = bad.get(reason, (0, line))
    bad[reason] = counted + count, min(line, first)


class PromptReader:
    """Numbers distinct prompts, and computes their features in batches."""

    def __init__(self, salt: bytes) -> None:
        from sklearn.feature_extraction.text import HashingVectorizer

        self._salt, self._numbers = salt, dict[bytes, int]()
        self._pending: list[str] = []
        self._words: list[Any] = []
        self._statistics: list[np.ndarray] = []
        self.embeddings: list[Sequence[float]] = []
        self._vectorizer = HashingVectorizer(
            n_features=WORD_FEATURES, ngram_range=(1, 2), token_pattern=r"[\w=]+", norm=None,
            alternate_sign=False, dtype=np.float32,
        )  # fmt: skip

    def number(self, text: str, embedding: Any) -> int:
        """Return the number of a prompt; one that is only an embedding is recognised by it."""
        vector = json.loads(embedding) if isinstance(embedding, str) else embedding
        key = hash_text(text or repr(vector), self._salt)
        if key not in self._numbers:
            self._numbers[key] = len(self._numbers)
            self._pending.append(text[:MOST_LETTERS])
            if vector is not None:
                self.embeddings.append([float(value) for value in vector])
            if len(self._pending) >= BATCH:
                self._flush()
        return self._numbers[key]

    def features(self) -> tuple[scipy.sparse.csr_matrix, np.ndarray, np.ndarray | None]:
        """Return words, statistics and embeddings of all prompts."""
        self._flush()
        words = scipy.sparse.vstack(self._words, format="csr")
        one_size = len({len(one) for one in self.embeddings}) == 1
        whole = one_size and len(self.embeddings) == len(self._numbers)
        vectors = np.asarray(self.embeddings, np.float32) if whole else None
        return words, np.concatenate(self._statistics), vectors

    def _flush(self) -> None:
        texts = self._pending or ([""] if not self._words else [])
        if texts:
            self._words.append(self._vectorizer.transform(texts))
            self._statistics.append(_compute_statistics(texts))
        self._pending = []


def _compute_statistics(texts: Sequence[str]) -> np.ndarray:
    """Return the statistics of prompts: [texts, 9], those of `RequestLog`."""
    text, size = pl.Series(texts).str, pl.Series(texts).str.len_chars().cast(pl.Float64)
    shares = [
        text.count_matches(kind) / size.clip(1)
        for kind in (r"\d", r"\p{Lu}", r"[[:punct:]]", r"[^\x00-\x7F]")
    ]
    code = text.contains(r"```|[{};]\s*\n|\bdef |\bclass |</|#include|SELECT ").cast(pl.Float64)
    logs = [np.log1p(one.to_numpy()) for one in (size, text.count_matches(r"\w+"),
                                                 text.count_matches("\n"))]  # fmt: skip
    return np.column_stack([*logs, *shares, code, text.contains(r"\?").cast(pl.Float64)])


def hash_text(text: str, salt: bytes) -> bytes:
    """Return a salted hash of a text."""
    return hashlib.blake2b(text.encode("utf-8", "replace"), digest_size=16, key=salt).digest()


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
    finder, salt = FieldFinder(columns or {}), os.urandom(16)
    bad: BadRows = {}
    prompts, users = PromptReader(salt), dict[bytes, int]()
    lists: dict[str, list[Any]] = {name: [] for name in (
        "line", "user", "text", "request", "retry_of", "chain", "attempt", "regenerated", "status",
        "empty", "copy", *NUMBERS, *TEXTS,
    )}  # fmt: skip
    form: Form | None = None
    rows, with_prompts, digest = 0, False, hashlib.blake2b(digest_size=16)
    for line, row in read_rows(path):
        rows += 1
        if isinstance(row, str):
            add_bad(bad, row, line)
            continue
        form = form or find_form(row)
        digest.update(repr(row).encode("utf-8", "replace"))
        try:
            found = [finder.find(flat) for flat in form.unpack(row)]
            if not found:
                add_bad(bad, "no prompt with an answer", line)
            for one in found:
                _append(lists, line, one, prompts, users, salt)
                with_prompts |= "prompt" in one or "embedding" in one
        except (TypeError, AttributeError, KeyError, ValueError):
            add_bad(bad, f"not of the form of the rows before, {form.name}", line)
    finder.check()
    frame, notes, timed = _clean(lists, bad, models or {})
    _check_bad(path, rows, bad, max_bad, frame)
    if form is not None and (fields := [f"{k}={'/'.join(v)}" for k, v in finder.used.items()]):
        notes.insert(0, f"Read as {form.name}: {', '.join(fields)}.")
    counts = frame["model"].value_counts(sort=True)
    names = tuple(counts["model"])
    frame = frame.with_columns(
        model=frame["model"].replace_strict(names, range(len(names)), return_dtype=pl.Int32)
    )
    words, statistics, embeddings = prompts.features()
    notes += _name_oddities(frame, names)
    return RequestLog(
        frame, names, words, statistics, embeddings, timed, with_prompts,
        form.name if form else "", rows, bad, notes, digest.hexdigest(),
    )  # fmt: skip


def _append(
    lists: dict[str, list[Any]], line: int, found: Fields, prompts: PromptReader,
    users: dict[bytes, int], salt: bytes,
) -> None:  # fmt: skip
    """Append a request, with hashes and features in place of its texts."""
    text, vector = found.get("prompt", found.get("context", "")), found.get("embedding")
    known = bool(str(text).strip()) or vector is not None
    number = prompts.number(str(text).strip(), vector) if known else -1
    user = found.get("user")
    row: Fields = {"line": line, "text": number, "user": -1}
    if user is not None:
        row["user"] = users.setdefault(hash_text(str(user), salt), len(users))
    for name in ("request", "retry_of", "chain"):
        value = found.get(name)
        hashed = b"" if value is None else hash_text(str(value), salt)
        row[name] = int.from_bytes(hashed[:7], "big")
    attempt, status = found.get("attempt"), found.get("status")
    row["attempt"] = to_number({"true": 1, "false": 0}.get(str(attempt).lower(), attempt))
    row["regenerated"] = str(found.get("regenerated", "")).lower() in (*USUAL["good"], "1", "1.0")
    row["status"] = not (str(status).lower() in USUAL["failed"] or to_number(status) >= 400)
    answer = found.get("answer")
    row["empty"] = "answer" in found and not str(answer).strip()
    row |= {name: to_number(found.get(name)) for name in NUMBERS}
    row |= {name: None if (v := found.get(name)) is None else str(v) for name in TEXTS}
    row["copy"] = hash(tuple(str(value) for value in found.values())) if "time" in found else 0
    for name, values in lists.items():
        values.append(row[name])


def _clean(
    lists: dict[str, list[Any]], bad: BadRows, models: Mapping[str, str]
) -> tuple[pl.DataFrame, list[str], bool]:
    """Return the usable requests by time, what was understood, and whether there are times."""
    numbers = dict.fromkeys((*NUMBERS, "attempt"), pl.Float64)
    schema: dict[str, Any] = numbers | dict.fromkeys(TEXTS, pl.String)
    frame = pl.DataFrame(lists, schema_overrides=schema)
    frame = frame.with_columns(pl.col(numbers).fill_nan(None))
    timed = frame["time"].null_count() < frame.height
    seconds, notes = parse_times(frame["time"])
    ended, _ = parse_times(frame["ended"])
    outcome, understood = _parse_outcome(frame["outcome"])
    notes += understood
    frame = frame.with_columns(
        pl.col("model").str.strip_chars().replace(dict(models)), time=seconds, ended=ended,
        outcome=outcome,
    )  # fmt: skip
    faults = {
        "no model": pl.col("model").is_null(),
        "no time that can be read": pl.lit(timed) & pl.col("time").is_null(),
        "a propensity outside (0, 1]": ~pl.col("propensity").is_between(0, 1, closed="right"),
    } | {f"a negative {name}": pl.col(name) < 0 for name in NUMBERS[1:]}
    for reason, fault in faults.items():
        hit = frame.filter(fault.fill_null(False))
        if hit.height:
            add_bad(bad, reason, int(hit["line"].min() or 0), hit.height)  # type: ignore[arg-type]
            frame = frame.filter(~fault.fill_null(False))
    again = pl.any_horizontal(
        (pl.col(name) != 0) & ~pl.col(name).is_first_distinct() for name in ("request", "copy")
    )
    copies = frame.filter(again)
    if copies.height:
        notes.append(
            f"{copies.height:,} duplicates are left out, the first in line {copies['line'][0]}."
        )
    frame = frame.filter(~again)
    back = int((frame["time"].diff() < 0).sum())
    if timed and back:
        notes.append(f"{back:,} rows are earlier than the row before: they are sorted by time.")
    order = pl.col("time") if timed else pl.int_range(pl.len()).cast(pl.Float64)
    took = pl.coalesce(pl.col("ended") - pl.col("time"), pl.col("latency")).clip(0)
    frame = frame.with_columns(time=order).with_columns(
        latency=pl.coalesce("latency", pl.when(timed).then(took)),
        ended=pl.col("time") + pl.when(timed).then(took).otherwise(None).fill_null(0),
        failed=~pl.col("status"),
    )  # fmt: skip
    return frame.sort("time", "line").drop("status", "copy"), notes, timed


def parse_times(column: pl.Series) -> tuple[pl.Series, list[str]]:
    """Return times as seconds since 1970, and what was understood.

    Text is an ISO time, in UTC without a zone. Numbers are seconds, ms, us or ns since 1970, by
    their size; small ones are seconds from the start of the log.

    Args:
        column: [n] text.
    """
    text = column.str.strip_chars()
    zone = text.str.extract(r"^\d{4}-\d\d-\d\d.*\d(Z|[+-]\d\d:?\d\d| ?UTC)$").str.strip_chars()
    dates = pl.when(text.str.contains(r"^\d{4}-\d\d-\d\d")).then(text.str.replace(" ?UTC$", "Z"))
    iso = pl.Series(
        pd.to_datetime(pl.select(dates).to_series(), format="ISO8601", utc=True, errors="coerce")
    )
    number = text.cast(pl.Float64, strict=False).fill_nan(None)
    seconds, notes = number, []
    for unit, (least, factor) in UNITS.items():
        inside = number.abs().is_between(least, 1000 * least, closed="left").fill_null(False)
        if inside.any():
            notes.append(f"Times: {int(inside.sum()):,} numbers, {unit} since 1970.")
        seconds = seconds.zip_with(~inside, number / factor)
    small = int((number.abs() < UNITS["s"][0]).sum())
    if small:
        notes.append(f"Times: {small:,} numbers, seconds from the start of the log.")
    if iso.null_count() < len(iso):
        zones = zone.fill_null("no zone, taken as UTC").filter(iso.is_not_null())
        counts = zones.value_counts(sort=True)
        names = [f"{name} ({count:,})" for name, count in counts.iter_rows()]
        mixed = "; the zones are mixed" if len(names) > 1 else ""
        notes.append(f"Times: ISO 8601, {', '.join(names)}{mixed}.")
    return (iso.dt.epoch("us") / 1e6).fill_null(seconds), notes


def _parse_outcome(column: pl.Series) -> tuple[pl.Series, list[str]]:
    """Return outcomes in {0, 1}, null where there is none, and what was understood."""
    text = column.str.strip_chars().str.to_lowercase()
    values = dict.fromkeys(USUAL["good"], 1.0) | dict.fromkeys(USUAL["bad"], 0.0)
    words = text.replace_strict(values, default=None, return_dtype=pl.Float64)
    number = text.cast(pl.Float64, strict=False).fill_nan(None)
    notes = []
    if number.null_count() < len(number):
        low, high = float(number.min() or 0), float(number.max() or 0)  # type: ignore[arg-type]
        # Of a scale of ratings, 4 of 5 and 8 of 10.
        least = 0.5 if high <= 1 else float(np.ceil(0.8 * high))
        least, shown = (1e-9, "above 0") if low < 0 else (least, f"at least {least:g}")
        notes.append(f"Outcomes: numbers from {low:g} to {high:g}; {shown} counts as satisfied.")
        number = (number >= least).cast(pl.Float64)
    return words.fill_null(number), notes


def _check_bad(path: Path, rows: int, bad: BadRows, max_bad: float, frame: pl.DataFrame) -> None:
    """Raise if too many rows are unusable, or none is left."""
    reasons = ", ".join(
        f"{reason} ({count:,}, first in line {line})" for reason, (count, line) in bad.items()
    )
    total = sum(count for count, _ in bad.values())
    if not frame.height:
        raise LogError(f"{path}: has no usable request: {reasons or 'it is empty'}.")
    if total > max_bad * max(rows, 1):
        raise LogError(
            f"{path}: {total:,} of {rows:,} rows cannot be used: {reasons}; max_bad={max_bad:g} "
            "is the share that may, a larger one goes on without them."
        )


def _name_oddities(frame: pl.DataFrame, models: Iterable[str]) -> list[str]:
    """Return sentences on failed requests, empty answers, shared accounts and renamed LLMs."""
    notes, versions = [], dict[str, list[str]]()
    for column, what in (("failed", "requests failed"), ("empty", "answers are empty")):
        count = int(frame[column].sum())
        if count:
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
