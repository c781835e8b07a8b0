"""What every kind of users and of service must obey, as functions that anybody can call."""

import functools
from typing import Any

import jax
import numpy as np

from cqbjax.core import conformance, contract, rng
from cqbjax.core.contract import require
from cqbjax.core.pytree import as_arrays, signature_of
from cqbjax.core.scenario import Dynamics, Scenario, ServiceModel, UserModel, check_model
from cqbjax.core.types import Problem
from cqbjax.testing.contract.declared import numbers, traced_alike
from cqbjax.testing.contract.instances import PROBLEM


def check_users(users: UserModel, problem: Problem = PROBLEM, seed: int = 0) -> None:
    """Check a kind of users against the contract of `cqbjax.core.scenario.Users`.

    The class (a frozen pytree made from `Users` that says something); its own `check`; the shapes
    and types of what it draws and says; draws that are numbers and the same again from the same
    key, and at a shorter horizon; reactions that are pure, and away for at least a round.

    Args:
        users: what to check.
        problem: the shapes to check it with.
        seed: of the run that is drawn.

    Raises:
        ContractError: for the first part that is broken, in one sentence.
        ValueError: its own `check` refuses its settings.
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
            "reacts must be pure: tracing it twice gives different programs",
        )


def check_service(service: ServiceModel, problem: Problem = PROBLEM, seed: int = 0) -> None:
    """Check a kind of service against the contract of `cqbjax.core.scenario.Service`.

    The class (a frozen pytree made from `Service` that says something); its own `check`; the shapes
    and types of what it draws and says; draws that are numbers and the same again from the same
    key, and at a shorter horizon; answers that are pure; attempts of at least a round, and prices
    that are factors.

    Args:
        service: what to check.
        problem: the shapes to check it with.
        seed: of the run that is drawn.

    Raises:
        ContractError: for the first part that is broken, in one sentence.
        ValueError: its own `check` refuses its settings.
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
    """Return what a kind draws for a run, held against the contract."""
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
