"""Which cases of a test the quick tier has."""

from collections.abc import Collection, Iterable
from typing import Any

import pytest


def cases(every: Iterable[Any], quick: Collection[Any]) -> list[Any]:
    """Mark the cases that are slow: all but the quick ones."""
    return [pytest.param(one, marks=[pytest.mark.slow] * (one not in quick)) for one in every]
