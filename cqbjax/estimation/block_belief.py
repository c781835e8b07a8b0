"""The belief by blocks: a square root of V inverse and a running estimate of each block."""

import dataclasses
from functools import reduce
from typing import NamedTuple

import jax.numpy as jnp
from jax import Array

from cqbjax.core import linalg
from cqbjax.core.types import Observation, Problem
from cqbjax.estimation import gaussian, running_estimate
from cqbjax.estimation.belief import Interaction
from cqbjax.estimation.gaussian import Posterior
from cqbjax.estimation.running_estimate import RunningEstimate


class BlockBeliefState(NamedTuple):
    """Posterior and estimate.

    Attributes:
        posterior: W and the counts of every block.
        estimate: the estimator's own state; its `theta` is [B, d].
    """

    posterior: Posterior
    estimate: RunningEstimate


@dataclasses.dataclass(frozen=True)
class BlockBelief:
    """The belief by blocks (`Belief`), estimated by `running`.

    Attributes:
        problem: shapes.
        exact_steps: 0: in each round, visit one page (some of the rows) of the history of each
            offered block; n > 0: visit all pages, n times per round.
        sweeps: how often, at the end of a round, the next page of every block is visited and all
            blocks take a joint Newton step.
    """

    problem: Problem
    exact_steps: int = 0
    sweeps: int = 0

    least_lambda0 = running_estimate.LEAST_LAMBDA0

    def init(
        self, contexts: Array, lambda0: Array, offset: Array | None = None
    ) -> BlockBeliefState:
        """Return V = lambda0 I and theta = 0, whatever the contexts."""
        assert offset is None, "only `TableBelief` takes an offset"
        posterior = gaussian.init(self.problem, lambda0)
        return BlockBeliefState(posterior, running_estimate.init(self.problem, lambda0))

    def num_updates(self, state: BlockBeliefState) -> Array:
        """Return the number of updates of each block: [B]."""
        return state.posterior.num_updates

    def theta(self, state: BlockBeliefState, contexts: Array) -> Array:
        """Return the estimates: [..., B, d], with any leading axes of the state."""
        return state.estimate.theta

    def optimistic_utilities(
        self, state: BlockBeliefState, observation: Observation, alpha: Array,
        normal: Array | None = None,
    ) -> Array:  # fmt: skip
        """Return the largest sampled utilities or the upper confidence bounds: [C, N]."""
        features, theta = observation.features, state.estimate.theta
        if normal is None:
            return inner(features, theta) + alpha * gaussian.spread(state.posterior, features)
        drawn = gaussian.sample(state.posterior, theta, alpha, normal)
        return largest_inner(features, drawn)

    def update(self, state: BlockBeliefState, new: Interaction) -> BlockBeliefState:
        """Add one interaction to V, then to the estimate."""
        posterior = gaussian.observe(state.posterior, self.problem, new)
        estimate = running_estimate.update(state.estimate, self.problem, new, self.exact_steps)
        if self.sweeps:
            estimate = running_estimate.sweep(estimate, self.problem, new, self.sweeps)
        return BlockBeliefState(posterior, estimate)


def inner(features: Array, theta: Array) -> Array:
    """Return x_c' theta_j for every slot and server: [C, N].

    Args:
        features: [C, d] (disjoint) or [C, N, d] (shared).
        theta: [B, d].
    """
    if features.shape[-1] > linalg.SMALL:
        if features.ndim == 3:
            return features @ theta[0]
        return features @ theta.T
    slots_last = jnp.moveaxis(features, 0, -1)
    if features.ndim == 2:
        slots_last = slots_last[None]
    parts = [slots_last[:, i] * theta[:, i, None] for i in range(theta.shape[-1])]
    return linalg.add_barrier(reduce(jnp.add, parts)).T


def largest_inner(features: Array, drawn: Array) -> Array:
    """Return max_m x_c' theta~_mj of every slot and server: [C, N].

    Args:
        features: [C, d] (disjoint) or [C, N, d] (shared).
        drawn: [M, B, d].
    """
    if features.shape[-1] > linalg.SMALL or features.ndim == 3:
        return reduce(jnp.maximum, [inner(features, one) for one in drawn])
    # One server at a time: one kernel then runs along the slots with the samples of that server.
    servers = [
        reduce(jnp.maximum, [linalg.vecmat(one, features.T) for one in samples])
        for samples in jnp.swapaxes(drawn, 0, 1)
    ]
    return linalg.add_barrier(jnp.stack(servers)).T
