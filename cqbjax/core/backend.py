"""How JAX is set up for a study: devices, precision, compilation cache."""

import functools
import hashlib
import os
import pathlib
import platform
import warnings
from typing import Any

import jax
import jaxlib
from jax.extend.mlir.passmanager import PassManager

from cqbjax.core.files import user_cache

SPAWN = "use multiprocessing.get_context('spawn')"
# A number a fork between the process that started JAX and this one.
_FORKED: list[int] = []
CPUINFO = pathlib.Path("/proc/cpuinfo")
EMITTERS = "xla_cpu_use_fusion_emitters"
# JAX finds a program without its names where one with names was stored: those lie elsewhere.
NAMING = "without names"


def configure(cache_dir: pathlib.Path | None = None) -> None:
    """Prepare JAX, before its first array.

    One CPU device a core, so that the runs of a sweep are spread over the cores; float32 products
    in full precision (a GPU's default rounds them to 10 bits); compiled programs are kept on disk,
    where a second process finds them.

    Args:
        cache_dir: where compiled programs are kept; None is where JAX_COMPILATION_CACHE_DIR says,
            or a folder for this kind of machine in the user's cache folder.
    """
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    jax.config.update("jax_num_cpu_devices", cores or 1)
    jax.config.update("jax_default_matmul_precision", "highest")
    named = cache_dir or os.environ.get("JAX_COMPILATION_CACHE_DIR")
    folder = named or programs_folder(user_cache() / "xla")
    jax.config.update("jax_compilation_cache_dir", str(folder))
    if "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS" not in os.environ:
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.1)


def check_process() -> None:
    """Refuse to compute in a process that was forked after JAX had started: it would wait for ever.

    From the first call on, a fork is warned of once. Processes started by `spawn`, by `subprocess`
    or by joblib's loky are none.

    Raises:
        RuntimeError: it was forked.
    """
    if _FORKED:
        raise RuntimeError(f"this process was forked after JAX had started: {SPAWN}")
    if hasattr(os, "register_at_fork"):
        _watch_forks()


@functools.cache
def _watch_forks() -> None:
    os.register_at_fork(before=_warn_of_forks, after_in_child=lambda: _FORKED.append(os.getpid()))


@functools.cache
def _warn_of_forks() -> None:
    said = f"a process that is forked after a sweep cannot compute with JAX: {SPAWN}"
    warnings.warn(said, RuntimeWarning, stacklevel=2)


def programs_folder(parent: pathlib.Path) -> pathlib.Path:
    """Return the folder of compiled programs for this processor and jaxlib, below a parent.

    Nodes of a cluster may share a home and differ in what their processors can do: a program that
    was compiled for another one is refused, or ends the process at its first instruction.
    """
    can = f"{platform.machine()} {_cpuinfo('flags', 'Features') or platform.processor()}"
    mark = hashlib.sha256(f"{can} jaxlib {jaxlib.__version__} {NAMING}".encode()).hexdigest()[:12]
    return parent / mark


def compile_lowered(
    lowered: jax.stages.Lowered, platform: str, barriers: bool = True, emitters: bool = True
) -> jax.stages.Compiled:
    """Compile a lowered program with the options of its platform.

    On a CPU the program loses the names that JAX gives its operations. XLA's fusion emitters write
    `dynamic_slice.116` (a name of JAX's) and `dynamic-slice.116` (XLA's own) as functions of one
    name: the program then calls the wrong one, or itself until the process dies. Without JAX's
    names no two are alike (docs/notebook/performance.md).

    Args:
        lowered: the program; on a CPU it is changed.
        platform: as JAX names it: `cpu`, `gpu`, ...
        barriers: whether optimization barriers stay to the end. XLA drops them before it fuses, and
            then computes cheap arrays again in each of their consumers, even where `linalg.settle`
            asks it not to. A version of XLA without a pass of this name ignores the option.
        emitters: whether XLA's fusion emitters generate the code; if not, its older generator does,
            in a version of XLA that has both.
    """
    if platform != "cpu":
        return lowered.compile()
    module: Any = lowered.compiler_ir()
    with module.context:
        PassManager.parse("builtin.module(strip-debuginfo)").run(module.operation)
    options: dict[str, str | bool] = {}
    if barriers:
        options["xla_disable_hlo_passes"] = "cse_barrier_expander"
    try:
        return lowered.compile(options if emitters else options | {EMITTERS: False})
    except jax.errors.JaxRuntimeError as error:
        if EMITTERS not in str(error):
            raise
        return lowered.compile(options)


def describe() -> dict[str, str | int]:
    """Return the machine as results name it: platform, device kind and count, cores."""
    device = jax.devices()[0]
    return {
        "platform": device.platform,
        "device_kind": device.device_kind,
        "num_devices": len(jax.devices()),
        "cpu": _cpuinfo("model name") or "unknown",
        "cpu_cores": os.cpu_count() or 1,
    }


def _cpuinfo(*fields: str) -> str:
    """Return what Linux says of the first processor under the first of these names; else nothing.

    Args:
        fields: names of one thing on different processors.
    """
    try:
        lines = CPUINFO.read_text().splitlines()
    except OSError:
        return ""
    said = (line.partition(":") for line in lines)
    return next((value.strip() for name, _, value in said if name.strip() in fields), "")
