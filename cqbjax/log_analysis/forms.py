"""Forms of logs: which field of a row is the time, the user, the LLM, and so on.

A flat row needs no more than the usual names (`forms.yaml`). Rows of conversations hold several
requests, and rows of contextual bandits (Vowpal Wabbit) hold the chosen action as an index.
"""

import json
import math
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from cqbjax.logs.shards import LogError

# The usual names of fields, the forms of logs, and the words of outcomes.
USUAL = yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text())
NAMES: dict[str, list[str]] = USUAL["names"]

Fields = dict[str, Any]


class Form(NamedTuple):
    """A form of logs.

    Attributes:
        name: what it is called.
        unpack: a row -> the flat rows of its requests.
    """

    name: str
    unpack: Callable[[Fields], Iterator[Fields]]


def find_form(row: Mapping[str, Any]) -> Form:
    """Return the form of a log by the names of a row's fields."""
    name, _, unpacking = next(form for form in USUAL["forms"] if row.keys() >= set(form[1]))
    return Form(name, UNPACKING[unpacking])


class FieldFinder:
    """Finds what a request has among the fields of a flat row.

    Attributes:
        used: what -> the names under which it was found.
    """

    def __init__(self, columns: Mapping[str, str]) -> None:
        self._columns = {what: str(name) for what, name in columns.items()}
        self._known: dict[tuple[str, ...], dict[str, list[str]]] = {}
        self.used: dict[str, dict[str, None]] = {}

    def find(self, row: Fields) -> Fields:
        """Return what -> value; an empty text is missing, unless it is the answer."""
        flat = {
            f"{key}.{inner}" if nested else key: field
            for key, value in row.items()
            for nested in [isinstance(value, dict)]
            for inner, field in (value.items() if nested else [("", value)])
        }
        names = self._known.setdefault(tuple(flat), {})
        if not names:
            names |= self._choose_names(flat)
        found = {}
        for what, some in names.items():
            for name in some:
                value = flat[name]
                if value is not None and (value != "" or what == "answer"):
                    found[what] = value
                    self.used.setdefault(what, {})[name] = None
                    break
        if "prompt" not in found and (context := names.get("context")):
            found["context"] = " ".join(f"{name}={flat[name]}" for name in context)
        latency = names.get("latency", [""])[0].lower()
        if "latency" in found and latency.endswith("_ms"):
            found["latency"] = to_number(found["latency"]) / 1000
        return found

    def _choose_names(self, flat: Fields) -> dict[str, list[str]]:
        lower = {name.lower(): name for name in flat}
        chosen = {}
        for what, names in NAMES.items():
            own = self._columns.get(what)
            some = [own] if own in flat else [] if own else [lower[n] for n in names if n in lower]
            if some:
                chosen[what] = some
        describing = (*USUAL["context"], USUAL["context_prefix"])
        context = [n for k, n in lower.items() if k in describing or k.startswith(describing[-1])]
        return chosen | ({"context": context} if context else {})

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


def _unpack_burst(row: Fields) -> Iterator[Fields]:
    """Yield a row of BurstGPT, where an answer without tokens is a failed request."""
    yield {**row, "success": to_number(row.get("Response tokens")) > 0}


def _unpack_bandit(row: Fields) -> Iterator[Fields]:
    """Yield the chosen action, its propensity and its reward, which is the negative cost."""
    context = row.get("c") or {}
    actions = context.get("_multi") or []
    number = int(row["_label_Action"]) - 1 if "_label_Action" in row else int(row["_labelIndex"])
    action = actions[number] if 0 <= number < len(actions) else {}
    shared = {key: value for key, value in context.items() if not key.startswith("_")}
    yield {
        "time": row.get("Timestamp"), "request": row.get("EventId"),
        "model": str(action.get("_tag", f"action {number + 1}")),
        "propensity": row.get("_label_probability"), "reward": -to_number(row.get("_label_cost")),
        "category": json.dumps(shared, sort_keys=True),
    }  # fmt: skip


def _unpack_conversation(row: Fields) -> Iterator[Fields]:
    """Yield the answered turns of a conversation, with the times of the answers if it has any."""
    turns = [one for one in row.get("conversation") or row.get("conversations") or []
             if isinstance(one, dict)]  # fmt: skip
    asked, sides = None, [USUAL["sides"].get(one.get("role") or one.get("from")) for one in turns]
    last = max((n for n, side in enumerate(sides) if side == "LLM"), default=-1)
    for number, (turn, side) in enumerate(zip(turns, sides, strict=True)):
        if side == "user":
            asked = turn
        elif side == "LLM" and asked is not None:
            time = turn.get("timestamp") or (row.get("timestamp") if number == last else None)
            user = row.get("hashed_ip") or asked.get("hashed_ip")
            answer = turn.get("content") or turn.get("value") or ""
            yield {
                "time": time, "user": user or row.get("conversation_hash") or row.get("id"),
                "model": row.get("model") or ("gpt" if "conversations" in row else None),
                "prompt": asked.get("content") or asked.get("value"), "answer": answer,
                "tokens": math.ceil(len(answer) / 4),
            }  # fmt: skip
            asked = None


def _unpack_messages(row: Fields) -> Iterator[Fields]:
    """Yield a call: its prompt is the last message of the user."""
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
    flat = {key: value for key, value in row.items() if key != "messages"}
    yield flat | {"prompt": content}


UNPACKING = {
    "bandit": _unpack_bandit, "burst": _unpack_burst, "conversation": _unpack_conversation,
    "flat": lambda row: iter([row]), "messages": _unpack_messages,
}  # fmt: skip
