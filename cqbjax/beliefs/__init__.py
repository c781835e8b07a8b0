"""What ACQB believes about theta: the estimate and the Gaussian posterior of every block.

`blocks` carries a square root of V inverse for each block (few dimensions, shared parameters);
`table` carries what that root makes of each row of the run's context table (many dimensions, a
pool of prompts), so that no round reads a d x d matrix. Both give the same numbers; each module
offers `init`, `learnt`, `theta`, `sampled`, `bounded` and `update`.
"""

from types import ModuleType
from typing import Literal

from cqbjax.beliefs import blocks, table
from cqbjax.types import Problem

Estimator = Literal["auto", "running", "newton_cg"]

# The running model of `blocks` holds d x d matrices and inverts them when refreshed; past this many
# dimensions that costs more than a preconditioned step (measured: docs/performance.md).
BLOCKS_DIM_LIMIT = 32

State = blocks.State | table.State

__all__ = ["Estimator", "State", "choose"]


def choose(estimator: Estimator, problem: Problem) -> ModuleType:
    """Return the module that implements an estimator for a problem.

    Raises:
        ValueError: if `newton_cg` is asked for shared parameters.
    """
    if estimator == "auto":
        small = problem.dim <= BLOCKS_DIM_LIMIT
        estimator = "running" if small or problem.parameters == "shared" else "newton_cg"
    if estimator == "newton_cg" and problem.parameters == "shared":
        raise ValueError("estimator=newton_cg needs parameters=disjoint; use estimator=running")
    return blocks if estimator == "running" else table
