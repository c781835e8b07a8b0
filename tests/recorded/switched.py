"""Policies of several labels in one program."""

import functools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from recorded.cases import Case, policy
from recorded.draws import scores

from cqbjax.core.pytree import pytree, signature_of
from cqbjax.core.types import Action, Feedback, Needs, Observation, Problem, read_needs


@pytree
class SwitchedPolicy:
    """One run of a batch in which each run has a policy of its own.

    Compiling is most of a comparison's time, so that all policies are one program. They keep the
    same state and learn alike; if they differ only in numbers (`pytree.signature_of`),
    `select` is compiled once.

    Attributes:
        branches: one of each kind; the one that acts holds this run's numbers.
        number: [] int32 which of them acts.
    """

    branches: tuple[Any, ...]
    number: Any

    @property
    def needs(self) -> Needs:
        """Return what any of them needs, and the assortments that all of them offer."""
        fewer = read_needs(self.learner).smaller_assortments
        return Needs(true_utilities=True, offer_counts=True, smaller_assortments=fewer)

    @property
    def learner(self) -> Any:
        """A policy that learns as all of them do."""
        return self.branches[-1]

    def init(self, problem: Problem, contexts: jax.Array) -> Any:
        """Return the state that all of them keep."""
        return self.learner.init(problem, contexts)

    def select(self, key: jax.Array, state: Any, observation: Observation) -> Action:
        """Let the run's policy decide; only an informed one is shown the true utilities."""

        def decide(one: Any) -> Action:
            seen = (
                observation
                if read_needs(one).true_utilities
                else observation._replace(utilities=None)
            )
            return one.select(key, state, seen)

        return jax.lax.switch(
            self.number, [functools.partial(decide, one) for one in self.branches]
        )

    def update(
        self, state: Any, observation: Observation, action: Action, feedback: Feedback
    ) -> Any:
        """Learn as all of them do."""
        return self.learner.update(state, observation, action, feedback)


def switched(case: Case, labels: Sequence[str], **static_fields: Any) -> dict[str, SwitchedPolicy]:
    """Return a batch's run for each label, all of one structure.

    Args:
        case: gives the numbers.
        labels: of policies that keep the same state.
        static_fields: of `Acqb`: estimator, exact_steps.
    """
    predicted = scores(case)
    policies = {
        label: jax.tree.map(_array, policy(label, case, predicted, **static_fields))
        for label in labels
    }
    kinds = {label: signature_of(one) for label, one in policies.items()}
    members = {kinds[label]: one for label, one in policies.items()}
    order = list(members)
    return {
        label: SwitchedPolicy(
            branches=tuple((members | {kinds[label]: one}).values()),
            number=jnp.int32(order.index(kinds[label])),
        )
        for label, one in policies.items()
    }


def _array(leaf: Any) -> jax.Array:
    """Return a number as an array that does not follow the type of what it meets."""
    return jnp.asarray(leaf, jnp.result_type(leaf))
