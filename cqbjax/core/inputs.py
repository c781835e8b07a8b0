"""Checks of values that a user gives; importing this module is fast."""

import dataclasses
import difflib
import numbers
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

# The most names that an error lists.
MAX_NAMES = 3
# The most names with which an unknown name is compared.
MAX_COMPARED = 1000
# The largest finite float32.
FLOAT32_MAX = 3.4028235e38
# Values of a field that is not set.
UNSET: tuple[Any, ...] = (None, [], 0, float("inf"))


def is_integer(value: Any) -> bool:
    """Return whether a value is an integer of Python or NumPy; True and 1.0 are not."""
    return isinstance(value, numbers.Integral) and not isinstance(value, bool)


def is_number(value: Any) -> bool:
    """Return whether a value is a real number or an array without axes; True is not."""
    if getattr(value, "ndim", None) == 0 and hasattr(value, "dtype"):
        return value.dtype.kind in "iuf"
    return isinstance(value, numbers.Real) and not isinstance(value, bool)


def check_interval(settings: Any, interval: str, *keys: str, whole: bool = False) -> None:
    """Check that fields of a configured object are numbers in an interval.

    Args:
        settings: the object.
        interval: such as "[0, 1]", or "(0, inf)" for finite numbers above 0.
        *keys: names of the fields.
        whole: whether they must be integers.

    Raises:
        ValueError: naming the field and the interval.
    """
    for key in keys:
        value = getattr(settings, key)
        valid = is_integer(value) if whole else is_number(value)
        if not (valid and _contains(interval, float(value))):
            text = f"{float(value):g}" if valid and not whole else value
            kind = "a whole number" if whole else "a number"
            raise ValueError(f"{key}={text} must be {kind} in {interval}")


def check_each(settings: Any, interval: str, count: int, noun: str, *keys: str) -> None:
    """Check that fields hold a number in an interval for each of `count` nouns, or are None.

    Raises:
        ValueError: naming the field and the interval.
    """
    import numpy as np

    for key in keys:
        if (value := getattr(settings, key)) is not None:
            numbers = np.asarray(value, float)
            if numbers.shape != (count,) or not np.all(_contains(interval, numbers)):
                raise ValueError(
                    f"{key}={numbers.tolist()} must be {count} numbers in {interval}, one for each "
                    f"{noun}"
                )


def _contains(interval: str, value: Any) -> Any:
    low, high = map(float, interval[1:-1].split(","))
    above = value >= low if interval[0] == "[" else value > low
    return above & (value <= high if interval[-1] == "]" else value < high)


def round_fraction(value: Any) -> Any:
    """Round a fraction to 12 significant digits, so that .1 + .2 is .3; keep any other value."""
    return float(f"{value:.12g}") if isinstance(value, float) else value


def check_float32(value: float, name: str) -> None:
    """Check that a finite number is also finite in float32.

    Raises:
        ValueError: naming the number.
    """
    if FLOAT32_MAX < abs(value) < float("inf"):
        raise ValueError(f"{name}={value} must be at most {FLOAT32_MAX:g}, what float32 holds")


class Condition:
    """A condition on other fields, under which a configuration's field is read.

    Attributes:
        fields: names of the other fields, such as `attempts or give_up`; one of them is enough.
        values: the values that fulfil the condition. Without values, the field must be set, which
            means that it is not null, empty, 0 or infinite.
        is_set: if False, the fields must not be set.
    """

    def __init__(self, fields: str, *values: Any, is_set: bool = True) -> None:
        self.fields, self.values, self.is_set = fields, values, is_set

    def explain(self, config: Mapping[str, Any], prefix: str = "") -> str:
        """Return the condition as the end of a sentence, or "" if it holds."""
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

    A command then raises an error for an override that would have no effect.
    """

    def declare(target: Target) -> Target:
        target.conditions = conditions  # type: ignore[attr-defined]
        return target

    return declare


@dataclasses.dataclass(frozen=True, repr=False)
class TableNames:
    """Names of a table's rows and columns.

    All instances are equal, so that a compiled program does not depend on names.

    Attributes:
        prompts: [P] ids.
        servers: [N] LLMs.
        where: the file or dataset that has them.
    """

    prompts: Sequence[str] = dataclasses.field(compare=False)
    servers: Sequence[str] = dataclasses.field(compare=False)
    where: str = dataclasses.field(compare=False)

    def __repr__(self) -> str:
        """Return the same text for all instances, since the text of a pytree is hashed."""
        return "TableNames"


def join_positions(
    names: Sequence[str], wanted: Sequence[str], where: str, what: str, table: str,
    known: Sequence[str] | None = None,
) -> list[int]:  # fmt: skip
    """Return the position of each wanted name in `names`, for a join: [n].

    Args:
        names: names of a file's rows or columns, distinct.
        wanted: [n] names of the table to which the file is joined.
        where: the file.
        what: the column that holds the names, such as "prompt_id".
        table: the table to which the file is joined.
        known: names that the file may have; None: the wanted names.

    Raises:
        ValueError: naming the missing and the unknown names.
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
    """List the first `MAX_NAMES` names and the number of further names."""
    first = ", ".join(map(repr, every[:MAX_NAMES]))
    return first + (f" and {len(every) - MAX_NAMES:,} more" if len(every) > MAX_NAMES else "")


def suggest_names(name: str, known: Sequence[str], shown: Sequence[str] | None = None) -> str:
    """Return the end of an error about an unknown name: similar names, or else all names.

    Args:
        name: the unknown name.
        known: all names.
        shown: the list that is shown if no name is similar; None: `known`.
    """
    # `rate` is meant as `arrival_rate` rather than as `trace`: whole words come before letters.
    words = [other for other in known if name and f"_{name}_" in f"_{other}_"]
    similar = [*words, *difflib.get_close_matches(name, known, 2)]
    similar = list(dict.fromkeys(similar))[:2]
    if similar:
        return f": did you mean {' or '.join(similar)}?"
    return f"; choose from {', '.join(known if shown is None else shown) or 'an empty list'}"
