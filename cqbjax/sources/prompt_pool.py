"""Prompts of an offline routing dataset, with known departure probabilities."""

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from cqbjax.core import mnl, rng
from cqbjax.core.inputs import TableNames, check_interval
from cqbjax.core.pytree import convert_lists, pytree, static
from cqbjax.core.types import AnswerCosts, Outcome, Problem, Workload

# Longest contexts; those of the paper have length at most 1.
MAX_LENGTH = 1000


def draw_pool(key: Array, num_prompts: int, pool_size: int) -> Array:
    """Draw a run's online pool from its key: [I] int32 distinct prompt numbers below P."""
    at = rng.stream_key(rng.round_key(key, 0), rng.Stream.POOL)
    return jax.random.permutation(at, num_prompts)[:pool_size].astype(jnp.int32)


def check_lengths(contexts: np.ndarray, label: str, rows: np.ndarray | None = None) -> None:
    """Validate that contexts [P, d] are short enough that float32 does not lose V_0 = lambda0 I.

    Args:
        contexts: to validate.
        label: prefix of the error.
        rows: [P] row numbers in the file; None: from 0.

    Raises:
        ValueError: naming the first row, and the length allowed.
    """
    lengths = np.linalg.norm(contexts.astype(np.float64), axis=-1)
    if lengths.size and lengths.max() > MAX_LENGTH:
        row = int(np.argmax(lengths > MAX_LENGTH))
        number = row if rows is None else rows[row]
        raise ValueError(
            f"{label}: row {number} has length {lengths[row]:.3g}, and at most {MAX_LENGTH} can "
            "be computed with; the paper assumes at most 1: divide all by the largest"
        )


@pytree
class PromptPool:
    """Prompts of a pool arrive uniformly at random, or each at most once (`repeats=False`).

    Attributes:
        contexts: [P, d] embeddings of all prompts.
        utilities: [P, N] log-odds log(p / (1 - p)) of the departure probabilities p.
        pool_size: I, prompts in a run's pool, drawn by the run's seed.
        dollars: [P, N] cost of each answer in USD; None: unknown.
        scores: [P, N] graded quality of each answer; None: unknown.
        repeats: whether a prompt may arrive again; False: each at most once, in the pool's order.
        outcome: the level at which outcomes are drawn: every `attempt` (the paper), the `query` or
            the `prompt` (`Problem.outcome`); the last two need K = 1.
        names: names of prompts and servers, by which a table of latencies is joined; None: no
            names.
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
        """Whether the draws of the first rounds do not depend on the horizon."""
        return self.repeats

    @property
    def changes(self) -> bool:
        """Whether a failure changes the success probability of a query's next attempt."""
        return self.outcome != "attempt"

    def __post_init__(self) -> None:
        """Turn lists into arrays."""
        convert_lists(self, "contexts", "utilities", "dollars", "scores")

    def problem(self, K: int, horizon: int) -> Problem:
        """Return the shapes: the table has one row per prompt of the pool.

        Raises:
            ValueError: a table is not two-dimensional, the pool's size is not a whole number, or
                prompts do not repeat and are fewer than rounds.
        """
        for name in ("contexts", "utilities"):
            if len(np.shape(getattr(self, name))) != 2:
                raise ValueError(f"{name} of the routing source must have a row a prompt: [P, ...]")
        check_interval(self, f"[1, {len(self.utilities)}]", "pool_size", whole=True)
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
        """Draw a run's pool: [I] int32 distinct prompt numbers."""
        return draw_pool(key, self.utilities.shape[0], self.pool_size)

    def draw_workload(self, key: Array, arrival_rate: Array, problem: Problem) -> Workload:
        """Gather the pool's rows; each round draws one of them uniformly, or takes the next."""
        pool = self.pool(key)
        rounds = jnp.arange(1, problem.horizon + 1)
        uniform = rng.round_uniforms(key, rounds, rng.Stream.ARRIVAL_ROW)
        last = self.pool_size - 1
        rows = jnp.minimum((uniform * self.pool_size).astype(jnp.int32), last)
        if not self.repeats:
            rows = rounds.astype(jnp.int32) - 1
        costs = None
        if self.dollars is not None and self.scores is not None:
            costs = AnswerCosts(self.dollars[pool], self.scores[pool])
        return Workload(self.contexts[pool], self.utilities[pool], rows, pool, answer_costs=costs)

    def uniform_service(self, seeds: np.ndarray, arrival_rate: float, K: int) -> float:
        """Return how many queries per round FIFO serves with uniform assortments."""
        departs = mnl.mean_departure_rate(np.asarray(self.utilities), K)
        with np.errstate(divide="ignore"):  # a prompt that no server satisfies
            return float(1.0 / np.mean(1.0 / departs))

    def check(self, seeds: np.ndarray, arrival_rate: float, K: int) -> None:
        """Validate the table, the pool and the level of outcomes.

        Raises:
            ValueError: naming the key and what is allowed.
        """
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
        for name, values in (("contexts", self.contexts), ("utilities", self.utilities)):
            if not bool(np.isfinite(np.asarray(values)).all()):
                raise ValueError(f"{name} of the routing source must be finite numbers")
        check_lengths(np.asarray(self.contexts), "contexts of the routing source")
