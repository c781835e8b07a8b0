"""Schedules of a replay as policies: they rank queries without contexts.

`clairvoyant` is the optimal policy: in a replay it serves the chain with the fewest conversations
left, which no schedule beats (docs/notebook/wildchat.md proves it).
"""

from typing import Any, Literal, get_args

import jax.numpy as jnp
import numpy as np
from jax import Array

from cqbjax.core import queueing, rng
from cqbjax.core.pytree import pytree
from cqbjax.core.types import Action, Needs, Observation, Policy
from cqbjax.logs.linking import Chains, singleton_share
from cqbjax.logs.prepare import Log
from cqbjax.policies import OptimalPolicy, RandomRouting
from cqbjax.policies.assortments import draw_assortment, init_stateless, update_stateless

ScheduleName = Literal[
    "fifo", "fifo_chain", "least_served", "random", "shortest", "clairvoyant", "informed"
]


@pytree
class RankedSchedule:
    """Serve the query of lowest rank (ties broken uniformly) with a uniform assortment.

    Attributes:
        order: [P] rank of each prompt of the dataset. None: queries rank by the round in which
            they entered the queue, retrials by their return.
    """

    order: Array | None = None

    @property
    def needs(self) -> Needs:
        """Needs no contexts, and without an order the rounds in which queries entered."""
        return Needs(contexts=False, entry_rounds=self.order is None)

    init = staticmethod(init_stateless)
    update = staticmethod(update_stateless)

    def select(self, key: Array, state: tuple[()], observation: Observation) -> Action:
        """Select the query of the lowest rank."""
        queue = observation.queue
        entered = queue.entry_rounds if self.order is None else self.order[observation.prompts]
        assert entered is not None, "without an order the policy needs entry_rounds"
        here = queueing.mark_waiting(queue)
        rank = jnp.where(here, entered.astype(float), jnp.inf)
        first = here & (rank == jnp.min(rank))
        slot = queueing.pick_marked(first, rng.uniform(key, rng.Stream.QUERY))
        return Action(slot, draw_assortment(key, observation), jnp.bool_(False))


def make_schedule(name: str, log: Log, chains: Chains, singles: float) -> Policy:
    """Return the policy of a schedule.

    Args:
        name: `fifo` (entered the queue first; a retrial goes to its end), `fifo_chain` (chain began
            first), `least_served` (fewest attempts: the paper's RR), `random`, `shortest` (fewest
            tokens of the response: SJF), `clairvoyant` (fewest conversations left), or `informed`
            (largest true probability of satisfaction, in a generated log).
        log: prepared.
        chains: linked.
        singles: the share of singletons, to which the probabilities are adjusted.

    Raises:
        ValueError: an unknown name.
    """
    by_age: dict[str, Any] = {
        "fifo_chain": "oldest", "least_served": "least_served", "random": "random",
    }  # fmt: skip
    if name in by_age:
        return RandomRouting(schedule=by_age[name])
    if name == "fifo":
        return RankedSchedule()
    if name == "shortest":
        tokens = log.frame[chains.members]["tokens"].to_numpy()
        return RankedSchedule(order=jnp.asarray(tokens, float))
    if name == "informed":
        return RankedSchedule(order=jnp.asarray(-true_satisfaction(log, chains, singles), float))
    if name == "clairvoyant":
        return OptimalPolicy()
    raise ValueError(f"schedule {name} must be one of {', '.join(get_args(ScheduleName))}")


def true_satisfaction(log: Log, chains: Chains, singles: float | None = None) -> np.ndarray:
    """Return the probability that each conversation of a generated log satisfies: [n].

    Args:
        log: prepared.
        chains: linked.
        singles: the share of singletons after `subsample`, to which the probabilities are adjusted:
            fewer first conversations are the only ones. None: not adjusted.
    """
    chance = log.frame[chains.members]["satisfaction"].fill_null(0.0).to_numpy().copy()
    if singles is not None:
        roots = chains.first[:-1]
        once = singleton_share(chains.lengths, singles) * chance[roots]
        chance[roots] = once / (once + 1 - chance[roots])
    return chance
