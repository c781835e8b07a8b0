"""LinUCB and LinTS: linear bandits that see a query's context, and no queue."""

from typing import Literal, NamedTuple

import jax.numpy as jnp
from jax import Array

from cqbjax.core import mnl, queueing, rng
from cqbjax.core.inputs import is_number
from cqbjax.core.pytree import check_options, pytree, static
from cqbjax.core.types import Action, Feedback, Observation, Problem
from cqbjax.policies.picking import of_available


class Ridge(NamedTuple):
    """A ridge regression of accepted answers on features, a block of parameters by itself.

    Attributes:
        inverse: [B, d, d] A^-1, where A = lambda0 I + sum of x x'.
        target: [B, d] sum of x r.
    """

    inverse: Array
    target: Array


@pytree
class Linear:
    """LinUCB (Li et al. 2010, disjoint) or LinTS (Agrawal and Goyal 2013), first come first served.

    A reward r is 1 for a chosen answer and 0 for one that was shown and not chosen. The index of
    server j for the oldest query is x'A_j^-1 b_j + alpha ||x||_{A_j^-1} (`ucb`), or a draw from the
    normal distribution of that mean and deviation (`thompson`): of one query, that is what a draw
    of theta_j gives.

    Attributes:
        index: `ucb` or `thompson`.
        alpha: how much is hoped for what is not known.
        lambda0: regularisation, A = lambda0 I at first.
    """

    index: Literal["ucb", "thompson"] = static(default="ucb")
    alpha: Array | float = 0.5
    lambda0: Array | float = 1.0

    def check(self, problem: Problem) -> None:
        """Refuse an unknown index and numbers out of range.

        Raises:
            ValueError: naming the setting and what is allowed.
        """
        check_options(self)
        if not is_number(self.alpha) or not 0 <= float(self.alpha) < float("inf"):
            raise ValueError(f"alpha={self.alpha} must be a finite number and not negative")
        if not is_number(self.lambda0) or not 0 < float(self.lambda0) < float("inf"):
            raise ValueError(f"lambda0={self.lambda0} must be a finite number above 0")

    def init(self, problem: Problem, contexts: Array) -> Ridge:
        """Return A^-1 = I / lambda0 and b = 0."""
        blocks, dim = problem.num_blocks, problem.dim
        one = jnp.eye(dim) / self.lambda0
        return Ridge(jnp.broadcast_to(one, (blocks, dim, dim)), jnp.zeros((blocks, dim)))

    def select(self, key: Array, state: Ridge, observation: Observation) -> Action:
        """Serve the oldest query by the servers of the highest indices."""
        problem = observation.problem
        slot = queueing.pick("oldest", observation.queue, jnp.zeros(()))
        features = observation.features[slot]
        # x' A_j^-1: [N, d], of the one block or of each server's own.
        along = (
            jnp.einsum("bij,j->bi", state.inverse, features)
            if problem.parameters == "disjoint"
            else features @ state.inverse[0]
        )
        mean = jnp.sum(along * state.target, axis=-1)
        width = jnp.sqrt(jnp.maximum(jnp.sum(along * features, axis=-1), 0.0))
        hope = jnp.ones(()) if self.index == "ucb" else self._drawn(key, problem)
        index = of_available(mean + self.alpha * hope * width, observation)
        servers = mnl.best_servers(index, problem.assortment_size)
        return Action(slot, servers, jnp.bool_(False))

    def _drawn(self, key: Array, problem: Problem) -> Array:
        return rng.normals(key, rng.Stream.NORMAL, (problem.num_servers,))

    def update(
        self, state: Ridge, observation: Observation, action: Action, feedback: Feedback
    ) -> Ridge:
        """Add what was shown, by the Sherman-Morrison formula."""
        problem, features = observation.problem, observation.features[action.slot]
        inverse, target = state
        learnt = jnp.broadcast_to(feedback.valid, action.servers.shape)
        weights = action.mask_hidden(learnt, False).astype(float)
        for place in range(problem.assortment_size):
            weight = weights[place]
            server = action.servers[place]
            shared = problem.parameters == "shared"
            x, block = (features[server], 0) if shared else (features, server)
            along = inverse[block] @ x
            less = weight * jnp.outer(along, along) / (1.0 + x @ along)
            inverse = inverse.at[block].add(-less)
            target = target.at[block].add(weight * (feedback.choice == place) * x)
        return Ridge(inverse, target)
