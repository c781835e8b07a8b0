"""What a sweep will run, decided once before anything compiles: its groups, and their sizes."""

import dataclasses
from collections.abc import Sequence

import jax

from cqbjax.core.pytree import kind_of
from cqbjax.engine import memory, rooms
from cqbjax.engine.groups import Group, grouped, row
from cqbjax.engine.parts import Part
from cqbjax.engine.programs import Shape


@dataclasses.dataclass(frozen=True)
class Plan:
    """One sweep, its sizes chosen.

    Attributes:
        parts: what it shows.
        groups: what runs, each a program and a batch.
        chunk: runs a device batches at once; None leaves it to the memory.
        devices: where runs go.
        bytes_a_device: what the runs of one device may fill.
    """

    parts: tuple[Part, ...]
    groups: tuple[Group, ...]
    chunk: int | None
    devices: tuple[jax.Device, ...]
    bytes_a_device: int

    def shape(self, group: Group, slots: int) -> Shape:
        """Return what the programs of a group at this many slots depend on."""
        problem, records = group.part.problem, group.part.records
        width = self.chunk or memory.width(
            group.run_bytes(slots), len(group.runs.seed), group.runs_a_label, self.devices,
            self.bytes_a_device, memory.spare(problem),
        )  # fmt: skip
        on_cpu = self.devices[0].platform == "cpu"
        room = rooms.of(group, slots, self.bytes_a_device // width) if on_cpu else None
        return Shape(
            self.devices, width, problem, kind_of(row(group.numbers, 0)),
            kind_of(group.tables), kind_of(group.one), slots, records.per_call, records.every,
            group.part.recorders, room,
        )  # fmt: skip

    def describe(self, group: Group, slots: int, runs: int) -> str:
        """Say in a line what some runs of a group will take: bytes a run, runs a chunk, chunks."""
        size, count = group.run_bytes(slots), len(self.devices)
        chunk = self.shape(group, slots).batch
        return (
            f"{', '.join(group.labels)}: {runs:,} runs of {size / 1e6:,.2f} MB, {chunk:,} a chunk "
            f"on {count} device{'s' if count > 1 else ''} ({chunk * size / 1e6:,.0f} MB), "
            f"{-(-runs // chunk):,} chunk{'s' if runs > chunk else ''}, {slots} queue slots"
        )


def make(
    parts: Sequence[Part],
    chunk: int | None = None,
    memory_gb: float | None = None,
    devices: Sequence[jax.Device] | None = None,
) -> Plan:
    """Plan a sweep; chunk, memory_gb and devices are as in `sweep`."""
    devices = devices or jax.devices()
    groups = tuple(grouped(parts))
    return Plan(tuple(parts), groups, chunk, tuple(devices), memory.budget(memory_gb, devices))
