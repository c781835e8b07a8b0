"""What a value is that was given from outside; no library is waited for."""

import difflib
import numbers
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

# Names that an error lists.
MAX_NAMES = 3
# Names that an unknown one is compared with.
MAX_COMPARED = 1000
# The largest number of float32.
FLOAT32_MAX = 3.4028235e38
# Values of a field that is not set.
UNSET: tuple[Any, ...] = (None, [], 0, float("inf"))


def is_integer(value: Any) -> bool:
    """Tell whether a value is a whole number, of Python or NumPy; True and 1.0 are none."""
    return isinstance(value, numbers.Integral) and not isinstance(value, bool)


def is_number(value: Any) -> bool:
    """Tell whether a value is one real number, an array without axes included; True is none."""
    if getattr(value, "ndim", None) == 0 and hasattr(value, "dtype"):
        return value.dtype.kind in "iuf"
    return isinstance(value, numbers.Real) and not isinstance(value, bool)


def round_fraction(value: Any) -> Any:
    """Return a fraction at 12 significant digits, so that .1 + .2 is .3; anything else as it is."""
    return float(f"{value:.12g}") if isinstance(value, float) else value


def check_float32(value: float, name: str) -> None:
    """Refuse a number that is finite, and infinite in float32.

    Raises:
        ValueError: naming it.
    """
    if FLOAT32_MAX < abs(value) < float("inf"):
        raise ValueError(f"{name}={value} must be at most {FLOAT32_MAX:g}, what float32 holds")


class Condition:
    """A condition on other fields, under which a configuration's field is read.

    Attributes:
        fields: names of the other fields, of which any decides, such as `attempts or give_up`.
        values: values of these fields that fulfil the condition; without values it is enough that
            a field is set: neither null, empty, 0 nor infinite.
        is_set: False: the fields must not be set.
    """

    def __init__(self, fields: str, *values: Any, is_set: bool = True) -> None:
        self.fields, self.values, self.is_set = fields, values, is_set

    def explain(self, config: Mapping[str, Any], prefix: str = "") -> str:
        """Return what must hold, as the end of a sentence, or an empty text if it holds."""
        found = [config.get(name) for name in self.fields.split(" or ")]
        if self.values:
            several = [
                one for value in found for one in (value if type(value) is list else [value])
            ]
            if any(one in self.values for one in several):
                return ""
            allowed = " or ".join(str(value) for value in self.values if value is not None)
            return f"is read with {prefix}{self.fields}={allowed} alone"
        if any(value not in UNSET for value in found) == self.is_set:
            return ""
        word = "read with" if self.is_set else "not read beside"
        return f"is {word} {prefix}{self.fields}{' alone' if self.is_set else ''}"


Target = TypeVar("Target", bound=Callable[..., Any])


def read_when(**conditions: Condition) -> Callable[[Target], Target]:
    """Declare the conditions under which fields of a class, or arguments of a function, are read.

    A command whose override would change nothing then ends in an error.
    """

    def declare(target: Target) -> Target:
        target.conditions = conditions  # type: ignore[attr-defined]
        return target

    return declare


class TableNames:
    """Names of a table's rows and columns; equal to any others, so that no program depends on them.

    Attributes:
        prompts: [P] ids.
        servers: [N] LLMs.
        where: the file or dataset that has them.
    """

    def __init__(self, prompts: Sequence[str], servers: Sequence[str], where: str) -> None:
        """Take the names."""
        self.prompts, self.servers, self.where = tuple(prompts), tuple(servers), where

    def __eq__(self, other: object) -> bool:
        """Return True for any names."""
        return isinstance(other, TableNames)

    def __hash__(self) -> int:
        """Return the hash of all."""
        return 0

    def __repr__(self) -> str:
        """Return a word, for the text of a tree is hashed."""
        return "TableNames"


def join_positions(
    names: Sequence[str], wanted: Sequence[str], where: str, what: str, table: str,
    known: Sequence[str] | None = None,
) -> list[int]:  # fmt: skip
    """Return where each wanted name stands among others, for a join: [n].

    Args:
        names: of a file's rows or columns, distinct.
        wanted: [n] those of the table that it is joined to.
        where: the file.
        what: is named, such as "prompt_id".
        table: what it is joined to.
        known: names that may stand there; None: the wanted ones.

    Raises:
        ValueError: naming those that are missing and those that are unknown.
    """
    place = {name: number for number, name in enumerate(names)}
    expected = set(wanted if known is None else known)
    missing = [name for name in dict.fromkeys(wanted) if name not in place]
    unknown = [name for name in names if name not in expected]
    if missing or unknown:
        lacks = [f"lacks {what} {_list_names(missing)}"] if missing else []
        has = [f"has {what} {_list_names(unknown)}, unknown there"] if unknown else []
        if unknown and len(missing) <= MAX_COMPARED:
            similar = difflib.get_close_matches(unknown[0], missing, 1)
            has[0] += f" (did you mean {similar[0]!r}?)" if similar else ""
        raise ValueError(f"{where}: {' and '.join(lacks + has)}: they must be those of {table}.")
    return [place[name] for name in wanted]


def _list_names(every: Sequence[str]) -> str:
    """Name the first few, and how many more there are."""
    first = ", ".join(map(repr, every[:MAX_NAMES]))
    return first + (f" and {len(every) - MAX_NAMES:,} more" if len(every) > MAX_NAMES else "")


def suggest_names(name: str, known: Sequence[str], shown: Sequence[str] | None = None) -> str:
    """Return the end of an error about an unknown name: similar names, or else all names.

    Args:
        name: the unknown one.
        known: all names.
        shown: the list that is shown if no name is similar; None: `known`.
    """
    similar = difflib.get_close_matches(name, known, 2)
    if similar:
        return f": did you mean {' or '.join(similar)}?"
    return f"; choose from {', '.join(known if shown is None else shown)}"
