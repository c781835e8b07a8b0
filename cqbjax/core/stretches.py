"""Rounds in a stretch whose length is a number, so that another one is no other program."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from cqbjax.core import recorders, simulate
from cqbjax.core.carry import Carry
from cqbjax.core.instances import Instance
from cqbjax.core.recorders import Recorder
from cqbjax.core.types import Policy, Problem


class Stretch(NamedTuple):
    """Some rounds of a run.

    Attributes:
        first: [] int32 the first of them.
        every: [] int32 rounds a record.
        records: [] int32 how many records.
    """

    first: Any
    every: Any
    records: Any


def advance(
    policy: Policy, problem: Problem, instance: Instance, carry: Carry, stretch: Stretch,
    room: int, recording: Sequence[Recorder],
) -> tuple[Carry, dict[str, Any]]:  # fmt: skip
    """Do what `simulate.advance` does, round by round the same.

    Args:
        policy: decides and learns.
        problem: shapes.
        instance: the run's fixed part.
        carry: the state before the stretch.
        stretch: which rounds.
        room: records that a stretch may have at most.
        recording: what is recorded.

    Returns:
        The state afterwards, and by name what recorders read: [room, ...] of those read at
        recorded rounds, of which the first `stretch.records` count; [...] of those of a run.
    """

    def round_of(round_: Array, carry: Carry) -> Carry:
        return simulate.run_round(policy, problem, instance, carry, round_, recording)[0]

    def record(number: Array, kept: tuple[Carry, dict[str, Any]]) -> tuple[Carry, dict[str, Any]]:
        carry, read = kept
        start = stretch.first + number * stretch.every
        carry = jax.lax.fori_loop(start, start + stretch.every, round_of, carry)
        new = recorders.read(recording, carry.recorded, "round")
        return carry, {name: read[name].at[number].set(new[name]) for name in read}

    none = jax.eval_shape(lambda: recorders.read(recording, carry.recorded, "round"))
    empty = {name: jnp.zeros((room, *one.shape), one.dtype) for name, one in none.items()}
    carry, by_round = jax.lax.fori_loop(0, stretch.records, record, (carry, empty))
    return carry, by_round | recorders.read(recording, carry.recorded, "run")
