"""What programs have room for: on a CPU runs of fewer rounds share those of more."""

from collections.abc import Iterator

from cqbjax.core import contract
from cqbjax.core.types import Problem
from cqbjax.engine import memory
from cqbjax.engine.chunks import records_alike
from cqbjax.engine.groups import Group

# Rounds. Longer runs take longer than compiling.
ROOMS = (512, 2048, 8192)


def of(group: Group, slots: int, bytes_a_run: int) -> Problem | None:
    """Return the shapes that the programs of a group have room for; None: of its own alone.

    Rounds that are not run take nothing but memory. What is recorded of a run, and what a class
    none of this package's makes of the horizon, follows from its own.

    Args:
        group: what runs.
        slots: of the queue.
        bytes_a_run: what a run may take.
    """
    return next(_rooms(group, slots, min(bytes_a_run, memory.CPU_BYTES_ALONE)), None)


def _rooms(group: Group, slots: int, most: int) -> Iterator[Problem]:
    """Yield the shapes that are large enough, and no larger than may be."""
    part = group.part
    own, source = part.problem, part.source
    plain = own.places == own.arrivals_a_round == 1 and getattr(source, "extends", False)
    if not plain or contract.is_foreign(group.one):
        return
    for rounds in (rounds for rounds in ROOMS if rounds >= own.horizon):
        room = source.problem(own.assortment_size, rounds)
        # A policy may bring tables of the run's rows, and is then defined for no other room.
        if (
            contract.refusal(group.one, room) is None
            and records_alike(part.recorders, own, room)
            and group.run_bytes(slots, room) <= most
        ):
            yield room
