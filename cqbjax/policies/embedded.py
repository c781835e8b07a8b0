"""A policy that sees other contexts than the source's: what ACQB-CL is to ACQB."""

from typing import Any

import numpy as np
from jax import Array

from cqbjax.pytree import pytree
from cqbjax.types import Action, Feedback, Observation, Problem


@pytree
class Embedded:
    """A policy on its own context table, such as phi(x) = B(x; theta) of ACQB-CL (Algorithm 2).

    Attributes:
        policy: the policy that is given these contexts.
        contexts: [I, e] features of each row of the run's table, in place of the source's [I, d].
            A row is another prompt in each run of a pool: give `sweep` it in a `PerSeed`.
    """

    policy: Any
    contexts: Array

    @property
    def informed(self) -> bool:
        """Whether the policy within is told the true utilities."""
        return bool(self.policy.informed)

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
        if hasattr(self.policy, "check"):
            self.policy.check(self._problem(problem))

    def init(self, problem: Problem, contexts: Array) -> Any:
        """Return the policy's state on its own contexts."""
        del contexts
        return self.policy.init(self._problem(problem), self.contexts)

    def select(self, key: Array, state: Any, observation: Observation) -> Action:
        """Let the policy decide on these contexts."""
        return self.policy.select(key, state, self._seen(observation))

    def update(
        self, state: Any, observation: Observation, action: Action, feedback: Feedback
    ) -> Any:
        """Let the policy learn on these contexts."""
        return self.policy.update(state, self._seen(observation), action, feedback)

    def _problem(self, problem: Problem) -> Problem:
        return problem._replace(dim=self.contexts.shape[-1])

    def _seen(self, observation: Observation) -> Observation:
        return observation._replace(
            problem=self._problem(observation.problem),
            features=self.contexts[observation.queue.row],
            contexts=self.contexts,
        )
