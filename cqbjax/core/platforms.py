"""Settings that select between two versions of a program, one for a CPU and one for a GPU.

Both versions compute the same. A program is traced within `use(...)`, and its code reads the
settings with `get_current()`. Code traced elsewhere, as in a notebook, is for JAX's default
backend.
"""

import contextlib
import os
from collections.abc import Iterator
from contextvars import ContextVar
from typing import NamedTuple

import jax

# Set to 0, this environment variable replaces Pallas kernels by plain XLA.
SETTING = "CQBJAX_PALLAS"


class Platform(NamedTuple):
    """Settings of programs for a platform (measurements: docs/notebook/performance.md).

    Attributes:
        barriers: whether `linalg.add_barrier` stops XLA from recomputing arrays in each consumer.
            That pays on a CPU; on a GPU an additional kernel costs more.
        slots: queue slots that a pool scores together. The work of a CPU is proportional to them;
            on a GPU each turn of the loop waits for the device.
        fused: whether small sums, systems and updates are computed element by element, so that XLA
            fuses them into the kernel around them, one thread per run. A CPU is faster with arrays.
        kernels: whether Pallas kernels replace plain XLA, on CUDA only.
        interpret: whether JAX interprets these kernels, to test them on a CPU.
    """

    barriers: bool
    slots: int
    fused: bool
    kernels: bool = False
    interpret: bool = False


CPU = Platform(barriers=True, slots=8, fused=False)
GPU = Platform(barriers=False, slots=32, fused=True, kernels=True)
_CURRENT: ContextVar[Platform | None] = ContextVar("platform", default=None)


def get(name: str) -> Platform:
    """Return a platform by its name in JAX; without Pallas kernels if it is not CUDA."""
    if name == "cpu":
        return CPU
    if name not in ("gpu", "cuda") or os.environ.get(SETTING) == "0":
        return GPU._replace(kernels=False)
    try:
        version = jax.devices("gpu")[0].client.platform_version
    except RuntimeError:  # without a GPU here, the program is compiled for CUDA elsewhere
        return GPU
    return GPU if "cuda" in version.lower() else GPU._replace(kernels=False)


def get_current() -> Platform:
    """Return the platform for which code is traced now."""
    return _CURRENT.get() or get(jax.default_backend())


@contextlib.contextmanager
def use(platform: Platform) -> Iterator[None]:
    """Trace code for this platform, whatever JAX's default backend is."""
    token = _CURRENT.set(platform)
    try:
        yield
    finally:
        _CURRENT.reset(token)
