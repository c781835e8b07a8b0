"""What a value is that was given from outside; no library is waited for."""

import numbers
from collections.abc import Iterable, Sequence
from typing import Any

# Names that an error lists.
MAX_NAMES = 3
# The largest number of float32.
FLOAT32_MAX = 3.4028235e38


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
    missing = _list_names(name for name in dict.fromkeys(wanted) if name not in place)
    unknown = _list_names(name for name in names if name not in expected)
    if missing or unknown:
        lacks = [f"lacks {what} {missing}"] if missing else []
        has = [f"has {what} {unknown}, unknown there"] if unknown else []
        raise ValueError(f"{where}: {' and '.join(lacks + has)}: they must be those of {table}.")
    return [place[name] for name in wanted]


def _list_names(names: Iterable[str]) -> str:
    """Name the first few, and how many more there are."""
    every = list(names)
    first = ", ".join(map(repr, every[:MAX_NAMES]))
    return first + (f" and {len(every) - MAX_NAMES:,} more" if len(every) > MAX_NAMES else "")
