"""The rows of every parameter block in pages, for estimators that visit them in turn.

A block's pages form a ring; a page number is taken from one pool, so that blocks may grow as
unevenly as they like.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from cqbjax import linalg
from cqbjax.estimators.history import Row
from cqbjax.types import Problem

# Rows in a page (measured: docs/estimator.md).
PAGE = 64


class Pages(NamedTuple):
    """Pages of all blocks, P in all, F numbers a row.

    Attributes:
        rows: [P, F, PAGE] features, choice and members of each row (`entry`); zero where none is.
        parts: [P, W d + 1, d] each page's part of the model, as last expanded.
        next: [P] int32 the page after each page in its ring.
        last: [B] int32 the page that is being filled.
        visited: [B] int32 the page visited last.
        count: [B] int32 rows.
        free: [] int32 the first page that no block has.
    """

    rows: Array
    parts: Array
    next: Array
    last: Array
    visited: Array
    count: Array
    free: Array


def width(problem: Problem) -> int:
    """Return W: how many blocks one row's gradient can depend on, as stored."""
    coupled = problem.parameters == "disjoint" and problem.assortment_size > 1
    return problem.num_servers if coupled else 1


def shown_blocks(problem: Problem, new: Row) -> Array:
    """Return the blocks that a row touches: [K] servers, or the one shared block."""
    if problem.parameters == "shared":
        return jnp.zeros(1, jnp.int32)
    return new.servers


def most_of_a_block(problem: Problem) -> int:
    """Return how many pages a block can have."""
    return -(-problem.horizon // PAGE)


def init(problem: Problem) -> Pages:
    """Return one empty page a block, and room for the whole horizon."""
    blocks, dim, size = problem.num_blocks, problem.dim, problem.assortment_size
    shared = problem.parameters == "shared"
    total = blocks + (1 if shared else size) * problem.horizon // PAGE
    numbers = size * dim + size + 1 if shared else dim + 1 + width(problem)
    first = jnp.arange(blocks, dtype=jnp.int32)
    return Pages(
        jnp.zeros((total, numbers, PAGE)),
        jnp.zeros((total, width(problem) * dim + 1, dim)),
        jnp.arange(total, dtype=jnp.int32),
        first,
        first,
        jnp.zeros(blocks, jnp.int32),
        jnp.asarray(blocks, jnp.int32),
    )


def entry(problem: Problem, new: Row, position: int) -> Array:
    """Return one row as stored in the list of its `position`-th block: [F].

    Disjoint: features [d], whether this block's server was chosen, and which blocks the row
    couples [W]. Shared: features [K d], the chosen position [K], and a one.
    """
    dtype = new.features.dtype
    chosen = (jnp.arange(problem.assortment_size) == new.choice).astype(dtype)
    if problem.parameters == "shared":
        return jnp.concatenate([new.features.reshape(-1), chosen, jnp.ones(1, dtype)])
    member = jnp.ones(1, dtype)
    if width(problem) > 1:
        equal = new.servers[:, None] == jnp.arange(problem.num_servers)
        member = jnp.any(equal, axis=0).astype(dtype)
    return jnp.concatenate([new.features, chosen[position][None], member])


def append(pages: Pages, block: Array, entry: Array, part: Array, valid: Array) -> Pages:
    """Write a row behind a block's last one, on a new page of the ring if the last is full.

    Args:
        pages: all pages.
        block: [] int32.
        entry: [F] the row, zero if not `valid`.
        part: [W d + 1, d] its part of the model, zero if not `valid`.
        valid: [] bool; False changes nothing.
    """
    count, last = pages.count[block], pages.last[block]
    position = count % PAGE
    grows = (position == 0) & (count > 0) & valid
    page = jnp.where(grows, pages.free, last)
    # Of a full last page nothing may be overwritten; an invalid row is zeros and adds nothing.
    old = jax.lax.dynamic_slice(pages.rows, (page, 0, position), (1, entry.shape[0], 1))
    column = jnp.where(valid, entry[None, :, None], old)
    numbers = jnp.arange(pages.next.shape[0])
    following = jnp.where((numbers == page) & grows, pages.next[last], pages.next)
    following = jnp.where((numbers == last) & grows, page, following)
    here = jnp.arange(pages.count.shape[0]) == block
    return pages._replace(
        rows=jax.lax.dynamic_update_slice(pages.rows, column, (page, 0, position)),
        parts=pages.parts.at[page].add(part),
        next=following,
        last=jnp.where(here, page, pages.last),
        count=pages.count + (here & valid),
        free=pages.free + grows,
    )


def turn(pages: Pages, block: Array, valid: Array) -> tuple[Array, Array, Pages]:
    """Go on to a block's next page.

    Returns:
        The page's rows [F, PAGE], its part of the model as it was, and the pages.
    """
    before = pages.visited[block]
    page = jnp.where(valid, pages.next[before], before)
    here = jnp.arange(pages.visited.shape[0]) == block
    turned = pages._replace(visited=jnp.where(here, page, pages.visited))
    rows, part = linalg.settle((pages.rows[page], pages.parts[page]))
    return rows, part, turned


def put(pages: Pages, block: Array, part: Array) -> Pages:
    """Store the new part of the page that `turn` gave."""
    return pages._replace(parts=pages.parts.at[pages.visited[block]].set(part))


def expand(problem: Problem, rows: Array, theta: Array, block: Array) -> Array:
    """Expand the gradient of some rows of a block to first order about an estimate.

    Args:
        problem: shapes.
        rows: [F, L] as stored.
        theta: [B, d] the estimate.
        block: [] int32 whose list the rows are from.

    Returns:
        [W d + 1, d]: the Hessian's W blocks of d rows, and last the offset, so that the gradient
        is offset + sum_m hessian_m theta_m.
    """
    if problem.parameters == "shared":
        return _expand_shared(problem, rows, theta)
    dim = problem.dim
    features, chosen, member = rows[:dim], rows[dim], rows[dim + 1 :]
    if width(problem) == 1:
        about = theta[block][None]
        p = member[0] * jax.nn.sigmoid(linalg.vecmat(about[0], features))
        excess, weight = p - chosen, (p * (1.0 - p))[None]
    else:
        about = theta
        shown = _shown_probabilities(linalg.vecmat(theta, features[None]), member)
        p = shown[block]
        own = (jnp.arange(problem.num_servers) == block)[:, None]
        excess, weight = p - chosen, p * (own - shown)
    weight, excess = linalg.settle((weight, excess))
    left = (weight[:, None] * features[None]).reshape(-1, rows.shape[1])
    left = linalg.settle(jnp.concatenate([left, excess[None]]))
    return _as_part(linalg.settle(left @ features.T), about)


def _expand_shared(problem: Problem, rows: Array, theta: Array) -> Array:
    """Expand rows of K feature vectors each."""
    size, dim = problem.assortment_size, problem.dim
    features = rows[: size * dim].reshape(size, dim, -1)
    chosen, here = rows[size * dim : -1], rows[-1]
    utilities = linalg.vecmat(jnp.broadcast_to(theta[0], (size, dim)), features)
    p = linalg.settle(_shown_probabilities(utilities, jnp.broadcast_to(here, utilities.shape)))
    mean = linalg.total(p[:, None] * features, axis=0)
    left = jnp.concatenate([p[:, None] * (features - mean), (p - chosen)[:, None]], axis=1)
    products = jnp.einsum("kal,kbl->ab", linalg.settle(left), features)
    return _as_part(linalg.settle(products), theta)


def _as_part(products: Array, about: Array) -> Array:
    """Turn the gradient in the last row into the offset: [W d + 1, d]."""
    hessian = products[:-1].reshape(about.shape[0], *(products.shape[1:] * 2))
    offset = products[-1] - linalg.total(linalg.matvec(hessian, about), axis=0)
    return jnp.concatenate([products[:-1], offset[None]])


def _shown_probabilities(utilities: Array, member: Array) -> Array:
    """Return p [W, L] of the members of each row's assortment, zero for the others."""
    masked = jnp.where(member > 0, utilities, -jnp.inf)
    top = jnp.maximum(linalg.largest(masked, axis=0), 0.0)
    weights = jnp.exp(masked - top)
    return weights / (jnp.exp(-top) + linalg.total(weights, axis=0))
