"""One run's instance and randomness, recorded from JAX keys for the NumPy reference, and replayed.

`record` gives the reference exactly what the simulator will draw; `play` runs the simulator and
returns a trajectory in the reference's own terms.
"""

import functools
import operator
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from recorded.cases import (
    ACQB,
    BANDITS,
    KINDS,
    MIXED,
    OPTIMISTIC,
    SIMPLE,
    WINDOWED,
    Case,
    labels,
    policy,
)
from recorded.draws import floats, instance_of, record
from recorded.switched import SwitchedPolicy, switched

from cqbjax.core import simulate
from cqbjax.core.types import Problem
from cqbjax.testing.instances import FAST_COMPILE_OPTIONS
from tests import reference

__all__ = [
    "BANDITS", "KINDS", "MIXED", "OPTIMISTIC", "SIMPLE", "WINDOWED", "Case", "labels", "play",
    "policy", "record", "shown_first", "switched",
]  # fmt: skip


@functools.partial(
    jax.jit, compiler_options=FAST_COMPILE_OPTIONS, static_argnames=("problem", "capacity")
)
def _scan(
    instances: simulate.Instance, policies: SwitchedPolicy, problem: Problem, capacity: int
) -> tuple[simulate.Decision, jax.Array, jax.Array, jax.Array]:
    """Run a batch: [S, T] decisions without the state, Q(t+1), theta, and [S] lost queries."""

    def begin(instance: simulate.Instance, policy: SwitchedPolicy) -> simulate.Carry:
        return simulate.start(policy, problem, instance, capacity)

    def one_run(instance: simulate.Instance, policy: SwitchedPolicy, start: simulate.Carry) -> Any:
        def one(carry: simulate.Carry, round_: jax.Array) -> Any:
            carry, decision = simulate.run_round(policy, problem, instance, carry, round_)
            shown = decision._replace(state=None)
            return carry, (shown, carry.length, decision.state)

        rounds = jnp.arange(1, problem.horizon + 1, dtype=jnp.int32)
        carry, (decision, length, state) = jax.lax.scan(one, start, rounds)
        return decision, length, _theta(policy.learner, state, instance, problem), carry.overflow

    # Where all that a loop carries is batched before it begins, the loop is batched once.
    return jax.vmap(one_run)(instances, policies, jax.vmap(begin)(instances, policies))


def _theta(policy: Any, state: Any, instance: simulate.Instance, problem: Problem) -> jax.Array:
    """Return the estimates behind a stack of states [T, B, d]; zero where nothing is estimated."""
    if hasattr(policy, "theta"):
        return jnp.asarray(policy.theta(state, instance.workload.contexts, problem))
    return jnp.zeros((problem.horizon, problem.num_blocks, problem.dim))


def play(
    runs: Sequence[tuple[Case, str]],
    capacity: int = 64,
    among: Sequence[str] = (),
    **static_fields: Any,
) -> list[reference.Trajectory]:
    """Run the simulator and return every run in the reference's terms.

    Policies that keep the same kind of state are a program, and as many runs a batch as it has
    labels: all labels of one case and one label of many cases are then the same program.

    Args:
        runs: cases, which differ in numbers and seed alone, each with the label that acts.
        capacity: queue slots.
        among: the labels of which programs are made; none: all that are defined.
        static_fields: of `Acqb`: estimator, exact_steps.

    Raises:
        ValueError: if a query found no free slot.
    """
    among = among or labels(runs[0][0])
    played: dict[int, reference.Trajectory] = {}
    for every in KINDS:
        kind = [label for label in among if label in every]
        own = static_fields if every in ACQB else {}
        numbers = [number for number, (_, label) in enumerate(runs) if label in kind]
        for start in range(0, len(numbers), max(len(kind), 1)):
            some = numbers[start : start + len(kind)]
            padded = [*some, *some[-1:] * (len(kind) - len(some))]
            batch = _play_batch([runs[number] for number in padded], kind, capacity, own)
            played |= dict(zip(padded, batch, strict=True))
    return [played[number] for number in range(len(runs))]


def _play_batch(
    runs: list[tuple[Case, str]], kind: Sequence[str], capacity: int, static_fields: dict[str, Any]
) -> list[reference.Trajectory]:
    """Run one batch."""
    problem = runs[0][0].problem
    instances = _stack([instance_of(case) for case, _ in runs])
    policies = _stack([switched(case, kind, **static_fields)[label] for case, label in runs])
    decision, length, theta, overflow = jax.tree.map(
        np.asarray, _scan(instances, policies, problem, capacity)
    )
    if overflow.any():
        lost = int(overflow[overflow > 0].min())
        raise ValueError(f"capacity={capacity} overflowed in round {lost}: raise it")
    return [
        _trajectory(problem, *(jax.tree.map(operator.itemgetter(row), (decision, length, theta))))
        for row in range(len(runs))
    ]


def _stack(trees: list[Any]) -> Any:
    """Stack pytrees of one structure along a new leading axis."""
    return jax.tree.map(lambda *leaves: jnp.stack(leaves), *trees)


def shown_first(servers: Any) -> Any:
    """Return the servers of each attempt that were shown, then -1: [..., K]."""
    order = np.argsort(servers < 0, axis=-1, kind="stable")
    return np.take_along_axis(servers, order, axis=-1)


def _trajectory(
    problem: Problem, decision: simulate.Decision, length: Any, theta: Any
) -> reference.Trajectory:
    """Return one run in the reference's terms."""
    valid = decision.valid
    servers = np.asarray(decision.servers, np.int64)
    departed = valid & (decision.choice < problem.assortment_size)
    picked = np.minimum(decision.choice, problem.assortment_size - 1)[:, None]
    chosen = np.take_along_axis(servers, picked, axis=1)[:, 0]
    return reference.Trajectory(
        query=np.where(valid, np.asarray(decision.query, np.int64), -1),
        assortment=np.where(valid[:, None], shown_first(servers), -1),
        choice=np.where(departed, chosen, -1),
        departed=np.asarray(departed),
        queue_length=np.asarray(length, np.int64),
        regret=floats(decision.regret),
        explored=np.asarray(decision.explored),
        theta=floats(theta),
    )
