"""Checks of sources, and of user and service models."""

import functools
from collections.abc import Callable
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


def check_source(
    source: Source, arrival_rate: float = 0.4, seed: int = 0, K: int = 1,
    horizon: int = 48,
) -> None:  # fmt: skip
    """Check a source against the contract of `cqbjax.core.types.Source`.

    Checks shapes and types of its draws; that numbers are finite, and rows and arrivals in range;
    that the same key gives the same draws, and the same first rounds at a shorter horizon.

    Args:
        source: the source to check.
        arrival_rate: lambda, queries per round.
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

    def draw(problem: Problem) -> Any:
        rate = jnp.asarray(arrival_rate)
        instance = simulate.draw_instance(rng.run_key(seed), source, rate, problem)
        return jax.tree.map(np.asarray, (instance.workload, instance.arrivals))

    workload, arrivals = drawn = draw(problem)
    batch = jax.tree.map(lambda leaf: leaf[None], drawn)
    (fault,) = np.asarray(conformance.instance_faults(problem, *batch))
    require(fault == 0, conformance.INSTANCE_FAULTS[fault - 1])
    same = all(map(np.array_equal, jax.tree.leaves(drawn), jax.tree.leaves(draw(problem))))
    require(same, "the same key must give the same draws, and a second call gives others")
    half = horizon // 2
    shorter, shorter_arrivals = draw(source.problem(K, half))
    contexts, shorter_contexts = (part.contexts[part.arrival_rows] for part in (workload, shorter))
    differing = [] if np.array_equal(shorter_arrivals, arrivals[:half]) else ["arrivals"]
    differing += [] if np.array_equal(shorter_contexts, contexts[:half]) else ["queries"]
    require(
        not differing,
        f"the first rounds must be the same at any horizon, and {' and '.join(differing)} differ",
    )


def check_users(users: UserModel, problem: Problem = PROBLEM, seed: int = 0) -> None:
    """Check a user model against the contract of `cqbjax.UserModel`.

    Checks that the class is a frozen pytree, a subclass of `UserModel`, and overrides a method;
    that its method `check` accepts the settings; shapes and types of draws and reactions; that
    draws are free of NaN, reproducible from the key, and the same at a shorter horizon; that
    `react` is pure, and that its `return_delay` is at least one round.

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
        conformance.check_dynamics(signature_of(as_arrays(users)).shapes(), problem)
        scenario = Scenario(source=None, users=(users,))
        (drawn,) = _draw_checked_dynamics(scenario, problem, seed).user_draws
        first = jax.tree.map(lambda leaf: leaf[0, 0], drawn)
        _check_pure("react", functools.partial(users.react, first), np.int32(1))


def check_service(service: ServiceModel, problem: Problem = PROBLEM, seed: int = 0) -> None:
    """Check a service model against the contract of `cqbjax.ServiceModel`.

    Checks that the class is a frozen pytree, a subclass of `ServiceModel`, and overrides a method;
    that its method `check` accepts the settings; shapes and types of draws and results; that draws
    are free of NaN, reproducible from the key, and the same at a shorter horizon; that methods are
    pure, service times at least one round, and price factors finite and not negative.

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
        conformance.check_dynamics(signature_of(as_arrays(service)).shapes(), problem)
        scenario = Scenario(source=None, service=(service,))
        problem = problem._replace(channels=service.channels)
        (drawn,) = _draw_checked_dynamics(scenario, problem, seed).service_draws
        first = jax.tree.map(lambda leaf: leaf[0], drawn)
        zero, servers = np.int32(0), np.arange(problem.assortment_size, dtype=np.int32)
        arguments = {
            "available": (), "service_time": (zero, zero, servers), "feedback_arrives": (zero,),
            "prices": (),
        }  # fmt: skip
        for method, args in arguments.items():
            _check_pure(method, functools.partial(getattr(service, method), first), *args)


def _check_pure(name: str, function: Callable[..., Any], *args: Any) -> None:
    """Raise if tracing a method twice gives different programs."""
    first, second = (conformance.trace(function, *args)[0] for _ in range(2))
    require(first == second, f"{name} must be pure: tracing it twice gives different programs")


def _draw_checked_dynamics(scenario: Scenario, problem: Problem, seed: int) -> Dynamics:
    """Draw the dynamics of a run and check the draws."""
    key = rng.run_key(seed)

    def draw(horizon: int) -> tuple[Any, list[np.ndarray]]:
        dynamics: Any = scenario.draw_dynamics(key, problem._replace(horizon=horizon))
        return dynamics, [conformance.to_numpy(leaf) for leaf in jax.tree.leaves(dynamics[2:])]

    (dynamics, first), (_, second) = draw(problem.horizon), draw(problem.horizon)
    pairs = zip(first, second, strict=True)
    same = all(np.array_equal(a, b, equal_nan=True) for a, b in pairs)
    require(same, "the same key must give the same draws, and a second call gives others")
    batch = jax.tree.map(lambda leaf: np.asarray(leaf)[None], dynamics)
    arrivals = np.zeros((1, problem.horizon))
    ((fault,),) = np.asarray(conformance.model_faults(problem, batch, arrivals))
    require(fault == 0, conformance.MODEL_FAULTS[fault - 1])
    half = problem.horizon // 2
    pairs = zip(draw(half)[1], first, strict=True)
    same = all(np.array_equal(shorter, longer[:half]) for shorter, longer in pairs)
    require(same, "the first rounds must be the same at any horizon, and they differ")
    return dynamics
