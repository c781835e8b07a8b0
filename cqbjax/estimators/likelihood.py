"""Expansions of the loss of some rows, about an estimate, to the third derivative."""

import jax
import jax.numpy as jnp
from jax import Array

from cqbjax import linalg
from cqbjax.estimators import cubic
from cqbjax.estimators.cubic import Cubic
from cqbjax.estimators.history import Row
from cqbjax.types import Problem


def numbers(problem: Problem) -> int:
    """Return F, the numbers of one stored row."""
    if problem.parameters == "shared":
        return problem.assortment_size * (problem.dim + 1) + 1
    return problem.dim + 1 + cubic.width(problem)


def entries(problem: Problem, new: Row) -> Array:
    """Return a round as each block it touches stores it: [A, F], zero where it is not valid.

    Disjoint: features [d], whether the block's server was chosen, and which blocks the row couples
    [W]. Shared: features [K d], the chosen position [K], and a one.
    """
    dtype = new.features.dtype
    chosen = (jnp.arange(problem.assortment_size) == new.choice).astype(dtype)
    if problem.parameters == "shared":
        found = jnp.concatenate([new.features.reshape(-1), chosen, jnp.ones(1, dtype)])[None]
    else:
        member = jnp.ones(1, dtype)
        if cubic.width(problem) > 1:
            equal = new.servers[:, None] == jnp.arange(problem.num_servers)
            member = jnp.any(equal, axis=0).astype(dtype)
        same = jnp.concatenate([new.features, jnp.zeros(1, dtype), member])
        found = same + chosen[:, None] * (jnp.arange(same.shape[0]) == problem.dim)
    return jnp.where(new.valid, found, 0.0)


def expand(problem: Problem, rows: Array, theta: Array, own: Array) -> Cubic:
    """Expand the gradient of some rows of a block about an estimate, written about theta = 0.

    Args:
        problem: shapes.
        rows: [F, L] as `entries` gives them; zero rows add nothing.
        theta: [W, d] the estimates that the block's gradient depends on.
        own: [W] one at the block, else zero.
    """
    if problem.parameters == "shared":
        return _expand_shared(problem, rows, theta, own)
    dim, wide = problem.dim, cubic.width(problem)
    features, chosen, member = rows[:dim], rows[dim], rows[dim + 1 :]
    utilities = linalg.settle(linalg.matmul(theta, features))
    p = linalg.settle(_probabilities(utilities, member))
    chance = linalg.vecmat(own, p)
    apart = own[:, None] - p
    slope = chance * apart  # [W, L] the derivatives of `chance` by the utilities
    bend = jnp.zeros(())
    curves = _curves(problem, chance, p, own[:, None])
    if len(curves):
        bend = _bend(problem, curves, utilities, own[:, None])
    at_zero = linalg.settle(slope - bend)
    excess = chance - chosen - 0.5 * linalg.total((slope + at_zero) * utilities, axis=0)
    excess, curves = linalg.settle((excess, curves))
    bent = (curves[:, :, None] * features).reshape(-1, rows.shape[1])
    sums = cubic.products(linalg.settle(jnp.concatenate([at_zero, bent])), features)
    third = sums[wide:].reshape(*curves.shape[:2], dim, -1)
    return Cubic(linalg.settle(features @ excess), sums[:wide], third)


def _curves(problem: Problem, chance: Array, p: Array, own: Array) -> Array:
    """Return second derivatives of p_b by the utilities, as `Cubic.third` lists them: [D, W, L]."""
    kinds, apart = cubic.directions(problem), own - p
    if kinds == 0:
        return jnp.zeros((0, *p.shape))
    if cubic.paired(problem):
        twice = chance * (apart * apart - p * (1.0 - p))
        return jnp.stack([twice, (1.0 - own) * chance * p * (2.0 * chance - 1.0)])
    same = jnp.eye(kinds)[:, :, None]
    return chance * (apart[:, None] * apart - p * (same - p[:, None]))


def _bend(problem: Problem, curves: Array, utilities: Array, own: Array) -> Array:
    """Return how the slopes change from utility zero to these utilities: [W, L]."""
    if not cubic.paired(problem):
        return linalg.total(curves * utilities[:, None], axis=0)
    here = linalg.total(own * utilities, axis=0)
    met = linalg.total(curves[1] * utilities, axis=0)
    return curves[0] * utilities + curves[1] * here + own * met


def _expand_shared(problem: Problem, rows: Array, theta: Array, own: Array) -> Cubic:
    """Expand rows of K feature vectors each: cumulants of the chosen feature vector."""
    size, dim = problem.assortment_size, problem.dim
    features = rows[: size * dim].reshape(size, dim, -1)
    chosen, here = rows[size * dim : -1], rows[-1]
    utilities = linalg.vecmat(jnp.broadcast_to(theta, (size, dim)), features)
    p = linalg.settle(_probabilities(utilities, jnp.broadcast_to(here, utilities.shape)))
    mean = linalg.total(p[:, None] * features, axis=0)
    # The outside option is a choice with features zero; a row that is not there has no chance.
    apart = jnp.concatenate([features - mean, -mean[None]])
    apart = linalg.settle(jnp.moveaxis(apart, 1, 0).reshape(dim, -1))  # [d, (K + 1) L]
    chance = jnp.concatenate([p, (here - linalg.total(p, axis=0))[None]]).reshape(1, -1)
    weights = jnp.concatenate([chance, chance * apart])
    if cubic.directions(problem) == 0:
        weights = chance
    sums = cubic.products(linalg.settle(weights), apart)
    gradient = jnp.sum(linalg.total((p - chosen)[:, None] * features, axis=0), axis=-1)
    third = sums[1:].reshape(cubic.directions(problem), 1, dim, -1)
    return cubic.shift(problem, Cubic(gradient, sums[:1], third), -theta, own)


def _probabilities(utilities: Array, member: Array) -> Array:
    """Return p [W, L] of the members of each row's assortment, zero for the others."""
    masked = jnp.where(member > 0, utilities, -jnp.inf)
    top = jnp.maximum(linalg.largest(masked, axis=0), 0.0)
    weights = jnp.exp(masked - top)
    return weights / (jnp.exp(-top) + linalg.total(weights, axis=0))
