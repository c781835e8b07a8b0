"""A log read in a stream: the conversations of one model, an arrival time for each.

Written as they are read, so that no more than a batch is in memory: `conversations.parquet` (times,
users, lengths) and `texts.parquet` (each distinct first prompt once).
"""

import contextlib
import datetime
import hashlib
import math
import uuid
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from cqbjax.core.files import naming
from cqbjax.datasets.times import find_jumps
from cqbjax.logs import shards
from cqbjax.logs.shards import Batch, LogError

# Seconds between a prompt and the last token of its answer (the paper's appendix): 2.84 to the
# first one, then 30 tokens a second.
FIRST_TOKEN, TOKENS_A_SECOND = 2.84, 30.0
SECOND = 1_000_000  # microseconds
DUPLICATE = "duplicate of an earlier row"
# No encoder reads more of a prompt. Whether two are identical is told by all of their bytes.
MOST_LETTERS = 4096
CONVERSATIONS, TEXTS = "conversations.parquet", "texts.parquet"
SCHEMA = pa.schema(
    [
        ("row", pa.int64()),  # of all shards
        ("user", pa.int32()),  # one a hashed IP
        ("text", pa.int32()),  # number of the first prompt in texts.parquet
        ("arrival", pa.int64()),  # inferred, microseconds since 1970
        ("answered", pa.int64()),  # the first assistant response
        ("ended", pa.int64()),  # the last one
        ("tokens", pa.int32()),  # of the first assistant response
        ("prompt_tokens", pa.int32()),
    ]
)

CountTokens = Callable[[bytes], int]


class Conversation(NamedTuple):
    """What is kept of a row; times in microseconds since 1970."""

    user: str
    prompt: bytes
    arrival: int
    answered: int
    ended: int
    tokens: int
    prompt_tokens: int


class Turn(NamedTuple):
    """One turn of a conversation; a field that is missing is None."""

    role: str | None
    content: bytes | None
    timestamp: int | None
    hashed_ip: str | None


class Reading(NamedTuple):
    """What became of every row of a log.

    Attributes:
        rows: all that there are.
        others: of other models.
        kept: conversations.
        users: hashed IPs among them.
        texts: distinct first prompts.
        dropped: reason -> rows.
        repaired: first prompts that were not valid UTF-8; kept, with U+FFFD for the wrong bytes.
        jumps: gaps between the times of conversations that are as long as if a clock jumped.
        first: reason of `dropped`, or `jumps` -> its first row, in words.
    """

    rows: int
    others: int
    kept: int
    users: int
    texts: int
    dropped: dict[str, int]
    repaired: int
    jumps: int
    first: dict[str, str]


def count_by_bytes(text: bytes) -> int:
    """Estimate tokens: a quarter of the bytes of the UTF-8 text, rounded up."""
    return math.ceil(len(text) / 4)


def token_counter(name: str) -> CountTokens:
    """Return what counts tokens.

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
) -> Reading:  # fmt: skip
    """Read a log and write its conversations and texts.

    Args:
        files: the shards, which `shards.check` has passed.
        model: whose conversations are kept.
        folder: where the two files go; they count only together.
        tokens: counts those of a response.
        advance: told how many rows were read.
        size: rows in memory at once.

    Raises:
        LogError: a damaged shard, or no conversation of the model can be used.
    """
    users: dict[str, int] = {}
    texts: dict[bytes, int] = {}
    seen = set[bytes]()
    dropped: Counter[str] = Counter()
    first: dict[str, int] = {}
    rows = others = kept = repaired = 0
    with (
        _writer(folder / CONVERSATIONS, SCHEMA) as log,
        _writer(folder / TEXTS, pa.schema([("text", pa.string())])) as prompts,
    ):
        for batch in shards.read(files, size):
            own = pc.fill_null(pc.equal(batch.rows["model"], model), False)
            conversations, new = [], []
            for row, one in _conversations(batch, own, tokens):
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
            log(conversations)
            prompts(new)
            rows += batch.rows.num_rows
            others += batch.rows.num_rows - (pc.sum(own).as_py() or 0)
            kept += len(conversations)
            advance(batch.rows.num_rows)
        if not kept:
            why = ", ".join(f"{reason} ({count:,})" for reason, count in dropped.most_common())
            raise LogError(f"no conversation of {model!r} can be used: {why or 'there is none'}.")
    leaps, times = 0, load(folder).unpivot(["arrival", "ended"], index="row").sort("value")
    if len(late := find_jumps(times["value"].to_numpy())):
        leaps, first["jumps"] = len(late), times["row"][int(late[0])]
    places = {reason: shards.place(files, row) for reason, row in first.items()}
    return Reading(
        rows, others, kept, len(users), len(texts), dict(dropped), repaired, leaps, places
    )


def _digest(content: bytes) -> bytes:
    return hashlib.blake2b(content, digest_size=16).digest()


def load(folder: Path) -> pl.DataFrame:
    """Return the conversations that `read_log` wrote, without their texts."""
    return pl.read_parquet(folder / CONVERSATIONS)


def load_texts(folder: Path) -> list[str]:
    """Return the distinct first prompts, each at most `MOST_LETTERS` long."""
    return pl.read_parquet(folder / TEXTS)["text"].to_list()


def _conversations(
    batch: Batch, own: pa.BooleanArray, tokens: CountTokens
) -> Iterator[tuple[int, Conversation | str]]:
    """Yield the number of each row of the model, with what is kept of it or why it is dropped."""
    numbers = pc.add(pc.indices_nonzero(own).cast(pa.int64()), batch.first).to_pylist()
    rows = batch.rows.filter(own)
    last, ips = _times(rows["timestamp"]), rows["hashed_ip"].to_pylist()
    lengths = pc.fill_null(pc.list_value_length(rows["conversation"]), 0).to_pylist()
    turns = iter(_turns(rows["conversation"].flatten()))
    for number, length, time, ip in zip(numbers, lengths, last, ips, strict=True):
        yield number, conversation([next(turns) for _ in range(length)], time, ip, tokens)


def conversation(
    turns: Sequence[Turn], last: int | None, ip: str | None, tokens: CountTokens = count_by_bytes
) -> Conversation | str:
    """Return what is kept of a row, or why it is dropped.

    The user arrives FIRST_TOKEN + tokens / TOKENS_A_SECOND seconds before the timestamp of the
    first assistant response. A last response without a timestamp of its own has the row's.

    Args:
        turns: of the conversation, in order.
        last: the row's timestamp, microseconds.
        ip: the row's hashed IP; where it is missing, that of the first user turn.
        tokens: counts those of a response.
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
    if any(later < earlier for earlier, later in zip(known, known[1:], strict=False)):
        return "timestamps out of order"
    prompt, length = asked.content or b"", tokens(answers[0].content)
    arrival = times[0] - round(SECOND * (FIRST_TOKEN + length / TOKENS_A_SECOND))
    return Conversation(user, prompt, arrival, times[0], known[-1], length, tokens(prompt))


def _turns(structs: pa.StructArray) -> Iterator[Turn]:
    """Yield the turns of a batch, in order."""
    names = {field.name for field in structs.type}

    def column(name: str) -> pa.Array:
        # With the parents' nulls, which `field` would leave out.
        return pc.struct_field(structs, name) if name in names else pa.nulls(len(structs))

    contents: Iterable[bytes | None] = column("content").cast(pa.binary()).to_pylist()
    roles, ips = column("role").to_pylist(), column("hashed_ip").to_pylist()
    yield from map(Turn, roles, contents, _times(column("timestamp")), ips)


def _times(column: pa.Array) -> list[int | None]:
    """Return timestamps as microseconds since 1970, None for what is none; UTC if not said."""
    if pa.types.is_timestamp(column.type):
        zone = column.type.tz
        return column.cast(pa.timestamp("us", zone), safe=False).cast(pa.int64()).to_pylist()
    if pa.types.is_null(column.type):
        return [None] * len(column)
    return [_parsed(text) for text in column.cast(pa.string()).to_pylist()]


def _parsed(text: str | None) -> int | None:
    """Read an ISO time, None where there is none; digits alone are not taken for a year."""
    said = (text or "").strip()
    try:
        time = datetime.datetime.fromisoformat(said if said[4:5] == "-" else "")
    except ValueError:
        return None
    whole = time if time.tzinfo else time.replace(tzinfo=datetime.UTC)
    return (whole - datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)) // datetime.timedelta(
        microseconds=1
    )


@contextlib.contextmanager
def _writer(path: Path, schema: pa.Schema) -> Iterator[Callable[[Sequence[tuple[Any, ...]]], None]]:
    """Give what appends rows to a Parquet file, which has its name only when it is whole."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.{uuid.uuid4().hex[:12]}.partial")
    try:
        with pq.ParquetWriter(partial, schema) as file:

            def write(rows: Sequence[tuple[Any, ...]]) -> None:
                if rows:
                    columns = list(zip(*rows, strict=True))
                    with naming(path):
                        file.write_table(pa.Table.from_arrays(columns, schema=schema))

            yield write
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)
