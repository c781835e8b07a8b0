"""Forms of logs: which field of a row is the time, the user, the LLM, and so on.

A flat row needs no more than the usual names (`forms.yaml`). Rows of conversations hold several
requests, and rows of contextual bandits (Vowpal Wabbit) hold the chosen action as an index.
"""

import functools
import json
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import yaml

from cqbjax.logs.shards import LogError

# The usual names of fields, the forms of logs, and the words of outcomes.
USUAL = yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text())
NAMES: dict[str, list[str]] = USUAL["names"]

Fields = dict[str, Any]


class FieldFinder:
    """Finds what a request has among the fields of a flat row.

    Attributes:
        used: what -> the names under which it was found.
    """

    def __init__(self, columns: Mapping[str, str]) -> None:
        self._columns = {what: str(name) for what, name in columns.items()}
        # Most rows have the same fields.
        self._choose = functools.cache(self._choose_names)
        self.used: dict[str, dict[str, None]] = {}

    def find(self, row: Fields) -> Fields:
        """Return what -> value; an empty text is missing, unless it is the answer."""
        inner = {key: value for key, value in row.items() if isinstance(value, dict)}
        flat = {key: value for key, value in row.items() if key not in inner}
        flat |= {f"{key}.{name}": inner[key][name] for key in inner for name in inner[key]}
        names, found = self._choose(tuple(flat)), {}
        for what, some in names.items():
            empty = (None,) if what == "answer" else (None, "")
            if name := next((name for name in some if flat[name] not in empty), None):
                found[what] = flat[name]
                self.used.setdefault(what, {})[name] = None
        if "prompt" not in found and names["context"]:
            found["context"] = " ".join(f"{name}={flat[name]}" for name in names["context"])
        if "latency" in found and names["latency"][0].lower().endswith("_ms"):
            found["latency"] = to_number(found["latency"]) / 1000
        return found

    def _choose_names(self, fields: tuple[str, ...]) -> dict[str, list[str]]:
        """Return what -> the fields that may hold it; `context`: those that describe a request."""
        lower = {name.lower(): name for name in fields}
        chosen = {what: [lower[n] for n in some if n in lower] for what, some in NAMES.items()}
        chosen |= {what: [name] * (name in fields) for what, name in self._columns.items()}
        prefix = USUAL["context_prefix"]
        context = [n for k, n in lower.items() if k in USUAL["context"] or k.startswith(prefix)]
        return chosen | {"context": context}

    def check(self) -> None:
        """Raise a `LogError` if `columns` has an unknown key, or a name that no row has."""
        for what, name in self._columns.items():
            if what not in NAMES:
                raise LogError(f"columns: {what} must be one of {', '.join(NAMES)}")
            if what not in self.used:
                raise LogError(f"columns: no row has the field {name!r} for {what}")


def to_number(value: Any) -> float:
    """Return a number, NaN for anything that is none."""
    try:
        return float(value)
    except (TypeError, ValueError):
        return math.nan


def _unpack_bandit(row: Fields) -> list[Fields]:
    """Return the chosen action, its propensity and its reward, which is the negative cost."""
    context = row.get("c") or {}
    actions = context.get("_multi") or []
    number = int(row["_label_Action"]) - 1 if "_label_Action" in row else int(row["_labelIndex"])
    action = actions[number] if 0 <= number < len(actions) else {}
    shared = {key: value for key, value in context.items() if not key.startswith("_")}
    return [{
        "time": row.get("Timestamp"), "request": row.get("EventId"),
        "model": str(action.get("_tag", f"action {number + 1}")),
        "propensity": row.get("_label_probability"), "reward": -to_number(row.get("_label_cost")),
        "category": json.dumps(shared, sort_keys=True),
    }]  # fmt: skip


def _unpack_conversation(row: Fields) -> list[Fields]:
    """Return the answered turns of a conversation, with the times of the answers if it has any."""
    requests: list[Fields] = []
    asked = None
    for turn in row.get("conversation") or row.get("conversations") or []:
        side = USUAL["sides"].get(turn.get("role") or turn.get("from"))
        if side == "user":
            asked = turn
        elif side == "LLM" and asked is not None:
            user = row.get("hashed_ip") or asked.get("hashed_ip")
            answer = turn.get("content") or turn.get("value") or ""
            requests.append({
                "time": turn.get("timestamp"),
                "user": user or row.get("conversation_hash") or row.get("id"),
                "model": row.get("model") or ("gpt" if "conversations" in row else None),
                "prompt": asked.get("content") or asked.get("value"), "answer": answer,
                "tokens": math.ceil(len(answer) / 4),
            })  # fmt: skip
            asked = None
    if requests and not requests[-1]["time"]:
        requests[-1]["time"] = row.get("timestamp")
    return requests


def _unpack_messages(row: Fields) -> list[Fields]:
    """Return a call: its prompt is the last message of the user."""
    messages = row.get("messages") or []
    if isinstance(messages, str):
        try:
            messages = json.loads(messages)
        except ValueError:
            messages = []
    prompts = [one.get("content") for one in messages if one.get("role") == "user"]
    content = prompts[-1] if prompts else None
    if isinstance(content, list):  # parts of text and images
        content = " ".join(str(part.get("text", "")) for part in content if isinstance(part, dict))
    return [row | {"messages": None, "prompt": content}]


_UNPACKING = {
    "bandit": _unpack_bandit, "conversation": _unpack_conversation, "messages": _unpack_messages,
    "flat": lambda row: [row],
    # An answer without tokens is a failed request.
    "burst": lambda row: [row | {"success": to_number(row.get("Response tokens")) > 0}],
}  # fmt: skip
# Name of a form -> how a row is unpacked into its flat requests.
UNPACKING: dict[str, Callable[[Fields], list[Fields]]] = {
    name: _UNPACKING[kind] for name, _, kind in USUAL["forms"]
}
