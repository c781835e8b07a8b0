"""What ACQB believes about theta: the estimate and the Gaussian posterior of every block.

`Blocks` carries a square root of V inverse for each block (few dimensions, shared parameters);
`Pool` carries what that root makes of each row of the run's context table (many dimensions, a
pool of prompts), so that no round reads a d x d matrix. V is the same in both, the estimates differ
by what each leaves to the exact minimiser (docs/notebook/estimator.md). `Windowed` holds either of
them in the last attempts alone. `Belief` says what all offer.
"""

from typing import Literal

from cqbjax.core.types import Problem
from cqbjax.estimation import running
from cqbjax.estimation.blocks import Blocks, BlocksState
from cqbjax.estimation.pool import Pool, PoolState
from cqbjax.estimation.protocol import Belief
from cqbjax.estimation.windowed import Windowed, WindowedState, room

Estimator = Literal["auto", "running", "newton_cg"]
State = BlocksState | PoolState | WindowedState

__all__ = ["Belief", "Blocks", "Estimator", "Pool", "State", "Windowed", "WindowedState", "choose"]


def choose(
    estimator: Estimator, problem: Problem, exact_steps: int = 0, window: int | None = None
) -> Belief:
    """Return the belief that carries an estimator.

    Args:
        estimator: `running` is carried by `Blocks`, `newton_cg` by `Pool`; `auto` takes `running`
            for shared parameters, where features change while a query waits, and where its models
            are small (`running.is_small`).
        problem: shapes.
        exact_steps: 0 for the estimator's own schedule, n > 0 to go to the exact minimiser every
            round: n visits of every page (`running`), n Newton steps (`newton_cg`).
        window: W of `Windowed`; None forgets nothing.

    Raises:
        ValueError: if `newton_cg` is asked for where it is not defined.
    """
    if window is not None:
        return Windowed(choose(estimator, room(problem, window), exact_steps), window)
    changing = problem.age_column is not None
    if estimator == "auto":
        blocks = problem.parameters == "shared" or changing or running.is_small(problem)
        estimator = "running" if blocks else "newton_cg"
    if estimator == "running":
        return Blocks(problem, exact_steps)
    if changing:
        raise ValueError("estimator=newton_cg needs features that stay; use estimator=running")
    if problem.parameters == "shared":
        raise ValueError("estimator=newton_cg needs parameters=disjoint; use estimator=running")
    return Pool(problem, exact_steps)
