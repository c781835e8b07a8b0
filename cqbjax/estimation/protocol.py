"""What a belief offers to the policy that holds it."""

from typing import Any, Protocol

from jax import Array

from cqbjax.core.types import Observation
from cqbjax.estimation.rows import Row


class Belief(Protocol):
    """How the estimate theta-hat and the Gaussian posterior of every block are kept.

    A belief holds what is static, the shapes and the number of steps; what changes from round to
    round is a state of its own that its methods take and return. Axis letters are those of
    `cqbjax.core.types`.
    """

    @property
    def least_lambda0(self) -> float:
        """The least regularisation at which the estimate is held to its accuracy."""

    def init(self, contexts: Array, lambda0: Array, offset: Array | None = None) -> Any:
        """Return the state before round 1: V = lambda0 I and theta = 0.

        Args:
            contexts: [I, d] (disjoint) or [I, N, d] (shared), the run's context table.
            lambda0: [] regularisation.
            offset: [I, N] what is known of each row's utilities beforehand: they are then
                offset + x'theta. None is none, and all that `Blocks` takes.
        """

    def learnt(self, state: Any) -> Array:
        """Return in how many rounds each block was learnt from: [B]."""

    def theta(self, state: Any, contexts: Array) -> Array:
        """Return the estimates: [B, d]; any leading axes of the state are kept."""

    def sampled(self, state: Any, observation: Observation, alpha: Array, normal: Array) -> Array:
        """Return the largest of M sampled utilities of every slot and server.

        Args:
            state: the belief's.
            observation: the round.
            alpha: [B] radius.
            normal: [M, B, d] standard normals.

        Returns:
            [C, N] max over m of x' (theta + alpha W z_m), W W' = V^-1; what stands in a slot
            without a waiting query means nothing.
        """

    def bounded(self, state: Any, observation: Observation, alpha: Array) -> Array:
        """Return the upper confidence bound x'theta + alpha ||x||_{V^-1}: [C, N], as `sampled`."""

    def update(self, state: Any, new: Row) -> Any:
        """Absorb one round: V and theta-hat of the shown blocks (Algorithm 1 lines 10 and 11)."""
