"""The yardstick and the floor: the optimal policy and random routing."""

from typing import Literal

import jax.numpy as jnp
from jax import Array

from cqbjax.core import mnl, queueing, rng
from cqbjax.core.pytree import check_options, option, pytree, static
from cqbjax.core.types import Action, Needs, Observation, Problem
from cqbjax.policies import retries
from cqbjax.policies.picking import (
    MANY,
    best_answer,
    learn_nothing,
    no_state,
    of_available,
    random_lots,
    uniform_assortment,
)


@pytree
class Optimal:
    """The optimal policy pi*, which knows theta*: the pair of the largest true departure rate.

    Attributes:
        retry: `same`, which is optimal where each attempt is drawn anew, as in the paper; or
            `fallback`, no server twice for a query while others remain, for worlds in which a
            server that failed a query fails it for good.
    """

    retry: Literal["same", "fallback"] = static(default="same")

    @property
    def needs(self) -> Needs:
        """Return the true utilities, and what the retry rule needs."""
        return Needs(true_utilities=True, offer_counts=retries.needs_offer_counts(self.retry))

    init = staticmethod(no_state)
    update = staticmethod(learn_nothing)

    def check(self, problem: Problem) -> None:
        """Refuse an unknown retry rule.

        Raises:
            ValueError: naming it and those that there are.
        """
        check_options(self)

    def select(self, key: Array, state: tuple[()], observation: Observation) -> Action:
        """Take the best pair under the true utilities."""
        utilities = observation.utilities
        assert utilities is not None
        slot, picks = best_answer("joint", observation, utilities, jnp.zeros(()), self.retry)
        return Action(slot, mnl.sort_picks(picks), jnp.bool_(False))


@pytree
class RandomRouting:
    """RAND (`schedule="random"`) and RAND_ROUT (`schedule="oldest"`): a uniform assortment.

    Attributes:
        schedule: the queue rule that picks the query.
        retry: `same`, any assortment again; or `fallback`, servers not yet shown for the query
            while there are any, drawn uniformly.
    """

    schedule: queueing.Rule | Array = option(default="random")
    retry: Literal["same", "fallback"] = static(default="same")

    @property
    def needs(self) -> Needs:
        """Return no contexts, and what the retry rule needs."""
        return Needs(contexts=False, offer_counts=retries.needs_offer_counts(self.retry))

    init = staticmethod(no_state)
    update = staticmethod(learn_nothing)

    def check(self, problem: Problem) -> None:
        """Refuse an unknown queue or retry rule.

        Raises:
            ValueError: naming it and those that there are.
        """
        check_options(self)

    def select(self, key: Array, state: tuple[()], observation: Observation) -> Action:
        """Pick the query by the rule and the assortment uniformly."""
        problem = observation.problem
        query = rng.uniform(key, rng.Stream.QUERY)
        slot = queueing.pick(self.schedule, observation.queue, query)
        if self.retry == "fallback":
            shown = retries.shown_counts(observation.queue)[slot]
            shown = of_available(shown, observation, MANY)
            lots = random_lots(key, problem)
            picks = retries.next_picks(lots, shown, problem.assortment_size)
            return Action(slot, mnl.sort_picks(picks), jnp.bool_(False))
        return Action(slot, uniform_assortment(key, observation), jnp.bool_(False))
