"""Schedulers of a replay: rules that rank the waiting queries, and policies that learn.

All rules are one program: which one a run follows is data. The clairvoyant rule serves the chain
with the fewest conversations left, which no schedule beats (docs/notebook/wildchat.md proves it).
"""

from typing import Any, Literal, NamedTuple, Protocol

import jax
import jax.numpy as jnp
from jax import Array

from cqbjax.chains.instance import Tables
from cqbjax.core import queueing, rng
from cqbjax.core.pytree import check_words, number, pytree, word
from cqbjax.core.types import Action, Feedback, Observation, Policy, Problem
from cqbjax.policies.picking import learn_nothing, no_state

Ranking = Literal[
    "fifo", "fifo_chain", "least_served", "random", "shortest", "clairvoyant", "informed"
]
FIFO, FIFO_CHAIN, LEAST_SERVED, RANDOM, SHORTEST, CLAIRVOYANT, INFORMED = range(7)


class Sight(NamedTuple):
    """What is known of the queue at the beginning of a slot; what a scheduler may use, it says.

    Attributes:
        observation: what every policy sees.
        entered: [C] int32 the slot after whose end each query (re)entered the queue.
        node: [C] int32 each query's conversation.
        tables: of the log.
    """

    observation: Observation
    entered: Array
    node: Array
    tables: Tables

    # Looked up when they are asked for: only the rules that need them pay for that.

    @property
    def tokens(self) -> Array:
        """[C] of the response that serving each query would bring."""
        return self.tables.tokens[self.node]

    @property
    def left(self) -> Array:
        """[C] int32 conversations left in each chain: known to the clairvoyant rule alone."""
        queue = self.observation.queue
        return self.tables.length[queue.row] - queue.served

    @property
    def planted(self) -> Array:
        """[C] the chance that each query leaves when served, of a generated log, else zero."""
        return self.tables.planted[self.node]


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
            lambda: sight.entered, lambda: queue.arrived, lambda: queue.served,
            lambda: jnp.zeros_like(queue.served),
            lambda: sight.tokens, lambda: sight.left, lambda: -sight.planted,
        )  # fmt: skip
        dtype = sight.tables.tokens.dtype
        # The rule is the same for all runs of a batch, so that only its branch is computed.
        rank = jax.lax.switch(by, [lambda each=each: each().astype(dtype) for each in ranks])
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
