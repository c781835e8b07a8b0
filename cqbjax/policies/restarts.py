"""A policy that starts again when its predictions have become too high, for changing preferences.

Page's test (Page 1954) sums how much higher the predicted than the observed departures are:

    S <- max(0, S + R(x, S_t) - D - k),

with R the predicted probability of a departure, D = 1 if the query departs, and k the slack. When S
exceeds the threshold h, the policy forgets all attempts but those since S was last 0, which are
likely to have come after the change. A policy that has learnt little predicts badly, so the test
begins after some attempts (`burn_in`).
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from cqbjax.core import mnl, types
from cqbjax.core.inputs import check_interval
from cqbjax.core.pytree import pytree
from cqbjax.core.types import Action, Feedback, Observation, Problem, Wrapper
from cqbjax.estimation import Interaction
from cqbjax.policies.acqb import Acqb, make_interaction

MEMORY = 256  # the most attempts that a restarted policy learns again


class RestartState(NamedTuple):
    """State of `RestartingPolicy`.

    Attributes:
        within: state of the policy within.
        excess: [] S, the sum of Page's test.
        began: [] int32 round of the last restart; 0 without any.
        attempts: [] int32 attempts since then.
        contexts: the run's context table, from which the policy starts.
        recent: [`MEMORY`, ...] attempts since S was last 0; later ones replace the oldest.
        rising: [] int32 number of attempts since S was last 0.
    """

    within: Any
    excess: Array
    began: Array
    attempts: Array
    contexts: Array
    recent: Interaction
    rising: Array


@pytree
class RestartingPolicy(Wrapper):
    """ACQB that starts again, its exploration too, when Page's test raises an alarm.

    Attributes:
        policy: ACQB or a variant; its estimate, without optimism, predicts departures.
        threshold: h, in departures; with a smaller value, restarts come sooner and more often.
        slack: k; while the predicted rate exceeds the observed rate by at most k, the sum of the
            test does not grow on average.
        burn_in: attempts per server, after a start, before the test begins.
    """

    policy: Acqb
    threshold: Array | float = 10.0
    slack: Array | float = 0.1
    burn_in: Array | float = 30.0

    def check(self, problem: Problem) -> None:
        """Validate the constants of the test, and the policy.

        Raises:
            ValueError: naming the setting and what is allowed.
        """
        check_interval(self, "[0, inf]", "threshold", "slack", "burn_in")
        self.policy.check(problem)

    def init(self, problem: Problem, contexts: Array) -> RestartState:
        """Return the policy's state, and S = 0."""
        numbers, size = jnp.zeros(MEMORY, jnp.int32), problem.assortment_size
        servers = jnp.zeros((MEMORY, size), jnp.int32)
        shape = (problem.dim,) if problem.parameters == "disjoint" else (size, problem.dim)
        features, valid = jnp.zeros((MEMORY, *shape)), numbers > 0
        recent = Interaction(numbers, numbers, features, servers, numbers, valid, servers > 0)
        within, zero = self.policy.init(problem, contexts), jnp.int32(0)
        return RestartState(within, jnp.zeros(()), zero, zero, contexts, recent, zero)

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
        attempts = state.attempts + feedback.valid
        excess = jnp.maximum(state.excess + predicted - departed - self.slack, 0.0)
        excess = jnp.where(attempts > self.burn_in * problem.num_servers, excess, 0.0)
        excess = jnp.where(feedback.valid, excess, state.excess)
        new = make_interaction(observation, action, feedback)
        whole = new if new.offered is not None else new._replace(offered=action.servers >= 0)
        recent = jax.tree.map(
            lambda every, one: every.at[state.rising % MEMORY].set(one), state.recent, whole
        )
        rising = jnp.where(excess > 0, state.rising + feedback.valid, 0)

        def start_again(_: Array, old: RestartState) -> RestartState:
            def learn_again(n: Array, belief: Any) -> Any:
                again = jax.tree.map(lambda every: every[n % MEMORY], old.recent)
                again = again if new.offered is not None else again._replace(offered=None)
                return self.policy.belief(problem).update(belief, again)

            # Everything is read from `old`. XLA would compute what does not depend on it before the
            # outer loop, which means to learn again in every round.
            fresh = self.init(problem, old.contexts)._replace(began=observation.round)
            first = jnp.maximum(old.rising - MEMORY, 0)
            belief = jax.lax.fori_loop(first, old.rising, learn_again, fresh.within.belief)
            return fresh._replace(within=fresh.within._replace(belief=belief))

        # A loop of at most one turn, as in `WindowedBelief`.
        return jax.lax.fori_loop(
            0, (excess > self.threshold).astype(jnp.int32), start_again,
            RestartState(
                self.policy.update(state.within, observation, action, feedback), excess,
                state.began, attempts, state.contexts, recent, rising,
            ),
        )  # fmt: skip
