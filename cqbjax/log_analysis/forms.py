"""Forms of logs: which field of a row is the time, the user, the LLM, and so on.

A flat row needs no more than the usual names (`NAMES`). Rows of conversations hold several
requests, and rows of contextual bandits (Vowpal Wabbit) hold the chosen action as an index.
"""

import json
import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

from cqbjax.logs.shards import LogError

# What a request may have -> the usual names of its field, in any case; the first is preferred.
NAMES: dict[str, tuple[str, ...]] = {
    "time": ("timestamp", "time", "created_at", "starttime", "start_time", "created", "datetime",
             "date", "ts"),
    "ended": ("endtime", "end_time", "finished_at", "completed_at"),
    "user": ("end_user", "user_id", "user", "customer_id", "client_id", "hashed_ip", "session_id",
             "session id", "session", "conversation_id", "conversation_hash", "chat_id",
             "thread_id"),
    "request": ("request_id", "id", "event_id", "eventid", "completion_id"),
    "chain": ("chain", "query_id", "task_id"),
    "retry_of": ("retry_of", "parent_request_id", "retried_from"),
    "attempt": ("attempt", "attempt_number", "is_retry", "retry"),
    "regenerated": ("regenerated", "regenerate", "is_regenerated"),
    "prompt": ("prompt", "query", "question", "input", "text", "user_message"),
    "embedding": ("embedding", "prompt_embedding", "query_embedding"),
    "answer": ("response", "answer", "completion", "output"),
    "model": ("selected_model", "model", "model_name", "model_id", "llm", "routed_model",
              "item_id"),
    "candidates": ("candidates", "available_models"),
    "propensity": ("propensity", "propensity_score", "action_probability", "probability"),
    "outcome": ("outcome", "feedback", "rating", "thumb", "thumbs", "accepted", "satisfied",
                "click", "reward"),
    "prompt_tokens": ("prompt_tokens", "input_tokens", "usage.prompt_tokens",
                      "usage.input_tokens", "request tokens"),
    "tokens": ("completion_tokens", "generated_tokens", "output_tokens", "response_tokens",
               "usage.completion_tokens", "usage.output_tokens", "response tokens"),
    "cost": ("spend", "cost", "cost_usd", "usd", "total_cost"),
    "latency": ("latency", "latency_ms", "latency_s", "duration", "duration_ms", "response_time",
                "elapsed time"),
    "status": ("status", "status_code", "success"),
}  # fmt: skip
# Names of fields that describe a request whose prompt is not in the log.
CONTEXT = ("category", "complexity", "task", "topic", "language")
CONTEXT_PREFIX = "user_feature_"

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
    names = set(row)
    for needed, form in (
        ({"_label_probability", "_labelIndex"}, Form("Vowpal Wabbit, dsjson", _unpack_bandit)),
        ({"conversation", "conversation_hash"}, Form("WildChat", _unpack_conversation)),
        ({"conversation", "hashed_ip"}, Form("WildChat", _unpack_conversation)),
        ({"conversations"}, Form("ShareGPT", _unpack_sharegpt)),
        ({"messages"}, Form("OpenAI-style chat log", _unpack_messages)),
        ({"startTime", "spend"}, Form("LiteLLM spend log", _unpack_flat)),
        ({"item_id", "propensity_score"}, Form("Open Bandit Pipeline", _unpack_flat)),
        ({"selected_model", "turn_idx"}, Form("vLLM semantic router, interactions", _unpack_flat)),
        ({"selected_model", "generated_tokens"}, Form("vLLM semantic router", _unpack_flat)),
        ({"Session ID", "Log Type"}, Form("BurstGPT", _unpack_burst)),
    ):
        if needed <= names:
            return form
    return Form("rows of requests", _unpack_flat)


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
        context = [n for k, n in lower.items() if k in CONTEXT or k.startswith(CONTEXT_PREFIX)]
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


def _unpack_flat(row: Fields) -> Iterator[Fields]:
    yield row


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
    """Yield the answered turns of a conversation, with the times of the answers."""
    asked = None
    turns = [one for one in row.get("conversation") or [] if isinstance(one, dict)]
    last = max((n for n, one in enumerate(turns) if one.get("role") == "assistant"), default=-1)
    for number, turn in enumerate(turns):
        if turn.get("role") == "user":
            asked = turn
        elif turn.get("role") == "assistant" and asked is not None:
            time = turn.get("timestamp") or (row.get("timestamp") if number == last else None)
            user = row.get("hashed_ip") or asked.get("hashed_ip") or row.get("conversation_hash")
            answer = turn.get("content") or ""
            yield {
                "time": time, "user": user, "model": row.get("model"), "answer": answer,
                "prompt": asked.get("content"), "tokens": math.ceil(len(answer) / 4),
            }  # fmt: skip
            asked = None


def _unpack_sharegpt(row: Fields) -> Iterator[Fields]:
    """Yield the answered turns of a conversation without times; the user is the conversation."""
    asked = None
    for turn in row.get("conversations") or []:
        side, value = turn.get("from"), turn.get("value")
        if side in ("human", "user"):
            asked = value
        elif side in ("gpt", "assistant", "chatgpt") and asked is not None:
            yield {
                "user": row.get("id"), "model": row.get("model") or "gpt", "prompt": asked,
                "answer": value or "",
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
