"""The shards of a conversation log: WildChat-1M's own Parquet files, checked before any is read.

One row a conversation: `model`, `timestamp` (of the last turn), `hashed_ip`, and `conversation`, a
list of turns `{role, content, timestamp, hashed_ip, ...}` in which assistant turns carry the
timestamp. Further columns and fields are passed over.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

COLUMNS = ("model", "timestamp", "conversation", "hashed_ip")
TURN_FIELDS = ("role", "content", "timestamp")
ID = "conversation_hash"  # of a row: read where embeddings have it too
TIME = "timestamp"  # of a row and of a turn; all else that is read is text
# Names of models that an error lists.
MOST_NAMED = 12
# Written into a shard's schema by `generate`: what its conversations stand in for.
STAND_IN = b"cqbjax.stand_in"


class LogError(ValueError):
    """A log cannot be read or used, with the reason in one sentence."""


class Batch(NamedTuple):
    """Some rows of a shard.

    Attributes:
        first: number of the first row, counted over all shards.
        rows: the columns `COLUMNS`.
    """

    first: int
    rows: pa.RecordBatch


def check(shards: Sequence[Path], model: str) -> Counter[str]:
    """Refuse shards that cannot be read, before any row is.

    Args:
        shards: Parquet files.
        model: whose conversations are wanted.

    Returns:
        How many conversations each model has.

    Raises:
        LogError: naming a file that is not Parquet, the columns that one lacks, or the models that
            there are where the one wanted is none of them.
    """
    counts: Counter[str] = Counter()
    for shard in shards:
        with _opened(shard) as file:
            _check_columns(shard, file.schema_arrow)
            for batch in _batches(shard, file, ["model"], 65536):
                counted = pc.value_counts(batch.column(0))
                counts.update({str(one["values"]): one["counts"] for one in counted.to_pylist()})
    if model not in counts:
        listed = ", ".join(f"{name} ({count:,})" for name, count in counts.most_common(MOST_NAMED))
        more = f" and {len(counts) - MOST_NAMED} more" if len(counts) > MOST_NAMED else ""
        raise LogError(f"no conversation with model {model!r}: there are {listed or 'none'}{more}.")
    return counts


def stand_in(shards: Sequence[Path]) -> str:
    """Return what generated shards say they stand in for; empty where none was generated."""
    said = []
    for shard in shards:
        with _opened(shard) as file:
            said.append((file.schema_arrow.metadata or {}).get(STAND_IN, b"").decode())
    return "; ".join(dict.fromkeys(filter(None, said)))


def count(shards: Sequence[Path]) -> int:
    """Return how many rows the shards have."""
    total = 0
    for shard in shards:
        with _opened(shard) as file:
            total += file.metadata.num_rows
    return total


def ids(shards: Sequence[Path]) -> list[str]:
    """Return the id of each row.

    Raises:
        LogError: naming a shard without ids.
    """
    every: list[str] = []
    for shard in shards:
        with _opened(shard) as file:
            if ID not in file.schema_arrow.names:
                raise LogError(f"{shard}: lacks column {ID!r}, by which embeddings are joined.")
            for batch in _batches(shard, file, [ID], 65536):
                every += map(str, batch.column(0).to_pylist())
    return every


def place(shards: Sequence[Path], row: int) -> str:
    """Return where a row stands, given its number of all shards: its row of a file, from 1."""
    for shard in shards:
        rows = count([shard])
        if row < rows:
            return f"row {row + 1} of {shard.name}"
        row -= rows
    raise IndexError(row)


def read(shards: Sequence[Path], size: int = 1024) -> Iterator[Batch]:
    """Yield the rows of all shards, `size` at a time: no more of them are ever in memory.

    Of a turn only the fields that are used are read; text is as it stands, UTF-8 or not.

    Raises:
        LogError: naming a shard that is damaged.
    """
    first = 0
    for shard in shards:
        with _opened(shard) as file:
            for rows in _batches(shard, file, _leaves(file), size):
                yield Batch(first, rows)
                first += rows.num_rows


def _leaves(file: pq.ParquetFile) -> list[str]:
    """Return the paths of the columns in use; a writer may call a list's items what it likes."""
    paths = [file.schema.column(i).path for i in range(len(file.schema))]
    wanted = (*TURN_FIELDS, "hashed_ip")
    return [
        path for path in paths
        if path in COLUMNS
        or (path.startswith("conversation.") and path.rpartition(".")[2] in wanted)
    ]  # fmt: skip


def _opened(shard: Path) -> pq.ParquetFile:
    try:
        return pq.ParquetFile(shard)
    except (pa.ArrowException, OSError) as error:
        if isinstance(error, FileNotFoundError):
            raise LogError(f"{shard}: no such file.") from error
        raise LogError(f"{shard}: not a Parquet file, or cut short: {_said(error)}.") from error


def _batches(
    shard: Path, file: pq.ParquetFile, columns: list[str], size: int
) -> Iterator[pa.RecordBatch]:
    try:
        yield from file.iter_batches(batch_size=size, columns=columns)
    except (pa.ArrowException, OSError) as error:
        raise LogError(f"{shard}: damaged, get it again: {_said(error)}.") from error


def _check_columns(shard: Path, schema: pa.Schema) -> None:
    """Refuse a schema that lacks a column, or a field of its turns."""
    for column in COLUMNS:
        if column not in schema.names:
            have = ", ".join(schema.names)
            raise LogError(f"{shard}: lacks column {column!r}, it has {have}.")
    kind = schema.field("conversation").type
    listed = pa.types.is_list(kind) or pa.types.is_large_list(kind)
    if not listed or not pa.types.is_struct(kind.value_type):
        raise LogError(f"{shard}: conversation must be a list of structs, it is {kind}.")
    turn = {field.name: field for field in kind.value_type}
    for name in TURN_FIELDS:
        if name not in turn:
            raise LogError(
                f"{shard}: the turns of conversation lack {name!r}, they have {', '.join(turn)}."
            )
    read = [(name, schema.field(name)) for name in COLUMNS if name != "conversation"]
    read += [
        (f"{name} of a turn", turn[name]) for name in (*TURN_FIELDS, "hashed_ip") if name in turn
    ]
    for said, field in read:
        _check_type(shard, said, field)


def _check_type(shard: Path, said: str, field: pa.Field) -> None:
    """Refuse times that are numbers, of whatever unit, and text that is none."""
    kind = field.type.value_type if pa.types.is_dictionary(field.type) else field.type
    text = kind in (pa.null(), pa.string(), pa.large_string())
    if field.name == TIME and not (text or pa.types.is_timestamp(kind)):
        raise LogError(f"{shard}: {said} must be a time or ISO text of one, it is {kind}.")
    if field.name != TIME and not (text or kind in (pa.binary(), pa.large_binary())):
        raise LogError(f"{shard}: {said} must be text, it is {kind}.")


def _said(error: Exception) -> str:
    return str(error).partition("\n")[0].rstrip(".")
