"""The protocol of a belief, and the interaction that it learns from."""

from typing import Any, NamedTuple, Protocol

from jax import Array

from cqbjax.core.types import Observation


class Interaction(NamedTuple):
    """One attempt: the query, the offered servers and the user's choice.

    Attributes:
        round: [] int32 t.
        row: [] int32 table row of the query.
        features: [d] its context (disjoint) or [K, d] features of the offered servers (shared).
        servers: [K] int32 the assortment.
        choice: [] int32 position of the chosen server, K for the outside option.
        valid: [] bool False in a round with an empty queue, which changes nothing.
        offered: [K] bool which of the servers answered; None: all did. The features of the others
            are ignored.
    """

    round: Array
    row: Array
    features: Array
    servers: Array
    choice: Array
    valid: Array
    offered: Array | None = None

    @property
    def learns(self) -> Array:
        """Return which servers' estimates change: [] bool for all of them, or [K] bool."""
        return self.valid if self.offered is None else self.valid & self.offered


class Belief(Protocol):
    """The estimate theta-hat and the Gaussian posterior of every block.

    A belief object holds what is static: shapes and numbers of steps. Its methods take and return a
    state, which changes from round to round. Axis letters are those of `cqbjax.core.types`.
    """

    @property
    def least_lambda0(self) -> float:
        """The smallest regularisation for which the estimate has its stated accuracy."""

    def init(self, contexts: Array, lambda0: Array, offset: Array | None = None) -> Any:
        """Return the state before round 1: V = lambda0 I and theta = 0.

        Args:
            contexts: [I, d] (disjoint) or [I, N, d] (shared), the run's context table.
            lambda0: [] regularisation.
            offset: [I, N] known part of each row's utilities, which then are offset + x'theta.
                None: zero, the only choice for `BlockBelief`.
        """

    def num_updates(self, state: Any) -> Array:
        """Return the number of updates of each block: [B]."""

    def theta(self, state: Any, contexts: Array) -> Array:
        """Return the estimates: [..., B, d], with any leading axes of the state."""

    def optimistic_utilities(
        self, state: Any, observation: Observation, alpha: Array, normal: Array | None = None
    ) -> Array:
        """Return the largest sampled utilities or the upper confidence bounds.

        Args:
            state: state of the belief.
            observation: the round.
            alpha: [B] radius.
            normal: [M, B, d] standard normals z_m of Thompson samples; None: upper confidence
                bounds.

        Returns:
            [C, N] max over m of x' (theta + alpha W z_m), W W' = V^-1, or x'theta +
            alpha ||x||_{V^-1}; arbitrary in a slot without a waiting query.
        """

    def update(self, state: Any, new: Interaction) -> Any:
        """Add one interaction to V and theta-hat of the offered blocks (Alg. 1 lines 10, 11)."""
