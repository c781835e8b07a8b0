"""A policy around a policy: it remembers actions, and varies what the dummy job tells."""

from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from cqbjax.core import mnl
from cqbjax.core.pytree import pytree
from cqbjax.core.types import (
    Action,
    Feedback,
    Observation,
    Problem,
    Wrapper,
    blank_action,
    read_needs,
)

# What a policy is told in a round without a query: as the simulator does it, nothing at all, or
# another action and choice. No decision may depend on which.
NATURAL, SKIPPED, CHANGED = 0, 1, 2


@pytree
class Probe(Wrapper):
    """A policy that does as `policy`, remembers its action, and varies the dummy job's feedback."""

    policy: Any
    how: Array | int = NATURAL

    def init(self, problem: Problem, contexts: Array) -> tuple[Any, Action]:
        """Return the policy's state and a blank action."""
        marked = read_needs(self.policy).smaller_assortments
        blank = blank_action(problem.assortment_size, marked)
        return self.policy.init(problem, contexts), blank

    def select(self, key: Array, state: tuple[Any, Action], observation: Observation) -> Action:
        """Do as the policy does."""
        return self.policy.select(key, state[0], observation)

    def update(
        self,
        state: tuple[Any, Action],
        observation: Observation,
        action: Action,
        feedback: Feedback,
    ) -> tuple[Any, Action]:
        """Learn as the policy does where a query was served, else in one of three ways."""
        told, answer = self._told(observation, action, feedback)
        after = self.policy.update(state[0], observation, told, answer)
        skipped = (self.how == SKIPPED) & ~feedback.valid
        kept = jax.tree.map(lambda old, new: jnp.where(skipped, old, new), state[0], after)
        return kept, action

    def _told(
        self, observation: Observation, action: Action, feedback: Feedback
    ) -> tuple[Action, Feedback]:
        """Return the action and the feedback that the policy is told of."""
        size, number = observation.problem.assortment_size, observation.problem.num_servers
        rank = observation.round % mnl.num_assortments(number, size)
        servers = mnl.unrank_assortment(rank, number, size)
        other = action._replace(servers=servers, explored=~action.explored)
        changed = (self.how == CHANGED) & ~feedback.valid
        told = jax.tree.map(lambda one, two: jnp.where(changed, two, one), action, other)
        choice = jnp.where(changed, (feedback.choice + 1) % (size + 1), feedback.choice)
        return told, feedback._replace(choice=choice)
