"""Recorders of the queue and of the policy's decisions.

Every run has `QueueLength`, `Regret`, `Departures` and `Exploration`. The other recorders are
optional.
"""

import dataclasses

import jax
import jax.numpy as jnp
from jax import Array

from cqbjax.core import linalg, mnl
from cqbjax.core.recorders.protocol import Recorder, Round, Sums
from cqbjax.core.types import DOWN_UTILITY, Action, Problem, mask_unoffered


@dataclasses.dataclass(frozen=True)
class QueueLength(Recorder):
    """The queue's length after the round."""

    name, label, unit, better = "queue_length", "Queue length", "queries", "less"

    def update(self, state: Array, round_: Round) -> Array:
        """Store the current length."""
        return round_.length


def round_regret(utilities: Array, action: Action, valid: Array) -> Array:
    """Return R(x_t, S*(x_t)) - R(x_t, S_t), or zero if the queue is empty.

    S* has K servers, also if S_t has fewer. With c > 1 channels, the arguments and the result have
    a leading axis [c].

    Args:
        utilities: [N] true utilities of the served query.
        action: the assortment, [K].
        valid: [] bool whether a query was served.
    """
    if valid.ndim:
        return jax.vmap(round_regret)(utilities, action, valid)
    best = mnl.best_servers(utilities, action.servers.shape[0])
    offered = mask_unoffered(action.offered, utilities[action.servers], DOWN_UTILITY)
    regret = mnl.departure_rate(utilities[best]) - mnl.departure_rate(offered)
    return jnp.where(valid, jnp.maximum(regret, 0.0), 0.0)


@dataclasses.dataclass(frozen=True)
class Regret(Recorder):
    """Cumulative regret in departure probability.

    If no server answers a selection, its regret is that of an empty assortment.
    """

    name, label, unit, better = "regret", "Cumulative regret", "expected departures", "less"

    def start(self, problem: Problem) -> Sums:
        """Return an empty compensated sum."""
        return jnp.zeros(()), jnp.zeros(())

    def update(self, state: Sums, round_: Round) -> Sums:
        """Add the regret of the round."""
        selected = round_.valid
        if round_.unanswered is not None:
            selected = selected | round_.unanswered
        return linalg.add_compensated(
            *state, jnp.sum(round_regret(round_.utilities, round_.action, selected))
        )

    def read(self, state: Sums) -> Array:
        """Return the sum."""
        return state[0]


@dataclasses.dataclass(frozen=True)
class Departures(Recorder):
    """Departures so far."""

    name, label, unit, better = "departures", "Departures so far", "queries", "more"

    def update(self, state: Array, round_: Round) -> Array:
        """Count the queries that departed."""
        return state + jnp.sum(round_.departed, dtype=jnp.int32)


@dataclasses.dataclass(frozen=True)
class Exploration(Recorder):
    """Rounds of forced exploration so far, not counting rounds with an empty queue."""

    name, label, unit, better = "explored", "Explored rounds so far", "rounds", ""

    def update(self, state: Array, round_: Round) -> Array:
        """Count forced explorations."""
        return state + jnp.sum(round_.action.explored & round_.valid, dtype=jnp.int32)


def in_service(round_: Round) -> Array:
    """Return how many attempts continue after a round: [] int32."""
    if round_.in_service is None:
        return jnp.zeros((), jnp.int32)
    return jnp.sum(round_.in_service, dtype=jnp.int32)


@dataclasses.dataclass(frozen=True)
class QueriesInService(Recorder):
    """Queries in service at the end of the round."""

    name, label, unit = "in_service", "In service", "queries"

    def update(self, state: Array, round_: Round) -> Array:
        """Store the current number."""
        return in_service(round_)


@dataclasses.dataclass(frozen=True)
class OrbitSize(Recorder):
    """Queries in the retrial orbit: in the system, but neither waiting nor in service."""

    name, label, unit = "away", "Away", "queries"

    def update(self, state: Array, round_: Round) -> Array:
        """Store the current number."""
        present = jnp.sum(round_.after.arrived > 0, dtype=jnp.int32)
        return present - round_.length - in_service(round_)


@dataclasses.dataclass(frozen=True)
class LargestWait(Recorder):
    """The longest that any query has been in the system so far."""

    name, label, unit, better = "largest_wait", "Largest time in system", "rounds", "less"

    def update(self, state: Array, round_: Round) -> Array:
        """Compare with the oldest query in the system."""
        present = round_.before.arrived > 0
        oldest = jnp.max(jnp.where(present, round_.round - round_.before.arrived, 0))
        return jnp.maximum(state, oldest)
