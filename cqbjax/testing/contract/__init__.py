"""What policies, sources and kinds must obey, as functions that anybody can call on their own.

    from cqbjax.testing import check_policy, check_service, check_source, check_users
    check_policy(MyPolicy(epsilon=0.1))
    check_source(MySource(rows=20))
    check_users(MyUsers())
    check_service(MyService())

The policy is played in small random worlds through the simulator's own round, so what passes here
runs in `sweep`.
"""

import operator
from typing import Any

import jax

from cqbjax.core import conformance
from cqbjax.core.contract import ContractError
from cqbjax.core.pytree import signature_of
from cqbjax.core.types import Policy, Problem
from cqbjax.testing.contract.decisions import check_decisions, compile_runs
from cqbjax.testing.contract.declared import check_fields, check_pure
from cqbjax.testing.contract.fair import check_fair
from cqbjax.testing.contract.instances import PROBLEM, draw_instances
from cqbjax.testing.contract.kinds import check_service, check_users
from cqbjax.testing.contract.sources import check_source

__all__ = ["PROBLEM", "ContractError", "check_fair", "check_policy", "check_service",
           "check_source", "check_users"]  # fmt: skip


def check_policy(
    policy: Policy,
    problem: Problem = PROBLEM,
    seed: int = 0,
    uncompiled: bool = True,
    checked: dict[Any, Any] | None = None,
) -> None:
    """Check a policy against the contract of `cqbjax.core.types.Policy`.

    The fields (a frozen pytree dataclass, floats as leaves, a hashable static part); the shapes and
    types of actions and states; purity; every decision of whole runs (K distinct increasing
    servers, a waiting query); that a run decides the same whatever else is in its batch, and alone
    without a compiler; and that feedback with `valid` False changes no later decision.

    Args:
        policy: what to check.
        problem: the shapes to check it with; keep its horizon short.
        seed: of the random worlds.
        uncompiled: whether to play the first rounds alone, operation by operation, too: it takes
            tens of seconds for the first policy with many operations.
        checked: programs of policies that were checked already; this one's is added. A policy that
            differs from one of them in numbers alone is the same program, with the same shapes and
            as pure, so only its fields and its decisions are left to check. Give it to the checks
            of one moment: code that changes in between is not seen.

    Raises:
        ContractError: for the first part that is broken, in one sentence.
    """
    check_fields(policy)
    checked = {} if checked is None else checked
    key = signature_of(policy), problem
    if key not in checked:
        world = jax.tree.map(operator.itemgetter(0), draw_instances(problem, seed, 1))
        conformance.check_policy(policy, problem)
        check_pure(policy, problem, world)
        checked[key] = compile_runs(policy, problem)
    check_decisions(policy, problem, seed, uncompiled, checked[key])
