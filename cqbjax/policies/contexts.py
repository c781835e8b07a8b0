"""A policy that sees other contexts than the source's: what ACQB-CL is to ACQB."""

from typing import Any, Protocol

import jax.numpy as jnp
import numpy as np
from jax import Array

from cqbjax.core.inputs import is_number
from cqbjax.core.pytree import pytree
from cqbjax.core.types import Action, Feedback, Observation, Problem, Wrapper


class View(Protocol):
    """What a policy is shown in place of the source's contexts: a frozen pytree dataclass."""

    def check(self, problem: Problem) -> None:
        """Raise ValueError, in one sentence, where it does not fit the source."""

    def dim(self, problem: Problem) -> int:
        """Return e, the dimension of what is shown."""

    def table(self, contexts: Array) -> Array:
        """Return what is shown of the run's context table: [I, d] -> [I, e]."""

    def features(self, observation: Observation) -> Array:
        """Return what is shown of the queue's queries: [C, e]."""


@pytree
class Replaced:
    """A context table of one's own, such as phi(x) = B(x; theta) of ACQB-CL (Algorithm 2).

    Attributes:
        contexts: [I, e] features of each row of the run's table, in place of the source's [I, d].
            A row is another prompt in each run of a pool: give `sweep` it in a `PerSeed`.
    """

    contexts: Array

    def check(self, problem: Problem) -> None:
        """Refuse contexts that do not fit the source.

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

    def dim(self, problem: Problem) -> int:
        """Return e."""
        return int(self.contexts.shape[-1])

    def table(self, contexts: Array) -> Array:
        """Return the table as it was given."""
        return self.contexts

    def features(self, observation: Observation) -> Array:
        """Look the queue's rows up."""
        return self.contexts[observation.queue.row]


def with_intercept(contexts: Array, share: float | Array) -> Array:
    """Append a constant coordinate: x [..., d] -> [sqrt(1 - share) x, sqrt(share)] [..., d + 1].

    A unit context stays one; `share` in [0, 1] is what the constant takes of its squared norm.
    """
    share = jnp.asarray(share, contexts.dtype)
    constant = jnp.broadcast_to(jnp.sqrt(share), (*contexts.shape[:-1], 1))
    return jnp.concatenate([jnp.sqrt(1 - share) * contexts, constant], axis=-1)


@pytree
class Intercept:
    """The source's contexts `with_intercept`: an intercept a server, which x'theta_j lacks.

    Attributes:
        share: of a context's squared norm, what the constant coordinate takes; in [0, 1].
    """

    share: Array | float = 0.5

    def check(self, problem: Problem) -> None:
        """Refuse shared parameters, and a share outside [0, 1].

        Raises:
            ValueError: naming it and what is allowed.
        """
        if problem.parameters != "disjoint":
            raise ValueError("an intercept a server needs parameters=disjoint")
        if not is_number(self.share) or not 0 <= float(self.share) <= 1:
            raise ValueError(f"share={self.share} must be in [0, 1]")

    def dim(self, problem: Problem) -> int:
        """Return d + 1."""
        return problem.dim + 1

    def table(self, contexts: Array) -> Array:
        """Append the constant to every row."""
        return with_intercept(contexts, self.share)

    def features(self, observation: Observation) -> Array:
        """Append the constant to every query's features."""
        return with_intercept(observation.features, self.share)


@pytree
class OnContexts(Wrapper):
    """A policy around another one, which it shows other contexts.

    Attributes:
        policy: the policy within; it decides and learns on what the view shows.
        view: what it is shown: `Replaced` or `Intercept`.
    """

    policy: Any
    view: Any

    def check(self, problem: Problem) -> None:
        """Refuse what the view refuses, and what the policy within does.

        Raises:
            ValueError: in one sentence, naming it and what is allowed.
        """
        self.view.check(problem)
        if hasattr(self.policy, "check"):
            self.policy.check(self._within(problem))

    def init(self, problem: Problem, contexts: Array) -> Any:
        """Return the policy's state on the contexts that it is shown."""
        return self.policy.init(self._within(problem), self.view.table(contexts))

    def theta(self, state: Any, contexts: Array, problem: Problem) -> Array:
        """Return the policy's estimates [B, e] behind a state, or behind a stack of states."""
        return self.policy.theta(state, self.view.table(contexts), self._within(problem))

    def select(self, key: Array, state: Any, observation: Observation) -> Action:
        """Let the policy decide on these contexts."""
        return self.policy.select(key, state, self._shown(observation))

    def update(
        self, state: Any, observation: Observation, action: Action, feedback: Feedback
    ) -> Any:
        """Let the policy learn on these contexts."""
        return self.policy.update(state, self._shown(observation), action, feedback)

    def _within(self, problem: Problem) -> Problem:
        return problem._replace(dim=self.view.dim(problem), policy_contexts=True)

    def _shown(self, observation: Observation) -> Observation:
        return observation._replace(
            problem=self._within(observation.problem), features=self.view.features(observation)
        )
