"""What a GPU would do in a round, read from the programs that XLA compiles for it: no device.

Three kinds of numbers stand side by side and are named apart: what was **compiled** (kernels,
bytes, memory: the program's own), what is **modelled** (rounds a second, below), and what was
measured, of which there is nothing here.

    seconds a round = kernels x KERNEL_SECONDS + bytes / (BANDWIDTH_SHARE x bandwidth)

The model knows nothing of occupancy, of the device's cache or of CUDA graphs.
"""

import dataclasses
import math
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax

from benchmarks import cases, gpu_target, hlo, report
from benchmarks.gpu_target import Target
from benchmarks.measure import Case
from cqbjax.core.labels import OPTIMAL
from cqbjax.engine import batches, memory, programs

# The model: starting a kernel, and the share of a memory's bandwidth that kernels reach.
KERNEL_SECONDS = 2.2e-6
BANDWIDTH_SHARE = 0.85
# Runs that a program is compiled for, and for which its speed is modelled.
WIDTH, WIDTH_POOL, WIDTH_LARGE = 16_384, 64, 16
MODELLED = (16, 64, 256, 512, 4096, 16_384, 65_536)
# Rounds: enough for several a record.
HORIZON = 1000
LARGEST_KERNELS = 8
# Those that share ACQB's program at d = 5 are left out.
ALONE = ("acqb_ucb", "q_ucb", "q_ths", "random", OPTIMAL)

Row = dict[str, Any]


class Compiled(NamedTuple):
    """A program compiled for a target, in JSON values.

    Attributes:
        width: runs.
        slots: of the queue.
        turns: of the loops over records and, within it, over rounds.
        seconds: spent on compiling it and what draws and starts its runs.
        argument_bytes: what goes in: policies, instances, carries, tables.
        result_bytes: what comes out elsewhere than in an argument's place.
        temporary_bytes: what it needs meanwhile.
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
        """The loop over records, which holds the loop over rounds."""
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


def compiled(case: Case, label: str, devices: Sequence[jax.Device]) -> Compiled:
    """Compile a policy of a case for a device, at the case's batch.

    Raises:
        ValueError: the case's horizon leaves no loop over rounds within one over records.
    """
    group = dataclasses.replace(case, policies={label: case.policies[label]}).group(label)
    slots = group.initial_slots()
    shape = batches.SweepPlan((group,), case.batch, tuple(devices), 0).program_spec(group, slots)
    turns = shape.per_call, shape.every
    if min(turns) < 2:
        raise ValueError(f"horizon={case.horizon} must leave several rounds a record, and records")
    begun = time.perf_counter()
    program = programs.compile_one(shape).advance
    seconds = time.perf_counter() - begun
    sizes = program.memory_analysis()
    results = sizes.output_size_in_bytes - sizes.alias_size_in_bytes
    # All that is given, on the device throughout: the program's own figure leaves out what it does
    # not read, as contexts over a pool or of a policy that sees none.
    arguments = sum(
        math.prod(a.shape) * a.dtype.itemsize for a in jax.tree.leaves(program.args_info)
    )
    return Compiled(
        shape.width, slots, turns, seconds, arguments, results,
        sizes.temp_size_in_bytes, program.as_text(),
    )  # fmt: skip


def main_programs(quick: bool) -> list[tuple[Case, str]]:
    """Return the programs to compile: ACQB of every problem, then the baselines at d = 5.

    Args:
        quick: only ACQB, at few runs and on small problems.
    """
    problems = list(cases.problems(quick).values())
    if not quick:
        # Too slow to be timed on a CPU.
        problems.append(
            dataclasses.replace(problems[-1], name="d=384 N=112 K=2", assortment_size=2)
        )
    to_compile = []
    for problem in problems:
        case = dataclasses.replace(problem, horizon=HORIZON)
        large = case.bytes_a_run("acqb") > 50_000_000
        width = WIDTH_LARGE if large else WIDTH_POOL if case.source.problem(1, 1).pooled else WIDTH
        to_compile.append((dataclasses.replace(case, batch=64 if quick else width), "acqb"))
    if quick:
        return to_compile
    first, _ = to_compile[0]
    for label in ALONE:
        crowded = {"capacity": cases.CROWDED_SLOTS} if label in cases.CROWDED else {}
        own = {label: cases.BASELINES[label]}
        case = dataclasses.replace(first, policies=own, **crowded)  # type: ignore[arg-type]
        to_compile.append((case, label))
    return to_compile


def round_seconds(kernels: float, moved: float, target: Target) -> float:
    """Return the modelled seconds of a round of so many kernels that touch so many bytes."""
    return kernels * KERNEL_SECONDS + moved / (BANDWIDTH_SHARE * target.bytes_a_second)


def rows(case: Case, label: str, program: Compiled, target: Target) -> dict[str, list[Row]]:
    """Return the rows of one program by section of the report."""
    name, planned = case.name, case.bytes_a_run(label)
    record, width = program.record, program.width
    (one,) = record.loops
    kernels, of_all = one.work
    turn, of_all_a_turn = one.work_a_turn
    moved, moved_a_turn = of_all / width, of_all_a_turn / width
    head = {"case": name, "policy": label, "width": width, "slots": program.slots}
    a_run = program.bytes / width
    widest = min(int(target.memory // a_run), memory.GPU_WIDTH)
    speeds = {}
    for runs in MODELLED:
        seconds = round_seconds(kernels + turn, (moved + moved_a_turn) * runs, target)
        speeds[f"at {runs:,}"] = runs / seconds if runs <= widest else None
    largest = [
        {"case": name, "policy": label, "kernel": kernel.name, "shape": kernel.plain_shape,
         "bytes_a_round_run": kernel.bytes / width, "written_a_run": kernel.fresh / width}
        for kernel in one.largest[:LARGEST_KERNELS]
    ]  # fmt: skip
    counted = {
        "kernels_a_round": kernels, "kernels_a_record": len(record.kernels),
        "bytes_a_round_run": moved, "kernels_a_turn": turn, "bytes_a_turn_run": moved_a_turn,
        "temporary_bytes": program.temporary_bytes, "compile_seconds": program.seconds,
    }  # fmt: skip
    sizes = {
        "bytes_a_run": int(a_run), "planned_bytes_a_run": planned, "planned_share": planned / a_run,
        "temporary_share": program.temporary_bytes / program.bytes,
        "widest": widest,
    }  # fmt: skip
    return {
        "programs": [head | counted],
        "speed": [{"case": name, "policy": label, "widest": widest} | speeds],
        "memory": [head | sizes],
        "kernels": largest,
    }


def run(target: Target, quick: bool, say: Callable[[str], None] = print) -> dict[str, Any]:
    """Compile the main programs for a target and return the report, JSON values only.

    Args:
        target: the device.
        quick: few programs at few runs: does all work?
        say: is told what comes next.

    Raises:
        gpu_target.Absent: the wheels are not installed.
    """
    devices, begun = gpu_target.devices(target), time.perf_counter()
    sections: dict[str, list[Row]] = {}
    for case, label in main_programs(quick):
        say(f"{case.name}: compiling {label} for {target.name}, {case.batch:,} runs")
        own = rows(case, label, compiled(case, label, devices), target)
        for section, of_section in own.items():
            sections.setdefault(section, []).extend(of_section)
    return report.made(quick, begun, sections, compiled_for=target.name)
