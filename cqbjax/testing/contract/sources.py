"""What every source must obey, as one function that anybody can call on their own source."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from cqbjax.core import rng, simulate
from cqbjax.core.contract import require
from cqbjax.core.types import Problem, Source, has_own_arrivals


def check_source(
    source: Source, arrival_rate: float = 0.4, seed: int = 0, assortment_size: int = 1,
    horizon: int = 48,
) -> None:  # fmt: skip
    """Check a source against the contract of `cqbjax.core.types.Source`.

    The shapes and types of what it draws; finite numbers, rows and arrivals in range; that the same
    key gives the same draws, and the same first rounds at a shorter horizon.

    Args:
        source: what to check.
        arrival_rate: lambda.
        seed: of the run that is drawn.
        assortment_size: K.
        horizon: T, at least 2.

    Raises:
        ContractError: for the first part that is broken, in one sentence.
    """
    name, problem = type(source).__name__, source.problem(assortment_size, horizon)
    leaves = jax.tree.leaves(source)
    require(
        not any(leaf is source for leaf in leaves),
        f"{name} must be registered as a pytree: decorate it with core.pytree.pytree",
    )
    require(
        problem.arrivals_a_round == 1
        or (problem.arrivals_a_round > 1 and has_own_arrivals(source)),
        f"arrivals_a_round={problem.arrivals_a_round} must be 1, or more with a method `arrives`",
    )
    drawn = _drawn(source, arrival_rate, seed, problem)
    _check_shapes(drawn, problem)
    _check_values(drawn, problem)
    again = jax.tree.leaves(_drawn(source, arrival_rate, seed, problem))
    same = all(map(np.array_equal, jax.tree.leaves(drawn), again))
    require(same, "the same key must give the same draws, and a second call gives others")
    half = _drawn(source, arrival_rate, seed, source.problem(assortment_size, horizon // 2))
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
    return jax.tree.map(np.asarray, (drawn.world, drawn.arrives))


def _coming(drawn: Any) -> tuple[np.ndarray, np.ndarray]:
    """Return how many arrive in each round, and the features of those that may."""
    world, arrives = drawn
    return arrives, world.contexts[world.arrival_rows]


def _check_shapes(drawn: Any, problem: Problem) -> None:
    world, arrives = drawn
    rows, rounds, most = problem.num_rows, problem.horizon, problem.arrivals_a_round
    several = () if most == 1 else (most,)
    wanted = {
        "contexts": (world.contexts, problem.contexts_shape, "f"),
        "utilities": (world.utilities, (rows, problem.num_servers), "f"),
        "arrival_rows": (world.arrival_rows, (rounds, *several), "i"),
        "prompts": (world.prompts, (rows,), "i"),
        "arrives": (arrives, (rounds,), "i" if several else "b"),
    }
    if world.recorded is not None:
        wanted["recorded.satisfied"] = (world.recorded.satisfied, (rows,), "b")
        wanted["recorded.next"] = (world.recorded.next, (rows,), "i")
    kinds = {"f": "float", "i": "int32", "b": "bool"}
    for part, (array, shape, kind) in wanted.items():
        require(
            array.shape == shape and array.dtype.kind == kind,
            f"{part} must be {kinds[kind]}{list(shape)}, and it is "
            f"{array.dtype}{list(array.shape)}",
        )


def _check_values(drawn: Any, problem: Problem) -> None:
    world, arrives = drawn
    for part in ("contexts", "utilities"):
        require(bool(np.isfinite(getattr(world, part)).all()), f"{part} must be finite numbers")
    tables = {"arrival_rows": world.arrival_rows}
    if world.recorded is not None:
        tables["recorded.next"] = world.recorded.next
    for part, table in tables.items():
        good = bool(((table >= 0) & (table < problem.num_rows)).all())
        require(good, f"{part} must be rows in 0..{problem.num_rows - 1} of the table")
    most = problem.arrivals_a_round
    within = bool(((arrives >= 0) & (arrives <= most)).all())
    require(within, f"arrives must lie in 0..{most}, the problem's arrivals_a_round")
    column, dim = problem.age_column, problem.dim
    require(
        column is None or 0 <= column < dim,
        f"age_column={column} must lie in 0..{dim - 1}, or None",
    )
