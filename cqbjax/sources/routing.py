"""Queries of an offline routing dataset: real prompts with known departure probabilities."""

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from cqbjax.core import mnl, rng
from cqbjax.core.inputs import TableNames, is_integer
from cqbjax.core.pytree import check_options, convert_lists, pytree, static
from cqbjax.core.types import AnswerCosts, Outcome, Problem, Workload

# The paper's contexts have length at most 1.
MOST_LENGTH = 1000


def draw_pool(key: Array, num_prompts: int, pool_size: int) -> Array:
    """Draw a run's online pool: [I] int32 distinct numbers below P, by the run's key alone."""
    at = rng.stream_key(rng.round_key(key, 0), rng.Stream.POOL)
    return jax.random.permutation(at, num_prompts)[:pool_size].astype(jnp.int32)


def check_lengths(contexts: np.ndarray, whose: str, rows: np.ndarray | None = None) -> None:
    """Refuse contexts [P, d] beside which V_0 = lambda0 I is lost in float32, of seven digits.

    Args:
        contexts: to look at.
        whose: they are, for the error.
        rows: [P] the rows' numbers in their file; None: from 0, as in an array.

    Raises:
        ValueError: naming the first row, and the length allowed.
    """
    lengths = np.linalg.norm(contexts.astype(np.float64), axis=-1)
    if lengths.size and lengths.max() > MOST_LENGTH:
        row = int(np.argmax(lengths > MOST_LENGTH))
        number = row if rows is None else rows[row]
        raise ValueError(
            f"{whose}: row {number} has length {lengths[row]:.3g}, and at most {MOST_LENGTH} can "
            "be computed with; the paper assumes at most 1: divide all by the largest"
        )


@pytree
class Routing:
    """Prompts of a table arrive uniformly from each run's own pool, or each of them once.

    Attributes:
        contexts: [P, d] embeddings of all prompts.
        utilities: [P, N] log-odds log(u / (1 - u)) of the departure probabilities u.
        pool_size: I, how many prompts the online pool of a run holds, drawn by the run's seed.
        dollars: [P, N] what each answer costs, USD; None where it is not known.
        scores: [P, N] the graded quality of each answer; None where it is not known.
        repeats: whether a prompt may come again; False: each at most once, in the pool's order.
        outcome: what a user's verdict on a server is drawn for: every `attempt` (the paper), the
            `query` or the `prompt` (`Problem.outcome`); the last two with K = 1 alone.
        names: of the prompts and servers, by which a table of latencies is joined; None: unnamed.
    """

    contexts: Array
    utilities: Array
    pool_size: int = static(default=1000)
    dollars: Array | None = None
    scores: Array | None = None
    repeats: bool = static(default=True)
    outcome: Outcome = static(default="attempt")
    names: TableNames | None = static(default=None)

    @property
    def extends(self) -> bool:
        """Whether a program of more rounds draws the same: where prompts come again."""
        return self.repeats

    @property
    def changes(self) -> bool:
        """Whether a failure changes what a query's next attempt is worth."""
        return self.outcome != "attempt"

    def __post_init__(self) -> None:
        """Turn lists into arrays."""
        convert_lists(self, "contexts", "utilities", "dollars", "scores")

    def problem(self, K: int, horizon: int) -> Problem:
        """Return the shapes: one table row a prompt of the pool.

        Raises:
            ValueError: a table has no rows and columns, the pool's size is no number, or no prompt
                may come again and there are fewer of them than rounds.
        """
        for name in ("contexts", "utilities"):
            if len(np.shape(getattr(self, name))) != 2:
                raise ValueError(f"{name} of the routing source must have a row a prompt: [P, ...]")
        if not is_integer(self.pool_size):
            raise ValueError(f"pool_size={self.pool_size} must be a whole number of prompts")
        if not self.repeats and self.pool_size < horizon:
            raise ValueError(
                f"pool_size={self.pool_size} must be at least the {horizon} rounds where "
                "repeats=false: a prompt for each that may come"
            )
        dim, servers = self.contexts.shape[-1], self.utilities.shape[-1]
        rows, prompts = self.pool_size, self.utilities.shape[0]
        return Problem(
            servers, K, dim, rows, horizon, "disjoint", True, num_prompts=prompts,
            has_costs=self.dollars is not None and self.scores is not None, outcome=self.outcome,
        )  # fmt: skip

    def pool(self, key: Array) -> Array:
        """Draw a run's online pool: [I] int32 distinct prompt numbers, by the seed alone."""
        return draw_pool(key, self.utilities.shape[0], self.pool_size)

    def draw_workload(self, key: Array, arrival_rate: Array, problem: Problem) -> Workload:
        """Gather the pool's rows; a round's arriving row is uniform over them, or the next one."""
        pool = self.pool(key)
        rounds = jnp.arange(1, problem.horizon + 1)
        uniform = rng.round_uniforms(key, rounds, rng.Stream.ARRIVAL_ROW)
        last = self.pool_size - 1
        rows = jnp.minimum((uniform * self.pool_size).astype(jnp.int32), last)
        if not self.repeats:
            rows = rounds.astype(jnp.int32) - 1
        billed = None
        if self.dollars is not None and self.scores is not None:
            billed = AnswerCosts(self.dollars[pool], self.scores[pool])
        return Workload(self.contexts[pool], self.utilities[pool], rows, pool, answer_costs=billed)

    def uniform_service(self, seeds: np.ndarray, arrival_rate: float, K: int) -> float:
        """Return what FIFO serves with uniform assortments, queries a round, over all prompts."""
        leaves = mnl.mean_departure_rate(np.asarray(self.utilities), K)
        with np.errstate(divide="ignore"):  # a prompt that nobody answers waits for ever
            return float(1.0 / np.mean(1.0 / leaves))

    def check(self, seeds: np.ndarray, arrival_rate: float, K: int) -> None:
        """Refuse a table that cannot fill a pool, and verdicts that are not defined.

        Raises:
            ValueError: naming the key and what is allowed.
        """
        check_options(self)
        if self.outcome != "attempt" and K != 1:
            raise ValueError(
                f"outcome={self.outcome} needs K=1: of several answers the model says which is "
                f"chosen, not what each is worth, and K={K}"
            )
        prompts = self.utilities.shape[0]
        if self.contexts.shape[0] != prompts:
            raise ValueError(
                f"the table has {prompts} prompts and {self.contexts.shape[0]} embeddings; "
                "each prompt needs exactly one"
            )
        if not 1 <= self.pool_size <= prompts:
            raise ValueError(f"pool_size={self.pool_size} must lie in 1..{prompts}, the prompts")
        for name, values in (("contexts", self.contexts), ("utilities", self.utilities)):
            if not bool(np.isfinite(np.asarray(values)).all()):
                raise ValueError(f"{name} of the routing source must be finite numbers")
        check_lengths(np.asarray(self.contexts), "contexts of the routing source")
