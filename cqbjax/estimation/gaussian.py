"""The Gaussian posterior of each parameter block: square root of V inverse, radius, samples.

V is never inverted or factored: W with W W' = V^-1 is carried, and a new feature row x changes
it by rank one, W <- W - ((1 - 1/sqrt(1 + s)) / s) (W w) w' with w = W'x and s = w'w.
"""

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from cqbjax.core import linalg, mnl, platforms
from cqbjax.core.types import NO_SERVER, Problem, mask_unoffered
from cqbjax.estimation.belief import Interaction

# Up to this many numbers in all blocks, one masked pass over every block is cheaper than gathering
# and scattering the few that change (measured: docs/notebook/performance.md).
MASKED_PASS_LIMIT = 4096


class Posterior(NamedTuple):
    """Gaussian posterior shape of every block.

    Attributes:
        root: [B, d, d] W' (W transposed: a sample reads it along its rows), with W W' = V^-1 and
            V = lambda0 I + sum of x x'.
        num_updates: [B] float, number of updates of the block.
    """

    root: Array
    num_updates: Array


def init(problem: Problem, lambda0: Array) -> Posterior:
    """Return V_0 = lambda0 I for every block."""
    eye = jnp.eye(problem.dim) / jnp.sqrt(lambda0)
    blocks = problem.num_blocks
    return Posterior(jnp.broadcast_to(eye, (blocks, *eye.shape)), jnp.zeros(blocks))


def shrinkage(size: Array) -> Array:
    """Return (1 - 1/sqrt(1 + s)) / s without the cancellation at small s.

    It is the factor f of W <- W - f (W w) w', with w = W'x and s = w'w.
    """
    inverse = 1.0 / jnp.sqrt(1.0 + size)
    return inverse / (1.0 + 1.0 / inverse)


def shrink(root: Array, row: Array) -> Array:
    """Add x x' to V by the rank-one update of its inverse square root.

    Args:
        root: [..., d, d] W'.
        row: [..., d] x; a zero row changes nothing.

    Returns:
        [..., d, d] the new W'.
    """
    projected = linalg.add_barrier(linalg.matvec(root, row))
    size = linalg.dot(projected, projected)
    factor = shrinkage(size)
    pushed = linalg.add_barrier(factor[..., None] * linalg.vecmat(projected, root))
    return root - linalg.outer(projected, pushed)


def observe(posterior: Posterior, problem: Problem, new: Interaction) -> Posterior:
    """Add the round's feature rows: V <- V + sum over S_t of x x' (Algorithm 1 l. 11, 2 l. 15).

    Args:
        posterior: the state of all blocks.
        problem: shapes.
        new: the interaction; one that is not valid changes nothing.
    """
    step = jnp.where(new.valid, 1.0, 0.0).astype(posterior.num_updates.dtype)
    rows = jnp.where(new.valid, new.features, 0.0)
    answering = mask_unoffered(new.offered, new.servers, NO_SERVER)
    # Servers that did not answer have rows of zeros and are not counted.
    each = rows if new.offered is None else jnp.where(new.offered[:, None], rows, 0.0)
    root, num_updates = posterior
    if problem.parameters == "shared":
        for k in range(problem.assortment_size):
            root = shrink(root, each[k])
        return Posterior(root, num_updates + step)
    hit = mnl.mark_servers(answering, problem.num_servers)
    if root.size <= MASKED_PASS_LIMIT and not platforms.get_current().fused:
        return Posterior(shrink(root, hit[:, None] * rows), num_updates + hit * step)
    stale = [jax.lax.dynamic_index_in_dim(root, j, keepdims=False) for j in new.servers]
    shrunk = linalg.add_barrier(shrink(jnp.stack(stale), each))
    for k in range(problem.assortment_size):
        # One slice after another is written in place; one scatter of K slices copies all of W.
        root = jax.lax.dynamic_update_index_in_dim(root, shrunk[k], new.servers[k], 0)
    return Posterior(root, num_updates + hit * step)


def radius(
    problem: Problem,
    count: Array,
    kappa: Array | float,
    lambda0: Array | float,
    alpha_scale: Array | float,
) -> Array:
    """Return the confidence radius alpha of every block.

    alpha = scale (kappa/2 sqrt(d log(1 + n K / (d lambda0)) + 4 log n) + kappa sqrt(lambda0)).

    Shared parameters: the paper's alpha_t, with n the number of rounds with feedback. The paper
    counts all t rounds, empty ones too; docs/theory.md measures how little that changes. Disjoint
    parameters: the paper's alpha_{t,j}, with n the number of times server j was offered. log n is
    zero for n = 0.

    Args:
        problem: shapes (d and K).
        count: [B] n.
        kappa: [] the curvature constant.
        lambda0: [] the regularisation.
        alpha_scale: [] multiplies the whole radius; 1 is the paper's formula.

    Returns:
        [B] alpha.
    """
    size, dim = problem.assortment_size, problem.dim
    grown = dim * jnp.log1p(count * size / (dim * lambda0)) + 4.0 * jnp.log(jnp.maximum(count, 1.0))
    return alpha_scale * kappa * (0.5 * jnp.sqrt(grown) + jnp.sqrt(lambda0))


def num_samples(K: int) -> int:
    """Return the paper's M = ceil(1 - log K / log(1 - 1 / (4 sqrt(e pi))))."""
    shrinkage = math.log(1.0 - 1.0 / (4.0 * math.sqrt(math.e * math.pi)))
    return math.ceil(1.0 - math.log(K) / shrinkage)


def sample(posterior: Posterior, theta: Array, alpha: Array, normal: Array) -> Array:
    """Draw theta~ ~ N(theta, alpha^2 V^-1) as theta + alpha W z.

    Args:
        posterior: W of all blocks.
        theta: [B, d].
        alpha: [B].
        normal: [M, B, d] standard normals z.

    Returns:
        [M, B, d].
    """
    root = posterior.root
    if root.shape[-1] <= linalg.SMALL:
        pushed = _pushed(root, normal)
    else:
        pushed = jnp.einsum("bji,mbj->mbi", root, normal)
    return linalg.add_barrier(theta + alpha[:, None] * pushed)


def _pushed(root: Array, normal: Array) -> Array:
    """Return W z for few dimensions, one coordinate at a time: vectors of M B numbers, not of d."""
    samples, _, dim = normal.shape
    # One long row: XLA computes normals along it, several times faster.
    row, root = linalg.add_barrier((normal.reshape(-1), root))
    columns = [jax.lax.slice(row, (j,), row.shape, (dim,)) for j in range(dim)]
    sums = [
        linalg.total(
            jnp.stack([jnp.tile(root[:, j, i], samples) * columns[j] for j in range(dim)]), 0
        )
        for i in range(dim)
    ]
    return jnp.stack(sums, axis=-1).reshape(normal.shape)


def spread(posterior: Posterior, features: Array) -> Array:
    """Return ||x||_{V^-1} = |W'x| of every slot and server.

    Args:
        posterior: W of all blocks.
        features: [C, d] (disjoint) or [C, N, d] (shared).

    Returns:
        [C, N].
    """
    equation = "ci,bji->cbj" if features.ndim == 2 else "cni,ji->cnj"
    root = posterior.root if features.ndim == 2 else posterior.root[0]
    return jnp.linalg.norm(jnp.einsum(equation, features, root), axis=-1)
