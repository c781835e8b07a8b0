"""The paper's synthetic queries: contexts and parameters from Unif(-1, 1), with slackness."""

import functools
import itertools
import math
from typing import get_args

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from cqbjax.core import mnl, rng
from cqbjax.core.pytree import pytree, static
from cqbjax.core.types import Parameters, Problem, World

# Candidates are drawn in blocks of this many, each block under its own key, so that the contexts of
# the first rounds do not depend on the horizon.
BLOCK = 128
# A seed whose best context beats the rate by less than this is called infeasible: rejection would
# wait for a context of probability zero.
MARGIN = 1e-3
# An acceptance rate below this would make the instance generator the main cost.
LEAST_ACCEPTANCE = 2e-4
# Blocks of candidates that tell how many contexts of a seed are accepted, and the first of them
# that tell how they are served.
PROBE_BLOCKS = 64
SERVICE_BLOCKS = 8
# Of so many sources, sets of seeds and K the scores of candidates are remembered.
SCORES_KEPT = 8
# Up to this dimension the corners of the box are counted.
MOST_CORNERS_DIM = 12


@pytree
class Synthetic:
    """Queries whose contexts meet the slackness condition max_S R(x, S) >= rate + slackness.

    Attributes:
        slackness: epsilon, not negative (Assumption 4 of the paper wants it positive).
        num_servers: N.
        dim: d.
        parameters: `disjoint` (x in R^d, theta_j a server) or `shared` (x_{-j}, one theta).
    """

    slackness: Array | float = 0.03
    num_servers: int = static(default=5)
    dim: int = static(default=5)
    parameters: Parameters = static(default="disjoint")

    def problem(self, assortment_size: int, horizon: int) -> Problem:
        """Return the shapes: one table row a round.

        Raises:
            ValueError: naming a key out of range.
        """
        if self.dim < 1:
            raise ValueError(f"dim={self.dim} must be at least 1")
        if self.parameters not in get_args(Parameters):
            words = " or ".join(get_args(Parameters))
            raise ValueError(f"parameters={self.parameters} must be {words}")
        return Problem(
            self.num_servers, assortment_size, self.dim, horizon, horizon, self.parameters, False
        )

    def world(self, key: Array, arrival_rate: Array, problem: Problem) -> World:
        """Draw theta* and one accepted context a round (rejection, in blocks)."""
        theta = self.theta(key)
        wanted = jnp.clip(arrival_rate + self.slackness, 0.0, 1.0)
        least = jnp.log(wanted) - jnp.log1p(-wanted)
        contexts = self._accepted(key, theta, least, problem)
        rows = jnp.arange(problem.horizon, dtype=jnp.int32)
        return World(contexts, self._utilities(contexts, theta), rows, rows)

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

    def _accepted(self, key: Array, theta: Array, least: Array, problem: Problem) -> Array:
        """Keep the first T candidates whose best log-odds reach `least`, in the order drawn."""
        horizon = problem.horizon
        blocks = -(-horizon // BLOCK)
        one = jax.eval_shape(lambda: self.candidates(key, 0)).shape[1:]

        def more(carry: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
            table, filled, start = carry
            numbers = start + jnp.arange(blocks)
            drawn = jax.vmap(lambda b: self.candidates(key, b))(numbers).reshape(-1, *one)
            score = mnl.best_score(self._utilities(drawn, theta), problem.assortment_size)
            rank = filled + jnp.cumsum(score >= least, dtype=jnp.int32)
            # Position i takes the first candidate at which the count of accepted ones reaches i+1.
            wanted = jnp.arange(1, horizon + 1)
            taken = jnp.searchsorted(rank, wanted)
            fresh = (wanted > filled) & (wanted <= rank[-1])
            rows = drawn[jnp.minimum(taken, drawn.shape[0] - 1)]
            fresh = fresh.reshape(-1, *(1,) * len(one))
            return jnp.where(fresh, rows, table), rank[-1], start + blocks

        def short(carry: tuple[Array, Array, Array]) -> Array:
            return carry[1] < horizon

        empty = jnp.zeros((horizon, *one))
        zero = jnp.zeros((), jnp.int32)
        return jax.lax.while_loop(short, more, (empty, zero, zero))[0]

    def check(self, seeds: np.ndarray, arrival_rate: float, assortment_size: int) -> None:
        """Refuse an instance in which no context can meet the slackness condition.

        Args:
            seeds: [S] the runs' seeds.
            arrival_rate: queries a round.
            assortment_size: K.

        Raises:
            ValueError: naming the key, the seed and the largest slackness possible there.
        """
        if float(self.slackness) < 0:
            raise ValueError(
                f"slackness={float(self.slackness):g} must not be negative: each query's best "
                "departure probability is to exceed arrival_rate by at least so much"
            )
        wanted = arrival_rate + float(self.slackness)
        if not wanted < 1.0:
            raise ValueError(
                f"slackness={float(self.slackness):g} with arrival_rate={arrival_rate:g} asks for "
                f"a departure probability of {wanted:g}; their sum must be below 1"
            )
        scores, largest = self._scores(seeds, assortment_size)
        accepted, best = scores >= _log_odds(wanted), _departs(largest)
        worst = int(np.argmin(best))
        if best[worst] < wanted + MARGIN:
            most = best[worst] - arrival_rate
            # Where no slackness would do, none is offered.
            way = "" if most <= MARGIN else f"slackness must stay below {most:.3f}, or "
            raise ValueError(
                f"slackness={float(self.slackness):g} cannot be met at arrival_rate="
                f"{arrival_rate:g}: with seed {seeds[worst]} the best context departs with "
                f"probability {best[worst]:.3f}; {way}lower arrival_rate, or raise N or K"
            )
        share = accepted.mean(axis=1)
        least = int(np.argmin(share))
        if share[least] < LEAST_ACCEPTANCE:
            raise ValueError(
                f"slackness={float(self.slackness):g} at arrival_rate={arrival_rate:g} is met by "
                f"fewer than {LEAST_ACCEPTANCE:g} of the contexts of seed {seeds[least]}; lower "
                "slackness or arrival_rate, or raise N or K"
            )

    def uniform_service(
        self, seeds: np.ndarray, arrival_rate: float, assortment_size: int
    ) -> float:
        """Return what FIFO serves with uniform assortments, queries a round: the seeds' mean."""
        _, utilities = self._probe(seeds, SERVICE_BLOCKS)
        wanted = _log_odds(arrival_rate + float(self.slackness))
        arrives = _best_score(utilities, assortment_size) >= wanted
        rounds = 1.0 / mnl.mean_departure_rate(utilities, assortment_size)
        mean = np.sum(np.where(arrives, rounds, 0.0), axis=1) / np.maximum(arrives.sum(axis=1), 1)
        return float(np.mean(1.0 / mean[mean > 0])) if mean.any() else 1.0

    def _scores(self, seeds: np.ndarray, size: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the scores of some candidates of every seed, [S, P], and the largest of any, [S].

        Neither depends on rate and slackness: the points of a sweep share them.
        """
        shape = self.num_servers, self.dim, self.parameters
        return _scores_of(*shape, tuple(int(seed) for seed in seeds), size)

    def _probe(self, seeds: np.ndarray, blocks: int) -> tuple[np.ndarray, np.ndarray]:
        """Draw theta* [S, ...] and utilities [S, P, N] of some candidates of every seed."""
        drawn = _candidates(self, np.asarray(seeds, np.int32))
        theta, contexts = (np.asarray(each) for each in drawn)
        contexts = contexts[:, : blocks * BLOCK]
        if self.parameters == "disjoint":
            return theta, contexts @ np.swapaxes(theta, 1, 2)
        return theta, np.einsum("spnd,sd->spn", contexts, theta)

    def _largest_score(self, theta: np.ndarray, size: int) -> np.ndarray:
        """Return the largest score of any context, or a bound of it from above: [S, ...] -> [S]."""
        if self.parameters == "shared":
            return np.sum(np.abs(theta), axis=-1) + math.log(size)
        if self.dim <= MOST_CORNERS_DIM:
            # A convex function of x is largest at a corner of the box.
            corners = np.asarray(list(itertools.product((-1.0, 1.0), repeat=self.dim)))
            utilities = corners @ np.swapaxes(theta, 1, 2)
            return _best_score(utilities, size).max(axis=1)
        # K = 1 is exact; for K > 1 the sum of the K best servers' maxima bounds it from above.
        return _best_score(np.sum(np.abs(theta), axis=-1), size)


@jax.jit
def _candidates(source: Synthetic, seeds: Array) -> tuple[Array, Array]:
    """Draw theta* and the first blocks of candidates of every seed: [S, ...], [S, P, ...]."""

    def one(seed: Array) -> tuple[Array, Array]:
        key = rng.run_key(seed)
        drawn = jax.vmap(lambda block: source.candidates(key, block))(jnp.arange(PROBE_BLOCKS))
        return source.theta(key), drawn.reshape(-1, *drawn.shape[2:])

    return jax.vmap(one)(seeds)


@functools.lru_cache(SCORES_KEPT)
def _scores_of(
    num_servers: int, dim: int, parameters: Parameters, seeds: tuple[int, ...], size: int
) -> tuple[np.ndarray, np.ndarray]:
    """Return `Synthetic._scores`, computed once."""
    source = Synthetic(num_servers=num_servers, dim=dim, parameters=parameters)
    theta, utilities = source._probe(np.asarray(seeds), PROBE_BLOCKS)
    return _best_score(utilities, size), source._largest_score(theta, size)


def _best_score(utilities: np.ndarray, size: int) -> np.ndarray:
    """Return `mnl.best_score` on the host: [..., N] -> [...]."""
    if size == 1:
        return utilities.max(axis=-1)
    top = np.sort(utilities, axis=-1)[..., -size:]
    return np.log(np.sum(np.exp(top), axis=-1))


def _log_odds(probability: float) -> float:
    """Return the score at which the best assortment departs with this probability, clipped."""
    if probability <= 0.0:
        return -math.inf
    return math.inf if probability >= 1.0 else math.log(probability / (1.0 - probability))


def _departs(score: np.ndarray) -> np.ndarray:
    """Return the departure probability of a best assortment's score."""
    return 1.0 / (1.0 + np.exp(-score))
