"""One round in full; what is stored of runs is recorded by `core.recorders`."""

from typing import Any, NamedTuple

import jax.numpy as jnp
from jax import Array

from cqbjax.core.types import NOBODY, Action, Queue


class Decision(NamedTuple):
    """One round in full, for tests and for looking closely at a run.

    Attributes:
        query: [] int32 arrival round of the served query, 0 where the queue was empty.
        row: [] int32 its table row.
        servers: [K] int32, -1 in place of one that a mixed policy did not show.
        choice: [] int32 position in `servers`, K for a retrial.
        explored: [] bool.
        valid: [] bool whether a query was served.
        regret: [] float of this round.
        state: the policy's state after the round.
    """

    query: Array
    row: Array
    servers: Array
    choice: Array
    explored: Array
    valid: Array
    regret: Array
    state: Any


def decision(
    queue: Queue, action: Action, choice: Array, valid: Array, regret: Array, state: Any
) -> Decision:
    """Record one round in full; fields of attempts are [c, ...] where there are several places."""
    slot = action.slot
    return Decision(
        jnp.where(valid, queue.arrived[slot], 0),
        queue.row[slot],
        action.of_shown(action.servers, NOBODY),
        choice,
        action.explored & valid,
        valid,
        regret,
        state,
    )
