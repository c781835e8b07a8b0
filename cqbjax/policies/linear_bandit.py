"""LinUCB and LinTS: linear bandits that use the query's context."""

import functools
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from cqbjax.core import mnl, queueing, rng
from cqbjax.core.inputs import check_interval
from cqbjax.core.pytree import pytree, static
from cqbjax.core.types import Action, Feedback, Needs, Observation, Problem, mask_unoffered
from cqbjax.policies import retries
from cqbjax.policies.assortments import choose_query_and_servers, draw_tie
from cqbjax.policies.retries import Tally


class Ridge(NamedTuple):
    """Ridge regressions of accepted answers on features, one for each parameter block.

    Attributes:
        inverse: [B, d, d] A^-1, where A = lambda0 I + sum of x x'.
        target: [B, d] sum of x r.
        tally: outcomes by prompt for `retry="cache"`, else None.
    """

    inverse: Array
    target: Array
    tally: Tally | None = None


@pytree
class LinearBandit:
    """LinUCB (Li et al. 2010, disjoint) or LinTS (Agrawal and Goyal 2013).

    A reward r is 1 for a chosen answer and 0 for one that was offered and not chosen. For a query x
    and server j, let m_j = x'A_j^-1 b_j and s_j = alpha ||x||_{A_j^-1}. The index is m_j + s_j
    (`ucb`), or a draw with mean m_j and standard deviation s_j (`thompson`). With disjoint
    parameters, a round draws one standard normal z_j for each server, and every query gets
    m_j + s_j z_j. For a single query this index has the distribution of x'theta_j, with theta_j
    drawn from N(A_j^-1 b_j, alpha^2 A_j^-1). With a shared parameter one theta, drawn from
    N(A^-1 b, alpha^2 A^-1), gives the indices x_j'theta of all servers and queries.

    Attributes:
        index: `ucb` or `thompson`.
        alpha: exploration weight.
        lambda0: regularisation, initially A = lambda0 I.
        schedule: the queue rule that picks the query, or `joint`, which picks the query with the
            best index. With `joint` and disjoint parameters, `thompson` makes one normal draw for
            each server and uses it for all queries.
        retry: how a query that returns is routed: `same`, `fallback` or `cache` (`retries.Retry`).
            The other retry rules need log-odds, which this index is not.
    """

    index: Literal["ucb", "thompson"] = static(default="ucb")
    alpha: Array | float = 0.5
    lambda0: Array | float = 1.0
    schedule: queueing.Schedule = static(default="oldest")
    retry: Literal["same", "fallback", "cache"] = static(default="same")

    @property
    def needs(self) -> Needs:
        """Return what the retry rule needs."""
        return Needs(offer_counts=retries.needs_offer_counts(self.retry))

    def check(self, problem: Problem) -> None:
        """Validate the settings.

        Raises:
            ValueError: naming the setting and what is allowed.
        """
        check_interval(self, "[0, inf)", "alpha")
        check_interval(self, "(0, inf)", "lambda0")

    def init(self, problem: Problem, contexts: Array) -> Ridge:
        """Return A^-1 = I / lambda0 and b = 0."""
        blocks, dim = problem.num_blocks, problem.dim
        one = jnp.eye(dim) / self.lambda0
        tally = retries.init_tally(self.retry, problem, contexts)
        return Ridge(jnp.broadcast_to(one, (blocks, dim, dim)), jnp.zeros((blocks, dim)), tally)

    def select(self, key: Array, state: Ridge, observation: Observation) -> Action:
        """Serve the schedule's query by the servers of the highest indices."""
        problem = observation.problem
        tie, bonus = draw_tie(key, self.schedule), jnp.ones(())
        if self.index == "thompson" and problem.parameters == "shared":
            bonus = rng.normals(key, rng.Stream.NORMAL, (problem.dim,))
        elif self.index == "thompson":
            bonus = rng.normals(key, rng.Stream.NORMAL, (problem.num_servers,))
        if self.schedule == "joint":
            of_query = functools.partial(self._index, state, bonus, problem)
            utilities = jax.vmap(of_query)(observation.features)
        else:  # the index of one query is enough
            slot = queueing.pick(self.schedule, observation.queue, tie)
            utilities = self._index(state, bonus, problem, observation.features[slot])
            size = len(observation.queue.row)
            utilities = jnp.broadcast_to(utilities, (size, problem.num_servers))
        slot, best = choose_query_and_servers(
            self.schedule, observation, utilities, tie, self.retry, state.tally
        )
        return Action(slot, mnl.sort_picks(best), jnp.bool_(False))

    def _index(self, state: Ridge, bonus: Array, problem: Problem, features: Array) -> Array:
        """Return the index of each server for a query of features [d] or [N, d]: [N]."""
        # x' A_j^-1: [N, d], with the shared block or each server's block.
        along = (
            jnp.einsum("bij,j->bi", state.inverse, features)
            if problem.parameters == "disjoint"
            else features @ state.inverse[0]
        )
        mean = jnp.sum(along * state.target, axis=-1)
        if self.index == "thompson" and problem.parameters == "shared":
            root = jnp.linalg.cholesky(state.inverse[0])
            return mean + self.alpha * (features @ (root @ bonus))
        width = jnp.sqrt(jnp.maximum(jnp.sum(along * features, axis=-1), 0.0))
        return mean + self.alpha * bonus * width

    def update(
        self, state: Ridge, observation: Observation, action: Action, feedback: Feedback
    ) -> Ridge:
        """Add the offered servers by the Sherman-Morrison formula."""
        problem, features = observation.problem, observation.features[action.slot]
        inverse, target, tally = state
        learnt = jnp.broadcast_to(feedback.valid, action.servers.shape)
        weights = mask_unoffered(action.offered, learnt, False).astype(float)
        for place in range(problem.assortment_size):
            weight = weights[place]
            server = action.servers[place]
            shared = problem.parameters == "shared"
            x, block = (features[server], 0) if shared else (features, server)
            along = inverse[block] @ x
            less = weight * jnp.outer(along, along) / (1.0 + x @ along)
            inverse = inverse.at[block].add(-less)
            target = target.at[block].add(weight * (feedback.choice == place) * x)
        return Ridge(inverse, target, retries.update_tally(tally, observation, action, feedback))
