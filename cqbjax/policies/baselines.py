"""Reference policies: the optimal policy, an oracle, and random routing."""

from typing import Literal

import jax.numpy as jnp
from jax import Array

from cqbjax.core import mnl, queueing, rng
from cqbjax.core.pytree import option, pytree, static
from cqbjax.core.types import Action, Needs, Observation
from cqbjax.policies import retries
from cqbjax.policies.assortments import (
    MANY,
    choose_query_and_servers,
    draw_assortment,
    draw_server_priorities,
    init_stateless,
    mask_unavailable,
    update_stateless,
)


@pytree
class OptimalPolicy:
    """The optimal policy pi*, which knows theta*.

    It serves the query and the assortment with the largest true departure rate R(x, S).

    Attributes:
        retry: `same`, which is optimal if each attempt is drawn independently, as in the paper; or
            `fallback`, which does not offer a server to a query twice while others remain, for
            scenarios in which a server that failed a query always fails it.
    """

    retry: Literal["same", "fallback"] = static(default="same")

    @property
    def needs(self) -> Needs:
        """Declare that the policy needs the true utilities and the inputs of its retry rule."""
        return Needs(true_utilities=True, offer_counts=retries.needs_offer_counts(self.retry))

    init = staticmethod(init_stateless)
    update = staticmethod(update_stateless)

    def select(self, key: Array, state: tuple[()], observation: Observation) -> Action:
        """Take the best pair under the true utilities."""
        utilities = observation.utilities
        assert utilities is not None
        slot, best = choose_query_and_servers(
            "joint", observation, utilities, jnp.zeros(()), self.retry
        )
        return Action(slot, mnl.sort_picks(best), jnp.bool_(False))


@pytree
class RandomRouting:
    """RAND (`schedule="random"`) and RAND_ROUT (`schedule="oldest"`): a uniform assortment.

    Attributes:
        schedule: the queue rule that picks the query.
        retry: `same`: a retrial may get any assortment; `fallback`: servers are drawn uniformly
            among those not yet offered to the query, while there are any.
    """

    schedule: queueing.Rule | Array = option(default="random")
    retry: Literal["same", "fallback"] = static(default="same")

    @property
    def needs(self) -> Needs:
        """Return what the retry rule needs; contexts are not needed."""
        return Needs(contexts=False, offer_counts=retries.needs_offer_counts(self.retry))

    init = staticmethod(init_stateless)
    update = staticmethod(update_stateless)

    def select(self, key: Array, state: tuple[()], observation: Observation) -> Action:
        """Pick the query by the rule and the assortment uniformly."""
        problem = observation.problem
        query = rng.uniform(key, rng.Stream.QUERY)
        slot = queueing.pick(self.schedule, observation.queue, query)
        if self.retry == "same":
            return Action(slot, draw_assortment(key, observation), jnp.bool_(False))
        offers = retries.read_offer_counts(observation.queue)[slot]
        offers = mask_unavailable(offers, observation, MANY)
        priorities = draw_server_priorities(key, problem, rng.Stream.ASSORTMENT)
        best = retries.next_assortment(priorities, offers, problem.assortment_size)
        return Action(slot, mnl.sort_picks(best), jnp.bool_(False))
