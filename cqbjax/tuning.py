"""What is written one way for a CPU and another way for a GPU: every such choice, in one place.

Both ways compute the same. A program is traced within `use(...)`, and what it calls asks
`current()`; code that is traced outside, in a test or a notebook, is tuned for where JAX runs.
"""

import contextlib
from collections.abc import Iterator
from contextvars import ContextVar
from typing import NamedTuple

import jax


class Tuning(NamedTuple):
    """The choices of a platform (docs/notebook/performance.md says what was tried).

    Attributes:
        barriers: whether `linalg.settle` keeps arrays from being computed again in each consumer.
            A CPU's compiler does that where it costs; on a GPU a kernel more costs more.
        slots: of the queue that are scored together, over a pool. A CPU does work in proportion;
            on a GPU each turn of the loop is a question to the device and its answer.
        fused: whether small sums, systems and updates are written number by number, so that they
            become one kernel with what is around them, a thread a run; a CPU takes them faster as
            arrays and products.
        interpret: whether kernels written for a GPU are carried out by JAX, to test them on a CPU.
    """

    barriers: bool
    slots: int
    fused: bool
    interpret: bool = False


CPU = Tuning(barriers=True, slots=8, fused=False)
GPU = Tuning(barriers=False, slots=32, fused=True)
_CURRENT: ContextVar[Tuning | None] = ContextVar("tuning", default=None)


def of(platform: str) -> Tuning:
    """Return the choices of a platform, as JAX names it."""
    return CPU if platform == "cpu" else GPU


def current() -> Tuning:
    """Return the choices to trace by."""
    return _CURRENT.get() or of(jax.default_backend())


@contextlib.contextmanager
def use(tuning: Tuning) -> Iterator[None]:
    """Trace by these choices, whatever JAX runs on here."""
    token = _CURRENT.set(tuning)
    try:
        yield
    finally:
        _CURRENT.reset(token)
