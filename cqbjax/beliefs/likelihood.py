"""Expansions of the loss of some rows, about an estimate, to the third derivative."""

import jax.numpy as jnp
from jax import Array

from cqbjax import linalg, mnl
from cqbjax.beliefs import cubic
from cqbjax.beliefs.cubic import Cubic
from cqbjax.beliefs.rows import Row
from cqbjax.types import Problem


def numbers(problem: Problem) -> int:
    """Return F, the numbers of one stored row."""
    if problem.parameters == "shared":
        return problem.assortment_size * (problem.dim + 2) + 1
    return problem.dim + 1 + 2 * cubic.width(problem)


def entries(problem: Problem, new: Row, theta: Array) -> Array:
    """Return a round as each block it touches stores it: [A, F], zero where it is not valid.

    Disjoint: features [d], whether the block's server was chosen, which blocks the row couples [W],
    and their probabilities [W]. Shared: features [K d], the chosen position [K], a one, and the
    probabilities [K]. The probabilities are those of the estimate given here, for good.
    """
    size, dtype = problem.assortment_size, new.features.dtype
    chosen = (jnp.arange(size) == new.choice).astype(dtype)
    if problem.parameters == "shared":
        p = mnl.choice_probabilities(linalg.matvec(new.features, theta[0]))
        parts = [new.features.reshape(-1), chosen, jnp.ones(1, dtype), p]
        return jnp.where(new.valid, jnp.concatenate(parts), 0.0)[None]
    p = mnl.choice_probabilities(linalg.matvec(theta[new.servers], new.features))
    member = jnp.ones(1, dtype)
    if cubic.width(problem) > 1:
        spread = (new.servers[:, None] == jnp.arange(problem.num_servers)).astype(dtype)
        member, p = linalg.total(spread, axis=0), linalg.vecmat(p, spread)
    same = jnp.concatenate([new.features, jnp.zeros(1, dtype), member, p])
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
    features, chosen = rows[:dim], rows[dim]
    member, held = rows[dim + 1 : dim + 1 + wide], rows[dim + 1 + wide :]
    utilities = linalg.settle(linalg.matmul(theta, features))
    p = linalg.settle(_probabilities(utilities, member))
    chance = linalg.vecmat(own, p)
    slope = chance * (own[:, None] - p)  # [W, L] the derivatives of `chance` by the utilities
    curves = _curves(problem, held, own[:, None])
    bend = _bend(problem, curves, utilities, own[:, None]) if len(curves) else jnp.zeros(())
    at_zero = slope - bend
    excess = chance - chosen - 0.5 * linalg.total((slope + at_zero) * utilities, axis=0)
    excess, at_zero = linalg.settle((excess, at_zero))
    third = jnp.zeros((0, wide, dim, len(cubic.upper(dim)[0])))
    if len(curves):
        bent = (curves[:, :, None] * features).reshape(-1, rows.shape[1])
        third = cubic.products(bent, features).reshape(*curves.shape[:2], *third.shape[2:])
    return Cubic(*_sums(at_zero, excess, features), third)


def _sums(weights: Array, excess: Array, features: Array) -> tuple[Array, Array]:
    """Return sum_l e_l x_l and the upper elements of sum_l w_ql x_l x_l'.

    By one product for one w; for several, products x_l x_l' of their own cost less.

    Args:
        weights: [Q, L] w.
        excess: [L] e.
        features: [d, L] x.

    Returns:
        [d] and [Q, P].
    """
    if len(weights) > 1:
        return linalg.settle(features @ excess), cubic.products(weights, features)
    left = linalg.settle(jnp.concatenate([weights * features, excess[None]]))
    met = linalg.settle(left @ features.T)
    return met[-1], cubic.packed(met[None, :-1])


def _curves(problem: Problem, p: Array, own: Array) -> Array:
    """Return second derivatives of p_b by the utilities, as `Cubic.third` lists them: [D, W, L]."""
    kinds, apart = cubic.directions(problem), own - p
    chance = linalg.total(own * p, axis=0)
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
    chosen, here, held = jnp.split(rows[size * dim :], [size, size + 1])
    utilities = linalg.vecmat(jnp.broadcast_to(theta, (size, dim)), features)
    p = linalg.settle(_probabilities(utilities, jnp.broadcast_to(here, utilities.shape)))
    chance, apart = _outcomes(features, p, here)
    linear = cubic.products(chance, apart)
    third = jnp.zeros((0, 1, dim, linear.shape[1]))
    if cubic.directions(problem):
        chance, apart = _outcomes(features, held, here)
        third = cubic.products(chance * apart, apart)[None, None]
    gradient = jnp.sum(linalg.total((p - chosen)[:, None] * features, axis=0), axis=-1)
    return cubic.shift(problem, Cubic(gradient, linear, third), -theta, own)


def _outcomes(features: Array, p: Array, here: Array) -> tuple[Array, Array]:
    """List the outcomes of every row, the outside option being one with features zero.

    Args:
        features: [K, d, L].
        p: [K, L].
        here: [1, L] one, or zero where there is no row.

    Returns:
        [1, (K + 1) L] probabilities, and [d, (K + 1) L] features less the row's mean.
    """
    mean = linalg.total(p[:, None] * features, axis=0)
    apart = jnp.concatenate([features - mean, -mean[None]])
    apart = jnp.moveaxis(apart, 1, 0).reshape(features.shape[1], -1)
    chance = jnp.concatenate([p, here - linalg.total(p, axis=0)]).reshape(1, -1)
    return linalg.settle((chance, apart))


def _probabilities(utilities: Array, member: Array) -> Array:
    """Return p [W, L] of the members of each row's assortment, zero for the others."""
    masked = jnp.where(member > 0, utilities, -jnp.inf)
    top = jnp.maximum(linalg.largest(masked, axis=0), 0.0)
    weights = jnp.exp(masked - top)
    return weights / (jnp.exp(-top) + linalg.total(weights, axis=0))
