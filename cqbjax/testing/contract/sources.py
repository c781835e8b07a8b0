"""What every source must obey, as one function that anybody can call on their own source."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from cqbjax.core import conformance, contract, rng, simulate
from cqbjax.core.contract import require
from cqbjax.core.types import Problem, Source


def check_source(
    source: Source, arrival_rate: float = 0.4, seed: int = 0, K: int = 1,
    horizon: int = 48,
) -> None:  # fmt: skip
    """Check a source against the contract of `cqbjax.core.types.Source`.

    The shapes and types of what it draws; finite numbers, rows and arrivals in range; that the same
    key gives the same draws, and the same first rounds at a shorter horizon.

    Args:
        source: what to check.
        arrival_rate: lambda.
        seed: of the run that is drawn.
        K: servers offered per query.
        horizon: T, at least 2.

    Raises:
        ContractError: for the first part that is broken, in one sentence.
    """
    contract.check_source_class(source)
    problem = source.problem(K, horizon)
    conformance.check_source(source, problem)
    column, dim = problem.age_column, problem.dim
    require(
        column is None or 0 <= column < dim,
        f"age_column={column} must lie in 0..{dim - 1}, or None",
    )
    drawn = _drawn(source, arrival_rate, seed, problem)
    batch = jax.tree.map(lambda leaf: leaf[None], drawn)
    (fault,) = np.asarray(conformance.instance_faults(problem, *batch))
    require(fault == 0, conformance.INSTANCE_FAULTS[fault - 1])
    again = jax.tree.leaves(_drawn(source, arrival_rate, seed, problem))
    same = all(map(np.array_equal, jax.tree.leaves(drawn), again))
    require(same, "the same key must give the same draws, and a second call gives others")
    half = _drawn(source, arrival_rate, seed, source.problem(K, horizon // 2))
    pairs = zip(("arrives", "queries"), _coming(half), _coming(drawn), strict=True)
    differing = [
        part for part, one, other in pairs if not np.array_equal(one, other[: horizon // 2])
    ]
    require(
        not differing,
        f"the first rounds must be the same at any horizon, and {' and '.join(differing)} differ",
    )


def _drawn(source: Source, arrival_rate: float, seed: int, problem: Problem) -> Any:
    """Draw a run's world, and who arrives, as NumPy arrays."""
    drawn = simulate.draw_instance(rng.run_key(seed), source, jnp.asarray(arrival_rate), problem)
    return jax.tree.map(np.asarray, (drawn.workload, drawn.arrivals))


def _coming(drawn: Any) -> tuple[np.ndarray, np.ndarray]:
    """Return how many arrive in each round, and the features of those that may."""
    world, arrives = drawn
    return arrives, world.contexts[world.arrival_rows]
