"""How long a run is, as numbers, where its program has room for longer ones."""

import contextlib
from collections.abc import Iterator
from contextvars import ContextVar
from typing import Any, NamedTuple

import numpy as np


class Extent(NamedTuple):
    """The horizon of a run whose program was compiled for a longer one.

    Attributes:
        rounds: [] int32 T. What is drawn for later rounds is of no account.
        root: [] T^(-1/2), rounded once, as where T is known when a program is traced.
    """

    rounds: Any
    root: Any


_CURRENT: ContextVar[Extent | None] = ContextVar("extent", default=None)


def of(horizon: int) -> Extent:
    """Return the extent of a horizon."""
    return Extent(np.int32(horizon), np.asarray(horizon**-0.5, np.float32))


def current() -> Extent | None:
    """Return the extent of the runs that are drawn; None where a program is of their horizon."""
    return _CURRENT.get()


@contextlib.contextmanager
def drawing(extent: Extent | None) -> Iterator[None]:
    """Draw no more rounds than these, about."""
    token = _CURRENT.set(extent)
    try:
        yield
    finally:
        _CURRENT.reset(token)
