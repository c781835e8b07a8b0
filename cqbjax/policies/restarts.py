"""A policy that starts again when its predictions have become too high, for changing preferences.

Page's test (Page 1954) sums how much higher the predicted than the observed departures are:

    S <- max(0, S + R(x, S_t) - D - k),

with R the predicted probability of a departure, D = 1 if the query departs, and k the slack. When S
exceeds the threshold h, the policy loses all that it has learnt.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from cqbjax.core import mnl, types
from cqbjax.core.inputs import check_interval
from cqbjax.core.pytree import pytree
from cqbjax.core.types import Action, Feedback, Observation, Problem, Wrapper
from cqbjax.policies.acqb import Acqb


class RestartState(NamedTuple):
    """State of `RestartingPolicy`.

    Attributes:
        within: state of the policy within.
        excess: [] S, the sum of Page's test.
        began: [] int32 round of the last restart; 0 without any.
        contexts: the run's context table, from which the policy starts.
    """

    within: Any
    excess: Array
    began: Array
    contexts: Array


@pytree
class RestartingPolicy(Wrapper):
    """ACQB that starts again, its exploration too, when Page's test raises an alarm.

    Attributes:
        policy: ACQB or a variant; its estimate, without optimism, predicts departures.
        threshold: h, in departures; with a smaller value, restarts come sooner and more often.
        slack: k; if the predicted rate exceeds the observed rate by at most k, S does not grow on
            average.
    """

    policy: Acqb
    threshold: Array | float = 16.0
    slack: Array | float = 0.1

    def check(self, problem: Problem) -> None:
        """Validate the constants of the test, and the policy.

        Raises:
            ValueError: naming the setting and what is allowed.
        """
        check_interval(self, "[0, inf]", "threshold", "slack")
        self.policy.check(problem)

    def init(self, problem: Problem, contexts: Array) -> RestartState:
        """Return the policy's state, and S = 0."""
        within, zero = self.policy.init(problem, contexts), jnp.zeros(())
        return RestartState(within, zero, zero.astype(jnp.int32), contexts)

    def select(self, key: Array, state: RestartState, observation: Observation) -> Action:
        """Let the policy decide, as in a run that began at the last restart."""
        observation = observation._replace(round=observation.round - state.began)
        return self.policy.select(key, state.within, observation)

    def update(
        self, state: RestartState, observation: Observation, action: Action, feedback: Feedback
    ) -> RestartState:
        """Let the policy learn; start again if the sum exceeds the threshold."""
        problem = observation.problem
        mean = self.policy.belief(problem).optimistic_utilities(
            state.within.belief, observation, jnp.zeros(problem.num_blocks)
        )[action.slot, action.servers]
        predicted = mnl.departure_rate(
            types.mask_unoffered(action.offered, mean, types.DOWN_UTILITY)
        )
        departed = feedback.choice < problem.assortment_size
        excess = jnp.maximum(state.excess + predicted - departed - self.slack, 0.0)
        excess = jnp.where(feedback.valid, excess, state.excess)
        within = self.policy.update(state.within, observation, action, feedback)
        # A loop of at most one turn, as in `WindowedBelief`.
        return jax.lax.fori_loop(
            0, (excess > self.threshold).astype(jnp.int32),
            lambda _, old: self.init(problem, old.contexts)._replace(began=observation.round),
            state._replace(within=within, excess=excess),
        )  # fmt: skip
