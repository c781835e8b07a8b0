"""Scenarios made up for tests and timings, and a player that keeps every round."""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from cqbjax import policies, sources
from cqbjax.core import queueing, rng, simulate
from cqbjax.core.pytree import as_arrays, pytree, static
from cqbjax.core.types import (
    Action,
    Feedback,
    Observation,
    Policy,
    Problem,
    Queue,
    Source,
    Workload,
)
from cqbjax.estimation import BlockBeliefState


class PlayedRounds(NamedTuple):
    """Every round of a run.

    Attributes:
        decision: each field [T, ...].
        length: [T] Q(t+1).
        queue: [T, C] the queue after the round; None unless all is kept.
        arrivals: [T] bool A(t).
        workload: what the source drew.
        overflow: [] first round without a free slot.
    """

    decision: simulate.Decision
    length: Array
    queue: Queue | None
    arrivals: Array
    workload: Workload
    overflow: Array


@functools.partial(jax.jit, static_argnames="problem")
def _draw_instances(
    keys: Array, source: Source, rate: Array, problem: Problem
) -> simulate.Instance:
    """Draw every run's instance; a program of its own, which all policies share."""
    return jax.vmap(lambda key: simulate.draw_instance(key, source, rate, problem))(keys)


# Compiled as the process compiles: scenarios with known answers need many rounds to tell them.
@functools.partial(jax.jit, static_argnames=("problem", "capacity", "keep_all"))
def _play(
    instances: simulate.Instance, policy: Policy, problem: Problem, capacity: int, keep_all: bool
) -> tuple[simulate.Decision, Array, Queue | None, Array]:
    def play_one(instance: simulate.Instance) -> Any:
        def one(carry: simulate.Carry, t: Array) -> tuple[simulate.Carry, Any]:
            carry, decision = simulate.run_round(policy, problem, instance, carry, t)
            if not keep_all:
                decision = decision._replace(state=())
            queue = carry.queue if keep_all else None
            return carry, (
                decision,
                jnp.sum(queueing.mark_waiting(carry.queue), dtype=jnp.int32),
                queue,
            )

        rounds = jnp.arange(1, problem.horizon + 1, dtype=jnp.int32)
        carry, recorded = jax.lax.scan(
            one, simulate.start(policy, problem, instance, capacity), rounds
        )
        return *recorded, carry.overflow

    return jax.vmap(play_one)(instances)


def draw_instances(source: Source, rate: float, problem: Problem, seeds: Any) -> simulate.Instance:
    """Draw the instance of every seed: leaves [S, ...] as JAX arrays."""
    keys = _keys(jnp.atleast_1d(jnp.asarray(seeds)))
    return _draw_instances(keys, as_arrays(source), jnp.asarray(rate, float), problem)


_keys = jax.jit(jax.vmap(rng.run_key))


def play(
    policy: Policy, source: Source, rate: float, problem: Problem, capacity: int, seeds: Any,
    keep_all: bool = False,
) -> PlayedRounds:  # fmt: skip
    """Run every seed by the simulator's own round: leaves [S, ...] as NumPy.

    Floats of policy and source never recompile. `keep_all` keeps the queue and the policy's state
    of every round too.
    """
    instances = draw_instances(source, rate, problem, seeds)
    decision, length, queue, overflow = _play(
        instances, as_arrays(policy), problem, capacity, keep_all
    )
    played = PlayedRounds(decision, length, queue, instances.arrivals, instances.workload, overflow)
    return jax.tree.map(np.asarray, played)


def first(played: PlayedRounds) -> PlayedRounds:
    """Return the only run, or the first."""
    return jax.tree.map(lambda leaf: leaf[0], played)


def log_odds(mu: Any, size: int = 1) -> np.ndarray:
    """Return the utility at which `size` such servers together make a query leave with rate mu."""
    mu = np.asarray(mu, float)
    return np.log(mu / (1.0 - mu) / size)


def routing(utilities: Any, contexts: Any = None, dim: int = 2) -> sources.PromptPool:
    """Make a scenario from utilities [P, N]; contexts are drawn where none are given."""
    utilities = np.asarray(utilities, float)
    if contexts is None:
        contexts = np.random.default_rng(7).normal(size=(len(utilities), dim))
    return sources.PromptPool(
        contexts=jnp.asarray(contexts, float),
        utilities=jnp.asarray(utilities, float),
        pool_size=len(utilities),
    )


def constant(mu: float, prompts: int = 8, servers: int = 3, size: int = 1) -> sources.PromptPool:
    """Make the scenario in which every query leaves with probability mu, whatever is decided."""
    return routing(np.full((prompts, servers), log_odds(mu, size)))


def identical_servers(prompts: int = 8, servers: int = 3) -> sources.PromptPool:
    """Make the scenario in which queries differ and servers do not."""
    mu = np.linspace(0.3, 0.9, prompts)
    return routing(np.tile(log_odds(mu)[:, None], (1, servers)))


def one_best(prompts: int = 8, servers: int = 3, best: int = 1) -> sources.PromptPool:
    """Make the scenario in which one server is the best for every query."""
    mu = np.full((prompts, servers), 0.35)
    mu[:, best] = 0.9
    # A constant context feature lets a linear model tell the servers apart.
    contexts = np.random.default_rng(7).normal(scale=0.3, size=(prompts, 2))
    contexts[:, 0] = 1.0
    return routing(log_odds(mu), contexts)


@pytree
class BatchPool:
    """A pool whose queries come in batches: none, one or two a round.

    Attributes:
        source: the pool.
    """

    source: Any

    def problem(self, K: int, horizon: int) -> Problem:
        """Return the pool's shapes, with two arrivals a round."""
        return self.source.problem(K, horizon)._replace(max_arrivals=2)

    def check(self, seeds: np.ndarray, arrival_rate: float, K: int) -> None:
        """Refuse what the pool refuses."""
        self.source.check(seeds, arrival_rate, K)

    def uniform_service(self, seeds: np.ndarray, arrival_rate: float, K: int) -> float:
        """Return the pool's own."""
        return self.source.uniform_service(seeds, arrival_rate, K)

    def draw_workload(self, key: Array, arrival_rate: Array, problem: Problem) -> Workload:
        """Draw the pool; a second query is of another row."""
        drawn = self.source.draw_workload(key, arrival_rate, problem)
        rows = drawn.arrival_rows
        second = (3 * rows + 1) % problem.num_rows
        return drawn._replace(arrival_rows=jnp.stack([rows, second], axis=-1))

    def draw_arrivals(self, key: Array, arrival_rate: Array, horizon: int) -> Array:
        """Draw how many come: any in 7 rounds of 10 lambda, two in 3 of these."""
        rounds = jnp.arange(1, horizon + 1)
        uniform = rng.round_uniforms(key, rounds, rng.Stream.ARRIVAL)
        bounds = jnp.asarray([0.7, 0.3], uniform.dtype) * arrival_rate
        return jnp.sum(uniform[:, None] < bounds, axis=-1, dtype=jnp.int32)


def unit_vectors(servers: int, dim: int = 384, prompts: int = 1000) -> sources.PromptPool:
    """Make a pool of random unit vectors with linear utilities.

    What a round costs depends on the shapes alone, so the benchmark needs no dataset.

    Args:
        servers: N.
        dim: d.
        prompts: P, all of which are in every run's pool.
    """
    draws = np.random.default_rng(0)
    contexts = draws.normal(size=(prompts, dim))
    contexts /= np.linalg.norm(contexts, axis=1, keepdims=True)
    utilities = contexts @ draws.normal(0.0, 1.5, size=(dim, servers)) + 0.3
    return sources.PromptPool(
        contexts=jnp.asarray(contexts, jnp.float32),
        utilities=jnp.asarray(utilities, jnp.float32),
        pool_size=prompts,
    )


@pytree
class FixedThetaAcqb:
    """ACQB that holds a given theta and never learns.

    Attributes:
        policy: the ACQB.
        theta: [B, d] what it believes.
    """

    policy: policies.Acqb
    theta: Array

    def init(self, problem: Problem, contexts: Array) -> Any:
        """Return ACQB's state with theta planted in it."""
        state = self.policy.init(problem, contexts)
        assert isinstance(state.belief, BlockBeliefState), "theta is planted in a belief by blocks"
        estimate = state.belief.estimate._replace(theta=self.theta)
        return state._replace(belief=state.belief._replace(estimate=estimate))

    def select(self, key: Array, state: Any, observation: Observation) -> Action:
        """Decide as ACQB does."""
        return self.policy.select(key, state, observation)

    def update(
        self, state: Any, observation: Observation, action: Action, feedback: Feedback
    ) -> Any:
        """Learn nothing."""
        del observation, action, feedback
        return state


@pytree
class TraceCounter:
    """Random routing that counts how often Python runs through its `select`.

    Attributes:
        weight: a float that changes nothing.
        log: the list that grows by one each time; static, and equal to itself alone.
    """

    weight: Array | float = 0.0
    log: Any = static(default=None)

    def init(self, problem: Problem, contexts: Array) -> Any:
        """Return the empty state."""
        del problem, contexts
        return ()

    def select(self, key: Array, state: Any, observation: Observation) -> Action:
        """Decide as random routing does, and write it down."""
        self.log.calls.append("select")
        return policies.RandomRouting().select(key, state, observation)

    def update(
        self, state: Any, observation: Observation, action: Action, feedback: Feedback
    ) -> Any:
        """Learn nothing."""
        del observation, action, feedback
        return state


class Log:
    """A hashable list."""

    def __init__(self) -> None:
        """Start empty."""
        self.calls: list[str] = []
