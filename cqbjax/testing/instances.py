"""Random instances for the checks, and the compiler options of the checks."""

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from cqbjax.core import rng, simulate
from cqbjax.core.types import Problem, Workload

# XLA optimises as usual, and LLVM does not: compiling takes about half of the time, and runs are a
# few times slower.
FAST_COMPILE_OPTIONS: dict[str, Any] = {
    "xla_backend_optimization_level": 0,
    "xla_llvm_disable_expensive_passes": True,
}


ARRIVAL_RATE = 0.6
#: The default shapes of the checks: N = 4, K = 2, d = 3, T = 48.
PROBLEM = Problem(
    num_servers=4, assortment_size=2, dim=3, num_rows=12, horizon=48, parameters="disjoint",
    pooled=True,
)  # fmt: skip


def draw_instances(problem: Problem, seed: int, count: int) -> simulate.Instance:
    """Draw random instances whose queues are empty in some rounds, not in all: [count, ...]."""
    most = problem.horizon * problem.max_arrivals
    if problem.num_rows < (1 if problem.pooled else most):
        raise ValueError(f"num_rows={problem.num_rows} must reach {most} queries, unless pooled")
    instances = [_draw_instance(problem, seed, number) for number in range(count)]
    return jax.tree.map(lambda *leaves: jnp.stack(leaves), *instances)


def _draw_instance(problem: Problem, seed: int, number: int) -> simulate.Instance:
    """Draw an instance by NumPy, independently of the code that is checked."""
    draw = np.random.default_rng([seed, number])
    rows, servers, dim = problem.num_rows, problem.num_servers, problem.dim
    if problem.parameters == "disjoint":
        contexts = draw.normal(size=(rows, dim))
        utilities = contexts @ draw.normal(size=(dim, servers))
    else:
        contexts = draw.normal(size=(rows, servers, dim))
        utilities = contexts @ draw.normal(size=dim)
    shape = (problem.horizon, problem.max_arrivals)
    arrival_rows = draw.integers(rows, size=shape)
    if not problem.pooled:
        arrival_rows = np.arange(math.prod(shape)).reshape(shape)
    if problem.max_arrivals == 1:
        arrival_rows = arrival_rows[:, 0]
    workload = Workload(
        jnp.asarray(contexts, float),
        jnp.asarray(utilities + 1.0, float),
        jnp.asarray(arrival_rows, jnp.int32),
        jnp.arange(rows, dtype=jnp.int32),
    )
    arrivals = jnp.asarray(draw.uniform(size=problem.horizon) < ARRIVAL_RATE)
    if (most := problem.max_arrivals) > 1:
        counts = draw.binomial(most, ARRIVAL_RATE / most, size=problem.horizon)
        arrivals = jnp.asarray(counts, jnp.int32)
    choice = jnp.asarray(draw.uniform(size=problem.horizon), float)
    return simulate.Instance(rng.run_key(1000 * seed + number), workload, arrivals, choice)
