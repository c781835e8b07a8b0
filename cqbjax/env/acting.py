"""The queue as an environment: for who learns by acting, and not by a policy's three methods.

    env = Env(source=sources.Synthetic(), arrival_rate=0.7, horizon=1000)
    observation, state = env.reset(rng.run_key(0))
    observation, state, reward, done, told = env.step(key, state, action)

`reset` and `step` are pure, and can be compiled and batched. A step is the round of
`core.simulate`, the only one there is: a policy that is driven through it meets the same queries,
users and chance as in `sweep`, and reaches the same numbers bit for bit.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from cqbjax.core import mnl, queueing, rng, simulate
from cqbjax.core.instances import Instance
from cqbjax.core.pytree import pytree, static
from cqbjax.core.types import (
    Action,
    Feedback,
    Needs,
    Observation,
    Policy,
    Problem,
    Source,
    blank_action,
    read_needs,
)

# Slots of the queue, unless others are given.
CAPACITY = 256


class EnvState(NamedTuple):
    """A run under way.

    Attributes:
        instance: what was drawn before its first round.
        carry: what changes from round to round.
        round: [] int32 t, of the next step.
    """

    instance: Instance
    carry: simulate.Carry
    round: Array


class StepInfo(NamedTuple):
    """What comes of a step beside the reward.

    Attributes:
        action: that was told of, in the paper's world the one that was taken.
        feedback: the user's choice; `feedback.valid` is False where nobody waited.
        length: [] int32 queries that wait after the round.
        departed: [] int32 queries that were satisfied so far.
        overflow: [] bool whether a query found no free slot: take more `capacity`.
    """

    action: Action
    feedback: Feedback
    length: Array
    departed: Array
    overflow: Array


class _ActionState(NamedTuple):
    """A round's action, and what the round told of it."""

    action: Action
    told: Action
    feedback: Feedback


@pytree
class _ActionPolicy:
    """A policy that does what it is told, and remembers what it heard."""

    mixed: bool = static(default=False)

    @property
    def needs(self) -> Needs:
        return Needs(offer_counts=True, entry_rounds=True, smaller_assortments=self.mixed)

    def init(self, problem: Problem, contexts: Array) -> _ActionState:
        del contexts
        size = problem.assortment_size
        blank = blank_action(size, self.mixed)
        told = blank_action(size, self.mixed or (problem.outages and size > 1))
        return _ActionState(blank, told, Feedback(jnp.zeros((), jnp.int32), jnp.bool_(False)))

    def select(self, key: Array, state: _ActionState, observation: Observation) -> Action:
        del key, observation
        return state.action

    def update(
        self, state: _ActionState, observation: Observation, action: Action, feedback: Feedback
    ) -> _ActionState:
        del observation
        return _ActionState(state.action, action, feedback)


class Env:
    """A world to act in: one query is served a round.

    Attributes:
        source: where queries come from, with users and service of its own (`core.scenario`).
        arrival_rate: queries a round.
        problem: the static shapes.
        capacity: C, queue slots.
        spaces: name -> (shape, dtype, least, largest) of each array of an observation.
    """

    def __init__(
        self, source: Source, arrival_rate: float = 0.7, horizon: int = 1000,
        K: int = 1, capacity: int = CAPACITY, mixed: bool = False,
    ) -> None:  # fmt: skip
        """Check what there is to act in.

        Args:
            source: from `sources`; `core.scenario.with_dynamics` puts users and service around it.
            arrival_rate: in [0, 1].
            horizon: T, rounds.
            K: servers offered per query.
            capacity: C; a queue that outgrows it loses queries, which `Told.overflow` says.
            mixed: whether actions say which of their servers are shown (`Action.shown`).

        Raises:
            ValueError: for input out of range, or a service with several places or late feedback.
        """
        self.source, self.arrival_rate, self.capacity = source, float(arrival_rate), capacity
        self.problem, self._driven = source.problem(K, horizon), _ActionPolicy(mixed=mixed)
        if self.problem.channels > 1:
            raise ValueError(
                f"an environment serves one query a round, not {self.problem.channels}"
            )
        if not 0 <= self.arrival_rate <= 1:
            raise ValueError(f"arrival_rate={arrival_rate} must lie in [0, 1]")
        if type(capacity) is not int or capacity < 1:
            raise ValueError(f"capacity={capacity} must be a whole number, at least 1")
        if not 1 <= K <= self.problem.num_servers:
            raise ValueError(f"K={K} must lie in 1..N, and N={self.problem.num_servers}")
        source.check(np.arange(1), self.arrival_rate, K)
        self.spaces = self._spaces()

    @property
    def mixed(self) -> bool:
        """Whether actions say which of their servers are shown."""
        return self._driven.mixed

    def _spaces(self) -> dict[str, tuple[tuple[int, ...], Any, float, float]]:
        problem, slots = self.problem, self.capacity
        one = (problem.dim,) if problem.parameters == "disjoint" else (
            problem.num_servers, problem.dim,
        )  # fmt: skip
        last = float(problem.horizon)
        return {
            "features": ((slots, *one), np.float32, -np.inf, np.inf),
            "arrived": ((slots,), np.int32, 0, last),
            "served": ((slots,), np.int32, 0, last),
            "shown": ((slots, problem.num_servers), np.int32, 0, last),
            "available": ((problem.num_servers,), np.int8, 0, 1),
            "round": ((), np.int32, 1, last + 1),
        }

    @property
    def num_assortments(self) -> int:
        """How many assortments there are: `mnl.unrank_assortment` makes one of its number."""
        return mnl.num_assortments(self.problem.num_servers, self.problem.assortment_size)

    def reset(self, key: Array) -> tuple[Observation, EnvState]:
        """Draw a run, and return what is seen in its first round.

        Args:
            key: of the run; `rng.run_key(seed)` is that of a sweep's seed.
        """
        rate = jnp.asarray(self.arrival_rate, float)
        instance = simulate.draw_instance(key, self.source, rate, self.problem)
        if instance.dynamics is not None and (
            instance.dynamics.lasting or instance.dynamics.delay > 0
        ):
            raise ValueError("an environment tells what came of an action at once: no late service")
        carry = simulate.start(self._driven, self.problem, instance, self.capacity)
        state = EnvState(instance, carry, jnp.int32(1))
        return self._seen(state), state

    def step(
        self, key: Array, state: EnvState, action: Action
    ) -> tuple[Observation, EnvState, Array, Array, StepInfo]:
        """Play a round.

        Args:
            key: not used: all chance of a run follows from the key of `reset`, by seed, round and
                stream, so that every policy meets the same.
            state: from `reset` or the step before.
            action: a waiting slot, and K distinct servers in increasing order. What it says of an
                empty queue is discarded.

        Returns:
            What is seen in the next round; the state; the reward, minus the queries that wait
            after this round; whether the run is over; and what came of the action.
        """
        del key
        heard = state.carry.state._replace(action=action)
        carry, _ = simulate.run_round(
            self._driven,
            self.problem,
            state.instance,
            state.carry._replace(state=heard),
            state.round,
        )
        after = EnvState(state.instance, carry, state.round + 1)
        told = StepInfo(
            carry.state.told, carry.state.feedback, carry.length, carry.recorded["departures"],
            carry.overflow > 0,
        )  # fmt: skip
        done = state.round >= self.problem.horizon
        return self._seen(after), after, -carry.length.astype(float), done, told

    def _seen(self, state: EnvState) -> Observation:
        """Return what is seen; `problem` is None, for it is no array."""
        round_ = jnp.minimum(state.round, self.problem.horizon)
        seen = simulate.observe(self._driven, self.problem, state.instance, state.carry, round_)
        return seen._replace(problem=None, round=state.round)  # type: ignore[arg-type]

    def full(self, observation: Observation) -> Observation:
        """Return an observation with the shapes that a policy of `policies` reads in it."""
        return observation._replace(problem=self.problem)

    def first_waiting(self, observation: Observation) -> Array:
        """Return the slot of the oldest query: [] int32."""
        return queueing.pick("oldest", observation.queue, jnp.zeros(()))


def play(env: Env, policy: Policy, key: Array) -> StepInfo:
    """Drive a policy through a whole run, and return what came of each round: [T, ...].

    Args:
        env: where.
        policy: decides and learns, as in a sweep.
        key: of the run.

    Raises:
        ValueError: one of the two is mixed and the other is not.
    """
    if read_needs(policy).smaller_assortments != env.mixed:
        raise ValueError(f"the environment has mixed={env.mixed}, and the policy the opposite")
    observation, state = env.reset(key)

    def one(carried: Any, nothing: None) -> tuple[Any, StepInfo]:
        del nothing
        seen, state, own = carried
        full = env.full(seen)
        action = policy.select(rng.round_key(key, seen.round), own, full)
        seen, state, _, _, told = env.step(key, state, action)
        return (seen, state, policy.update(own, full, told.action, told.feedback)), told

    begun = policy.init(env.problem, state.instance.workload.contexts)
    carried = observation, state, begun
    return jax.lax.scan(one, carried, length=env.problem.horizon)[1]
