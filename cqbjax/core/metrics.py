"""What is recorded inside the scan."""

from typing import Any, NamedTuple

import jax.numpy as jnp
from jax import Array

from cqbjax.core import mnl
from cqbjax.core.types import Action, Feedback, Observation


class Totals(NamedTuple):
    """Running sums of one run, recorded at the end of every recorded round.

    Attributes:
        queue_length: [] int32 Q(t+1), queries waiting after the round.
        regret: [] float cumulative regret up to round t, in departure probability.
        departures: [] int32 queries that left so far.
        explored: [] int32 rounds of forced exploration so far.
    """

    queue_length: Array
    regret: Array
    departures: Array
    explored: Array


class Decision(NamedTuple):
    """One round in full, for tests and for looking closely at a run.

    Attributes:
        query: [] int32 arrival round of the served query, 0 where the queue was empty.
        row: [] int32 its table row.
        servers: [K] int32.
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


def zero() -> Totals:
    """Return the totals before round 1."""
    count = jnp.zeros((), jnp.int32)
    return Totals(count, jnp.zeros(()), count, count)


def round_regret(utilities: Array, servers: Array, valid: Array) -> Array:
    """Return R(x_t, S*(x_t)) - R(x_t, S_t), zero for the dummy job of an empty queue.

    Args:
        utilities: [N] true utilities of the served query.
        servers: [K] the assortment.
        valid: [] bool whether a query was served.
    """
    best = mnl.best_servers(utilities, servers.shape[0])
    lost = mnl.departure_rate(utilities[best]) - mnl.departure_rate(utilities[servers])
    return jnp.where(valid, jnp.maximum(lost, 0.0), 0.0)


def add(
    totals: Totals, queue_length: Array, regret: Array, departed: Array, explored: Array
) -> Totals:
    """Add one round."""
    return Totals(
        queue_length,
        totals.regret + regret,
        totals.departures + departed,
        totals.explored + explored,
    )


def decision(
    observation: Observation, action: Action, feedback: Feedback, regret: Array, state: Any
) -> Decision:
    """Record one round in full."""
    queue, slot = observation.queue, action.slot
    return Decision(
        jnp.where(feedback.valid, queue.arrived[slot], 0),
        queue.row[slot],
        action.servers,
        feedback.choice,
        action.explored & feedback.valid,
        feedback.valid,
        regret,
        state,
    )
