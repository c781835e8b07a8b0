"""What the words of `cqbjax arena` ask for: checked before anything runs."""

import importlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from cqbjax.cli import _hydra, _tasks
from cqbjax.cli._tasks import Asked, Contestant

VERBS = ("tasks", "verify", "board", "show")
# What may be said of a run, and of verifying one, and its value where nothing is.
KEYS = {
    "policy": "", "tasks": "", "seeds": "", "rounds": "1", "tuning": "false", "out": "arena",
    "keep": "false", "data_dir": "", "cache_dir": "", "cluster": "",
}  # fmt: skip
PASSED_ON = ("data_dir", "cache_dir")
OF_VERIFY = {"pieces": "3", "seed": "", "data_dir": ""}
BOARD, SHOWN = "board", "shown"


class Run(NamedTuple):
    """What a run of the arena is asked for.

    Attributes:
        contestant: who enters; None: all of the board.
        tasks: in which.
        asked: how they are run.
        keeps: whether the board is put into the package.
    """

    contestant: Contestant | None
    tasks: list[_tasks.Task]
    asked: Asked
    keeps: bool


def check(words: Sequence[str]) -> tuple[str, Any]:
    """Return what the words ask for, one of `VERBS` or `enter`, and what they say of it.

    That is nothing for `tasks`, the folder to write for `show`, the arguments of `_verify.verify`,
    or else a `Run`.

    Raises:
        ValueError: naming a word that is none.
    """
    verb, *others = words if words[0] in VERBS else ("enter", *words)
    if verb == "tasks":
        if others:
            raise ValueError(f"{others[0]} is nothing that `tasks` takes: leave it out")
        return verb, None
    if verb == "show":
        given = [word for word in others if not word.startswith("out=")]
        if given:
            raise ValueError(f"{given[0]} is nothing that `show` takes: out=FOLDER alone")
        return verb, Path(values_of(others)["out"]) / SHOWN
    if verb == "verify":
        return verb, _given(others)
    return verb, run_of(values_of(others), board=verb == BOARD)


def _given(words: Sequence[str]) -> tuple[Path, dict[str, str]]:
    """Return the folder that words name, and what else they say.

    Raises:
        ValueError: no folder, or a word that is none.
    """
    if not words or "=" in words[0]:
        raise ValueError("verify takes a folder of the arena: cqbjax arena verify arena/Mine")
    told = values_of(words[1:], OF_VERIFY)
    for key in ("pieces", "seed"):
        if told[key] != OF_VERIFY[key] and not told[key].isdecimal():
            raise ValueError(f"{key}={told[key]} must be a whole number")
    return Path(words[0]), told


def values_of(words: Sequence[str], known: dict[str, str] = KEYS) -> dict[str, str]:
    """Return key -> value, as `known` has it where no word says it.

    Raises:
        ValueError: a word is no `key=value`, or its key is none.
    """
    values = dict(known)
    for word in words:
        key, equals, value = word.partition("=")
        if not equals or key not in known:
            raise ValueError(f"{word} is none of {', '.join(f'{key}=' for key in known)}")
        values[key] = value
    return values


def run_of(values: dict[str, str], board: bool) -> Run:
    """Return what is asked for.

    Raises:
        ValueError: naming the key, and what is allowed.
    """
    if board and values["policy"]:
        raise ValueError("policy= is of an entry, and the board has all of them: leave it out")
    contestant = None if board else _contestant(values["policy"])
    tuning, name = _flag(values, "tuning"), contestant.label if contestant else BOARD
    folder = Path(values["out"]) / (f"{name}_tuning" if tuning else name)
    passed = [_hydra.quote(key, values[key]) for key in PASSED_ON if values[key]]
    passed += [f"cluster={values['cluster']}"] if values["cluster"] else []
    asked = Asked(_seeds(values), _rounds(values), tuning, folder, passed)
    tasks = _tasks.chosen(list(filter(None, values["tasks"].split(","))))
    keeps = _flag(values, "keep")
    if keeps and (not board or asked.seeds or asked.rounds != 1 or tuning or values["tasks"]):
        raise ValueError("keep=true is of the whole board: all tasks, seeds and rounds")
    return Run(contestant, tasks, asked, keeps)


def _contestant(said: str) -> Contestant:
    """Return the policy that is named: `FILE.py:CLASS` below the current folder, or a label.

    Raises:
        ValueError: nothing is named, or nothing that is there.
    """
    file, colon, name = said.partition(":")
    if not said:
        raise ValueError("policy= is missing: policy=my_policy.py:Mine, or a label of conf/policy")
    if not colon:
        return Contestant(said, (said,), ())
    path = Path(file)
    if path.suffix != ".py" or not path.is_file() or path.is_absolute() or ".." in path.parts:
        raise ValueError(f"policy={said}: {file} must be a Python file below the current folder")
    parts = path.with_suffix("").parts
    if not all(one.isidentifier() and one.isascii() for one in (*parts, name)):
        raise ValueError(
            f"policy={said}: file, folders and class must have names that Python can import, of "
            "a-z, digits and _: my_policy.py:Mine"
        )
    module = ".".join(parts)
    try:
        made = importlib.import_module(module)
    except Exception as error:  # of the user's code
        why = f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"
        raise ValueError(f"policy={said}: {file} raises {why}") from error
    if Path(getattr(made, "__file__", None) or "").resolve() != path.resolve():
        raise ValueError(f"policy={said}: Python has another module {module}: rename {file}")
    if not hasattr(made, name):
        raise ValueError(f"policy={said}: {file} has no class {name}")
    return Contestant(name, (), (f"+policy.{name}._target_={module}.{name}",))


def _flag(values: dict[str, str], key: str) -> bool:
    if values[key] not in ("true", "false"):
        raise ValueError(f"{key}={values[key]} must be true or false")
    return values[key] == "true"


def _seeds(values: dict[str, str]) -> int | None:
    said = values["seeds"]
    if said and not (said.isdecimal() and int(said) >= 2):
        raise ValueError(f"seeds={said} must be a whole number, at least 2, for an interval")
    return int(said) if said else None


def _rounds(values: dict[str, str]) -> float:
    try:
        share = float(values["rounds"])
    except ValueError:
        share = 0.0
    if not 0 < share <= 1:
        raise ValueError(f"rounds={values['rounds']} must be a share of all rounds, in (0, 1]")
    return share
