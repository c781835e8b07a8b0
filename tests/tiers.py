"""Which cases of a test the quick tier has."""

from collections.abc import Collection, Iterable
from typing import Any

import pytest


def cases(every: Iterable[Any], quick: Collection[Any], several: bool = False) -> list[Any]:
    """Mark the cases that are slow: all but the quick ones.

    Args:
        every: the cases.
        quick: some of them.
        several: whether a case is a tuple of several arguments, and known by its first.
    """
    if several:
        slow = [[pytest.mark.slow] * (one[0] not in quick) for one in every]
        return [pytest.param(*one, marks=marks) for one, marks in zip(every, slow, strict=True)]
    return [pytest.param(one, marks=[pytest.mark.slow] * (one not in quick)) for one in every]
