"""Checks of sources, and of user and service models."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from cqbjax.core import conformance, contract, rng, simulate
from cqbjax.core.contract import require
from cqbjax.core.pytree import as_arrays, signature_of
from cqbjax.core.scenario import Dynamics, Scenario, ServiceModel, UserModel, check_model
from cqbjax.core.types import Problem, Source
from cqbjax.testing.instances import PROBLEM
from cqbjax.testing.policies import numbers, traced_alike


def check_source(
    source: Source, arrival_rate: float = 0.4, seed: int = 0, K: int = 1,
    horizon: int = 48,
) -> None:  # fmt: skip
    """Check a source against the contract of `cqbjax.core.types.Source`.

    Checks shapes and types of its draws; that numbers are finite, and rows and arrivals in range;
    that the same key gives the same draws, and the same first rounds at a shorter horizon.

    Args:
        source: the source to check.
        arrival_rate: lambda.
        seed: seed of the run that is drawn.
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
    """Draw the workload and the arrivals of a run, as NumPy arrays."""
    drawn = simulate.draw_instance(rng.run_key(seed), source, jnp.asarray(arrival_rate), problem)
    return jax.tree.map(np.asarray, (drawn.workload, drawn.arrivals))


def _coming(drawn: Any) -> tuple[np.ndarray, np.ndarray]:
    """Return the arrivals of each round, and the contexts of the queries that may arrive."""
    world, arrives = drawn
    return arrives, world.contexts[world.arrival_rows]


def check_users(users: UserModel, problem: Problem = PROBLEM, seed: int = 0) -> None:
    """Check a user model against the contract of `cqbjax.UserModel`.

    Checks that the class is a frozen pytree, a subclass of `UserModel`, and overrides a method;
    that its method `check` accepts the settings; shapes and types of draws and results; that draws
    are finite, reproducible from the key, and the same at a shorter horizon; that `react` is pure,
    and `away` at least 1.

    Args:
        users: the model to check.
        problem: the shapes to check it with.
        seed: seed of the run that is drawn.

    Raises:
        ContractError: for the first part that is broken, in one sentence.
        ValueError: its method `check` rejects the settings.
    """
    check_model(users, UserModel)
    users.check(problem)
    with contract.prefix_errors(type(users).__name__):
        conformance.check_users(signature_of(as_arrays(users)).shapes(), problem)
        rules = _checked_draws(Scenario(source=None, users=(users,)), problem, seed)
        (drawn,) = rules.user_draws
        mine = jax.tree.map(lambda leaf: leaf[0, 0], drawn)
        require(
            traced_alike(lambda attempts: users.react(mine, attempts), np.int32(1)),
            "react must be pure: tracing it twice gives different programs",
        )


def check_service(service: ServiceModel, problem: Problem = PROBLEM, seed: int = 0) -> None:
    """Check a service model against the contract of `cqbjax.ServiceModel`.

    Checks that the class is a frozen pytree, a subclass of `ServiceModel`, and overrides a method;
    that its method `check` accepts the settings; shapes and types of draws and results; that draws
    are finite, reproducible from the key, and the same at a shorter horizon; that methods are pure,
    service times at least one round, and price factors finite and not negative.

    Args:
        service: the model to check.
        problem: the shapes to check it with.
        seed: seed of the run that is drawn.

    Raises:
        ContractError: for the first part that is broken, in one sentence.
        ValueError: its method `check` rejects the settings.
    """
    check_model(service, ServiceModel)
    service.check(problem)
    with contract.prefix_errors(type(service).__name__):
        conformance.check_service(signature_of(as_arrays(service)).shapes(), problem)
        setting = Scenario(source=None, service=(service,))
        problem = problem._replace(channels=service.channels)
        (drawn,) = _checked_draws(setting, problem, seed).service_draws
        mine = jax.tree.map(lambda leaf: leaf[0], drawn)
        zero, servers = np.int32(0), np.arange(problem.assortment_size, dtype=np.int32)
        said = {
            "available": (), "service_time": (zero, zero, servers), "feedback_arrives": (zero,),
            "prices": (),
        }  # fmt: skip
        for method, asked in said.items():
            require(
                traced_alike(functools.partial(getattr(service, method), mine), *asked),
                f"{method} must be pure: tracing it twice gives different programs",
            )


def _checked_draws(setting: Scenario, problem: Problem, seed: int) -> Dynamics:
    """Return the draws of a model for a run, checked against the contract."""
    key = rng.run_key(seed)

    def drawn(horizon: int) -> Any:
        own: Any = setting.draw_dynamics(key, problem._replace(horizon=horizon))
        return own, [numbers(leaf) for leaf in jax.tree.leaves(own[2:])]

    (rules, first), (_, again) = drawn(problem.horizon), drawn(problem.horizon)
    pairs = zip(first, again, strict=True)
    same = all(np.array_equal(one, two, equal_nan=True) for one, two in pairs)
    require(same, "the same key must give the same draws, and a second call gives others")
    batch = jax.tree.map(lambda leaf: np.asarray(leaf)[None], rules)
    ((fault,),) = np.asarray(
        conformance.model_faults(problem, batch, np.zeros((1, problem.horizon)))
    )
    require(fault == 0, conformance.MODEL_FAULTS[fault - 1])
    half = problem.horizon // 2
    _, shorter = drawn(half)
    same = all(np.array_equal(one, two[:half]) for one, two in zip(shorter, first, strict=True))
    require(same, "the first rounds must be drawn alike at any horizon, and they differ")
    return rules
