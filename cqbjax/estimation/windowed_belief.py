"""A belief that forgets: two copies learn, and the older one decides.

Every W / 2 attempts the older copy is dropped, the younger takes its place and a new copy starts.
The deciding copy has thus learnt from the last W / 2 to W attempts only: a hopping window. Rows are
never removed from a design matrix or an estimate, so any belief can be windowed.
"""

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from cqbjax.core.types import Observation
from cqbjax.estimation.belief import Belief, Interaction


class WindowedBeliefState(NamedTuple):
    """Two states of the windowed belief.

    Attributes:
        elder: state of the copy that decides.
        younger: state of the copy that replaces the elder.
        attempts: [] int32 number of attempts from which the younger copy has learnt.
        origin: the arguments of `Belief.init`, for a new state.
    """

    elder: Any
    younger: Any
    attempts: Array
    origin: tuple[Array, Array, Array | None]


@dataclasses.dataclass(frozen=True)
class WindowedBelief:
    """A belief (`Belief`) that learns from the last attempts only.

    Attributes:
        belief: belief of both copies, with shapes for W attempts.
        window: W, an even number of attempts.
    """

    belief: Belief
    window: int

    @property
    def least_lambda0(self) -> float:
        """The smallest regularisation for which the estimate has its stated accuracy."""
        return self.belief.least_lambda0

    def init(
        self, contexts: Array, lambda0: Array, offset: Array | None = None
    ) -> WindowedBeliefState:
        """Return two empty beliefs."""
        origin = contexts, lambda0, offset
        begun = self.belief.init(*origin)
        return WindowedBeliefState(begun, begun, jnp.zeros((), jnp.int32), origin)

    def num_updates(self, state: WindowedBeliefState) -> Array:
        """Return the number of updates of each block within the window: [B]."""
        return self.belief.num_updates(state.elder)

    def theta(self, state: WindowedBeliefState, contexts: Array) -> Array:
        """Return the older copy's estimates: [..., B, d]."""
        return self.belief.theta(state.elder, contexts)

    def optimistic_utilities(
        self, state: WindowedBeliefState, observation: Observation, alpha: Array,
        normal: Array | None = None,
    ) -> Array:  # fmt: skip
        """Return the older copy's largest sampled utilities or confidence bounds: [C, N]."""
        return self.belief.optimistic_utilities(state.elder, observation, alpha, normal)

    def update(self, state: WindowedBeliefState, new: Interaction) -> WindowedBeliefState:
        """Add one attempt to both copies; every W / 2 attempts the younger replaces the older."""
        half = self.window // 2
        number = state.attempts + 1
        learnt = WindowedBeliefState(
            self.belief.update(state.elder, new._replace(round=number + half)),
            self.belief.update(state.younger, new._replace(round=number)),
            jnp.where(new.valid, number, state.attempts),
            state.origin,
        )
        # A loop of at most one turn. In a batch it runs where any run's window hops; a `cond` would
        # become a choice between all arrays of both beliefs in every round.
        hops = (learnt.attempts == half).astype(jnp.int32)

        def hop(_: Array, state: WindowedBeliefState) -> WindowedBeliefState:
            begun = self.belief.init(*state.origin)
            return WindowedBeliefState(
                state.younger, begun, jnp.zeros_like(state.attempts), state.origin
            )

        return jax.lax.fori_loop(0, hops, hop, learnt)
