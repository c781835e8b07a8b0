"""Policies that see other contexts than the source's: what ACQB-CL is to ACQB."""

import abc
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import Array

from cqbjax.pytree import pytree
from cqbjax.types import Action, Feedback, Observation, Problem


class _Around(abc.ABC):
    """A policy around another one, which it shows other contexts."""

    policy: Any

    @property
    def informed(self) -> bool:
        """Whether the policy within is told the true utilities."""
        return bool(self.policy.informed)

    def init(self, problem: Problem, contexts: Array) -> Any:
        """Return the policy's state on the contexts that it sees."""
        return self.policy.init(self._problem(problem), self._table(contexts))

    def select(self, key: Array, state: Any, observation: Observation) -> Action:
        """Let the policy decide on these contexts."""
        return self.policy.select(key, state, self._seen(observation))

    def update(
        self, state: Any, observation: Observation, action: Action, feedback: Feedback
    ) -> Any:
        """Let the policy learn on these contexts."""
        return self.policy.update(state, self._seen(observation), action, feedback)

    def _check_within(self, problem: Problem) -> None:
        if hasattr(self.policy, "check"):
            self.policy.check(self._problem(problem))

    def _seen(self, observation: Observation) -> Observation:
        return observation._replace(
            problem=self._problem(observation.problem),
            features=self._features(observation),
            contexts=self._table(observation.contexts),
        )

    @abc.abstractmethod
    def _problem(self, problem: Problem) -> Problem:
        """Return the shapes that the policy within sees."""

    @abc.abstractmethod
    def _table(self, contexts: Array) -> Array:
        """Return what it sees of the run's context table [I, d]."""

    @abc.abstractmethod
    def _features(self, observation: Observation) -> Array:
        """Return what it sees of the features of the queue's slots."""


@pytree
class Embedded(_Around):
    """A policy on its own context table, such as phi(x) = B(x; theta) of ACQB-CL (Algorithm 2).

    Attributes:
        policy: the policy that is given these contexts.
        contexts: [I, e] features of each row of the run's table, in place of the source's [I, d].
            A row is another prompt in each run of a pool: give `sweep` it in a `PerSeed`.
    """

    policy: Any
    contexts: Array

    def check(self, problem: Problem) -> None:
        """Refuse contexts that do not fit the source, and what the policy itself refuses.

        Raises:
            ValueError: naming what is wrong with `contexts`.
        """
        contexts = np.asarray(self.contexts)
        if problem.parameters != "disjoint":
            raise ValueError("contexts of one vector a query need parameters=disjoint")
        if contexts.ndim != 2 or contexts.shape[0] != problem.num_rows:
            raise ValueError(
                f"contexts has shape {contexts.shape}, and a run's table {problem.num_rows} rows"
            )
        if not np.isfinite(contexts).all():
            raise ValueError("contexts must be finite numbers")
        self._check_within(problem)

    def _problem(self, problem: Problem) -> Problem:
        return problem._replace(dim=self.contexts.shape[-1])

    def _table(self, contexts: Array) -> Array:
        del contexts
        return self.contexts

    def _features(self, observation: Observation) -> Array:
        return self.contexts[observation.queue.row]


def with_intercept(contexts: Array, share: float | Array) -> Array:
    """Append a constant coordinate: x [..., d] -> [sqrt(1 - share) x, sqrt(share)] [..., d + 1].

    A unit context stays one; `share` in [0, 1] is what the constant takes of its squared norm.
    """
    share = jnp.asarray(share, contexts.dtype)
    constant = jnp.broadcast_to(jnp.sqrt(share), (*contexts.shape[:-1], 1))
    return jnp.concatenate([jnp.sqrt(1 - share) * contexts, constant], axis=-1)


@pytree
class WithIntercept(_Around):
    """A policy on contexts `with_intercept`: an intercept a server, which x'theta_j lacks.

    Attributes:
        policy: the policy that is given these contexts.
        share: of a context's squared norm, what the constant coordinate takes; in [0, 1].
    """

    policy: Any
    share: float = 0.5

    def check(self, problem: Problem) -> None:
        """Refuse shared parameters, a share outside [0, 1], and what the policy itself refuses.

        Raises:
            ValueError: naming it and what is allowed.
        """
        if problem.parameters != "disjoint":
            raise ValueError("an intercept a server needs parameters=disjoint")
        if not 0 <= self.share <= 1:
            raise ValueError(f"share={self.share} must be in [0, 1]")
        self._check_within(problem)

    def _problem(self, problem: Problem) -> Problem:
        return problem._replace(dim=problem.dim + 1)

    def _table(self, contexts: Array) -> Array:
        return with_intercept(contexts, self.share)

    def _features(self, observation: Observation) -> Array:
        return with_intercept(observation.features, self.share)
