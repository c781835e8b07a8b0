"""The paper's synthetic queries: contexts and parameters from Unif(-1, 1), with slackness."""

import itertools
from typing import get_args

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from cqbjax import mnl, rng
from cqbjax.pytree import pytree, static
from cqbjax.types import Parameters, Problem, World

# Candidates are drawn in blocks of this many, each block under its own key, so that the contexts of
# the first rounds do not depend on the horizon.
BLOCK = 128
# A seed whose best context beats the rate by less than this is called infeasible: rejection would
# wait for a context of probability zero.
MARGIN = 1e-3
# An acceptance rate below this would make the instance generator the main cost.
LEAST_ACCEPTANCE = 2e-4


@pytree
class Synthetic:
    """Queries whose contexts meet the slackness condition max_S R(x, S) >= rate + slackness.

    Attributes:
        slackness: epsilon; a minus infinity accepts every context.
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
            found = jnp.searchsorted(rank, wanted)
            fresh = (wanted > filled) & (wanted <= rank[-1])
            rows = drawn[jnp.minimum(found, drawn.shape[0] - 1)]
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
        wanted = arrival_rate + float(self.slackness)
        if not wanted < 1.0:
            raise ValueError(
                f"slackness={float(self.slackness):g} with arrival_rate={arrival_rate:g} asks for "
                f"a departure probability of {wanted:g}; their sum must be below 1"
            )
        keys = jax.vmap(rng.run_key)(jnp.asarray(seeds))
        rate, best = jax.vmap(lambda key: self._reach(key, assortment_size, wanted))(keys)
        worst = int(np.argmin(best))
        if best[worst] < wanted + MARGIN:
            raise ValueError(
                f"slackness={float(self.slackness):g} cannot be met at arrival_rate="
                f"{arrival_rate:g}: with seed {seeds[worst]} the best context departs with "
                f"probability {best[worst]:.3f}, so slackness must stay below "
                f"{best[worst] - arrival_rate:.3f} (or lower arrival_rate, or raise N or K)"
            )
        least = int(np.argmin(rate))
        if rate[least] < LEAST_ACCEPTANCE:
            raise ValueError(
                f"slackness={float(self.slackness):g} at arrival_rate={arrival_rate:g} is met by "
                f"fewer than {LEAST_ACCEPTANCE:g} of the contexts of seed {seeds[least]}; lower "
                "slackness or arrival_rate, or raise N or K"
            )

    def _reach(self, key: Array, size: int, wanted: float) -> tuple[Array, Array]:
        """Estimate the acceptance rate, and the largest departure rate of any context."""
        theta = self.theta(key)
        drawn = jax.vmap(lambda b: self.candidates(key, b))(jnp.arange(64))
        contexts = drawn.reshape(-1, *drawn.shape[2:])
        score = mnl.best_score(self._utilities(contexts, theta), size)
        accepted = jnp.mean(jax.nn.sigmoid(score) >= wanted)
        if self.parameters == "shared":
            top = jnp.sum(jnp.abs(theta)) + jnp.log(float(size))
        elif self.dim <= 12:
            # A convex function of x is largest at a corner of the box.
            corners = jnp.asarray(list(itertools.product((-1.0, 1.0), repeat=self.dim)))
            top = jnp.max(mnl.best_score(self._utilities(corners, theta), size))
        else:
            # K = 1 is exact; for K > 1 the sum of the K best servers' maxima bounds it from above.
            top = mnl.best_score(jnp.sum(jnp.abs(theta), axis=-1), size)
        return accepted, jax.nn.sigmoid(top)
