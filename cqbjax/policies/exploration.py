"""Forced exploration: when a policy offers the assortments in turn instead of its own choice."""

from typing import Any, Literal, NamedTuple

import jax.numpy as jnp
from jax import Array

from cqbjax.core import mnl, queueing, rng
from cqbjax.core.inputs import Condition, check_interval, read_when
from cqbjax.core.pytree import option, option_index, pytree
from cqbjax.core.types import Action, Feedback, Observation, Problem, Wrapper
from cqbjax.policies.assortments import draw_tie, unrank_available

Exploration = Literal["decaying", "phased", "independent", "none"]
DECAYING, PHASED, INDEPENDENT, NONE = range(4)


def draw_exploration(
    kind: Exploration | Array, uniform: Array, since: Array, observation: Observation,
    c1: Array | float, explore_rounds: Array | float,
) -> Array:  # fmt: skip
    """Return whether to explore in round t: [] bool, E(t-1) in Algorithm 1 line 2.

    Args:
        kind: `decaying` (after an arrival, with probability eta(t-1) = min(1, c1 / sqrt(t))),
            `phased` (CQB-eps: after an arrival, always while t <= tau and with probability T^(-1/2)
            later), `independent` (with probability eta(t-1) after any round), or `none` (never).
        uniform: [] in [0, 1).
        since: [] t in eta(t-1): the round, or the number of attempts since a belief began to learn.
        observation: the round.
        c1: exploration constant.
        explore_rounds: tau, in rounds.
    """
    number = option_index(Exploration, kind, "exploration")
    decaying = jnp.minimum(1.0, c1 / jnp.sqrt(since.astype(float)))
    run_length = observation.run_length
    root = observation.problem.horizon**-0.5 if run_length is None else run_length.root
    phased = jnp.where(observation.round <= explore_rounds, 1.0, root)
    wanted = uniform < jnp.where(number == PHASED, phased, decaying)
    return wanted & (observation.arrived | (number == INDEPENDENT)) & (number != NONE)


def advance_turn(
    turn: Array, observation: Observation, action: Action, feedback: Feedback
) -> Array:
    """Return the number of the next assortment to explore.

    It is the successor of `turn` if `action` was a forced exploration with valid feedback, and
    `turn` otherwise. The first assortment follows the last one.
    """
    problem = observation.problem
    count = mnl.num_assortments(problem.num_servers, problem.assortment_size)
    return jnp.where(action.explored & feedback.valid, (turn + 1) % count, turn)


class ForcedState(NamedTuple):
    """State of `ForcedExploration`.

    Attributes:
        within: state of the policy.
        turn: [] int32 c, the next assortment of the round-robin.
    """

    within: Any
    turn: Array


@read_when(
    c1=Condition("exploration", "decaying", "independent"),
    explore_rounds=Condition("exploration", "phased"),
)
@pytree
class ForcedExploration(Wrapper):
    """A policy with the forced exploration of ACQB (Algorithm 1 lines 2 to 4).

    Attributes:
        policy: decides in rounds that do not explore, and learns from all.
        exploration: as in `Acqb`.
        c1: exploration constant, eta(t) = min(1, c1 / sqrt(t + 1)).
        explore_rounds: tau, the pure-exploration rounds of `exploration="phased"`.
        explore_query: the queue rule that picks the query to explore.
    """

    policy: Any
    exploration: Exploration | Array = option(default="decaying")
    c1: Array | float = 1.0
    explore_rounds: Array | float = 0.0
    explore_query: queueing.Rule | Array = option(default="newest")

    def check(self, problem: Problem) -> None:
        """Validate the options, and the policy.

        Raises:
            ValueError: naming the setting and what is allowed.
        """
        check_interval(self, "[0, inf)", "c1", "explore_rounds")
        if hasattr(self.policy, "check"):
            self.policy.check(problem)

    def init(self, problem: Problem, contexts: Array) -> ForcedState:
        """Return the policy's state, and the first assortment of the round-robin."""
        return ForcedState(self.policy.init(problem, contexts), jnp.zeros((), jnp.int32))

    def select(self, key: Array, state: ForcedState, observation: Observation) -> Action:
        """Explore, or let the policy decide."""
        chosen = self.policy.select(key, state.within, observation)
        uniform = rng.uniform(key, rng.Stream.EXPLORE)
        explored = draw_exploration(
            self.exploration, uniform, observation.round, observation, self.c1,
            self.explore_rounds,
        )  # fmt: skip
        tie = draw_tie(key, self.explore_query)
        slot = queueing.pick(self.explore_query, observation.queue, tie)
        servers = unrank_available(key, state.turn, observation)
        return Action(
            jnp.where(explored, slot, chosen.slot),
            jnp.where(explored, servers, chosen.servers),
            explored | chosen.explored,
            None if chosen.offered is None else explored | chosen.offered,
        )

    def update(
        self, state: ForcedState, observation: Observation, action: Action, feedback: Feedback
    ) -> ForcedState:
        """Let the policy learn, and advance the round-robin."""
        within = self.policy.update(state.within, observation, action, feedback)
        return ForcedState(within, advance_turn(state.turn, observation, action, feedback))
