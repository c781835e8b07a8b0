"""Regularised MNL maximum likelihood, kept up to date round by round.

`running` carries a quadratic model of the whole history and refreshes it on a schedule (few
dimensions); `newton_cg` takes the exact gradient over a pool of prompts every round and a
preconditioned Newton step (many dimensions). Both solve the blocks of the shown servers alone, the
others staying where they are (Algorithm 2, lines 13 to 19).
"""

from types import ModuleType
from typing import Literal

from cqbjax.estimators import newton_cg, running
from cqbjax.estimators.history import Row
from cqbjax.types import Problem

Estimator = Literal["auto", "running", "newton_cg"]

# The running model holds a dense Hessian and inverts its blocks when refreshed; past this many
# coordinates that costs more than a preconditioned step (measured: docs/performance.md).
RUNNING_DIM_LIMIT = 32

__all__ = ["Estimator", "Row", "choose"]


def choose(estimator: Estimator, problem: Problem) -> ModuleType:
    """Return the module that implements an estimator for a problem.

    Raises:
        ValueError: if `newton_cg` is asked for shared parameters.
    """
    if estimator == "auto":
        small = problem.dim <= RUNNING_DIM_LIMIT
        estimator = "running" if small or problem.parameters == "shared" else "newton_cg"
    if estimator == "newton_cg" and problem.parameters == "shared":
        raise ValueError("estimator=newton_cg needs parameters=disjoint; use estimator=running")
    return running if estimator == "running" else newton_cg
