"""WildChat-1M's official schema, and rows written in it: for generated logs and tests."""

import datetime
import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from cqbjax.logs.shards import STAND_IN

_TIME = pa.timestamp("us", "UTC")
_HEADER = pa.struct([("accept-language", pa.string()), ("user-agent", pa.string())])
_TURN = pa.struct(
    [
        ("content", pa.string()), ("country", pa.string()), ("hashed_ip", pa.string()),
        ("header", _HEADER), ("language", pa.string()), ("redacted", pa.bool_()),
        ("role", pa.string()), ("state", pa.string()), ("timestamp", _TIME),
        ("toxic", pa.bool_()), ("turn_identifier", pa.int64()),
    ]
)  # fmt: skip
_OPENAI = pa.struct(
    [
        (part, pa.struct([(kind, value) for kind in ("hate", "self-harm", "sexual", "violence")]))
        for part, value in (("categories", pa.bool_()), ("category_scores", pa.float64()))
    ]
    + [("flagged", pa.bool_())]
)
_DETOXIFY = pa.struct(
    [
        (kind, pa.float64())
        for kind in ("identity_attack", "insult", "obscene", "severe_toxicity", "sexual_explicit",
                     "threat", "toxicity")
    ]
)  # fmt: skip
SCHEMA = pa.schema(
    [
        ("conversation_hash", pa.string()), ("model", pa.string()), ("timestamp", _TIME),
        ("conversation", pa.list_(_TURN)), ("turn", pa.int64()), ("language", pa.string()),
        ("openai_moderation", pa.list_(_OPENAI)), ("detoxify_moderation", pa.list_(_DETOXIFY)),
        ("toxic", pa.bool_()), ("redacted", pa.bool_()), ("state", pa.string()),
        ("country", pa.string()), ("hashed_ip", pa.string()), ("header", _HEADER),
    ]
)  # fmt: skip
HEADER = {"accept-language": "en-US", "user-agent": "Mozilla/5.0"}


def row(
    model: str, ip: str, prompt: str, answers: Sequence[tuple[int, str]], **changed: Any
) -> dict[str, Any]:
    """Return a conversation as the official files hold it.

    Args:
        model: that answered.
        ip: hashed.
        prompt: the first one; later ones ask for more.
        answers: when each answer was logged, microseconds since 1970, and its text.
        changed: columns to put in place of what they would be.
    """
    turns: list[dict[str, Any]] = []
    common = {
        "country": "France", "state": None, "language": "English", "redacted": False,
        "toxic": False,
    }  # fmt: skip
    for number, (time, text) in enumerate(answers):
        asked = prompt if number == 0 else "Go on."
        turns.append(
            {**common, "role": "user", "content": asked, "hashed_ip": ip, "header": HEADER,
             "timestamp": None, "turn_identifier": 2 * number}
        )  # fmt: skip
        turns.append(
            {**common, "role": "assistant", "content": text, "hashed_ip": None, "header": None,
             "country": None, "timestamp": at(time), "turn_identifier": 2 * number + 1}
        )  # fmt: skip
    said = "\n".join(turn["content"] for turn in turns).encode()
    last = at(answers[-1][0]) if answers else None
    made = {
        **common, "conversation_hash": hashlib.md5(said, usedforsecurity=False).hexdigest(),
        "model": model, "timestamp": last, "conversation": turns, "turn": len(answers),
        "openai_moderation": [], "detoxify_moderation": [], "hashed_ip": ip, "header": HEADER,
    }  # fmt: skip
    return {**made, **changed}


def at(microseconds: int) -> datetime.datetime:
    """Return a time of the log."""
    epoch = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
    return epoch + datetime.timedelta(microseconds=int(microseconds))


def write(path: Path, rows: Sequence[dict[str, Any]], stand_in: str = "") -> None:
    """Write one shard.

    Args:
        path: of the shard.
        rows: from `row`.
        stand_in: what they stand in for; readers show it with everything made from them.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    schema = SCHEMA.with_metadata({STAND_IN: stand_in.encode()}) if stand_in else SCHEMA
    pq.write_table(pa.Table.from_pylist(list(rows), schema), path)
