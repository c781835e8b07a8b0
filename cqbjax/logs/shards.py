"""The shards of a conversation log: WildChat-1M's own Parquet files, checked before any is read.

One row is a conversation: `model`, `timestamp` (of the last turn), `hashed_ip`, and `conversation`,
a list of turns `{role, content, timestamp, hashed_ip, ...}` in which assistant turns have the
timestamp. Other columns and fields are ignored.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from cqbjax.core.lazy import ExtraModule

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.compute as pc
    import pyarrow.parquet as pq
else:  # polars reads no invalid UTF-8, and no field of a struct alone
    pa, pc, pq = (
        ExtraModule(name, "wildchat", "a conversation log")
        for name in ("pyarrow", "pyarrow.compute", "pyarrow.parquet")
    )


COLUMNS = ("model", "timestamp", "conversation", "hashed_ip")
TURN_FIELDS = ("role", "content", "timestamp")
ID = "conversation_hash"  # of a row; embeddings are joined by it
# Of a row or of a turn.
TIME, TEXTS = "timestamp", ("model", "hashed_ip", "role", "content")
# Number of models that an error lists.
MOST_NAMED = 12
# Key of a generated shard's metadata: a text that names the dataset it replaces.
PROXY_NOTE = b"cqbjax.stand_in"


class LogError(ValueError):
    """A log cannot be read or used; the message is one sentence."""


def check_shards(shards: Sequence[Path], model: str) -> None:
    """Check that shards can be read and have conversations of a model.

    Raises:
        LogError: naming a file that is not Parquet, the columns that one lacks, or, if the model
            has no conversation, the models that have.
    """
    counts: Counter[str] = Counter()
    for shard in shards:
        with _open(shard) as file:
            _check_columns(shard, file.schema_arrow)
            for batch in file.iter_batches(65536, columns=["model"]):
                counted = pc.value_counts(batch.column(0)).to_pylist()
                counts.update({str(model["values"]): model["counts"] for model in counted})
    if model not in counts:
        listed = ", ".join(f"{name} ({count:,})" for name, count in counts.most_common(MOST_NAMED))
        more = f" and {len(counts) - MOST_NAMED} more" if len(counts) > MOST_NAMED else ""
        raise LogError(f"no conversation with model {model!r}: there are {listed or 'none'}{more}.")


def read_footers(shards: Sequence[Path]) -> tuple[list[int], str]:
    """Return the number of rows of each shard, and the proxy notes of generated shards."""
    rows, notes = list[int](), dict[str, None]()
    for footer in map(pq.read_metadata, shards):
        rows.append(footer.num_rows)
        notes[(footer.metadata or {}).get(PROXY_NOTE, b"").decode()] = None
    return rows, "; ".join(filter(None, notes))


def read_ids(shards: Sequence[Path]) -> list[str]:
    """Return the id of each row.

    Raises:
        LogError: naming a shard without ids.
    """
    ids: list[str] = []
    for shard in shards:
        with _open(shard) as file:
            if ID not in file.schema_arrow.names:
                raise LogError(f"{shard}: lacks column {ID!r}, by which embeddings are joined.")
            ids += map(str, file.read(columns=[ID])[ID].to_pylist())
    return ids


def name_row(shards: Sequence[Path], row: int) -> str:
    """Return the file of a row of all shards, and its number there, from 1, in words."""
    rows, _ = read_footers(shards)
    begins = np.cumsum([0, *rows[:-1]])
    number = int(np.searchsorted(begins, row, side="right")) - 1
    return f"row {row + 1 - begins[number]} of {shards[number].name}"


def read_batches(shards: Sequence[Path], size: int = 1024) -> Iterator[pa.RecordBatch]:
    """Yield the rows of all shards, `size` at a time, so that memory holds no more.

    Only the fields in use are read. Text may be invalid UTF-8.

    Raises:
        LogError: naming a shard that is damaged.
    """
    fields = (*TURN_FIELDS, "hashed_ip")
    for shard in shards:
        with _open(shard) as file:
            paths = [file.schema.column(i).path for i in range(len(file.schema))]
            # A writer may give the items of a list any name.
            leaves = [
                path for path in paths
                if path in COLUMNS
                or (path.startswith("conversation.") and path.rpartition(".")[2] in fields)
            ]  # fmt: skip
            yield from file.iter_batches(size, columns=leaves)


@contextlib.contextmanager
def _open(shard: Path) -> Iterator[pq.ParquetFile]:
    """Open a shard; raise a `LogError` of one sentence if it or a batch cannot be read."""
    fault = "not a Parquet file, or cut short"
    try:
        with pq.ParquetFile(shard) as file:
            fault = "damaged, get it again"
            yield file
    except FileNotFoundError as error:
        raise LogError(f"{shard}: no such file.") from error
    except (pa.ArrowException, OSError) as error:
        reason = str(error).partition("\n")[0].rstrip(".")
        raise LogError(f"{shard}: {fault}: {reason}.") from error


def _check_columns(shard: Path, schema: pa.Schema) -> None:
    """Check that a schema has all columns and all fields of turns, with usable types."""
    for column in COLUMNS:
        if column not in schema.names:
            have = ", ".join(schema.names)
            raise LogError(f"{shard}: lacks column {column!r}, it has {have}.")
    kind = schema.field("conversation").type
    listed = pa.types.is_list(kind) or pa.types.is_large_list(kind)
    if not listed or not pa.types.is_struct(kind.value_type):
        raise LogError(f"{shard}: conversation must be a list of structs, it is {kind}.")
    fields: dict[str, Any] = {name: schema.field(name).type for name in COLUMNS}
    del fields["conversation"]
    fields |= {f"{field.name} of a turn": field.type for field in kind.value_type}
    for name in TURN_FIELDS:
        if f"{name} of a turn" not in fields:
            have = ", ".join(field.name for field in kind.value_type)
            raise LogError(f"{shard}: the turns of conversation lack {name!r}, they have {have}.")
    for label, kind in fields.items():
        kind = kind.value_type if pa.types.is_dictionary(kind) else kind
        name = label.removesuffix(" of a turn")
        text = kind in (pa.null(), pa.string(), pa.large_string())
        # Numbers of an unknown unit are no times.
        if name == TIME and not (text or pa.types.is_timestamp(kind)):
            raise LogError(f"{shard}: {label} must be a time or ISO text of one, it is {kind}.")
        if name in TEXTS and not (text or kind in (pa.binary(), pa.large_binary())):
            raise LogError(f"{shard}: {label} must be text, it is {kind}.")
