"""The yardstick and the floor: the optimal policy and random routing."""

import jax.numpy as jnp
from jax import Array

from cqbjax import mnl, queueing, rng
from cqbjax.policies.picking import best_answer, learn_nothing, no_state, random_assortment
from cqbjax.pytree import check_words, pytree, word
from cqbjax.types import Action, Observation, Problem


@pytree
class Optimal:
    """The optimal policy pi*, which knows theta*: the pair of the largest true departure rate."""

    informed = True

    init = staticmethod(no_state)
    update = staticmethod(learn_nothing)

    def select(self, key: Array, state: tuple[()], observation: Observation) -> Action:
        """Take the best pair under the true utilities."""
        del key, state
        assert observation.utilities is not None
        slot, servers = best_answer("joint", observation, observation.utilities, jnp.zeros(()))
        return Action(slot, servers, jnp.bool_(False))


@pytree
class RandomRouting:
    """RAND (`schedule="random"`) and RAND_ROUT (`schedule="oldest"`): a uniform assortment.

    Attributes:
        schedule: the queue rule that picks the query.
    """

    schedule: queueing.Rule | Array = word(default="random")

    informed = False
    blind = True

    init = staticmethod(no_state)
    update = staticmethod(learn_nothing)

    def check(self, problem: Problem) -> None:
        """Refuse an unknown queue rule.

        Raises:
            ValueError: naming it and those that there are.
        """
        del problem
        check_words(self)

    def select(self, key: Array, state: tuple[()], observation: Observation) -> Action:
        """Pick the query by the rule and the assortment uniformly."""
        del state
        problem = observation.problem
        query = rng.uniform(key, rng.Stream.QUERY)
        rank = random_assortment(key, problem)
        servers = mnl.unrank_assortment(rank, problem.num_servers, problem.assortment_size)
        slot = queueing.pick(self.schedule, observation.queue, query)
        return Action(slot, servers, jnp.bool_(False))
