"""A source whose utilities are partly a linear function of the context, and partly not."""

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from cqbjax.core import mnl, rng
from cqbjax.core.inputs import check_interval
from cqbjax.core.pytree import pytree, static
from cqbjax.core.types import Problem, Workload

# Runs and rounds of each from which the service rate of uniform assortments is estimated.
SAMPLE_SEEDS, SAMPLE_ROUNDS = 16, 512


@pytree
class PartlyLinear:
    """The utility of server j for query x is a_j + scale (sqrt(s) z'theta_j + sqrt(1 - s) e_jx).

    The direction z is uniform on the unit sphere of R^(d-1), theta_j and e_jx are standard normal,
    and a_j is normal with mean `level` and standard deviation `spread`. A run draws a_j and theta_j
    once, and z and e_jx for each query. The context is (z, 1) / sqrt(2), of length 1, so that a
    linear policy can learn a_j + scale sqrt(s) z'theta_j. This part explains the share s of the
    variance between queries. No policy can learn e_jx, which stays the same when the query returns.

    Attributes:
        share: s in [0, 1].
        scale: standard deviation of an LLM's utility between queries, not negative.
        level: mean of a_j.
        spread: standard deviation of a_j, not negative.
        num_servers: N.
        dim: d, at least 2.
    """

    share: Array | float = 0.5
    scale: Array | float = 1.5
    level: Array | float = 0.5
    spread: Array | float = 0.5
    num_servers: int = static(default=5)
    dim: int = static(default=6)

    extends = True

    def problem(self, K: int, horizon: int) -> Problem:
        """Return the shapes: the table has one row per round.

        Raises:
            ValueError: naming a key out of range.
        """
        check_interval(self, "[1, inf)", "num_servers", whole=True)
        check_interval(self, "[2, inf)", "dim", whole=True)
        return Problem(self.num_servers, K, self.dim, horizon, horizon, "disjoint", False)

    def check(self, seeds: np.ndarray, arrival_rate: float, K: int) -> None:
        """Validate the numbers.

        Raises:
            ValueError: naming the key and what is allowed.
        """
        check_interval(self, "[0, 1]", "share")
        check_interval(self, "[0, inf)", "scale", "spread")
        check_interval(self, "(-inf, inf)", "level")

    def draw_workload(self, key: Array, arrival_rate: Array, problem: Problem) -> Workload:
        """Draw a_j and theta_j of the run, and z and e_jx of the query of each round."""
        first = rng.round_key(key, 0)
        size = (self.num_servers, self.dim)
        own = jax.random.normal(rng.stream_key(first, rng.Stream.PARAMETERS), size)

        def draw(round_: Array) -> tuple[Array, Array]:
            at = rng.stream_key(rng.round_key(key, round_), rng.Stream.CONTEXTS)
            drawn = jax.random.normal(at, (self.dim - 1 + self.num_servers,))
            direction, rest = drawn[: self.dim - 1], drawn[self.dim - 1 :]
            direction = direction / jnp.linalg.norm(direction)
            linear = jnp.sum(own[:, 1:] * direction, axis=-1)
            varies = jnp.sqrt(self.share) * linear + jnp.sqrt(1 - self.share) * rest
            context = jnp.append(direction, 1.0) / jnp.sqrt(2.0)
            return context, self.level + self.spread * own[:, 0] + self.scale * varies

        contexts, utilities = jax.vmap(draw)(jnp.arange(1, problem.horizon + 1))
        rows = jnp.arange(problem.horizon, dtype=jnp.int32)
        return Workload(contexts, utilities, rows, rows)

    def uniform_service(self, seeds: np.ndarray, arrival_rate: float, K: int) -> float:
        """Return how many queries per round FIFO serves with uniform assortments, estimated."""
        problem, rate = self.problem(K, SAMPLE_ROUNDS), jnp.asarray(arrival_rate, float)
        some = jax.vmap(lambda seed: self.draw_workload(rng.run_key(seed), rate, problem).utilities)
        utilities = np.asarray(some(jnp.asarray(seeds[:SAMPLE_SEEDS], jnp.int32)))
        return float(np.mean(1 / np.mean(1 / mnl.mean_departure_rate(utilities, K), axis=-1)))
