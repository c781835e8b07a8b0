"""The chains of a log as a source of queries: a replay is a sweep of it.

A query is a retry chain, and the rows of the context table are conversations. The query's row is
the next conversation of its chain. When it is served, the query waits again with the following
conversation, or departs if it was the last one. There is one server, so that scheduling is the only
decision.
"""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from cqbjax.core import rng
from cqbjax.core.code import digest
from cqbjax.core.files import load_or_compute
from cqbjax.core.pytree import pytree
from cqbjax.core.types import LONG_WAIT, LoggedOutcomes, Problem, Workload
from cqbjax.logs.linking import Chains, subsample
from cqbjax.logs.prepare import Log
from cqbjax.logs.shards import LogError

# 32 coordinates of the prompt (the paper's), then the state of the chain.
PROMPT_DIM = 32
BLOCK = 65_536  # embeddings in float64 at once
STATE = ("constant", "attempts", "rounds in system", "prompt length")
DIM = PROMPT_DIM + len(STATE)
AGE_COLUMN = PROMPT_DIM + STATE.index("rounds in system")


@pytree
class ReplaySource:
    """A log's chains, with their arrivals.

    Attributes:
        contexts: [I, 36] context of each conversation (`make_contexts`).
        left: [I] float number of conversations left in the chain, including this one.
        seeds: [S] int32 the drawn runs, each with other singletons.
        roots: [S, T, A] int32 the first conversations of the chains that arrive in each round.
        counts: [S, T] int32 number of arrivals.
        rate: chains per round, on average over the whole log.
    """

    contexts: Array
    left: Array
    seeds: Array
    roots: Array
    counts: Array
    rate: Array | float

    def problem(self, K: int, horizon: int) -> Problem:
        """Return the shapes: a row per conversation, one server, several arrivals per round."""
        rows, dim = self.contexts.shape
        return Problem(
            1, K, dim, rows, horizon, "disjoint", pooled=False, num_prompts=rows,
            max_arrivals=self.roots.shape[-1], age_column=AGE_COLUMN,
        )  # fmt: skip

    def check(self, seeds: np.ndarray, arrival_rate: float, K: int) -> None:
        """Check that the replay was drawn for these arguments.

        Raises:
            ValueError: naming the key and what is allowed.
        """
        unknown = sorted(set(seeds.tolist()) - set(np.asarray(self.seeds).tolist()))
        if unknown:
            raise ValueError(f"seed {unknown[0]} is none of those that the replay was drawn for")
        if abs(arrival_rate - float(self.rate)) > 1e-6:
            raise ValueError(
                f"arrival_rate={arrival_rate:g} must be {float(self.rate):g} chains a round, for "
                "which the replay was drawn"
            )
        if K != 1:
            raise ValueError(f"K={K} must be 1: a replay has one server")

    def uniform_service(self, seeds: np.ndarray, arrival_rate: float, K: int) -> float:
        """Return the chains served per round: one over the mean length of those that arrive."""
        return float(np.asarray(self.counts).sum() / max(1.0, self._count_conversations()))

    @property
    def load(self) -> float:
        """Arriving conversations per round, over all runs; the server serves one per round."""
        return self._count_conversations() / self.counts.size

    def _count_conversations(self) -> float:
        slots, counts = np.arange(self.roots.shape[-1]), np.asarray(self.counts)
        arriving = np.asarray(self.roots)[slots < counts[..., None]]
        return float(np.asarray(self.left)[arriving].sum(dtype=float))

    @property
    def first_equal_run(self) -> list[int]:
        """For each run the first one with the same chains in the same rounds, [S]."""
        roots, counts = np.asarray(self.roots), np.asarray(self.counts)
        drawn = [np.append(run, each).tobytes() for run, each in zip(roots, counts, strict=True)]
        return [drawn.index(run) for run in drawn]

    def draw_workload(self, key: Array, arrival_rate: Array, problem: Problem) -> Workload:
        """Return the log's rows, and the run's arrivals.

        Fewer conversations left rank higher, so that the optimal policy is the clairvoyant one.
        """
        rows = jnp.arange(problem.num_rows, dtype=jnp.int32)
        # The last conversation of a chain satisfies, and its next row is not used.
        logged = LoggedOutcomes(self.left == 1, jnp.minimum(rows + 1, problem.num_rows - 1))
        roots = self.roots[self._find_run(key), : problem.horizon]
        return Workload(self.contexts, -self.left[:, None], roots, rows, logged)

    def draw_arrivals(self, key: Array, arrival_rate: Array, horizon: int) -> Array:
        """Return the number of arrivals in each round: [T] int32."""
        return self.counts[self._find_run(key), :horizon]

    def _find_run(self, key: Array) -> Array:
        """Return the index of the run that has this key: [] int32."""
        keys = jax.vmap(lambda seed: jax.random.key_data(rng.run_key(seed)))(self.seeds)
        return jnp.argmax(jnp.all(keys == jax.random.key_data(key), axis=-1))


def make_replay(
    log: Log, chains: Chains, seeds: Sequence[int], rate: float, horizon: int, singles: float
) -> ReplaySource:
    """Return the source of a log's chains.

    Args:
        log: prepared.
        chains: linked.
        seeds: of the runs.
        rate: chains per round.
        horizon: T.
        singles: the share of singletons among the drawn chains.

    Raises:
        LogError: a number is out of range, or the log has too few chains for the horizon.
    """
    arrivals = log.frame["arrival"].to_numpy()[chains.members[chains.first[:-1]]]
    drawn = [draw_arrivals(seed, arrivals, chains, rate, horizon, singles) for seed in seeds]
    most = max(int(np.bincount(rounds).max(initial=1)) for _, rounds in drawn)
    # A power of two, so that most linking rules of a study share their programs.
    most = max(2, 1 << (most - 1).bit_length())
    placed = [place_arrivals(chains.first[some], each, horizon, most) for some, each in drawn]
    roots, counts = (jnp.asarray(np.stack(part), jnp.int32) for part in zip(*placed, strict=True))
    lengths = np.repeat(chains.lengths, chains.lengths)
    attempts = np.arange(len(chains.members)) - np.repeat(chains.first[:-1], chains.lengths)
    return ReplaySource(
        contexts=make_contexts(log, chains, attempts),
        left=jnp.asarray(lengths - attempts, float),
        seeds=jnp.asarray(seeds, jnp.int32), roots=roots, counts=counts, rate=float(rate),
    )  # fmt: skip


def draw_arrivals(
    seed: int, arrivals: np.ndarray, chains: Chains, rate: float, horizon: int, singles: float
) -> tuple[np.ndarray, np.ndarray]:
    """Draw the singletons of a run, and return the round in which each root arrives.

    The span from the first root to the last is cut into rounds of equal length, so many that `rate`
    roots fall into one on average; several may fall into one.

    Args:
        seed: seed of the subsample.
        arrivals: [m] int64 inferred arrival of each chain's root, microseconds.
        chains: linked.
        rate: roots per round.
        horizon: T, rounds.
        singles: see `subsample`.

    Returns:
        The chains that arrive by round T in their order, and the round of each, from 1.

    Raises:
        LogError: a number is out of range, or the log has too few chains for the horizon.
    """
    if not 0 < rate <= 1:
        raise LogError(f"arrival_rate={rate:g} must lie in (0, 1] chains a round.")
    drawn = subsample(chains.lengths, singles, np.random.default_rng([seed, 15]))
    times = arrivals[drawn]
    rounds = int(len(drawn) / rate)
    if horizon > rounds:
        raise LogError(
            f"horizon={horizon:,} is too long: {len(drawn):,} chains at arrival_rate={rate:g} are "
            f"{rounds:,} rounds."
        )
    span = max(1, int(times[-1] - times[0]))
    each = np.minimum(1 + ((times - times[0]) / span * rounds).astype(np.int64), rounds)
    return drawn[each <= horizon], each[each <= horizon]


def place_arrivals(
    rows: np.ndarray, rounds: np.ndarray, horizon: int, most: int
) -> tuple[np.ndarray, np.ndarray]:
    """Place arrivals in their rounds.

    Args:
        rows: [m] in the order of arrival.
        rounds: [m] round of each, from 1, not decreasing.
        horizon: T.
        most: A, at least the number of arrivals in any round.

    Returns:
        The rows [T, A] of each round in their order, and their numbers [T].
    """
    counts = np.bincount(rounds - 1, minlength=horizon)
    before = np.cumsum(counts) - counts
    placed = np.zeros((horizon, most), np.int64)
    placed[rounds - 1, np.arange(len(rows)) - before[rounds - 1]] = rows
    return placed, counts


def make_contexts(log: Log, chains: Chains, attempts: np.ndarray) -> Array:
    """Return the context of each conversation, none longer than one: [n, 36].

    Half of the squared length is the projected prompt's, half that of the state of the chain:
    a constant, a / (1 + a) of a attempts so far, the logarithms of the rounds in the system (here
    1, which the round multiplies: `Problem.age_column`) and of the prompt's tokens. A scheduler
    knows all of them when it decides.

    Args:
        log: prepared.
        chains: linked.
        attempts: [n] int64 conversations of the chain before each one.
    """
    frame, vectors = log.frame[chains.members], log.embeddings
    if vectors is None:
        projected = np.zeros((log.counts.texts, PROMPT_DIM))
    else:
        file = log.folder / f"projected-{digest([__name__])}.npy"
        projected = np.asarray(load_or_compute(file, lambda: project(vectors)))
    length = np.log1p(frame["prompt_tokens"].to_numpy()) / np.log1p(LONG_WAIT)
    served = jnp.asarray(attempts, float)
    one = jnp.ones_like(served)
    state = jnp.stack([one, served / (1 + served), one, jnp.asarray(length, float)], axis=-1)
    prompts = jnp.asarray(projected, float)[frame["text"].to_numpy()]
    return jnp.sqrt(0.5) * jnp.concatenate([prompts, 0.5 * state], axis=-1)


def project(embeddings: np.ndarray, dim: int = PROMPT_DIM) -> np.ndarray:
    """Return the coordinates of unit embeddings along their leading principal directions.

    The directions are those of the second moment of all prompts of the log, without centring, so
    that no projection is longer than its embedding. They depend on texts, not on retrials.

    Args:
        embeddings: [texts, d] unit vectors.
        dim: e; zeros follow if there are fewer dimensions.

    Returns:
        [texts, e].
    """
    # In blocks: of a large log the float64 copy would be the largest thing in memory.
    blocks = [embeddings[i : i + BLOCK] for i in range(0, len(embeddings), BLOCK)]
    moment = sum(whole.T @ whole for whole in (block.astype(np.float64) for block in blocks))
    _, directions = np.linalg.eigh(moment)
    along = directions[:, ::-1][:, :dim]
    # Of the two signs of a direction, the one whose largest component is positive.
    largest = np.abs(along).argmax(axis=0)
    along = along * np.sign(along[largest, np.arange(along.shape[1])])
    projected = np.concatenate([block.astype(np.float64) @ along for block in blocks])
    return np.pad(projected, ((0, 0), (0, dim - projected.shape[1])))
