"""Conversations of one model, with inferred arrival times, read from a log in a stream.

They are written while the log is read, so that memory holds one batch: to `conversations.parquet`
(times, users, lengths) and `texts.parquet` (each distinct first prompt once).
"""

from __future__ import annotations

import contextlib
import datetime
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import polars as pl

from cqbjax.core.files import open_atomic
from cqbjax.datasets.times import find_jumps
from cqbjax.logs import shards
from cqbjax.logs.shards import LogError, pa, pc, pq

# Seconds between a prompt and the last token of its answer (the paper's appendix): 2.84 to the
# first token, then 30 tokens per second.
FIRST_TOKEN, TOKENS_PER_SECOND = 2.84, 30.0
SECOND = 1_000_000  # microseconds
EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
DUPLICATE = "duplicate of an earlier row"
# No encoder reads more of a prompt. Two prompts are identical if all of their bytes are.
MOST_LETTERS = 4096
CONVERSATIONS, TEXTS = "conversations.parquet", "texts.parquet"
SCHEMA = {
    "row": "int64",  # of all shards
    "user": "int32",  # number of the hashed IP
    "text": "int32",  # number of the first prompt in texts.parquet
    "arrival": "int64",  # inferred, microseconds since 1970
    "answered": "int64",  # the first assistant response
    "ended": "int64",  # the last one
    "tokens": "int32",  # of the first assistant response
    "prompt_tokens": "int32",
}

CountTokens = Callable[[bytes], int]


class Conversation(NamedTuple):
    """A row in use; times in microseconds since 1970."""

    user: str
    prompt: bytes
    arrival: int
    answered: int
    ended: int
    tokens: int
    prompt_tokens: int


class RowCounts(NamedTuple):
    """Counts of a log's rows by outcome.

    Attributes:
        rows: in all.
        others: rows of other models.
        used: conversations.
        users: their hashed IPs.
        texts: their distinct first prompts.
        dropped: reason -> rows.
        repaired: first prompts with invalid UTF-8; used, with U+FFFD for the wrong bytes.
        jumps: gaps between the times of conversations that are as long as if a clock jumped.
        first: reason of `dropped`, or `jumps` -> its first row, in words.
    """

    rows: int
    others: int
    used: int
    users: int
    texts: int
    dropped: dict[str, int]
    repaired: int
    jumps: int
    first: dict[str, str]


def count_by_bytes(text: bytes) -> int:
    """Estimate tokens: a quarter of the bytes of the UTF-8 text, rounded up."""
    return math.ceil(len(text) / 4)


def find_token_counter(name: str) -> CountTokens:
    """Return a function that counts tokens.

    Args:
        name: `bytes` (`count_by_bytes`), or an encoding of tiktoken such as `cl100k_base`.

    Raises:
        LogError: tiktoken is not installed, or has no such encoding.
    """
    if name == "bytes":
        return count_by_bytes
    try:
        import tiktoken
    except ImportError as error:
        raise LogError(f"tokens={name} needs tiktoken: install it, or tokens=bytes.") from error
    try:
        encoding = tiktoken.get_encoding(name)
    except Exception as error:  # an unknown name, or no network to fetch the table
        raise LogError(f"tokens={name} cannot be had from tiktoken: {error}.") from error
    return lambda text: len(encoding.encode_ordinary(text.decode("utf-8", "replace")))


def read_log(
    files: Sequence[Path], model: str, folder: Path, tokens: CountTokens = count_by_bytes,
    advance: Callable[[int], Any] = lambda rows: None, size: int = 1024,
) -> RowCounts:  # fmt: skip
    """Read a log and write its conversations and texts.

    Args:
        files: shards that passed `check_shards`.
        model: LLM whose conversations are used.
        folder: receives the two files, which belong together.
        tokens: counts the tokens of a text.
        advance: called with the number of rows read.
        size: rows in memory at once.

    Raises:
        LogError: a damaged shard, or no conversation of the model can be used.
    """
    users: dict[str, int] = {}
    texts: dict[int, int] = {}  # hash of a prompt -> its number
    seen = set[int]()  # hashes of conversations
    dropped: dict[str, list[int]] = {}
    rows = others = repaired = 0
    schemas = (pa.schema(list(columns.items())) for columns in (SCHEMA, {"text": "string"}))
    with contextlib.ExitStack() as stack:
        log, prompts = (
            stack.enter_context(pq.ParquetWriter(stack.enter_context(open_atomic(path)), schema))
            for path, schema in zip((folder / CONVERSATIONS, folder / TEXTS), schemas, strict=True)
        )
        for batch in shards.read_batches(files, size):
            of_model = pc.fill_null(pc.equal(batch["model"], model), False)
            numbers = pc.indices_nonzero(of_model).to_pylist()
            used, new = [], []
            for number, raw in zip(numbers, _list_rows(batch.filter(of_model)), strict=True):
                one = parse_conversation(raw, tokens)
                if hash(one) in seen:
                    one = DUPLICATE
                if isinstance(one, str):
                    dropped.setdefault(one, []).append(rows + number)
                    continue
                seen.add(hash(one))
                key, text = hash(one.prompt), one.prompt.decode("utf-8", "replace")
                if key not in texts:
                    texts[key] = len(texts)
                    new.append({"text": text[:MOST_LETTERS]})
                repaired += text.encode() != one.prompt
                user = users.setdefault(one.user, len(users))
                place = {"row": rows + number, "user": user, "text": texts[key]}
                used.append(one._asdict() | place)
            log.write_table(pa.Table.from_pylist(used, log.schema))
            prompts.write_table(pa.Table.from_pylist(new, prompts.schema))
            rows += batch.num_rows
            others += batch.num_rows - len(numbers)
            advance(batch.num_rows)
        counts = {reason: len(found) for reason, found in dropped.items()}
        if not seen:
            ordered = sorted(counts.items(), key=lambda item: -item[1])
            why = ", ".join(f"{reason} ({count:,})" for reason, count in ordered)
            raise LogError(f"no conversation of {model!r} can be used: {why or 'there is none'}.")
    first = {reason: found[0] for reason, found in dropped.items()}
    frame = pl.read_parquet(folder / CONVERSATIONS)
    times = frame.unpivot(["arrival", "ended"], index="row").sort("value")
    jumps = find_jumps(times["value"].to_numpy())
    if len(jumps):
        first["jumps"] = times["row"][int(jumps[0])]
    names = {reason: shards.name_row(files, row) for reason, row in first.items()}
    return RowCounts(
        rows, others, len(seen), len(users), len(texts), counts, repaired, len(jumps), names
    )


def _list_rows(rows: pa.RecordBatch) -> Iterator[dict[str, Any]]:
    """Yield rows as mappings; the contents of turns are bytes, since they may be invalid UTF-8."""
    turns = rows["conversation"]
    fields = [
        field.with_type(pa.binary()) if field.name == "content" else field
        for field in turns.type.value_type
    ]
    contents = turns.cast(pa.list_(pa.struct(fields))).to_pylist()
    rest = rows.select(["timestamp", "hashed_ip"]).to_pylist()
    return (row | {"turns": some} for row, some in zip(rest, contents, strict=True))


def parse_conversation(
    row: Mapping[str, Any], tokens: CountTokens = count_by_bytes
) -> Conversation | str:
    """Return the conversation of a row, or why it is dropped.

    The user arrives FIRST_TOKEN + tokens / TOKENS_PER_SECOND seconds before the timestamp of the
    first assistant response. A last response without a timestamp has the row's.

    Args:
        row: the `turns`, in order, `timestamp` and `hashed_ip`; if this is missing, that of the
            first user turn counts.
        tokens: counts the tokens of a text.
    """
    turns = row["turns"] or []
    asked: dict[str, Any] = next((turn for turn in turns if turn["role"] == "user"), {})
    answers = [turn for turn in turns if turn["role"] == "assistant"]
    user: Any = row["hashed_ip"] or asked.get("hashed_ip")
    prompt, answer = asked.get("content") or b"", answers[0]["content"] if answers else b""
    times = [parse_time(turn["timestamp"]) for turn in answers] or [None]
    times[-1] = parse_time(row["timestamp"]) if times[-1] is None else times[-1]
    known = [time for time in times if time is not None]
    faults = {
        "empty conversation": not turns,
        "no first prompt": not prompt.strip(),
        "no assistant response": not answers or answer is None,
        "empty assistant response": not (answer and answer.strip()),
        "no hashed IP": not user,
        "no timestamp of the first assistant response": times[0] is None,
        "no timestamp of the last assistant response": times[-1] is None,
        "timestamps out of order": known != sorted(known),
    }
    for reason, holds in faults.items():
        if holds:
            return reason
    length = tokens(answer)
    arrival = known[0] - round(SECOND * (FIRST_TOKEN + length / TOKENS_PER_SECOND))
    return Conversation(user, prompt, arrival, known[0], known[-1], length, tokens(prompt))


def parse_time(value: Any) -> int | None:
    """Parse a time or ISO text to microseconds since 1970, UTC by default.

    None: not a time. Digits alone are not a year.
    """
    if not isinstance(value, datetime.datetime):
        text = str(value).strip()
        try:
            value = datetime.datetime.fromisoformat(text if text[4:5] == "-" else "")
        except ValueError:
            return None
    whole = value if value.tzinfo else value.replace(tzinfo=datetime.UTC)
    return (whole - EPOCH) // datetime.timedelta(microseconds=1)
