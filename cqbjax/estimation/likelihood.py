"""The loss model of rows of feedback (`loss_model`), expanded about an estimate.

docs/notebook/estimator.md derives it. With u_m = x'theta_m, a row adds (p_j - y_j) x to the
gradient of block j, and p_j is expanded in the utilities by its derivatives

    h_m  = dp_j/du_m       = p_j (1{j = m} - p_m),
    k_lm = d2p_j/du_l du_m = p_j ((1{j = l} - p_l) (1{j = m} - p_m) - p_l (1{l = m} - p_m)).

h is taken at the estimate of the last visit, k at the estimate when the row arrived (`p_then`), so
that the sum of all k x x x' needs no visit.
"""

import jax.numpy as jnp
from jax import Array

from cqbjax.core import linalg, mnl, platforms
from cqbjax.core.types import DOWN_UTILITY, Problem, broadcast_marks, mask_unoffered
from cqbjax.estimation import loss_model, packed_matrices
from cqbjax.estimation.belief import Interaction
from cqbjax.estimation.loss_model import LossModel

# Stored in place of the probability of a server that did not answer.
ABSENT = -1.0


def row_size(problem: Problem) -> int:
    """Return F, the numbers of one stored row."""
    if problem.parameters == "shared":
        return problem.assortment_size * (problem.dim + 2) + 1
    return problem.dim + 1 + 2 * loss_model.width(problem)


def encode_rows(problem: Problem, new: Interaction, theta: Array) -> Array:
    """Return an interaction as each offered block stores it: [A, F], zero where it is not valid.

    Disjoint: context x [d], whether the block's server was chosen, which blocks the row couples
    [W], and their probabilities [W]. Shared: features [K d], the chosen position [K], a one, and
    the probabilities [K], `ABSENT` for a server that did not answer. The probabilities are those at
    `theta` and never change.
    """
    size, dtype = problem.assortment_size, new.features.dtype
    chosen = (jnp.arange(size) == new.choice).astype(dtype)
    if problem.parameters == "shared":
        utilities = mask_unoffered(new.offered, linalg.matvec(new.features, theta[0]), DOWN_UTILITY)
        p_then = mask_unoffered(new.offered, mnl.choice_probabilities(utilities), ABSENT)
        parts = [new.features.reshape(-1), chosen, jnp.ones(1, dtype), p_then]
        return jnp.where(new.valid, jnp.concatenate(parts), 0.0)[None]
    utilities = mask_unoffered(
        new.offered, linalg.matvec(theta[new.servers], new.features), DOWN_UTILITY
    )
    p_then = mnl.choice_probabilities(utilities)
    member = jnp.ones(1, dtype)
    if loss_model.width(problem) > 1:
        spread = (new.servers[:, None] == jnp.arange(problem.num_servers)).astype(dtype)
        spread = mask_unoffered(new.offered, spread, 0.0)
        member, p_then = linalg.total(spread, axis=0), linalg.vecmat(p_then, spread)
    common = linalg.concatenate(new.features, jnp.zeros(1, dtype), member, p_then)
    rows = common + chosen[:, None] * (jnp.arange(common.shape[0]) == problem.dim)
    return jnp.where(broadcast_marks(new.learns, rows), rows, 0.0)


def expand(problem: Problem, rows: Array, theta: Array, own: Array) -> LossModel:
    """Return the model of rows of a block j.

    Args:
        problem: shapes.
        rows: [F, L] from `encode_rows`; zero rows add nothing.
        theta: [W, d] estimates that the block's gradient depends on.
        own: [W] one at j, else zero.
    """
    if problem.parameters == "shared":
        return _expand_shared(problem, rows, theta, own)
    dim, wide = problem.dim, loss_model.width(problem)
    features, chosen = rows[:dim], rows[dim]
    member, p_then = rows[dim + 1 : dim + 1 + wide], rows[dim + 1 + wide :]
    utilities = linalg.add_barrier(linalg.matmul(theta, features))
    p = linalg.add_barrier(_probabilities(utilities, member))
    accepted = linalg.vecmat(own, p)  # p_j
    h = accepted * (own[:, None] - p)
    k = _second_derivatives(problem, p_then, own[:, None])
    change = _change(problem, k, utilities, own[:, None]) if len(k) else jnp.zeros(())
    h_zero = h - change
    residual = accepted - chosen - 0.5 * linalg.total((h + h_zero) * utilities, axis=0)
    residual, h_zero = linalg.add_barrier((residual, h_zero))
    second = jnp.zeros(loss_model.second_shape(problem))
    if len(k):
        broadcast_marks = (k[:, :, None] * features).reshape(-1, rows.shape[1])
        second = packed_matrices.pack_weighted_sum(broadcast_marks, features).reshape(second.shape)
    return LossModel(*_sums(h_zero, residual, features), second)


def _sums(h: Array, residual: Array, features: Array) -> tuple[Array, Array]:
    """Return c = sum_l r_l x_l and H_m = sum_l h_ml x_l x_l', packed.

    One m takes one matrix product; for several m, products x_l x_l' cost less.

    Args:
        h: [W, L].
        residual: [L] r.
        features: [d, L] x.

    Returns:
        [d] and [W, P].
    """
    dim = len(features)
    if platforms.get_current().fused and len(h) == 1 and dim <= linalg.SMALL:
        row, column = packed_matrices.upper_indices(dim)
        terms = [residual * x for x in features]
        terms += [h[0] * features[i] * features[j] for i, j in zip(row, column, strict=True)]
        sums = linalg.sum_terms(terms)
        return sums[:dim], sums[None, dim:]
    if len(h) > 1:
        return linalg.add_barrier(features @ residual), packed_matrices.pack_weighted_sum(
            h, features
        )
    left = linalg.add_barrier(jnp.concatenate([h * features, residual[None]]))
    met = linalg.add_barrier(left @ features.T)
    return met[-1], packed_matrices.pack(met[None, :-1])


def _second_derivatives(problem: Problem, p: Array, own: Array) -> Array:
    """Return k of every row, ordered as `LossModel.second`: [D, W, L]."""
    deep, deviation = loss_model.depth(problem), own - p
    accepted = linalg.total(own * p, axis=0)
    if deep == 0:
        return jnp.zeros((0, *p.shape))
    if loss_model.couples_pairs(problem):
        twice = accepted * (deviation * deviation - p * (1.0 - p))
        return jnp.stack([twice, (1.0 - own) * accepted * p * (2.0 * accepted - 1.0)])
    same = jnp.eye(deep)[:, :, None]
    return accepted * (deviation[:, None] * deviation - p * (same - p[:, None]))


def _change(problem: Problem, k: Array, utilities: Array, own: Array) -> Array:
    """Return sum_l k_lm u_l, the difference of h_m between utilities u and zero: [W, L]."""
    if not loss_model.couples_pairs(problem):
        return linalg.total(k * utilities[:, None], axis=0)
    here = linalg.total(own * utilities, axis=0)
    met = linalg.total(k[1] * utilities, axis=0)
    return k[0] * utilities + k[1] * here + own * met


def _expand_shared(problem: Problem, rows: Array, theta: Array, own: Array) -> LossModel:
    """Return the model of rows of K feature vectors each.

    Derivatives of the log of the row's sum of exponentials are cumulants of the chosen feature
    vector: its mean minus the chosen vector, its covariance, and its third central moment.
    """
    size, dim = problem.assortment_size, problem.dim
    features = rows[: size * dim].reshape(size, dim, -1)
    chosen, here, p_then = jnp.split(rows[size * dim :], [size, size + 1])
    utilities = linalg.vecmat(jnp.broadcast_to(theta, (size, dim)), features)
    member = jnp.broadcast_to(here, utilities.shape)
    if size > 1:
        # An assortment of one server has no absent servers.
        member, p_then = member * (p_then >= 0), jnp.maximum(p_then, 0.0)
    p = linalg.add_barrier(_probabilities(utilities, member))
    chance, deviation = _outcomes(features, p, here)
    first = packed_matrices.pack_weighted_sum(chance, deviation)
    second = jnp.zeros(loss_model.second_shape(problem))
    if loss_model.depth(problem):
        chance, deviation = _outcomes(features, p_then, here)
        second = packed_matrices.pack_weighted_sum(chance * deviation, deviation)[None, None]
    gradient = jnp.sum(linalg.total((p - chosen)[:, None] * features, axis=0), axis=-1)
    return loss_model.recenter(problem, LossModel(gradient, first, second), -theta, own)


def _outcomes(features: Array, p: Array, here: Array) -> tuple[Array, Array]:
    """Return the outcomes of every row, the outside option with features zero included.

    Args:
        features: [K, d, L].
        p: [K, L].
        here: [1, L] one, or zero where there is no row.

    Returns:
        [1, (K + 1) L] probabilities, and [d, (K + 1) L] features minus the row's mean.
    """
    mean = linalg.total(p[:, None] * features, axis=0)
    deviation = jnp.concatenate([features - mean, -mean[None]])
    deviation = jnp.moveaxis(deviation, 1, 0).reshape(features.shape[1], -1)
    chance = jnp.concatenate([p, here - linalg.total(p, axis=0)]).reshape(1, -1)
    return linalg.add_barrier((chance, deviation))


def _probabilities(utilities: Array, member: Array) -> Array:
    """Return p [W, L] of the members of each row's assortment, zero for the others."""
    masked = jnp.where(member > 0, utilities, -jnp.inf)
    top = jnp.maximum(linalg.maximum(masked, axis=0), 0.0)
    weights = jnp.exp(masked - top)
    return weights / (jnp.exp(-top) + linalg.total(weights, axis=0))
