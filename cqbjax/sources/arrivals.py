"""Arrivals other than Bernoulli, for any source: bursts, batches, and the times of a trace."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from cqbjax.core import rng
from cqbjax.core.inputs import check_interval
from cqbjax.core.pytree import Numbers, pytree, static
from cqbjax.core.types import Problem, Workload
from cqbjax.sources.preference_drift import SourceWrapper

# The largest share of rounds in which Poisson arrivals may be cut, and the most arrivals per round.
CUT_SHARE = 1e-6
MAX_ARRIVALS = 256


@pytree
class BurstyArrivals:
    """A Markov-modulated Bernoulli process with a busy and a quiet state.

    A query arrives with probability (1 + burst) lambda in a busy round, and with probability (1 -
    burst) lambda in a quiet round. Busy and quiet rounds are equally frequent, so lambda is the
    rate. The state changes after every round with probability 1 / burst_rounds. The arrivals use
    the same uniforms as Bernoulli arrivals, so burst=0 reproduces the Bernoulli arrivals.

    Attributes:
        burst: in [0, 1], with (1 + burst) lambda <= 1.
        burst_rounds: mean rounds in a state, at least 1.
    """

    burst: Array | float = 0.5
    burst_rounds: Array | float = 50.0

    def check(self, arrival_rate: float) -> None:
        """Validate the settings at an arrival rate.

        Raises:
            ValueError: naming the key and what is allowed.
        """
        most = min(1.0, 1 / arrival_rate - 1) if arrival_rate > 0 else 1.0
        if not 0 <= float(self.burst) <= most:
            raise ValueError(
                f"burst={float(self.burst):g} must lie in [0, {most:.3g}] at "
                f"arrival_rate={arrival_rate:g}: (1 + burst) arrival_rate is a probability"
            )
        check_interval(self, "[1, inf)", "burst_rounds")

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
class BatchArrivals:
    """Several arrivals per round: a Poisson number, or batches whose sizes have given shares.

    Attributes:
        most: A, the most arrivals in a round.
        sizes: [A] shares of batches of 1, 2, ..., A queries; the probability of a batch is chosen
            so that lambda queries arrive per round on average. None: Poisson(lambda), cut at A.
    """

    most: int = static(default=12)
    sizes: Numbers | None = None

    def __post_init__(self) -> None:
        """Read A from the length of `sizes`."""
        if self.sizes is not None and np.ndim(self.sizes) == 1:
            object.__setattr__(self, "most", int(np.shape(self.sizes)[0]))

    def check(self, arrival_rate: float) -> None:
        """Validate the shares, and that A is enough for the rate.

        Raises:
            ValueError: naming the key and what is allowed.
        """
        check_interval(self, f"[1, {MAX_ARRIVALS}]", "most", whole=True)
        if self.sizes is None:
            import scipy.special

            missed = scipy.special.pdtrc(self.most, arrival_rate)
            if missed > CUT_SHARE:
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
        """Draw the numbers of arrivals in rounds 1, ..., T: [T] int32, or bool if A = 1."""
        uniform = rng.round_uniforms(key, jnp.arange(1, horizon + 1), rng.Stream.ARRIVAL)
        came = jnp.sum(uniform[:, None] >= self._cumulative(arrival_rate), axis=1, dtype=jnp.int32)
        return came if self.most > 1 else came > 0

    def _cumulative(self, rate: Array) -> Array:
        """Return the probabilities of fewer than 1, 2, ..., A arrivals: [A]."""
        numbers = jnp.arange(self.most)
        if self.sizes is None:
            rate = jnp.maximum(rate, jnp.finfo(rate.dtype).tiny)
            logs = numbers * jnp.log(rate) - rate - jax.lax.lgamma(numbers + 1.0)
            return jnp.cumsum(jnp.exp(logs))
        shares = jnp.asarray(self.sizes) / jnp.sum(jnp.asarray(self.sizes))
        batch = rate / jnp.sum((numbers + 1) * shares)
        return 1 - batch + batch * (jnp.cumsum(shares) - shares)


@pytree
class TraceArrivals:
    """The times of a trace, scaled so that lambda queries arrive per round on average.

    Each run starts at a random request and cycles through the trace. At most one query arrives in a
    round: if several requests fall into a round, the later requests arrive in the next free rounds.

    Attributes:
        times: [n] request times from 0, in units of the mean time between requests; after n such
            units the trace begins again.
    """

    times: Array

    def check(self, arrival_rate: float) -> None:
        """Validate the rate.

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


def convert_trace(times: np.ndarray) -> TraceArrivals:
    """Convert the request times of a trace [n], increasing, to an arrival process."""
    times = np.asarray(times, float)
    # The next cycle starts one mean interval after the last request.
    interval = (times[-1] - times[0]) / max(len(times) - 1, 1)
    return TraceArrivals(times=jnp.asarray((times - times[0]) / (interval or 1.0), float))


@pytree
class ArrivalWrapper(SourceWrapper):
    """A source with another arrival process.

    Attributes:
        source: where queries come from.
        process: when they arrive: `BurstyArrivals`, `TraceArrivals` or `BatchArrivals`.
    """

    source: Any
    process: Any

    @property
    def _max_arrivals(self) -> int:
        return int(getattr(self.process, "most", 1))

    def problem(self, K: int, horizon: int) -> Problem:
        """Return the shapes of the source within, for up to A arrivals per round."""
        most = self._max_arrivals
        problem: Problem = self.source.problem(K, horizon * most)
        return problem if most == 1 else problem._replace(horizon=horizon, max_arrivals=most)

    def check(self, seeds: np.ndarray, arrival_rate: float, K: int, channels: int = 1) -> None:
        """Validate the process, and the inner source at the arrival rate per channel.

        Raises:
            ValueError: in one sentence, naming the key.
        """
        self.process.check(arrival_rate)
        if self._max_arrivals > 1 and getattr(self.source, "outcome", "attempt") == "query":
            raise ValueError("outcome=query needs one arrival a round: queries go by their rounds")
        self.source.check(seeds, arrival_rate / channels, K)

    def draw_workload(self, key: Array, arrival_rate: Array, problem: Problem) -> Workload:
        """Draw T * A rounds of the inner source: a round's queries come from A inner rounds."""
        most = self._max_arrivals
        longer = problem._replace(horizon=problem.horizon * most, max_arrivals=1)
        workload: Workload = self.source.draw_workload(key, arrival_rate, longer)
        if most == 1:
            return workload
        return workload._replace(arrival_rows=workload.arrival_rows.reshape(-1, most))

    def draw_arrivals(self, key: Array, arrival_rate: Array, horizon: int) -> Array:
        """Draw the arrivals of the process: [T]."""
        return self.process.draw_arrivals(key, arrival_rate, horizon)
