"""What ACQB learns about theta: the estimate and the Gaussian posterior of every block.

`BlockBelief` stores a square root of V inverse for each block (few dimensions, shared parameters).
`TableBelief` stores the product of that root with each row of the run's context table (many
dimensions, a pool of prompts), so that no round reads a d x d matrix. Both have the same V; their
estimates differ in the distance to the exact minimiser (docs/notebook/estimator.md).
`WindowedBelief` restricts either to the last attempts. `Belief` is their protocol.
"""

from typing import Literal

from cqbjax.core.types import Problem
from cqbjax.estimation import loss_model
from cqbjax.estimation.belief import Belief, Interaction
from cqbjax.estimation.block_belief import BlockBelief, BlockBeliefState
from cqbjax.estimation.table_belief import TableBelief, TableBeliefState
from cqbjax.estimation.windowed_belief import WindowedBelief, WindowedBeliefState

Estimator = Literal["auto", "running", "newton_cg"]
State = BlockBeliefState | TableBeliefState | WindowedBeliefState

__all__ = ["Belief", "BlockBelief", "BlockBeliefState", "Estimator", "Interaction", "State",
           "TableBelief", "WindowedBelief", "WindowedBeliefState", "choose_belief"]  # fmt: skip


def choose_belief(
    estimator: Estimator, problem: Problem, exact_steps: int = 0, window: int | None = None,
    sweeps: int = 0,
) -> Belief:  # fmt: skip
    """Return the belief of an estimator.

    Args:
        estimator: `running` (`BlockBelief`) or `newton_cg` (`TableBelief`). `auto` takes `running`
            if parameters are shared, if features change while a query waits, or if d is so
            small that it can store third derivatives (`loss_model.MOST_NUMBERS`).
        problem: shapes.
        exact_steps: 0: the estimator's default. n > 0: iterate towards the exact minimiser in every
            round, with n visits of every page of the history (`running`) or n Newton steps
            (`newton_cg`).
        window: W of `WindowedBelief`; None forgets nothing.
        sweeps: joint Newton steps of all blocks in every round, after that of the offered ones.

    Raises:
        ValueError: `newton_cg` is not defined for the problem or with `sweeps`.
    """
    if window is not None:
        # Space for W attempts, not for all attempts of a run.
        short = problem._replace(horizon=-(-window // problem.channels))
        return WindowedBelief(choose_belief(estimator, short, exact_steps, None, sweeps), window)
    changing = problem.age_column is not None
    if estimator == "auto":
        blocks = problem.parameters == "shared" or changing or loss_model.depth(problem) > 0
        estimator = "running" if blocks else "newton_cg"
    if estimator == "running":
        return BlockBelief(problem, exact_steps, sweeps)
    if sweeps:
        raise ValueError(f"sweeps={sweeps} needs estimator=running, and few dimensions")
    if changing:
        raise ValueError("estimator=newton_cg needs features that stay; use estimator=running")
    if problem.parameters == "shared":
        raise ValueError("estimator=newton_cg needs parameters=disjoint; use estimator=running")
    return TableBelief(problem, exact_steps)
