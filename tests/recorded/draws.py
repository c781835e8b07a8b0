"""What a run will meet and draw, recorded from JAX keys for the NumPy reference."""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from recorded.cases import Case

from cqbjax.core import rng, simulate
from cqbjax.core.types import Problem
from cqbjax.policies import Acqb
from cqbjax.policies.assortments import (
    draw_assortment_rank,
    draw_server_priorities,
)
from cqbjax.testing.instances import FAST_COMPILE_OPTIONS
from tests import reference

_jit = functools.partial(jax.jit, compiler_options=FAST_COMPILE_OPTIONS)


def record(case: Case) -> tuple[reference.Workload, reference.Draws]:
    """Return what a run of this case and seed will meet and draw, in float64 NumPy arrays."""
    instance = instance_of(case)
    drawn, several = instance.workload, case.problem.max_arrivals > 1
    arrival, choice, draws, ranks, tie_breaks, replacement = _draws(
        rng.run_key(case.seed), case.problem
    )
    return reference.Workload(
        features=floats(drawn.contexts),
        utilities=floats(drawn.utilities),
        arrival_index=np.asarray(drawn.arrival_rows, np.int64),
        scores=scores(case),
        arrivals=np.asarray(instance.arrivals, np.int64) if several else None,
    ), reference.Draws(
        arrival=floats(arrival),
        choice=floats(choice),
        explore=floats(draws.explore),
        normal=floats(draws.normal),
        query=floats(draws.query),
        assortment=np.asarray(ranks, np.int64),
        tie_breaks=floats(tie_breaks),
        replacement=floats(replacement),
        beta=_beta(rng.run_key(case.seed)),
        fixed_uniforms=_fixed_uniforms(case, instance),
        fixed_by=case.problem.outcome,
    )


def _fixed_uniforms(case: Case, instance: simulate.Instance) -> reference.Floats | None:
    """Return the uniforms at the address of seed, server, and prompt or round of arrival."""
    by, key = case.problem.outcome, rng.run_key(case.seed)
    if by == "attempt":
        return None
    rounds = jnp.arange(1, case.horizon + 1)
    numbers = instance.workload.prompts if by == "prompt" else rounds

    def at(number: jax.Array, server: jax.Array) -> jax.Array:
        own = rng.stream_key(rng.round_key(key, number), rng.Stream.FIXED_OUTCOME)
        return jax.random.uniform(jax.random.fold_in(own, server), (), jnp.float32)

    of_all = jax.vmap(jax.vmap(at, (None, 0)), (0, None))
    return floats(of_all(numbers, jnp.arange(case.problem.num_servers)))


@functools.partial(_jit, static_argnames="problem")
def _draws(key: jax.Array, problem: Problem) -> Any:
    """Draw every round's randomness at its address."""
    rounds = jnp.arange(1, problem.horizon + 1)
    keys = jax.vmap(functools.partial(rng.round_key, key))(rounds)
    return (
        rng.round_uniforms(key, rounds, rng.Stream.ARRIVAL),
        rng.round_uniforms(key, rounds, rng.Stream.CHOICE),
        jax.vmap(lambda key: Acqb().draws(key, problem))(keys),
        jax.vmap(lambda key: draw_assortment_rank(key, problem))(keys),
        jax.vmap(lambda key: draw_server_priorities(key, problem, rng.Stream.ASSORTMENT))(keys),
        jax.vmap(lambda key: draw_server_priorities(key, problem, rng.Stream.REPLACEMENT))(keys),
    )


def scores(case: Case) -> reference.Floats:
    """Return what a router predicts of each row [I, N]: the truth and as much noise."""
    utilities = floats(instance_of(case).workload.utilities)
    return utilities + np.random.default_rng(case.seed).normal(size=utilities.shape)


def floats(array: Any) -> reference.Floats:
    """Copy to a writable float64 array, so that a planted fault can be put into it."""
    return np.array(array, np.float64)


def _beta(key: jax.Array) -> Callable[[int, reference.Floats, reference.Floats], reference.Floats]:
    """Return the reference's beta callback: the draw of `QueueingBandit.sample` at its address."""
    return lambda t, a, b: np.asarray(_beta_at(key, t, jnp.asarray(a), jnp.asarray(b)))


@_jit
def _beta_at(key: jax.Array, t: int, a: jax.Array, b: jax.Array) -> jax.Array:
    return jax.random.beta(rng.stream_key(rng.round_key(key, t), rng.Stream.BETA), a, b)


_draw_instance = _jit(simulate.draw_instance, static_argnames="problem")


def instance_of(case: Case) -> simulate.Instance:
    """Draw the run's fixed part, compiled once a shape."""
    source = jax.tree.map(jnp.asarray, case.source)
    rate = jnp.asarray(case.arrival_rate, float)
    return _draw_instance(rng.run_key(case.seed), source, rate, case.problem)
