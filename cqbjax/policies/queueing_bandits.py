"""Q-UCB and Q-ThS (Krishnasamy et al. 2021, Algorithms 1 and 2): bandits that see no contexts."""

from typing import Literal, NamedTuple

import jax.numpy as jnp
from jax import Array

from cqbjax.core import queueing, rng
from cqbjax.core.pytree import check_options, pytree, static
from cqbjax.core.types import Action, Feedback, Needs, Observation, Problem
from cqbjax.policies.picking import gamma_logarithms, instead, of_available, random_assortment


class Plays(NamedTuple):
    """Counts of each server.

    Attributes:
        played: [N] int32, T_S(t-1).
        accepted: [N] int32, successes.
    """

    played: Array
    accepted: Array


@pytree
class QueueingBandit:
    """Q-UCB or Q-ThS for K = 1: FIFO, exploration with probability min(1, 3 N log(t)^2 / t).

    Attributes:
        index: `ucb` (mu + sqrt(log(t)^2 / (2 T_S))) or `thompson` (a Beta posterior sample).
    """

    index: Literal["ucb", "thompson"] = static(default="ucb")

    needs = Needs(contexts=False)

    def check(self, problem: Problem) -> None:
        """Refuse an unknown index and K > 1, for which the algorithms are not defined.

        Raises:
            ValueError: naming what is allowed.
        """
        check_options(self)
        if problem.assortment_size != 1:
            raise ValueError(
                f"q_ucb and q_ths are defined for K=1 only, and K={problem.assortment_size}: "
                "leave them out of `policies`"
            )

    def init(self, problem: Problem, contexts: Array) -> Plays:
        """Return empty counts."""
        zeros = jnp.zeros(problem.num_servers, jnp.int32)
        return Plays(zeros, zeros)

    def select(self, key: Array, state: Plays, observation: Observation) -> Action:
        """Serve the oldest query by a random server or the one of the highest index."""
        problem, t = observation.problem, observation.round.astype(float)
        rate = jnp.minimum(1.0, 3.0 * problem.num_servers * jnp.log(t) ** 2 / t)
        explored = rng.uniform(key, rng.Stream.EXPLORE) < rate
        index = self._ucb(state, t) if self.index == "ucb" else self.sample(key, state)
        index = of_available(index, observation, -jnp.inf)
        server = jnp.where(explored, random_assortment(key, problem), jnp.argmax(index))
        slot = queueing.pick("oldest", observation.queue, jnp.zeros(()))
        servers = instead(key, server.astype(jnp.int32)[None], observation)
        return Action(slot, servers, explored)

    def _ucb(self, state: Plays, t: Array) -> Array:
        """Return the index of each server, infinite where it was never played: [N]."""
        played = jnp.maximum(state.played, 1.0)
        index = state.accepted / played + jnp.sqrt(jnp.log(t) ** 2 / (2.0 * played))
        return jnp.where(state.played > 0, index, jnp.inf)

    def sample(self, key: Array, state: Plays) -> Array:
        """Draw from Beta(successes + 1, failures + 1) of each server: [N].

        `jax.random.beta`, bit for bit.
        """
        failed = state.played - state.accepted
        logarithms = gamma_logarithms(key, state.accepted + 1.0, failed + 1.0)
        scaled = jnp.exp(logarithms - jnp.max(logarithms, axis=0))
        return scaled[0] / (scaled[0] + scaled[1])

    def update(
        self, state: Plays, observation: Observation, action: Action, feedback: Feedback
    ) -> Plays:
        """Count the play and, if the answer was accepted, the success."""
        servers = jnp.arange(observation.problem.num_servers)
        here = (servers == action.servers[0]) & feedback.valid
        return Plays(state.played + here, state.accepted + (here & (feedback.choice == 0)))
