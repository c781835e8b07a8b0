"""The chains of a log as a source of queries: a replay is a sweep of it.

A query is a chain. Its row of the table is the conversation that its user asks next: the chain
leaves when its last one is served, and else is back in the queue with the next. There is one
server, so that scheduling alone is decided.
"""

import dataclasses
from collections.abc import Iterator, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from cqbjax.core import rng
from cqbjax.core.pytree import pytree
from cqbjax.core.types import Problem
from cqbjax.core.world import Logged, World
from cqbjax.logs import instance
from cqbjax.logs.linking import Chains
from cqbjax.logs.prepare import Log


@pytree
class Replay:
    """A log's chains, arriving when they did.

    Attributes:
        contexts: [I, 36] what a policy sees of each conversation (`instance.contexts`).
        left: [I] float conversations left in its chain, itself included.
        seeds: [S] int32 the runs that were drawn: each keeps other singletons.
        roots: [S, T, A] int32 the first conversations of the chains that come in each round.
        counts: [S, T] int32 how many come.
        rate: chains a round, on average over the whole log.
    """

    contexts: Array
    left: Array
    seeds: Array
    roots: Array
    counts: Array
    rate: Array | float

    def problem(self, assortment_size: int, horizon: int) -> Problem:
        """Return the shapes: a row a conversation, one server, several arrivals a round."""
        rows, dim = self.contexts.shape
        return Problem(
            1, assortment_size, dim, rows, horizon, "disjoint", pooled=False, num_prompts=rows,
            arrivals_a_round=self.roots.shape[-1], age_column=instance.AGE_COLUMN,
        )  # fmt: skip

    def check(self, seeds: np.ndarray, arrival_rate: float, assortment_size: int) -> None:
        """Refuse what was not drawn.

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
        if assortment_size != 1:
            raise ValueError(f"K={assortment_size} must be 1: a replay has one server")

    def uniform_service(
        self, seeds: np.ndarray, arrival_rate: float, assortment_size: int
    ) -> float:
        """Return how many chains a round are served: one by the mean length of those that come."""
        del seeds, arrival_rate, assortment_size
        return float(np.asarray(self.counts).sum() / max(1.0, self._conversations()))

    @property
    def load(self) -> float:
        """Conversations of the chains that come, a round, over all runs; one a round is served."""
        return self._conversations() / self.counts.size

    @property
    def alike(self) -> list[int]:
        """[S] for each run the first one in which the same chains come in the same rounds."""
        drawn = [np.concatenate([np.ravel(a), b]).tobytes() for a, b in self._arrivals()]
        return [drawn.index(one) for one in drawn]

    @property
    def first(self) -> "Replay":
        """The first run alone."""
        kept = {name: getattr(self, name)[:1] for name in ("seeds", "roots", "counts")}
        return dataclasses.replace(self, **kept)

    def _arrivals(self) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        return zip(np.asarray(self.roots), np.asarray(self.counts), strict=True)

    def _conversations(self) -> float:
        """Return how many the chains that come have, over all runs."""
        left = np.asarray(self.left)
        slots = np.arange(self.roots.shape[-1])
        return float(sum(left[roots[slots < c[:, None]]].sum() for roots, c in self._arrivals()))

    def world(self, key: Array, arrival_rate: Array, problem: Problem) -> World:
        """Return the log's rows, and the run's arrivals.

        Fewer conversations left rank higher, so that the optimal policy is the clairvoyant one.
        """
        del arrival_rate
        rows = jnp.arange(problem.num_rows, dtype=jnp.int32)
        # A row that satisfies is followed by none.
        logged = Logged(self.left == 1, jnp.minimum(rows + 1, problem.num_rows - 1))
        roots = self.roots[self._run(key), : problem.horizon]
        return World(self.contexts, -self.left[:, None], roots, rows, logged)

    def arrives(self, key: Array, arrival_rate: Array, horizon: int) -> Array:
        """Return how many chains come in each round: [T] int32."""
        del arrival_rate
        return self.counts[self._run(key), :horizon]

    def _run(self, key: Array) -> Array:
        """Return which of the drawn runs has this key: [] int32."""
        keys = jax.vmap(lambda seed: jax.random.key_data(rng.run_key(seed)))(self.seeds)
        return jnp.argmax(jnp.all(keys == jax.random.key_data(key), axis=-1))


def replay(
    log: Log, chains: Chains, seeds: Sequence[int], rate: float, horizon: int, singles: float
) -> Replay:
    """Return the source of a log's chains.

    Args:
        log: prepared.
        chains: linked.
        seeds: of the runs.
        rate: chains a round.
        horizon: T.
        singles: the share of singletons among the chains that are kept.

    Raises:
        LogError: a number is out of range, or the log has too few chains for the horizon.
    """
    arrivals = log.frame["arrival"].to_numpy()[chains.members[chains.first[:-1]]]
    drawn = [instance.draw(seed, arrivals, chains, rate, horizon, singles) for seed in seeds]
    most = max(int(np.bincount(slots).max(initial=1)) for _, slots in drawn)
    # A power of two, so that most linking rules of a study share their programs.
    most = max(2, 1 << (most - 1).bit_length())
    placed = [instance.placed(chains.first[kept], slots, horizon, most) for kept, slots in drawn]
    lengths = np.repeat(chains.lengths, chains.lengths)
    attempts = np.arange(len(chains.members)) - np.repeat(chains.first[:-1], chains.lengths)
    return Replay(
        contexts=instance.contexts(log, chains, attempts),
        left=jnp.asarray(lengths - attempts, float),
        seeds=jnp.asarray(seeds, jnp.int32),
        roots=jnp.asarray(np.stack([roots for roots, _ in placed]), jnp.int32),
        counts=jnp.asarray(np.stack([counts for _, counts in placed]), jnp.int32),
        rate=float(rate),
    )
