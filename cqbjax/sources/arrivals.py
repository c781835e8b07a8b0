"""Other arrivals than Bernoulli ones, for any source: bursts, and the times of a trace."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from cqbjax.core import rng
from cqbjax.core.pytree import pytree
from cqbjax.core.types import Problem, Source, World


@pytree
class Bursty:
    """A Markov-modulated Bernoulli process: busy rounds and quiet ones, in stretches.

    In a busy round a query arrives with probability (1 + burst) lambda, in a quiet one with
    (1 - burst) lambda; both are as frequent, so that lambda is the rate. The state changes after
    every round with probability 1 / burst_rounds. The uniforms are those of the Bernoulli
    arrivals: with burst=0 they are the same arrivals.

    Attributes:
        burst: in [0, 1], and such that (1 + burst) lambda <= 1.
        burst_rounds: mean rounds of a stretch, at least 1.
    """

    burst: Array | float = 0.5
    burst_rounds: Array | float = 50.0

    def check(self, arrival_rate: float) -> None:
        """Refuse what is out of range.

        Raises:
            ValueError: naming the key and what is allowed.
        """
        most = min(1.0, 1 / arrival_rate - 1) if arrival_rate > 0 else 1.0
        if not 0 <= float(self.burst) <= most:
            raise ValueError(
                f"burst={float(self.burst):g} must lie in [0, {most:.3g}] at "
                f"arrival_rate={arrival_rate:g}: (1 + burst) arrival_rate is a probability"
            )
        if not 1 <= float(self.burst_rounds) < float("inf"):
            raise ValueError(f"burst_rounds={float(self.burst_rounds):g} must be at least 1 round")

    def arrives(self, key: Array, arrival_rate: Array, horizon: int) -> Array:
        """Draw A(1), ..., A(T): [T] bool."""
        rounds = jnp.arange(1, horizon + 1)
        changes = rng.round_uniforms(key, rounds, rng.Stream.BURST) < 1 / self.burst_rounds
        begun = rng.uniform(rng.round_key(key, 0), rng.Stream.BURST) < 0.5
        before = jnp.cumsum(changes) - changes
        busy = (before + begun) % 2 == 1
        rate = arrival_rate * jnp.where(busy, 1 + self.burst, 1 - self.burst)
        return rng.round_uniforms(key, rounds, rng.Stream.ARRIVAL) < rate


@pytree
class Traced:
    """The times of a trace, stretched so that lambda queries arrive a round on average.

    Each run begins at a request of its own and goes round the trace. A round takes one query: of
    several in the same one the later ones arrive in the next rounds that are free.

    Attributes:
        times: [n] float of the requests, in mean intervals: they begin at 0, and n is the length.
    """

    times: Array

    def check(self, arrival_rate: float) -> None:
        """Refuse a rate that is none.

        Raises:
            ValueError: naming the key.
        """
        if not 0 < arrival_rate <= 1:
            raise ValueError(f"arrival_rate={arrival_rate:g} must lie in (0, 1] for a trace")

    def arrives(self, key: Array, arrival_rate: Array, horizon: int) -> Array:
        """Place the requests in rounds: [T] bool."""
        size = self.times.shape[0]
        uniform = rng.uniform(rng.round_key(key, 0), rng.Stream.BURST)
        first = jnp.minimum((uniform * size).astype(jnp.int32), size - 1)
        number = jnp.arange(horizon, dtype=jnp.int32)
        place = first + number
        laps = (place // size) * size
        since = laps.astype(self.times.dtype) + self.times[place % size] - self.times[first]
        wanted = jnp.floor(since / arrival_rate).astype(jnp.int32)
        # The first free round from the wanted one on: max over j <= k of wanted_j + (k - j).
        rounds = number + jax.lax.cummax(wanted - number)
        return jnp.zeros(horizon, bool).at[rounds].set(True, mode="drop")


def traced(times: np.ndarray) -> Traced:
    """Return the process of a trace's times [n], in any unit, in increasing order."""
    times = np.asarray(times, float)
    # One mean interval from the last request to the first of the next time round.
    interval = (times[-1] - times[0]) / max(len(times) - 1, 1)
    return Traced(times=jnp.asarray((times - times[0]) / (interval or 1.0), float))


@pytree
class Arriving:
    """A source with other arrivals.

    Attributes:
        source: where queries come from.
        process: when they do: `Bursty` or `Traced`.
    """

    source: Any
    process: Any

    def problem(self, assortment_size: int, horizon: int) -> Problem:
        """Return the source's shapes."""
        return self._source.problem(assortment_size, horizon)

    def check(self, seeds: np.ndarray, arrival_rate: float, assortment_size: int) -> None:
        """Refuse what the source or the process refuses.

        Raises:
            ValueError: in one sentence, naming the key.
        """
        self.process.check(arrival_rate)
        self._source.check(seeds, arrival_rate, assortment_size)

    def uniform_service(
        self, seeds: np.ndarray, arrival_rate: float, assortment_size: int
    ) -> float:
        """Return the source's own: arrivals do not matter to it."""
        return self._source.uniform_service(seeds, arrival_rate, assortment_size)

    def world(self, key: Array, arrival_rate: Array, problem: Problem) -> World:
        """Draw the source's instance."""
        return self._source.world(key, arrival_rate, problem)

    def arrives(self, key: Array, arrival_rate: Array, horizon: int) -> Array:
        """Draw A(1), ..., A(T): [T] bool."""
        return self.process.arrives(key, arrival_rate, horizon)

    @property
    def _source(self) -> Source:
        return self.source
