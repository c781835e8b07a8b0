"""Policies on transformed contexts, such as ACQB-CL: a wrapper and the views that it applies."""

from typing import Any, Protocol

import jax.numpy as jnp
import numpy as np
from jax import Array

from cqbjax.core.inputs import check_interval
from cqbjax.core.pytree import pytree
from cqbjax.core.types import Action, Feedback, Observation, Problem, Wrapper


class ContextView(Protocol):
    """The contexts that a policy sees in place of the source's: a frozen pytree dataclass."""

    def check(self, problem: Problem) -> None:
        """Raise ValueError, in one sentence, if the view does not fit the source."""

    def dim(self, problem: Problem) -> int:
        """Return e, the dimension of the contexts seen."""

    def transform(self, contexts: Array, rows: Array | None = None) -> Array:
        """Return contexts as seen: [I, d] -> [I, e], or [C, d] of rows [C] of the table -> [C, e].

        Args:
            contexts: the run's context table, or the features of some of its rows.
            rows: [C] int32 numbers of these rows; None: the whole table.
        """


@pytree
class ReplacedContexts:
    """A given context table, such as phi(x) = B(x; theta) of ACQB-CL (Algorithm 2 line 1).

    Attributes:
        contexts: [I, e] features of each row of the run's table, in place of the source's [I, d].
            If queries come from a pool of prompts, row i is a different prompt for each seed: pass
            `sweep` a `PerSeed` with one policy per seed.
    """

    contexts: Array

    def check(self, problem: Problem) -> None:
        """Validate that the contexts fit the source.

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

    def transform(self, contexts: Array, rows: Array | None = None) -> Array:
        """Return the given table, or some of its rows."""
        return self.contexts if rows is None else self.contexts[rows]


def append_intercept(contexts: Array, share: float | Array) -> Array:
    """Append a constant coordinate: x [..., d] -> [sqrt(1 - share) x, sqrt(share)] [..., d + 1].

    A unit context keeps its norm; `share` in [0, 1] is the constant's share of the squared norm.
    """
    share = jnp.asarray(share, contexts.dtype)
    constant = jnp.broadcast_to(jnp.sqrt(share), (*contexts.shape[:-1], 1))
    return jnp.concatenate([jnp.sqrt(1 - share) * contexts, constant], axis=-1)


@pytree
class Intercept:
    """The source's contexts with an intercept for each server, which x'theta_j lacks.

    Attributes:
        share: the constant coordinate's share of a context's squared norm, in [0, 1].
    """

    share: Array | float = 0.5

    def check(self, problem: Problem) -> None:
        """Validate that parameters are disjoint, and the share.

        Raises:
            ValueError: naming it and what is allowed.
        """
        if problem.parameters != "disjoint":
            raise ValueError("an intercept a server needs parameters=disjoint")
        check_interval(self, "[0, 1]", "share")

    def dim(self, problem: Problem) -> int:
        """Return d + 1."""
        return problem.dim + 1

    def transform(self, contexts: Array, rows: Array | None = None) -> Array:
        """Append the constant to every context."""
        return append_intercept(contexts, self.share)


@pytree
class ContextWrapper(Wrapper):
    """A policy that sees transformed contexts.

    Attributes:
        policy: the policy within; it decides and learns on the contexts of the view.
        view: a `ContextView`, such as `ReplacedContexts` or `Intercept`.
    """

    policy: Any
    view: Any

    def check(self, problem: Problem) -> None:
        """Validate the view, and the policy within on the contexts that it sees.

        Raises:
            ValueError: in one sentence, naming the setting and what is allowed.
        """
        self.view.check(problem)
        if hasattr(self.policy, "check"):
            self.policy.check(self._problem_within(problem))

    def init(self, problem: Problem, contexts: Array) -> Any:
        """Return the state of the policy within."""
        return self.policy.init(self._problem_within(problem), self.view.transform(contexts))

    def theta(self, state: Any, contexts: Array, problem: Problem) -> Array:
        """Return the estimates of a state, [B, e], or of a stack of states."""
        table = self.view.transform(contexts)
        return self.policy.theta(state, table, self._problem_within(problem))

    def select(self, key: Array, state: Any, observation: Observation) -> Action:
        """Let the policy within decide."""
        return self.policy.select(key, state, self._transform(observation))

    def update(
        self, state: Any, observation: Observation, action: Action, feedback: Feedback
    ) -> Any:
        """Let the policy within learn."""
        return self.policy.update(state, self._transform(observation), action, feedback)

    def _problem_within(self, problem: Problem) -> Problem:
        return problem._replace(dim=self.view.dim(problem), policy_contexts=True)

    def _transform(self, observation: Observation) -> Observation:
        problem = self._problem_within(observation.problem)
        features = self.view.transform(observation.features, observation.queue.row)
        return observation._replace(problem=problem, features=features)
