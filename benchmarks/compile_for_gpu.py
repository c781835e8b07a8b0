"""The work of a GPU in a round, read from programs that XLA compiles for it without a device.

XLA's GPU compiler needs no device and no driver, only the wheels of the `compile-for-gpu` extra:
the CUDA plugin, which holds the compiler, and NVIDIA's assembler `ptxas`. The result is the program
that the device would run, without tuning by timing, which needs a device.

Three kinds of numbers have separate names: **compiled** (kernels, bytes, memory of the program),
**modelled** (rounds a second, below), and measured, of which this module has none.

    seconds a round = kernels x KERNEL_SECONDS + bytes / (BANDWIDTH_SHARE x bandwidth)

The model ignores occupancy, the device's cache and CUDA graphs.
"""

import dataclasses
import importlib.util
import math
import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
from jax.experimental import topologies

from benchmarks import cases, hlo, report
from benchmarks.measure import Case
from cqbjax.core.labels import OPTIMAL
from cqbjax.engine import batches, memory, programs

EXTRA = "compile-for-gpu"
# The plugin's package; the assembler's folder in the namespace package `nvidia`.
PLUGIN, ASSEMBLER = "xla_cuda12", "cuda_nvcc"
# The model: starting a kernel, and the share of a memory's bandwidth that kernels reach.
KERNEL_SECONDS = 2.2e-6
BANDWIDTH_SHARE = 0.85
# Runs that a program is compiled for, and for which its speed is modelled.
WIDTH, WIDTH_POOL, WIDTH_LARGE = 16_384, 64, 16
MODELLED = (16, 64, 256, 512, 4096, 16_384, 65_536)
# Rounds: enough for several a record.
HORIZON = 1000
LARGEST_KERNELS = 8
# Baselines with a program of their own: others share ACQB's at d = 5.
ALONE = ("acqb_ucb", "q_ucb", "q_ths", "random", OPTIMAL)

Row = dict[str, Any]


class MissingWheels(ValueError):
    """The wheels that compile for a GPU are not installed."""


class Target(NamedTuple):
    """A GPU as XLA's compiler and the cost model know it.

    Attributes:
        name: as JAX names such a device.
        description: XLA's `GpuTargetConfigProto`, as text.
        bytes_a_second: bandwidth of its memory.
        memory: bytes that the programs of one device may fill.
    """

    name: str
    description: str
    bytes_a_second: float
    memory: int


# NVIDIA's data sheet of the H100 SXM5 80 GB; the field names are XLA's.
_H100 = Path(__file__).with_name("h100.txtpb").read_text()
H100 = Target("NVIDIA H100 80GB HBM3", _H100, 3.35e12, 80 * 10**9)
TARGETS = {"h100": H100}


def find_missing() -> str | None:
    """Return a sentence that names the missing wheels, or None."""
    if _folder("jax_plugins", PLUGIN) and _folder("nvidia", ASSEMBLER):
        return None
    return f'nothing is compiled for a GPU here: install the wheels by pip install -e ".[{EXTRA}]"'


def make_devices(target: Target) -> tuple[jax.Device, ...]:
    """Return one device to compile for. It holds no arrays and runs nothing.

    Call it before this process uses JAX, which then runs on the CPU alone.

    Raises:
        MissingWheels: the wheels are not installed.
    """
    absent = find_missing()
    if absent:
        raise MissingWheels(absent)
    tools = _folder("nvidia", ASSEMBLER)
    # Tuning times kernels on a device. Both are read when the plugin first compiles.
    flags = f"--xla_gpu_cuda_data_dir={tools} --xla_gpu_autotune_level=0"
    if flags not in os.environ.get("XLA_FLAGS", ""):
        os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {flags}".strip()
        os.environ["PATH"] = f"{tools}/bin{os.pathsep}{os.environ['PATH']}"
    jax.config.update("jax_platforms", "cpu")
    jax.devices()  # finds the plugin
    topology = topologies.get_topology_desc(
        target.name, "cuda", topology="1x1x1", target_config=target.description
    )
    return tuple(topology.devices)


def _folder(package: str, name: str) -> Path | None:
    """Return the folder of a part of a namespace package, None where it is not installed."""
    spec = importlib.util.find_spec(package)
    folders = (spec and spec.submodule_search_locations) or ()
    return next((Path(p) / name for p in folders if (Path(p) / name).is_dir()), None)


class Compiled(NamedTuple):
    """A program compiled for a target, in JSON values.

    Attributes:
        width: runs.
        slots: of the queue.
        turns: of the loop over records and of the loop over rounds in it.
        seconds: of compiling it, with the programs that draw and start its runs.
        argument_bytes: of policies, instances, carries and tables.
        result_bytes: of results that do not replace an argument.
        temporary_bytes: of its temporary buffers.
        text: the program as XLA prints it.
    """

    width: int
    slots: int
    turns: Sequence[int]
    seconds: float
    argument_bytes: int
    result_bytes: int
    temporary_bytes: int
    text: str

    @property
    def record(self) -> hlo.Loop:
        """The loop over records, which contains the loop over rounds."""
        per_call, every = self.turns
        (over_records,) = [
            loop for loop in hlo.loops(self.text)
            if loop.turns == per_call and [one.turns for one in loop.loops] == [every]
        ]  # fmt: skip
        return over_records

    @property
    def bytes(self) -> int:
        """Bytes that the device holds while it runs."""
        return self.argument_bytes + self.result_bytes + self.temporary_bytes


def compile_case(case: Case, label: str, devices: Sequence[jax.Device]) -> Compiled:
    """Compile a policy of a case for a device, at the case's batch.

    Raises:
        ValueError: the case's horizon leaves no loop over rounds within one over records.
    """
    group = dataclasses.replace(case, policies={label: case.policies[label]}).group(label)
    slots = group.initial_slots()
    plan = batches.SweepPlan((), (group,), case.batch, tuple(devices), 0)
    shape = plan.program_spec(group, slots)
    turns = shape.per_call, shape.every
    if min(turns) < 2:
        raise ValueError(f"horizon={case.horizon} must leave several rounds a record, and records")
    begun = time.perf_counter()
    program = programs.compile_one(shape).advance
    seconds = time.perf_counter() - begun
    sizes = program.memory_analysis()
    results = sizes.output_size_in_bytes - sizes.alias_size_in_bytes
    # All arguments stay on the device: the program's own figure excludes unused ones, such as
    # contexts over a pool, or those of a policy that reads none.
    leaves = jax.tree.leaves(program.args_info)
    arguments = sum(math.prod(a.shape) * a.dtype.itemsize for a in leaves)
    return Compiled(
        shape.width, slots, turns, seconds, arguments, results,
        sizes.temp_size_in_bytes, program.as_text(),
    )  # fmt: skip


def list_programs(quick: bool) -> list[tuple[Case, str]]:
    """Return the programs to compile: ACQB on every problem, then the baselines at d = 5.

    Args:
        quick: only ACQB, with few runs and on small problems.
    """
    problems = list(cases.problems(quick).values())
    if not quick:
        # Too slow to be timed on a CPU.
        large = dataclasses.replace(problems[-1], name="d=384 N=112 K=2", assortment_size=2)
        problems.append(large)
    to_compile = []
    for problem in problems:
        case = dataclasses.replace(problem, horizon=HORIZON)
        large_run = case.bytes_a_run("acqb") > 50_000_000
        pooled = case.source.problem(1, 1).pooled
        width = 64 if quick else WIDTH_LARGE if large_run else WIDTH_POOL if pooled else WIDTH
        to_compile.append((dataclasses.replace(case, batch=width), "acqb"))
    first, _ = to_compile[0]
    for label in () if quick else ALONE:
        fields: dict[str, Any] = {"policies": {label: cases.BASELINES[label]}}
        fields |= {"capacity": cases.CROWDED_SLOTS} if label in cases.CROWDED else {}
        to_compile.append((dataclasses.replace(first, **fields), label))
    return to_compile


def round_seconds(kernels: float, moved: float, target: Target) -> float:
    """Return the modelled seconds of a round of so many kernels and bytes."""
    return kernels * KERNEL_SECONDS + moved / (BANDWIDTH_SHARE * target.bytes_a_second)


def rows(case: Case, label: str, program: Compiled, target: Target) -> dict[str, list[Row]]:
    """Return the rows of one program by section of the report."""
    record, width = program.record, program.width
    (one,) = record.loops
    kernels, all_bytes = one.work
    turn, all_bytes_a_turn = one.work_a_turn
    moved, moved_a_turn = all_bytes / width, all_bytes_a_turn / width
    name = {"case": case.name, "policy": label}
    head = name | {"width": width, "slots": program.slots}
    a_run, planned = program.bytes / width, case.bytes_a_run(label)
    widest = min(int(target.memory // a_run), memory.GPU_WIDTH)
    speeds: dict[str, float | None] = {}
    for runs in MODELLED:
        seconds = round_seconds(kernels + turn, (moved + moved_a_turn) * runs, target)
        speeds[f"at {runs:,}"] = runs / seconds if runs <= widest else None
    largest = [
        name | {"kernel": kernel.name, "shape": kernel.plain_shape,
                "bytes_a_round_run": kernel.bytes / width, "written_a_run": kernel.fresh / width}
        for kernel in sorted(one.all_kernels(), key=lambda x: -x.bytes)[:LARGEST_KERNELS]
    ]  # fmt: skip
    counted = {
        "kernels_a_round": kernels, "kernels_a_record": len(record.kernels),
        "bytes_a_round_run": moved, "kernels_a_turn": turn, "bytes_a_turn_run": moved_a_turn,
        "temporary_bytes": program.temporary_bytes, "compile_seconds": program.seconds,
    }  # fmt: skip
    sizes = {
        "bytes_a_run": int(a_run), "planned_bytes_a_run": planned, "planned_share": planned / a_run,
        "temporary_share": program.temporary_bytes / program.bytes, "widest": widest,
    }  # fmt: skip
    return {
        "programs": [head | counted], "speed": [name | {"widest": widest} | speeds],
        "memory": [head | sizes], "kernels": largest,
    }  # fmt: skip


def run(target: Target, quick: bool, log: Callable[[str], None] = print) -> dict[str, Any]:
    """Compile the main programs for a target and return the report, JSON values only.

    Args:
        target: the device.
        quick: few programs with few runs.
        log: receives a line before each program.

    Raises:
        MissingWheels: the wheels are not installed.
    """
    devices, begun = make_devices(target), time.perf_counter()
    sections: dict[str, list[Row]] = {}
    for case, label in list_programs(quick):
        log(f"{case.name}: compiling {label} for {target.name}, {case.batch:,} runs")
        by_section = rows(case, label, compile_case(case, label, devices), target)
        for section, of_section in by_section.items():
            sections.setdefault(section, []).extend(of_section)
    return report.assemble(quick, begun, sections, compiled_for=target.name)
