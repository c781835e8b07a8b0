"""A GPU to compile for on a machine without one: XLA's compiler, told what the device is.

XLA's GPU compiler needs no device and no driver, only the wheels of the `compile-for-gpu` extra:
the CUDA plugin, which holds the compiler, and NVIDIA's assembler `ptxas`. What comes out is the
program that the device would run. Nothing is tuned by timing, which takes a device.
"""

import importlib.util
import os
from pathlib import Path
from typing import NamedTuple

import jax
from jax.experimental import topologies

EXTRA = "compile-for-gpu"
# The plugin's package; the assembler's folder in the namespace package `nvidia`.
PLUGIN, ASSEMBLER = "xla_cuda12", "cuda_nvcc"


class Absent(ValueError):
    """The wheels that compile for a GPU are not installed."""


class Target(NamedTuple):
    """A GPU as XLA's compiler and the cost model know it.

    Attributes:
        name: as JAX names such a device.
        described: XLA's `GpuTargetConfigProto`, as text.
        bytes_a_second: bandwidth of its memory.
        memory: bytes that the programs of one device may fill.
    """

    name: str
    described: str
    bytes_a_second: float
    memory: int


# NVIDIA's data sheet of the H100 SXM5 80 GB; the field names are XLA's.
H100 = Target(
    "NVIDIA H100 80GB HBM3",
    Path(__file__).with_name("h100.txtpb").read_text(),
    3.35e12,
    80 * 10**9,
)
TARGETS = {"h100": H100}


def missing() -> str | None:
    """Return a sentence that says which wheels are missing, or None where all are there."""
    if _folder("jax_plugins", PLUGIN) and _folder("nvidia", ASSEMBLER):
        return None
    return f'nothing is compiled for a GPU here: install the wheels by pip install -e ".[{EXTRA}]"'


def devices(target: Target) -> tuple[jax.Device, ...]:
    """Return one device to compile for. Nothing can be put on it, and nothing runs there.

    To be called before this process uses JAX, which then runs on the CPU alone.

    Raises:
        Absent: the wheels are not installed.
    """
    absent = missing()
    if absent:
        raise Absent(absent)
    tools = _folder("nvidia", ASSEMBLER)
    # Tuning times kernels on a device. Both are read when the plugin first compiles.
    flags = f"--xla_gpu_cuda_data_dir={tools} --xla_gpu_autotune_level=0"
    if flags not in os.environ.get("XLA_FLAGS", ""):
        os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {flags}".strip()
        os.environ["PATH"] = f"{tools}/bin{os.pathsep}{os.environ['PATH']}"
    jax.config.update("jax_platforms", "cpu")
    jax.devices()  # which finds the plugin
    topology = topologies.get_topology_desc(
        target.name, "cuda", topology="1x1x1", target_config=target.described
    )
    return tuple(topology.devices)


def _folder(package: str, name: str) -> Path | None:
    """Return the folder of a part of a namespace package, None where it is not installed."""
    spec = importlib.util.find_spec(package)
    places = (spec and spec.submodule_search_locations) or ()
    return next((Path(p) / name for p in places if (Path(p) / name).is_dir()), None)
