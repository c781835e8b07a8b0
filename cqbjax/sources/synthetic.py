"""The paper's synthetic queries: contexts and parameters from Unif(-1, 1), with slackness."""

import itertools
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from cqbjax.core import mnl, rng
from cqbjax.core.inputs import check_interval
from cqbjax.core.pytree import pytree, static
from cqbjax.core.types import Parameters, Problem, Workload
from cqbjax.sources import rejection_sampling
from cqbjax.sources.rejection_sampling import BLOCK

# A seed whose best context exceeds the rate by less than this is infeasible: rejection sampling
# would wait for a context of probability zero.
MARGIN = 1e-3
# An acceptance rate below this would make the instance generator the main cost; contexts that are
# tried to estimate it.
LEAST_ACCEPTANCE, MOST_TRIED = 2e-4, 8192
# Seeds, and batches of contexts, from which the service rate is estimated.
SERVICE_SEEDS, SERVICE_BATCHES = 32, 8
# Numbers in a batch of contexts, and in their utilities.
MOST_DRAWN = 2**22
# A policy's state has d^2 numbers.
MOST_DIM = 10_000
# More numbers in theta*, or in the features of a query with a shared parameter, would take minutes
# to validate for each seed.
MOST_PARAMETERS = 10_000_000
# Most utilities for which all corners of the box are evaluated.
MOST_AT_CORNERS = 2**16


@pytree
class Synthetic:
    """Queries whose contexts meet the slackness condition max_S R(x, S) >= rate + slackness.

    Attributes:
        slackness: epsilon, not negative (Assumption 4 of the paper wants it positive).
        num_servers: N.
        dim: d.
        parameters: `disjoint` (one context x in R^d, one theta_j per server) or `shared` (one
            context per server, one theta).
        reference_rate: the rate in the slackness condition, in place of the arrival rate, so that a
            seed has the same contexts at every arrival rate (its theta* is the same in any case);
            None: the arrival rate, as in the paper.
    """

    slackness: Array | float = 0.03
    num_servers: int = static(default=5)
    dim: int = static(default=5)
    parameters: Parameters = static(default="disjoint")
    reference_rate: Array | float | None = None

    extends = True

    def problem(self, K: int, horizon: int) -> Problem:
        """Return the shapes: the table has one row per round.

        Raises:
            ValueError: naming a key out of range.
        """
        check_interval(self, "[1, inf)", "num_servers", whole=True)
        check_interval(self, f"[1, {MOST_DIM}]", "dim", whole=True)
        if self.num_servers * self.dim > MOST_PARAMETERS:
            raise ValueError(
                f"num_servers={self.num_servers} times dim={self.dim} must be at most "
                f"{MOST_PARAMETERS:,}"
            )
        return Problem(self.num_servers, K, self.dim, horizon, horizon, self.parameters, False)

    def draw_workload(self, key: Array, arrival_rate: Array, problem: Problem) -> Workload:
        """Draw theta* and one accepted context per round (rejection sampling, in blocks)."""
        theta = self.theta(key)
        wanted = jnp.clip(self._rate(arrival_rate) + self.slackness, 0.0, 1.0)
        least = jnp.log(wanted) - jnp.log1p(-wanted)
        contexts, utilities = rejection_sampling.draw_accepted(
            lambda block: self.candidates(key, block),
            lambda some: self._utilities(some, theta),
            least, problem.assortment_size, problem.horizon,
        )  # fmt: skip
        rows = jnp.arange(problem.horizon, dtype=jnp.int32)
        return Workload(contexts, utilities, rows, rows)

    def _rate(self, arrival_rate: Any) -> Any:
        return arrival_rate if self.reference_rate is None else self.reference_rate

    def theta(self, key: Array) -> Array:
        """Draw theta* ~ Unif(-1, 1): [N, d] (disjoint) or [d] (shared)."""
        shape = (self.num_servers, self.dim) if self.parameters == "disjoint" else (self.dim,)
        at = rng.stream_key(rng.round_key(key, 0), rng.Stream.PARAMETERS)
        return jax.random.uniform(at, shape, minval=-1.0, maxval=1.0)

    def candidates(self, key: Array, block: Array | int) -> Array:
        """Draw one block of candidate contexts: [BLOCK, d] or [BLOCK, N, d]."""
        at = rng.stream_key(rng.round_key(key, 0), rng.Stream.CONTEXTS)
        one = (self.dim,) if self.parameters == "disjoint" else (self.num_servers, self.dim)
        return jax.random.uniform(
            jax.random.fold_in(at, block), (BLOCK, *one), minval=-1.0, maxval=1.0
        )

    def _utilities(self, contexts: Array, theta: Array) -> Array:
        """Return x' theta*_j of each context and server: [I, N]."""
        if self.parameters == "disjoint":
            return jnp.sum(contexts[:, None, :] * theta, axis=-1)
        return jnp.sum(contexts * theta, axis=-1)

    def check(self, seeds: np.ndarray, arrival_rate: float, K: int) -> None:
        """Validate that contexts can meet the slackness condition.

        Args:
            seeds: [S] the runs' seeds; without seeds only the settings are validated.
            arrival_rate: queries per round.
            K: servers offered per query.

        Raises:
            ValueError: naming the key, the seed and the largest slackness possible there.
        """
        check_interval(self, "[0, inf)", "slackness")
        own = self.reference_rate is not None
        if own:
            check_interval(self, "[0, inf)", "reference_rate")
        rate, key = float(self._rate(arrival_rate)), "reference_rate" if own else "arrival_rate"
        wanted = rate + float(self.slackness)
        if not wanted < 1.0:
            raise ValueError(
                f"slackness={float(self.slackness):g} with {key}={rate:g} asks for "
                f"a departure probability of {wanted:g}; their sum must be below 1"
            )
        if not len(seeds):
            return
        theta = self._theta_of(seeds)
        best = 1.0 / (1.0 + np.exp(-self._largest_score(theta, K)))
        worst = int(np.argmin(best))
        if best[worst] < wanted + MARGIN:
            most = best[worst] - rate
            # Without any feasible slackness the message does not suggest one.
            way = "" if most <= MARGIN else f"slackness must stay below {most:.3f}, or "
            raise ValueError(
                f"slackness={float(self.slackness):g} cannot be met at {key}={rate:g}: "
                f"with seed {seeds[worst]} the best context departs with "
                f"probability {best[worst]:.3f}; {way}lower {key}, or raise N or K"
            )
        draw, tried, accepted = np.random.default_rng(0), 0, np.zeros(len(seeds), int)
        enough = math.ceil(LEAST_ACCEPTANCE * MOST_TRIED)
        # The first contexts usually suffice; the other seeds try more.
        while (few := accepted < enough).any() and tried < MOST_TRIED:
            score = _best_score(self._draw_utilities(draw, theta[few]), K)
            accepted[few] += np.sum(score >= _log_odds(wanted), axis=1)
            tried += score.shape[1]
        if few.any():
            raise ValueError(
                f"slackness={float(self.slackness):g} at {key}={rate:g} is met by "
                f"fewer than {LEAST_ACCEPTANCE:g} of the contexts of seed "
                f"{seeds[int(np.argmin(accepted))]}; lower slackness or {key}, or raise N or K"
            )

    def uniform_service(self, seeds: np.ndarray, arrival_rate: float, K: int) -> float:
        """Return how many queries per round FIFO serves with uniform assortments, estimated."""
        theta, draw = self._theta_of(seeds[:SERVICE_SEEDS]), np.random.default_rng(0)
        batches = [self._draw_utilities(draw, theta) for _ in range(SERVICE_BATCHES)]
        utilities = np.concatenate(batches, axis=1)
        wanted = _log_odds(float(self._rate(arrival_rate)) + float(self.slackness))
        arrives = _best_score(utilities, K) >= wanted
        rounds = np.where(arrives, 1.0 / mnl.mean_departure_rate(utilities, K), 0.0)
        come = arrives.sum(axis=1)
        served = come[come > 0] / rounds.sum(axis=1)[come > 0]
        return float(np.mean(served)) if served.size else 1.0

    def _theta_of(self, seeds: np.ndarray) -> np.ndarray:
        """Draw theta* of every seed: [S, ...]."""
        # The seeds are padded, so that another number of seeds seldom recompiles.
        width = 2 ** (len(seeds) - 1).bit_length()
        padded = np.pad(np.asarray(seeds, np.int32), (0, width - len(seeds)), "edge")
        return np.asarray(_draw_thetas(self, padded))[: len(seeds)]

    def _draw_utilities(self, draw: np.random.Generator, theta: np.ndarray) -> np.ndarray:
        """Draw contexts, the same for all seeds, and return their utilities: [S, p, N]."""
        shape = self.problem(1, 1).contexts_shape[1:]
        numbers = max(math.prod(shape), len(theta) * self.num_servers)
        count = min(max(1, MOST_DRAWN // numbers), BLOCK)
        contexts = draw.uniform(-1.0, 1.0, (count, *shape))
        if self.parameters == "disjoint":
            return contexts @ np.swapaxes(theta, 1, 2)
        return np.moveaxis(contexts @ theta.T, -1, 0)

    def _largest_score(self, theta: np.ndarray, size: int) -> np.ndarray:
        """Return the largest score of any context, or an upper bound: [S, ...] -> [S]."""
        if self.parameters == "shared":
            return np.sum(np.abs(theta), axis=-1) + math.log(size)
        if size > 1 and 2**self.dim * self.num_servers <= MOST_AT_CORNERS:
            # A convex function of x has its maximum at a corner of the box.
            corners = np.asarray(list(itertools.product((-1.0, 1.0), repeat=self.dim)))
            utilities = corners @ np.swapaxes(theta, 1, 2)
            return _best_score(utilities, size).max(axis=1)
        # K = 1 is exact; for K > 1 the sum of the K best servers' maxima bounds it from above.
        return _best_score(np.sum(np.abs(theta), axis=-1), size)


@jax.jit
def _draw_thetas(source: Synthetic, seeds: Array) -> Array:
    return jax.vmap(lambda seed: source.theta(rng.run_key(seed)))(seeds)


def _best_score(utilities: np.ndarray, size: int) -> np.ndarray:
    """Return `mnl.best_score` on the host: [..., N] -> [...]."""
    if size == 1:
        return utilities.max(axis=-1)
    top = np.sort(utilities, axis=-1)[..., -size:]
    # Shift only utilities whose exponential overflows float32, so that the others stay exact.
    shift = top[..., -1] * (np.abs(top[..., -1]) > 80)
    return shift + np.log(np.sum(np.exp(top - shift[..., None]), axis=-1))


def _log_odds(probability: float) -> float:
    """Return the score at which the best assortment departs with this probability, clipped."""
    if probability <= 0.0:
        return -math.inf
    return math.inf if probability >= 1.0 else math.log(probability / (1.0 - probability))
