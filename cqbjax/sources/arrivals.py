"""Other arrivals than Bernoulli ones, for any source: bursts, and the times of a trace."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from cqbjax.core import rng
from cqbjax.core.pytree import Numbers, convert_lists, pytree, static
from cqbjax.core.types import Problem, Source, Workload

# Of Poisson many arrivals, which share of rounds may be cut; and the most that may come in a round.
CUT = 1e-6
MOST_AT_ONCE = 256


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

    def draw_arrivals(self, key: Array, arrival_rate: Array, horizon: int) -> Array:
        """Draw A(1), ..., A(T): [T] bool."""
        rounds = jnp.arange(1, horizon + 1)
        changes = rng.round_uniforms(key, rounds, rng.Stream.BURST) < 1 / self.burst_rounds
        begun = rng.uniform(rng.round_key(key, 0), rng.Stream.BURST) < 0.5
        before = jnp.cumsum(changes) - changes
        busy = (before + begun) % 2 == 1
        rate = arrival_rate * jnp.where(busy, 1 + self.burst, 1 - self.burst)
        return rng.round_uniforms(key, rounds, rng.Stream.ARRIVAL) < rate


@pytree
class Batches:
    """Several queries a round: Poisson many, or batches whose sizes have given shares.

    Attributes:
        most: A, how many come in a round at most.
        sizes: [A] the shares of batches of 1, 2, ..., A queries, which come with the probability
            that makes lambda queries a round on average; None: Poisson(lambda) many, cut at A.
    """

    most: int = static(default=12)
    sizes: Numbers | None = None

    def __post_init__(self) -> None:
        """Take lists as arrays; sizes say how many come at most."""
        convert_lists(self, "sizes")
        if self.sizes is not None and np.ndim(self.sizes) == 1:
            object.__setattr__(self, "most", int(np.shape(self.sizes)[0]))

    def check(self, arrival_rate: float) -> None:
        """Refuse shares that are none, and rates at which more than A would come.

        Raises:
            ValueError: naming the key and what is allowed.
        """
        if type(self.most) is not int or not 1 <= self.most <= MOST_AT_ONCE:
            raise ValueError(f"most={self.most} must be a whole number in 1..{MOST_AT_ONCE}")
        if self.sizes is None:
            import scipy.special

            missed = scipy.special.pdtrc(self.most, arrival_rate)
            if missed > CUT:
                raise ValueError(
                    f"most={self.most} cuts {missed:.2g} of the rounds at "
                    f"arrival_rate={arrival_rate:g}: raise it"
                )
            return
        shares = np.asarray(self.sizes, float)
        if shares.ndim != 1 or not (shares >= 0).all() or not shares.sum() > 0:
            raise ValueError("sizes must be the shares of batches of 1, 2, ... queries")
        mean = float(np.average(np.arange(1, len(shares) + 1), weights=shares))
        if arrival_rate > mean:
            raise ValueError(f"arrival_rate={arrival_rate:g} must be at most {mean:g}, a batch")

    def draw_arrivals(self, key: Array, arrival_rate: Array, horizon: int) -> Array:
        """Draw how many come in rounds 1, ..., T: [T] int32."""
        rounds = jnp.arange(1, horizon + 1)
        uniform = rng.round_uniforms(key, rounds, rng.Stream.ARRIVAL)
        return jnp.sum(uniform[:, None] >= self._until(arrival_rate), axis=1, dtype=jnp.int32)

    def _until(self, rate: Array) -> Array:
        """Return the probabilities that fewer than 1, 2, ..., A queries come: [A]."""
        numbers = jnp.arange(self.most)
        if self.sizes is None:
            rate = jnp.maximum(rate, jnp.finfo(rate.dtype).tiny)
            logs = numbers * jnp.log(rate) - rate - jax.lax.lgamma(numbers + 1.0)
            return jnp.cumsum(jnp.exp(logs))
        shares = jnp.asarray(self.sizes) / jnp.sum(jnp.asarray(self.sizes))
        batch = rate / jnp.sum((numbers + 1) * shares)
        return 1 - batch + batch * (jnp.cumsum(shares) - shares)


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

    def draw_arrivals(self, key: Array, arrival_rate: Array, horizon: int) -> Array:
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
        process: when they do: `Bursty`, `Traced` or `Batches`.
    """

    source: Any
    process: Any

    def problem(self, K: int, horizon: int) -> Problem:
        """Return the source's shapes; of as many rounds as queries may come, where many do."""
        most = self._most
        own = self._source.problem(K, horizon * most)
        return own if most == 1 else own._replace(horizon=horizon, max_arrivals=most)

    def check(self, seeds: np.ndarray, arrival_rate: float, K: int) -> None:
        """Refuse what the source or the process refuses.

        Raises:
            ValueError: in one sentence, naming the key.
        """
        self.process.check(arrival_rate)
        if self._most > 1 and getattr(self._source, "outcome", "attempt") == "query":
            raise ValueError("outcome=query needs one arrival a round: queries go by their rounds")
        self._source.check(seeds, arrival_rate, K)

    def uniform_service(self, seeds: np.ndarray, arrival_rate: float, K: int) -> float:
        """Return the source's own: arrivals do not matter to it."""
        return self._source.uniform_service(seeds, arrival_rate, K)

    def draw_workload(self, key: Array, arrival_rate: Array, problem: Problem) -> Workload:
        """Draw the source's instance; a round's queries are those of A rounds of the source."""
        most = self._most
        if most == 1:
            return self._source.draw_workload(key, arrival_rate, problem)
        longer = problem._replace(horizon=problem.horizon * most, max_arrivals=1)
        world = self._source.draw_workload(key, arrival_rate, longer)
        return world._replace(arrival_rows=world.arrival_rows.reshape(-1, most))

    def draw_arrivals(self, key: Array, arrival_rate: Array, horizon: int) -> Array:
        """Draw A(1), ..., A(T): [T] bool."""
        return self.process.draw_arrivals(key, arrival_rate, horizon)

    @property
    def _most(self) -> int:
        return int(getattr(self.process, "most", 1))

    @property
    def _source(self) -> Source:
        return self.source
