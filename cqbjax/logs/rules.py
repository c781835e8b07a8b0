"""Schedules that look at no contexts, as policies: by a word for each.

`clairvoyant` is the optimal policy: in a replay it serves the chain with the fewest conversations
left, which no schedule beats (docs/notebook/wildchat.md proves it).
"""

from typing import Any, Literal, get_args

import jax.numpy as jnp
from jax import Array

from cqbjax.core import queueing, rng
from cqbjax.core.pytree import pytree
from cqbjax.core.types import Action, Needs, Observation, Policy
from cqbjax.logs import instance
from cqbjax.logs.linking import Chains
from cqbjax.logs.prepare import Log
from cqbjax.policies import Optimal, RandomRouting
from cqbjax.policies.picking import learn_nothing, no_state, uniform_assortment

Rule = Literal[
    "fifo", "fifo_chain", "least_served", "random", "shortest", "clairvoyant", "informed"
]


@pytree
class Ranked:
    """Serve the query that comes first, uniformly among several, by a uniform assortment.

    Attributes:
        order: [P] a number of each prompt of the dataset: the least comes first. None: the query
            that entered the queue first, one that comes back at its end.
    """

    order: Array | None = None

    @property
    def needs(self) -> Needs:
        """Return no contexts, and without an order the rounds in which queries entered."""
        return Needs(contexts=False, entry_rounds=self.order is None)

    init = staticmethod(no_state)
    update = staticmethod(learn_nothing)

    def select(self, key: Array, state: tuple[()], observation: Observation) -> Action:
        """Rank the queries and take the first."""
        del state
        queue = observation.queue
        entered = queue.entered if self.order is None else self.order[observation.prompts]
        assert entered is not None, "without an order the policy needs entry_rounds"
        here = queueing.waiting(queue)
        rank = jnp.where(here, entered.astype(float), jnp.inf)
        first = here & (rank == jnp.min(rank))
        slot = queueing.nth_marked(first, rng.uniform(key, rng.Stream.QUERY))
        return Action(slot, uniform_assortment(key, observation), jnp.bool_(False))


def policy(rule: str, log: Log, chains: Chains, singles: float) -> Policy:
    """Return the policy of a rule.

    Args:
        rule: `fifo` (entered the queue first; a retrial goes to its end), `fifo_chain` (whose chain
            began first), `least_served` (fewest attempts: the paper's RR), `random`, `shortest`
            (fewest tokens of the response: SJF), `clairvoyant` (fewest conversations left), or
            `informed` (largest planted chance to leave).
        log: prepared.
        chains: linked.
        singles: the share of singletons, to which planted chances are adjusted.

    Raises:
        ValueError: for a rule that there is none of.
    """
    words: dict[str, Any] = {
        "fifo_chain": "oldest", "least_served": "least_served", "random": "random",
    }  # fmt: skip
    if rule in words:
        return RandomRouting(schedule=words[rule])
    if rule == "fifo":
        return Ranked()
    if rule == "shortest":
        return Ranked(order=jnp.asarray(instance.tokens(log, chains), float))
    if rule == "informed":
        return Ranked(order=jnp.asarray(-instance.planted(log, chains, singles), float))
    if rule == "clairvoyant":
        return Optimal()
    raise ValueError(f"schedule {rule} must be one of {', '.join(get_args(Rule))}")
