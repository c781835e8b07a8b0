"""The paper's synthetic queries: contexts and parameters from Unif(-1, 1), with slackness."""

import functools
import itertools
import math
from collections.abc import Iterator
from typing import Any, get_args

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from cqbjax.core import mnl, rng
from cqbjax.core.inputs import is_integer, is_number
from cqbjax.core.pytree import pytree, static
from cqbjax.core.types import Parameters, Problem, Workload
from cqbjax.sources import rejection_sampling
from cqbjax.sources.rejection_sampling import BLOCK

# A seed whose best context exceeds the rate by less than this is infeasible: rejection sampling
# would wait for a context of probability zero.
MARGIN = 1e-3
# An acceptance rate below this would make the instance generator the main cost.
LEAST_ACCEPTANCE = 2e-4
# Blocks of candidates that estimate the acceptance rate of a seed, and the first of them, drawn at
# once, that estimate the service rate.
PROBE_BLOCKS = 64
SERVICE_BLOCKS = 8
# Numbers drawn at once for these estimates, for any number of seeds, N and d.
MOST_DRAWN = 2**22
# Seeds of one program if there are few, so that another number of seeds does not recompile.
SEEDS_AT_ONCE, FEW_SEEDS = 32, 256
# Factor by which the blocks grow until a seed's candidates suffice.
DEEPER = 8
# A policy's state has d^2 numbers.
MOST_DIM = 10_000
# More numbers in theta*, or in the features of a query with a shared parameter, would take minutes
# to validate for each seed.
MOST_PARAMETERS = 10_000_000
# Cached combinations of source, seeds and K.
CACHED_SCORES = 64
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
        for key in ("num_servers", "dim"):
            value = getattr(self, key)
            if not is_integer(value) or value < 1:
                raise ValueError(f"{key}={value} must be a whole number, at least 1")
        if self.dim > MOST_DIM:
            raise ValueError(f"dim={self.dim} must be at most {MOST_DIM}")
        if self.num_servers * self.dim > MOST_PARAMETERS:
            raise ValueError(
                f"num_servers={self.num_servers} times dim={self.dim} must be at most "
                f"{MOST_PARAMETERS:,}"
            )
        if self.parameters not in get_args(Parameters):
            words = " or ".join(get_args(Parameters))
            raise ValueError(f"parameters={self.parameters} must be {words}")
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
        if not is_number(self.slackness):
            raise ValueError(f"slackness={self.slackness} must be a number")
        if float(self.slackness) < 0:
            raise ValueError(
                f"slackness={float(self.slackness):g} must not be negative: each query's best "
                "departure probability is to exceed arrival_rate by at least so much"
            )
        own = self.reference_rate is not None
        if own and not is_number(self.reference_rate):
            raise ValueError(f"reference_rate={self.reference_rate} must be a number, or null")
        rate, key = float(self._rate(arrival_rate)), "reference_rate" if own else "arrival_rate"
        wanted = rate + float(self.slackness)
        if not wanted < 1.0:
            raise ValueError(
                f"slackness={float(self.slackness):g} with {key}={rate:g} asks for "
                f"a departure probability of {wanted:g}; their sum must be below 1"
            )
        if not len(seeds):
            return
        # The first candidates usually suffice; the other seeds draw more.
        blocks = SERVICE_BLOCKS if len(seeds) <= FEW_SEEDS else 1
        score, largest = self._scores(seeds, K, blocks)
        best = 1.0 / (1.0 + np.exp(-largest))
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
        while (few := score < _log_odds(wanted)).any() and blocks < PROBE_BLOCKS:
            seeds, blocks = np.asarray(seeds)[few], min(DEEPER * blocks, PROBE_BLOCKS)
            score, _ = self._scores(seeds, K, blocks)
        if few.any():
            raise ValueError(
                f"slackness={float(self.slackness):g} at {key}={rate:g} is met by "
                f"fewer than {LEAST_ACCEPTANCE:g} of the contexts of seed "
                f"{seeds[int(np.argmin(score))]}; lower slackness or {key}, or raise N or K"
            )

    def uniform_service(self, seeds: np.ndarray, arrival_rate: float, K: int) -> float:
        """Return how many queries per round FIFO serves with uniform assortments.

        This is the mean over the first `FEW_SEEDS` seeds.
        """
        wanted = _log_odds(float(self._rate(arrival_rate)) + float(self.slackness))
        served = []
        for batches in self._probe(seeds[:FEW_SEEDS], SERVICE_BLOCKS):
            utilities = np.concatenate([utilities for _, utilities in batches], axis=1)
            arrives = _best_score(utilities, K) >= wanted
            rounds = 1.0 / mnl.mean_departure_rate(utilities, K)
            total = np.sum(np.where(arrives, rounds, 0.0), axis=1)
            mean = total / np.maximum(arrives.sum(axis=1), 1)
            served.append(1.0 / mean[mean > 0])
        every = np.concatenate(served)
        return float(np.mean(every)) if every.size else 1.0

    def _scores(
        self, seeds: np.ndarray, size: int, blocks: int = PROBE_BLOCKS
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return the score that `LEAST_ACCEPTANCE` of candidates reach, and the largest score: [S].

        With fewer blocks the first is a lower bound. Neither depends on rate or slackness, so the
        points of a sweep share them.
        """
        shape, enough = (self.num_servers, self.dim, self.parameters), PROBE_BLOCKS * BLOCK
        at = np.asarray(seeds, np.int32).tobytes()
        return _scores_of(*shape, at, size, math.ceil(LEAST_ACCEPTANCE * enough), blocks)

    def _probe(
        self, seeds: np.ndarray, blocks: int
    ) -> Iterator[Iterator[tuple[np.ndarray, np.ndarray]]]:
        """Yield batches of candidates of some seeds: theta* [s, ...] and utilities [s, p, N].

        A batch has about `MOST_DRAWN` numbers, or one block of one seed if that has more.
        """
        one = math.prod(self.problem(1, 1).contexts_shape[1:])
        of_block = BLOCK * max(one, self.num_servers)
        at_once = SERVICE_BLOCKS if SERVICE_BLOCKS * of_block <= MOST_DRAWN else 1
        at_once = min(at_once, blocks)
        most = max(1, MOST_DRAWN // (at_once * of_block))
        width = min(SEEDS_AT_ONCE, most) if len(seeds) <= FEW_SEEDS else most
        for start in range(0, len(seeds), width):
            # The last seeds are padded, so that one program draws all.
            index = np.minimum(start + np.arange(width), len(seeds) - 1)
            some = np.asarray(seeds[index], np.int32)
            drawn = (_candidates(self, some, first, at_once) for first in range(0, blocks, at_once))
            yield (self._utilities_of(one, len(seeds) - start) for one in drawn)

    def _utilities_of(self, drawn: tuple[Array, Array], real: int) -> tuple[np.ndarray, np.ndarray]:
        """Return theta* and utilities of the seeds without padding, on the host."""
        theta, contexts = (np.asarray(one)[:real] for one in drawn)
        if self.parameters == "disjoint":
            return theta, contexts @ np.swapaxes(theta, 1, 2)
        return theta, np.einsum("spnd,sd->spn", contexts, theta)

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


@functools.partial(jax.jit, static_argnums=3)
def _candidates(source: Synthetic, seeds: Array, first: int, blocks: int) -> tuple[Array, Array]:
    """Draw theta* of every seed and blocks of candidates: [S, ...] and [S, P, ...]."""

    def one(seed: Array) -> tuple[Array, Array]:
        key = rng.run_key(seed)
        drawn = jax.vmap(lambda block: source.candidates(key, block))(first + jnp.arange(blocks))
        return source.theta(key), drawn.reshape(-1, *drawn.shape[2:])

    return jax.vmap(one)(seeds)


@functools.lru_cache(CACHED_SCORES)
def _scores_of(
    num_servers: int, dim: int, parameters: Parameters, seeds: bytes, size: int, enough: int,
    blocks: int,
) -> tuple[np.ndarray, np.ndarray]:  # fmt: skip
    """Return `Synthetic._scores`, computed once; `enough` candidates reach the first."""
    source = Synthetic(num_servers=num_servers, dim=dim, parameters=parameters)
    reached, largest = [], []
    for batches in source._probe(np.frombuffer(seeds, np.int32), blocks):
        top = np.empty((0, 0), np.float32)
        for theta, utilities in batches:  # noqa: B007 - the last one is read below
            score = _best_score(utilities, size)
            top = np.concatenate([top, score], axis=1) if top.size else score
            if top.shape[1] > enough:
                top = np.partition(top, -enough, axis=1)[:, -enough:]
        fewer = np.full(len(theta), -np.inf, np.float32)
        reached.append(top.min(axis=1) if top.shape[1] >= enough else fewer)
        largest.append(source._largest_score(theta, size))
    return np.concatenate(reached), np.concatenate(largest)


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
