"""Belief that forgets: of two that learn, the elder is asked, and every W / 2 attempts is dropped.

The younger then takes its place and a new one begins, so that what is asked has learnt from the
last W / 2 to W attempts and from nothing before: a window that hops. Neither the design matrix nor
the estimate ever has to take a row back, so whatever belief there is can be held in a window.
"""

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from cqbjax.core.types import Observation, Problem
from cqbjax.estimation.protocol import Belief
from cqbjax.estimation.rows import Row


class WindowedState(NamedTuple):
    """Two states of the belief that is windowed.

    Attributes:
        elder: the one that is asked.
        younger: the one that takes its place.
        attempts: [] int32, from how many the younger has learnt.
        origin: the arguments of `Belief.init`, from which a new one begins.
    """

    elder: Any
    younger: Any
    attempts: Array
    origin: tuple[Array, Array, Array | None]


@dataclasses.dataclass(frozen=True)
class Windowed:
    """A belief (`Belief`) in the last attempts alone.

    Attributes:
        belief: how both are kept, with room for W attempts (`room`).
        window: W, even.
    """

    belief: Belief
    window: int

    @property
    def least_lambda0(self) -> float:
        """The least regularisation at which the estimate is held to its accuracy."""
        return self.belief.least_lambda0

    def init(self, contexts: Array, lambda0: Array, offset: Array | None = None) -> WindowedState:
        """Return two beliefs that know nothing."""
        origin = contexts, lambda0, offset
        begun = self.belief.init(*origin)
        return WindowedState(begun, begun, jnp.zeros((), jnp.int32), origin)

    def learnt(self, state: WindowedState) -> Array:
        """Return from how many attempts of the window each block was learnt: [B]."""
        return self.belief.learnt(state.elder)

    def theta(self, state: WindowedState, contexts: Array) -> Array:
        """Return the elder's estimates: [B, d]; any leading axes of the state are kept."""
        return self.belief.theta(state.elder, contexts)

    def sampled(
        self, state: WindowedState, observation: Observation, alpha: Array, normal: Array
    ) -> Array:
        """Return the elder's largest sampled utilities: [C, N]."""
        return self.belief.sampled(state.elder, observation, alpha, normal)

    def bounded(self, state: WindowedState, observation: Observation, alpha: Array) -> Array:
        """Return the elder's upper confidence bound: [C, N]."""
        return self.belief.bounded(state.elder, observation, alpha)

    def update(self, state: WindowedState, new: Row) -> WindowedState:
        """Absorb one attempt in both; after W / 2 of them the younger is the elder."""
        half = self.window // 2
        number = state.attempts + 1
        learnt = WindowedState(
            self.belief.update(state.elder, new._replace(round=number + half)),
            self.belief.update(state.younger, new._replace(round=number)),
            jnp.where(new.valid, number, state.attempts),
            state.origin,
        )
        # A loop of one turn or none. In a batch it turns where any run's window hops; a `cond`
        # would become a choice of all that both beliefs hold, in every round.
        hops = (learnt.attempts == half).astype(jnp.int32)
        return jax.lax.fori_loop(0, hops, lambda _, state: self._hopped(state), learnt)

    def _hopped(self, state: WindowedState) -> WindowedState:
        """Drop the elder and begin a new one."""
        begun = self.belief.init(*state.origin)
        return state._replace(
            elder=state.younger, younger=begun, attempts=jnp.zeros_like(state.attempts)
        )


def room(problem: Problem, window: int) -> Problem:
    """Return the shapes of a belief that has room for W attempts, and not for all of a run."""
    return problem._replace(horizon=-(-window // problem.places))
