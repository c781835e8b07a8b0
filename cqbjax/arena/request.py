"""The arguments of `cqbjax arena`, parsed and validated before anything runs."""

import importlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from cqbjax.arena.tasks import Contestant, Request, select_tasks
from cqbjax.core.inputs import suggest_names

VERBS = ("tasks", "verify", "board", "show")
# The keys of a run, and those of `verify`, with their defaults.
KEYS = {
    "policy": "", "tasks": "", "seeds": "", "rounds": "1", "tuning": "", "out": "arena",
    "data_dir": "", "cache_dir": "", "cluster": "",
}  # fmt: skip
VERIFY_KEYS = {"samples": "3", "seed": "", "data_dir": ""}


def parse_words(words: Sequence[str]) -> tuple[str, Any]:
    """Return the verb, one of `VERBS` or `enter`, and its argument.

    The argument of `tasks` is None, that of `show` the folder to write, that of `verify` the folder
    of the entry and the values of `VERIFY_KEYS`; else it is a `Request`.

    Raises:
        ValueError: naming the wrong argument.
    """
    verb, *others = words if words[0] in VERBS else ("enter", *words)
    if verb == "tasks":
        parse_values(others, {})
        return verb, None
    if verb == "show":
        return verb, Path(parse_values(others, {"out": KEYS["out"]})["out"]) / "shown"
    if verb != "verify":
        return verb, parse_request(parse_values(others), board=verb == "board")
    if not others or "=" in others[0]:
        raise ValueError("verify takes the folder of an entry: cqbjax arena verify arena/Mine")
    values = parse_values(others[1:], VERIFY_KEYS)
    for key in ("samples", "seed"):
        if values[key] != VERIFY_KEYS[key] and not values[key].isdecimal():
            raise ValueError(f"{key}={values[key]} must be a whole number")
    return verb, (Path(others[0]), values)


def parse_values(words: Sequence[str], defaults: Mapping[str, str] = KEYS) -> dict[str, str]:
    """Return key -> value of arguments `key=value`, with defaults for the other keys.

    Raises:
        ValueError: an argument that is not `key=value`, or an unknown key.
    """
    values = dict(defaults)
    for word in words:
        key, equals, value = word.partition("=")
        if not equals or key not in defaults:
            keys = [f"{key}=" for key in defaults]
            why = suggest_names(f"{key}=", keys) if keys else ": leave it out"
            raise ValueError(f"{word} is unknown here{why}")
        values[key] = value
    return values


def parse_request(values: Mapping[str, str], board: bool) -> Request:
    """Return the request of a run.

    Args:
        values: values of `KEYS`.
        board: whether all policies of the board run, instead of one contestant.

    Raises:
        ValueError: naming the key, and what is allowed.
    """
    if values["tuning"] not in ("", "true", "false"):
        raise ValueError(f"tuning={values['tuning']} must be true or false")
    seeds = values["seeds"]
    # A first look at a few seeds does not use those that are reported.
    tuning = values["tuning"] == "true" or bool(seeds and not values["tuning"])
    if seeds and not (seeds.isdecimal() and int(seeds) >= 2):
        raise ValueError(f"seeds={seeds} must be a whole number, at least 2, for an interval")
    try:
        rounds = float(values["rounds"])
    except ValueError:
        rounds = 0.0
    if not 0 < rounds <= 1:
        raise ValueError(f"rounds={values['rounds']} must be a fraction of all rounds, in (0, 1]")
    if board and values["policy"]:
        raise ValueError("policy= is for an entry, and the board has all policies: leave it out")
    contestant = None if board else _find_contestant(values["policy"])
    name = contestant.label if contestant else "board"
    return Request(
        contestant, select_tasks(list(filter(None, values["tasks"].split(",")))),
        int(seeds) if seeds else None, rounds, tuning,
        Path(values["out"]) / (f"{name}_tuning" if tuning else name),
        [f"cluster={values['cluster']}"] if values["cluster"] else [],
        {key: values[key] for key in ("data_dir", "cache_dir") if values[key]},
    )  # fmt: skip


def _find_contestant(policy: str) -> Contestant:
    """Return a policy: `FILE.py:CLASS` below the current folder, or a label of `conf/policy`.

    Raises:
        ValueError: the file, the class or the value is missing, or Python cannot import it.
    """
    file, colon, name = policy.partition(":")
    if not policy:
        raise ValueError("policy= is missing: policy=my_policy.py:Mine, or a label of conf/policy")
    if not colon:
        return Contestant(policy)
    path = Path(file)
    if path.suffix != ".py" or not path.is_file() or path.is_absolute() or ".." in path.parts:
        raise ValueError(f"policy={policy}: {file} must be a Python file below the current folder")
    parts = path.with_suffix("").parts
    if not all(one.isidentifier() and one.isascii() for one in (*parts, name)):
        raise ValueError(
            f"policy={policy}: file, folders and class must have names that Python can import, of "
            "a-z, digits and _: my_policy.py:Mine"
        )
    module = ".".join(parts)
    try:
        imported = importlib.import_module(module)
    except Exception as error:  # of the user's code
        why = f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"
        raise ValueError(f"policy={policy}: {file} raises {why}") from error
    if Path(getattr(imported, "__file__", None) or "").resolve() != path.resolve():
        raise ValueError(f"policy={policy}: Python has another module {module}: rename {file}")
    if not hasattr(imported, name):
        raise ValueError(f"policy={policy}: {file} has no class {name}")
    return Contestant(name, f"{module}.{name}")
