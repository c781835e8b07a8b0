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


def expand(problem: Problem, rows: Array, theta: Array, block: Array) -> Cubic:
    """Expand the gradient of some rows of a block about an estimate, written about theta = 0.

    Args:
        problem: shapes.
        rows: [F, L] as `entries` gives them; zero rows add nothing.
        theta: [B, d] the estimate.
        block: [] int32 whose gradient.
    """
    if problem.parameters == "shared":
        return _expand_shared(problem, rows, theta)
    dim, wide = problem.dim, cubic.width(problem)
    features, chosen, member = rows[:dim], rows[dim], rows[dim + 1 :]
    about = theta if wide > 1 else theta[block][None]
    utilities = _utilities(about, features)
    p = linalg.settle(_probabilities(utilities, member))
    own = (jnp.arange(wide) == block)[:, None] if wide > 1 else jnp.ones((1, 1), bool)
    chance = p[block] if wide > 1 else p[0]
    apart = own - p
    slope = chance * apart  # [W, L]
    excess = chance - chosen
    if cubic.triples(problem).shape[0]:
        first, second = cubic.block_pairs(wide).T
        same = (first == second)[:, None]
        curve = chance * (apart[first] * apart[second] - p[first] * (same - p[second]))
        slope0 = slope - _times(curve, utilities)
        excess = excess - 0.5 * linalg.total((slope + slope0) * utilities, axis=0)
        slope = slope0
    else:
        curve = jnp.zeros((len(cubic.block_pairs(wide)), rows.shape[1]))
        excess = excess - linalg.total(slope * utilities, axis=0)
    excess, slope, curve = linalg.settle((excess, slope, curve))
    left = linalg.settle((slope[:, None] * features).reshape(wide * dim, -1))
    return Cubic(
        features @ excess,
        (left @ features.T).reshape(wide, dim, dim),
        _monomials(problem, features) @ curve.T,
    )


def _utilities(theta: Array, features: Array) -> Array:
    """Return theta_m' x of every row: [W, d], [d, L] -> [W, L]."""
    if features.shape[0] > linalg.SMALL:
        return theta @ features
    return linalg.total(jnp.stack([theta[:, i, None] * features[i] for i in range(features.shape[0])]), 0)


def _times(curve: Array, utilities: Array) -> Array:
    """Return sum_l curve_ml u_l: [Q, L], [W, L] -> [W, L]."""
    wide = utilities.shape[0]
    place = {pair: at for at, pair in enumerate(map(tuple, cubic.block_pairs(wide).tolist()))}
    return jnp.stack([
        sum(curve[place[min(m, n), max(m, n)]] * utilities[n] for n in range(wide))
        for m in range(wide)
    ])


def _monomials(problem: Problem, features: Array) -> Array:
    """Return x_i x_j x_k of every kept triple: [d, L] -> [E, L]."""
    i, j, k = cubic.triples(problem).T
    return linalg.settle(features[i] * features[j] * features[k])


def _expand_shared(problem: Problem, rows: Array, theta: Array) -> Cubic:
    """Expand rows of K feature vectors each: cumulants of the chosen feature vector."""
    size, dim = problem.assortment_size, problem.dim
    features = rows[: size * dim].reshape(size, dim, -1)
    chosen, here = rows[size * dim : -1], rows[-1]
    utilities = linalg.total(jnp.moveaxis(features, 1, 0) * theta[0][:, None, None], axis=0)
    p = linalg.settle(_probabilities(utilities, jnp.broadcast_to(here, utilities.shape)))
    mean = linalg.total(p[:, None] * features, axis=0)
    outside = here - linalg.total(p, axis=0)
    # The outside option is a choice with features zero; a row that is not there has no chance.
    apart = jnp.concatenate([features - mean, -mean[None]])
    apart = linalg.settle(jnp.moveaxis(apart, 1, 0).reshape(dim, -1))  # [d, (K + 1) L]
    chance = linalg.settle(jnp.concatenate([p, outside[None]]).reshape(-1))
    gradient = linalg.total((p - chosen)[:, None] * features, axis=0)
    model = Cubic(
        jnp.sum(gradient, axis=-1),
        ((chance * apart) @ apart.T)[None],
        (_monomials(problem, apart) @ chance)[:, None],
    )
    return cubic.shift(model, -theta)


def _probabilities(utilities: Array, member: Array) -> Array:
    """Return p [W, L] of the members of each row's assortment, zero for the others."""
    masked = jnp.where(member > 0, utilities, -jnp.inf)
    top = jnp.maximum(linalg.largest(masked, axis=0), 0.0)
    weights = jnp.exp(masked - top)
    return weights / (jnp.exp(-top) + linalg.total(weights, axis=0))
