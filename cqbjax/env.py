"""The queue as an environment, for agents that learn by acting; see also `cqbjax.gymnasium_env`.

    env = Env(source=sources.Synthetic(), arrival_rate=0.7, horizon=1000)
    observation, state = env.reset(rng.run_key(0))
    observation, state, reward, done, info = env.step(key, state, action)

`reset` and `step` are pure functions that can be compiled and batched. A step is a round of
`core.simulate`: a policy that plays here meets the same queries, users and random numbers as in
`sweep`, and reaches the same numbers bit for bit.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from cqbjax.core import mnl, queueing, simulate
from cqbjax.core.inputs import check_interval
from cqbjax.core.instances import Instance
from cqbjax.core.pytree import pytree
from cqbjax.core.recorders import Departures, QueueLength
from cqbjax.core.types import (
    Action,
    Feedback,
    Needs,
    Observation,
    Problem,
    Source,
)

__all__ = ["Env", "EnvState", "StepInfo"]

RECORDERS = (QueueLength(), Departures())


class EnvState(NamedTuple):
    """The state of a run.

    Attributes:
        instance: what was drawn before the first round.
        carry: the state of the simulator; its policy state is None between steps.
        round: [] int32 t of the next step.
    """

    instance: Instance
    carry: simulate.Carry
    round: Array


class StepInfo(NamedTuple):
    """The outcome of a step.

    Attributes:
        action: the action for the policy to learn from: the action taken, except that `offered`
            marks the servers that answered if K > 1 and some servers are down.
        feedback: the user's choice; `feedback.valid` is False if the queue was empty.
        length: [] int32 queries that wait after the round.
        departed: [] int32 queries satisfied so far.
        overflow: [] bool whether a query found no free slot; if so, increase `capacity`.
    """

    action: Action
    feedback: Feedback
    length: Array
    departed: Array
    overflow: Array


@pytree
class _ActionPolicy:
    """A policy whose state is the action of the round, and then what `update` receives."""

    needs = Needs(offer_counts=True, entry_rounds=True)

    def init(self, problem: Problem, contexts: Array) -> None:
        """Return no state: `Env.step` sets the action."""

    def select(self, key: Array, state: Action, observation: Observation) -> Action:
        return state

    def update(
        self, state: Action, observation: Observation, action: Action, feedback: Feedback
    ) -> tuple[Action, Feedback]:
        return action, feedback


class Env:
    """An environment that serves one query per round.

    Attributes:
        source: a source or a scenario (`core.scenario`).
        arrival_rate: queries per round.
        problem: the static shapes.
        capacity: C, queue slots.
        spaces: name -> (shape, dtype, minimum, maximum) of each array of an observation.
    """

    def __init__(
        self, source: Source, arrival_rate: float = 0.7, horizon: int = 1000,
        K: int = 1, capacity: int = 256,
    ) -> None:  # fmt: skip
        """Validate the arguments.

        Args:
            source: from `sources`; `core.scenario.with_dynamics` adds user and service dynamics.
            arrival_rate: in [0, 1].
            horizon: T, rounds.
            K: servers offered per query.
            capacity: C; a longer queue loses queries (`StepInfo.overflow`).

        Raises:
            ValueError: for arguments out of range and for several service channels.
        """
        self.source, self.arrival_rate, self.capacity = source, float(arrival_rate), capacity
        self.problem, self._policy = source.problem(K, horizon), _ActionPolicy()
        if self.problem.channels > 1:
            raise ValueError(
                f"an environment serves one query a round, not {self.problem.channels}"
            )
        check_interval(self, "[0, 1]", "arrival_rate")
        if type(capacity) is not int or capacity < 1:
            raise ValueError(f"capacity={capacity} must be a whole number, at least 1")
        if not 1 <= K <= self.problem.num_servers:
            raise ValueError(f"K={K} must lie in 1..N, and N={self.problem.num_servers}")
        source.check(np.arange(1), self.arrival_rate, K)
        servers, last = self.problem.num_servers, float(horizon)
        self.spaces: dict[str, tuple[tuple[int, ...], Any, float, float]] = {
            "features": ((capacity, *self.problem.contexts_shape[1:]), np.float32, -np.inf, np.inf),
            "arrived": ((capacity,), np.int32, 0, last),
            "served": ((capacity,), np.int32, 0, last),
            "offered": ((capacity, servers), np.int32, 0, last),
            "available": ((servers,), np.int8, 0, 1),
            "round": ((), np.int32, 1, last + 1),
        }

    @property
    def num_assortments(self) -> int:
        """The number of assortments; `mnl.unrank_assortment` returns one of them by its rank."""
        return mnl.num_assortments(self.problem.num_servers, self.problem.assortment_size)

    def reset(self, key: Array) -> tuple[Observation, EnvState]:
        """Draw a run and return the observation of its first round, and the state.

        Args:
            key: the key of the run; `rng.run_key(seed)` is the key of a sweep's seed.

        Raises:
            ValueError: for service times above one round and for delayed feedback.
        """
        rate = jnp.asarray(self.arrival_rate, float)
        instance = simulate.draw_instance(key, self.source, rate, self.problem)
        dynamics = instance.dynamics
        if dynamics is not None and (dynamics.multi_round or dynamics.delay > 0):
            raise ValueError(
                "an environment returns the outcome of an action at once: use service times of one "
                "round and no delayed feedback"
            )
        carry = simulate.start(
            self._policy, self.problem, instance, self.capacity, recording=RECORDERS
        )
        state = EnvState(instance, carry, jnp.int32(1))
        return self.observe(state), state

    def step(
        self, key: Array, state: EnvState, action: Action
    ) -> tuple[Observation, EnvState, Array, Array, StepInfo]:
        """Simulate a round.

        Args:
            key: not used. All random numbers follow from the key of `reset`, so that every policy
                meets the same ones.
            state: from `reset` or the previous step.
            action: a waiting slot, and K distinct servers in increasing order; discarded if the
                queue is empty.

        Returns:
            The observation of the next round; the state; the reward, minus the number of queries
            that wait after this round; whether the run has ended; and the outcome of the action.
        """
        del key
        carry, _ = simulate.run_round(
            self._policy, self.problem, state.instance, state.carry._replace(state=action),
            state.round, RECORDERS,
        )  # fmt: skip
        after = EnvState(state.instance, carry._replace(state=None), state.round + 1)
        updated, feedback = carry.state
        departed, overflow = carry.recorded["departures"], carry.overflow > 0
        info = StepInfo(updated, feedback, carry.length, departed, overflow)
        done = state.round >= self.problem.horizon
        return self.observe(after), after, -carry.length.astype(float), done, info

    def observe(self, state: EnvState) -> Observation:
        """Return the observation without `problem`, which is not an array."""
        round_ = jnp.minimum(state.round, self.problem.horizon)
        seen = simulate.observe(self._policy, self.problem, state.instance, state.carry, round_)
        return seen._replace(problem=None, round=state.round)  # type: ignore[arg-type]

    def action_mask(self, observation: Observation) -> tuple[Array, Array]:
        """Mark the valid slots [C] bool and the valid assortments [num_assortments] bool.

        A slot is valid if a query waits in it. If the queue is empty, only slot 0 is valid; the
        environment discards the action. An assortment is valid if at least one of its servers is
        available, or if no server is.
        """
        slots = queueing.mark_waiting(observation.queue)
        slots = slots | (~jnp.any(slots) & (jnp.arange(self.capacity) == 0))
        ranks, available = jnp.arange(self.num_assortments), observation.available
        if available is None:
            return slots, jnp.ones(len(ranks), bool)
        problem = self.problem
        servers = jax.vmap(mnl.unrank_assortment, (0, None, None))(
            ranks, problem.num_servers, problem.assortment_size
        )
        answering = jnp.any(available[servers], axis=-1)
        return slots, answering | ~jnp.any(available)

    def with_problem(self, observation: Observation) -> Observation:
        """Return an observation with `problem`, as a policy of `cqbjax.policies` needs it."""
        return observation._replace(problem=self.problem)
