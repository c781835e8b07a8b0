"""Schedulers of a replay: rules that rank the waiting queries, and policies that learn.

All rules are one program: which one a run follows is data. The clairvoyant rule serves the chain
with the fewest conversations left, which no schedule beats (docs/wildchat.md proves it).
"""

from typing import Any, Literal, NamedTuple, Protocol

import jax
import jax.numpy as jnp
from jax import Array

from cqbjax import queueing, rng
from cqbjax.policies.picking import learn_nothing, no_state
from cqbjax.pytree import check_words, number, pytree, word
from cqbjax.types import Action, Feedback, Observation, Policy, Problem

Ranking = Literal[
    "fifo", "fifo_chain", "least_served", "random", "shortest", "clairvoyant", "informed"
]
FIFO, FIFO_CHAIN, LEAST_SERVED, RANDOM, SHORTEST, CLAIRVOYANT, INFORMED = range(7)


class Sight(NamedTuple):
    """What is known of the queue at the beginning of a slot; what a scheduler may use, it says.

    Attributes:
        observation: what every policy sees.
        entered: [C] int32 the slot after whose end each query (re)entered the queue.
        tokens: [C] of the response that serving it would bring.
        left: [C] int32 conversations left in its chain: known to the clairvoyant rule alone.
        planted: [C] the chance that it leaves when served, of a generated log, else zero.
    """

    observation: Observation
    entered: Array
    tokens: Array
    left: Array
    planted: Array


class Scheduler(Protocol):
    """Who decides which waiting query is served: a frozen pytree dataclass."""

    def init(self, problem: Problem, contexts: Array) -> Any:
        """Return the state before slot 1."""

    def select(self, key: Array, state: Any, sight: Sight) -> Action:
        """Pick a waiting query."""

    def update(self, state: Any, sight: Sight, action: Action, feedback: Feedback) -> Any:
        """Learn whether it left."""


@pytree
class Ranked:
    """Serve the query that comes first by a rule, uniformly among several.

    Attributes:
        by: `fifo` (entered the queue first; a retrial goes to its end), `fifo_chain` (whose chain
            began first), `least_served` (fewest attempts: the paper's RR), `random`, `shortest`
            (fewest tokens of the response: SJF), `clairvoyant` (fewest conversations left), or
            `informed` (largest planted chance to leave).
    """

    by: Ranking | Array = word(default="fifo")

    init = staticmethod(no_state)

    def check(self, problem: Problem) -> None:
        """Refuse an unknown rule.

        Raises:
            ValueError: naming those that there are.
        """
        del problem
        check_words(self)

    def select(self, key: Array, state: tuple[()], sight: Sight) -> Action:
        """Rank the queries and take the first."""
        del state
        by, queue = number(Ranking, self.by, "by"), sight.observation.queue
        ranks = (
            sight.entered, queue.arrived, queue.served, jnp.zeros_like(queue.served),
            sight.tokens, sight.left, -sight.planted,
        )  # fmt: skip
        dtype = sight.tokens.dtype
        # The rule is the same for all runs of a batch, so that only its branch is computed.
        rank = jax.lax.switch(by, [lambda each=each: each.astype(dtype) for each in ranks])
        here = queueing.waiting(queue)
        rank = jnp.where(here, rank, jnp.inf)
        first = here & (rank == jnp.min(rank))
        slot = queueing.nth_marked(first, rng.uniform(key, rng.Stream.QUERY))
        return Action(slot, jnp.zeros(1, jnp.int32), jnp.bool_(False))

    def update(
        self, state: tuple[()], sight: Sight, action: Action, feedback: Feedback
    ) -> tuple[()]:
        """Learn nothing."""
        return learn_nothing(state, sight.observation, action, feedback)


@pytree
class Learning:
    """A policy of the project's as a scheduler: it sees what every policy sees, and no more.

    Attributes:
        policy: such as ACQB, with one server to choose from.
    """

    policy: Any

    def check(self, problem: Problem) -> None:
        """Refuse what the policy refuses.

        Raises:
            ValueError: its own, or for a policy that wants true utilities: a log has none.
        """
        policy: Policy = self.policy
        if policy.informed:
            raise ValueError(
                "a policy that knows true utilities cannot be replayed on a log, which has none: "
                "the schedules clairvoyant and informed are what knows more there"
            )
        if hasattr(policy, "check"):
            policy.check(problem)

    def init(self, problem: Problem, contexts: Array) -> Any:
        """Return the policy's own."""
        return self.policy.init(problem, contexts)

    def select(self, key: Array, state: Any, sight: Sight) -> Action:
        """Let the policy decide."""
        return self.policy.select(key, state, sight.observation)

    def update(self, state: Any, sight: Sight, action: Action, feedback: Feedback) -> Any:
        """Let the policy learn."""
        return self.policy.update(state, sight.observation, action, feedback)
