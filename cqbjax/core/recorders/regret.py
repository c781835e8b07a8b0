"""Cumulative regret: sum over rounds of R(x_t, S*(x_t)) - R(x_t, S_t)."""

import dataclasses

import jax
import jax.numpy as jnp
from jax import Array

from cqbjax.core import linalg, mnl
from cqbjax.core.recorders.protocol import Recorder, Round, Sums
from cqbjax.core.types import DOWN, Action, Problem


def of_round(utilities: Array, action: Action, valid: Array) -> Array:
    """Return R(x_t, S*(x_t)) - R(x_t, S_t), zero for the dummy job of an empty queue.

    S* has K servers, also where fewer were shown.

    Args:
        utilities: [N] true utilities of the served query.
        action: the assortment, [K].
        valid: [] bool whether a query was served.
    """
    best = mnl.best_servers(utilities, action.servers.shape[0])
    shown = action.of_shown(utilities[action.servers], DOWN)
    lost = mnl.departure_rate(utilities[best]) - mnl.departure_rate(shown)
    return jnp.where(valid, jnp.maximum(lost, 0.0), 0.0)


def of_attempts(utilities: Array, action: Action, valid: Array) -> Array:
    """Return `of_round` of the one attempt, or of each of several: [], or [c]."""
    return (jax.vmap(of_round) if valid.ndim else of_round)(utilities, action, valid)


@dataclasses.dataclass(frozen=True)
class Regret(Recorder):
    """Regret so far, in departure probability; of a query that no server answers too."""

    name, label, unit, better = "regret", "Cumulative regret", "expected departures", "less"

    def start(self, problem: Problem) -> Sums:
        """Return an empty compensated sum."""
        del problem
        return jnp.zeros(()), jnp.zeros(())

    def update(self, state: Sums, round_: Round) -> Sums:
        """Add the round's."""
        picked = round_.valid
        if round_.unanswered is not None:
            picked = picked | round_.unanswered
        return linalg.add(*state, jnp.sum(of_attempts(round_.utilities, round_.action, picked)))

    def read(self, state: Sums) -> Array:
        """Return the sum."""
        return state[0]
