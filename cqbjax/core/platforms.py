"""What is written one way for a CPU and another way for a GPU: every such choice, in one place.

Both ways compute the same. A program is traced within `use(...)`, and what it calls asks
`current()`; code that is traced outside, in a test or a notebook, is written for where JAX runs.
"""

import contextlib
from collections.abc import Iterator
from contextvars import ContextVar
from typing import NamedTuple

import jax


class Platform(NamedTuple):
    """How programs are written for a platform (docs/notebook/performance.md says what was tried).

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


CPU = Platform(barriers=True, slots=8, fused=False)
GPU = Platform(barriers=False, slots=32, fused=True)
_CURRENT: ContextVar[Platform | None] = ContextVar("platform", default=None)


def get(name: str) -> Platform:
    """Return a platform by its name in JAX."""
    return CPU if name == "cpu" else GPU


def get_current() -> Platform:
    """Return the platform to write for."""
    return _CURRENT.get() or get(jax.default_backend())


@contextlib.contextmanager
def use(platform: Platform) -> Iterator[None]:
    """Write for this platform, whatever JAX runs on here."""
    token = _CURRENT.set(platform)
    try:
        yield
    finally:
        _CURRENT.reset(token)
