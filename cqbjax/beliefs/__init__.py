"""What ACQB believes about theta: the estimate and the Gaussian posterior of every block.

`blocks` carries a square root of V inverse for each block (few dimensions, shared parameters);
`pool` carries what that root makes of each row of the run's context table (many dimensions, a
pool of prompts), so that no round reads a d x d matrix. V is the same in both, the estimates differ
by what each leaves to the exact minimiser (docs/estimator.md). Each module offers `init`,
`learnt`, `theta`, `sampled`, `bounded` and `update`.
"""

from types import ModuleType
from typing import Literal

from cqbjax.beliefs import blocks, cubic, pool
from cqbjax.types import Problem

Estimator = Literal["auto", "running", "newton_cg"]

# Below this the rolling model of `blocks` extrapolates too far in young runs and may diverge.
LEAST_LAMBDA0 = 0.3

State = blocks.State | pool.State

__all__ = ["Estimator", "State", "choose"]


def choose(estimator: Estimator, problem: Problem) -> ModuleType:
    """Return the module that implements an estimator for a problem.

    `auto` takes `blocks` where its models are small enough to carry third derivatives, without
    which they are not held to their accuracy (docs/estimator.md), and for shared parameters.

    Raises:
        ValueError: if `newton_cg` is asked for shared parameters.
    """
    if estimator == "auto":
        close = problem.parameters == "shared" or cubic.directions(problem) > 0
        estimator = "running" if close else "newton_cg"
    if estimator == "newton_cg" and problem.parameters == "shared":
        raise ValueError("estimator=newton_cg needs parameters=disjoint; use estimator=running")
    return blocks if estimator == "running" else pool


def least_lambda0(estimator: Estimator, problem: Problem) -> float:
    """Return the least regularisation at which an estimator is held to its accuracy."""
    return LEAST_LAMBDA0 if choose(estimator, problem) is blocks else 0.0
