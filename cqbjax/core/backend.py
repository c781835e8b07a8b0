"""JAX's configuration for a study: devices, precision, compilation cache."""

import functools
import hashlib
import os
import pathlib
import platform
from typing import Any

import jax
import jaxlib
from jax.extend.mlir.passmanager import PassManager

from cqbjax.core.files import user_cache

CPUINFO = pathlib.Path("/proc/cpuinfo")
EMITTERS = "xla_cpu_use_fusion_emitters"
# JAX's cache key ignores the names of operations, so programs with names have another folder.
NAMING = "without names"


def configure(cache_dir: pathlib.Path | None = None) -> None:
    """Configure JAX; call it before the first array.

    JAX gets one CPU device per core, so that the runs of a sweep are spread over the cores.
    Products of float32 have full precision (a GPU's default rounds them to 10 bits). Compiled
    programs are cached on disk, for later processes.

    Args:
        cache_dir: folder of compiled programs; None: the one that JAX_COMPILATION_CACHE_DIR names,
            or else a folder for this type of machine in the user's cache folder.

    Raises:
        RuntimeError: JAX has started with another number of devices; restart the kernel.
    """
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    try:
        jax.config.update("jax_num_cpu_devices", cores or 1)
    except RuntimeError as error:  # the same number as before does not raise
        raise RuntimeError(
            "backend.configure() must come before JAX computes anything: restart the kernel (or "
            "the process) and call it first"
        ) from error
    jax.config.update("jax_default_matmul_precision", "highest")
    folder = cache_dir or os.environ.get("JAX_COMPILATION_CACHE_DIR")
    folder = folder or programs_folder(user_cache() / "xla")
    jax.config.update("jax_compilation_cache_dir", str(folder))
    if "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS" not in os.environ:
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.1)


def check_process() -> None:
    """Raise an error in a process that was forked after JAX had started: JAX would deadlock there.

    Processes started by `spawn`, `subprocess` or joblib's loky are not forks. JAX itself warns of a
    fork.

    Raises:
        RuntimeError: this process was forked after the first call.
    """
    if _get_first_process() != os.getpid():
        raise RuntimeError(
            "this process was forked after JAX had started: use "
            "multiprocessing.get_context('spawn')"
        )


@functools.cache
def _get_first_process() -> int:
    """Return the process of the first call, also in its forks."""
    return os.getpid()


def programs_folder(parent: pathlib.Path) -> pathlib.Path:
    """Return the folder of compiled programs for this processor and jaxlib, below a parent.

    Nodes of a cluster may share a home folder and have different processors. A program compiled
    for another processor fails to load, or crashes at an unknown instruction.
    """
    features = f"{platform.machine()} {_cpuinfo('flags', 'Features') or platform.processor()}"
    text = f"{features} jaxlib {jaxlib.__version__} {NAMING}"
    return parent / hashlib.sha256(text.encode()).hexdigest()[:12]


def compile_lowered(
    lowered: jax.stages.Lowered, platform: str, barriers: bool = True, emitters: bool = True
) -> jax.stages.Compiled:
    """Compile a lowered program with the options of its platform.

    On a CPU, JAX's names of operations are removed from the program first. XLA's fusion emitters
    turn `dynamic_slice.116` (JAX's name) and `dynamic-slice.116` (XLA's) into functions of the same
    name. The program then calls the wrong function, or recurses until the process dies. Without
    JAX's names, all names are different (docs/notebook/performance.md).

    Args:
        lowered: the program; on a CPU it is changed.
        platform: JAX's name of the platform: `cpu`, `gpu`, ...
        barriers: whether optimization barriers stay until the end. By default XLA drops them before
            it fuses, and then computes cheap arrays again in each consumer in spite of
            `linalg.add_barrier`. A version of XLA without this pass ignores the option.
        emitters: whether XLA's fusion emitters generate the code. If False, XLA's older generator
            does, in a version of XLA that has both.
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
    """Return the machine's attributes for results: platform, device kind and count, CPU, cores."""
    device = jax.devices()[0]
    return {
        "platform": device.platform,
        "device_kind": device.device_kind,
        "num_devices": len(jax.devices()),
        "cpu": _cpuinfo("model name") or "unknown",
        "cpu_cores": os.cpu_count() or 1,
    }


def _cpuinfo(*fields: str) -> str:
    """Return the first of these fields in Linux's description of the processor, or "".

    Args:
        fields: names of the same property on different processors.
    """
    try:
        lines = CPUINFO.read_text().splitlines()
    except OSError:
        return ""
    entries = (line.partition(":") for line in lines)
    return next((value.strip() for name, _, value in entries if name.strip() in fields), "")
