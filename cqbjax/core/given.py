"""What a value is that was given from outside; no library is waited for."""

import numbers
from typing import Any

# The largest number of float32.
LARGEST = 3.4028235e38


def is_whole(value: Any) -> bool:
    """Tell whether a value is a whole number, of Python or NumPy; True and 1.0 are none."""
    return isinstance(value, numbers.Integral) and not isinstance(value, bool)


def is_number(value: Any) -> bool:
    """Tell whether a value is one real number, an array without axes included; True is none."""
    if getattr(value, "ndim", None) == 0 and hasattr(value, "dtype"):
        return value.dtype.kind in "iuf"
    return isinstance(value, numbers.Real) and not isinstance(value, bool)


def rounded(value: Any) -> Any:
    """Return a fraction at 12 significant digits, so that .1 + .2 is .3; anything else as it is."""
    return float(f"{value:.12g}") if isinstance(value, float) else value


def check_float32(value: float, name: str) -> None:
    """Refuse a number that is finite, and infinite in float32.

    Raises:
        ValueError: naming it.
    """
    if LARGEST < abs(value) < float("inf"):
        raise ValueError(f"{name}={value} must be at most {LARGEST:g}, what float32 holds")
