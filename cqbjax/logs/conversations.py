"""Conversations of one model, with inferred arrival times, read from a log in a stream.

They are written while the log is read, so that memory holds one batch: to `conversations.parquet`
(times, users, lengths) and `texts.parquet` (each distinct first prompt once).
"""

from __future__ import annotations

import contextlib
import datetime
import hashlib
import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import polars as pl

from cqbjax.core.files import open_atomic
from cqbjax.datasets.times import find_jumps
from cqbjax.logs import shards
from cqbjax.logs.shards import LogError, RowBatch, pa, pc, pq

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


class Turn(NamedTuple):
    """One turn of a conversation; a missing field is None."""

    role: str | None
    content: bytes | None
    timestamp: int | None
    hashed_ip: str | None


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
    texts: dict[bytes, int] = {}
    seen = set[bytes]()
    dropped: Counter[str] = Counter()
    first: dict[str, int] = {}
    rows = others = used = repaired = 0
    with (
        _open_writer(folder / CONVERSATIONS, SCHEMA) as write_conversations,
        _open_writer(folder / TEXTS, {"text": "string"}) as write_texts,
    ):
        for batch in shards.read_batches(files, size):
            of_model = pc.fill_null(pc.equal(batch.rows["model"], model), False)
            conversations, new = [], []
            for row, one in _parse_batch(batch, of_model, tokens):
                if not isinstance(one, str):
                    digest = _digest(one.prompt)
                    whole = _digest(repr((digest, one._replace(prompt=b""))).encode())
                    one = DUPLICATE if whole in seen else one
                if isinstance(one, str):
                    dropped[one] += 1
                    first.setdefault(one, row)
                    continue
                seen.add(whole)
                text = one.prompt.decode("utf-8", "replace")
                if digest not in texts:
                    texts[digest] = len(texts)
                    new.append((text[:MOST_LETTERS],))
                repaired += text.encode() != one.prompt
                user = users.setdefault(one.user, len(users))
                conversations.append((row, user, texts[digest], *one[2:]))
            write_conversations(conversations)
            write_texts(new)
            rows += batch.rows.num_rows
            others += batch.rows.num_rows - (pc.sum(of_model).as_py() or 0)
            used += len(conversations)
            advance(batch.rows.num_rows)
        if not used:
            why = ", ".join(f"{reason} ({count:,})" for reason, count in dropped.most_common())
            raise LogError(f"no conversation of {model!r} can be used: {why or 'there is none'}.")
    log = pl.read_parquet(folder / CONVERSATIONS)
    times = log.unpivot(["arrival", "ended"], index="row").sort("value")
    jumps = find_jumps(times["value"].to_numpy())
    if len(jumps):
        first["jumps"] = times["row"][int(jumps[0])]
    names = {reason: shards.name_row(files, row) for reason, row in first.items()}
    return RowCounts(
        rows, others, used, len(users), len(texts), dict(dropped), repaired, len(jumps), names
    )


def _digest(content: bytes) -> bytes:
    return hashlib.blake2b(content, digest_size=16).digest()


def _parse_batch(
    batch: RowBatch, of_model: pa.BooleanArray, tokens: CountTokens
) -> Iterator[tuple[int, Conversation | str]]:
    """Yield the number of each row of the model, with its conversation or why it is dropped."""
    numbers = pc.add(pc.indices_nonzero(of_model).cast(pa.int64()), batch.first).to_pylist()
    rows = batch.rows.filter(of_model)
    last, ips = _parse_times(rows["timestamp"]), rows["hashed_ip"].to_pylist()
    lengths = pc.fill_null(pc.list_value_length(rows["conversation"]), 0).to_pylist()
    structs = rows["conversation"].flatten()
    columns = {
        # With the parents' nulls, which `field` would leave out.
        field: pc.struct_field(structs, field)
        if field in {field.name for field in structs.type}
        else pa.nulls(len(structs))
        for field in Turn._fields
    }
    contents: Iterable[bytes | None] = columns["content"].cast(pa.binary()).to_pylist()
    roles, turn_ips = columns["role"].to_pylist(), columns["hashed_ip"].to_pylist()
    turns = map(Turn, roles, contents, _parse_times(columns["timestamp"]), turn_ips)
    for number, length, time, ip in zip(numbers, lengths, last, ips, strict=True):
        yield number, parse_conversation([next(turns) for _ in range(length)], time, ip, tokens)


def parse_conversation(
    turns: Sequence[Turn], last: int | None, ip: str | None, tokens: CountTokens = count_by_bytes
) -> Conversation | str:
    """Return the conversation of a row, or why it is dropped.

    The user arrives FIRST_TOKEN + tokens / TOKENS_PER_SECOND seconds before the timestamp of the
    first assistant response. A last response without a timestamp has the row's.

    Args:
        turns: turns of the conversation, in order.
        last: the row's timestamp, microseconds.
        ip: the row's hashed IP; if missing, that of the first user turn counts.
        tokens: counts the tokens of a text.
    """
    asked = next((turn for turn in turns if turn.role == "user"), None)
    answers = [turn for turn in turns if turn.role == "assistant"]
    user = ip or (asked.hashed_ip if asked else None)
    if not turns:
        return "empty conversation"
    if asked is None or not (asked.content or b"").strip():
        return "no first prompt"
    if not answers or answers[0].content is None:
        return "no assistant response"
    if not answers[0].content.strip():
        return "empty assistant response"
    if not user:
        return "no hashed IP"
    times = [turn.timestamp for turn in answers]
    times[-1] = last if times[-1] is None else times[-1]
    known = [time for time in times if time is not None]
    if times[0] is None:
        return "no timestamp of the first assistant response"
    if times[-1] is None:
        return "no timestamp of the last assistant response"
    if known != sorted(known):
        return "timestamps out of order"
    prompt, length = asked.content or b"", tokens(answers[0].content)
    arrival = times[0] - round(SECOND * (FIRST_TOKEN + length / TOKENS_PER_SECOND))
    return Conversation(user, prompt, arrival, times[0], known[-1], length, tokens(prompt))


def _parse_times(column: pa.Array) -> list[int | None]:
    """Return timestamps as microseconds since 1970, UTC by default; None for anything else."""
    if pa.types.is_timestamp(column.type):
        zone = column.type.tz
        return column.cast(pa.timestamp("us", zone), safe=False).cast(pa.int64()).to_pylist()
    if pa.types.is_null(column.type):
        return [None] * len(column)
    return [parse_time(text) for text in column.cast(pa.string()).to_pylist()]


def parse_time(text: str | None) -> int | None:
    """Parse an ISO time to microseconds; digits alone are not a year. None: not a time."""
    stripped = (text or "").strip()
    try:
        time = datetime.datetime.fromisoformat(stripped if stripped[4:5] == "-" else "")
    except ValueError:
        return None
    whole = time if time.tzinfo else time.replace(tzinfo=datetime.UTC)
    return (whole - EPOCH) // datetime.timedelta(microseconds=1)


@contextlib.contextmanager
def _open_writer(
    path: Path, columns: Mapping[str, str]
) -> Iterator[Callable[[Sequence[tuple[Any, ...]]], None]]:
    """Yield a function that appends rows to a Parquet file."""
    schema = pa.schema(list(columns.items()))
    with open_atomic(path) as file, pq.ParquetWriter(file, schema) as writer:

        def write(rows: Sequence[tuple[Any, ...]]) -> None:
            if rows:
                arrays = list(zip(*rows, strict=True))
                writer.write_table(pa.Table.from_arrays(arrays, schema=schema))

        yield write
