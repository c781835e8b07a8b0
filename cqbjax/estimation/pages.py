"""The rows of every parameter block in pages, which the estimator visits in turn.

Pages come from one store, so that blocks may grow as unevenly as they like.
"""

from typing import NamedTuple

import jax.numpy as jnp
from jax import Array

from cqbjax.core import linalg, platforms
from cqbjax.core.types import Problem, along
from cqbjax.estimation import cubic, likelihood

# Rows in a page, where rows couple several blocks and where they do not (measured:
# docs/notebook/estimator.md).
PAGE_COUPLED, PAGE_ALONE = 64, 128


class Pages(NamedTuple):
    """Pages of all blocks, Q in all, of L rows each.

    Attributes:
        rows: [Q, F, L] each row's numbers (`likelihood.stored`); zero where none is.
        models: [Q, G] c and H of each page's rows (`cubic.to_vector`), as last expanded.
        numbers: [B, Z] int32 the pages of each block in order, Z the most that one can have.
        turn: [B] int32 which of its pages, by that order, each block visits next.
        length: [B] int32 rows.
        free: [] int32 the first page that no block has.
    """

    rows: Array
    models: Array
    numbers: Array
    turn: Array
    length: Array
    free: Array


def page_size(problem: Problem) -> int:
    """Return L, how many rows a page holds."""
    return PAGE_COUPLED if cubic.width(problem) > 1 else PAGE_ALONE


def most_pages(problem: Problem) -> int:
    """Return Z, how many pages a block can have."""
    return -(-problem.attempts // page_size(problem))


def init(problem: Problem) -> Pages:
    """Return no pages, and room for the whole horizon."""
    blocks = problem.num_blocks
    touched = 1 if problem.parameters == "shared" else problem.assortment_size
    most = page_size(problem)
    total = blocks + touched * problem.attempts // most
    return Pages(
        jnp.zeros((total, likelihood.row_size(problem), most)),
        jnp.zeros((total, cubic.vector_size(problem))),
        jnp.zeros((blocks, most_pages(problem)), jnp.int32),
        jnp.zeros(blocks, jnp.int32),
        jnp.zeros(blocks, jnp.int32),
        jnp.zeros((), jnp.int32),
    )


def append(pages: Pages, blocks: Array, rows: Array, valid: Array) -> tuple[Array, Pages]:
    """Write one row behind the last one of each shown block, on a new page where that is full.

    Args:
        pages: all pages.
        blocks: [A] int32, distinct.
        rows: [A, F], as `likelihood.stored` gives them.
        valid: [] or [A] bool; False changes nothing.

    Returns:
        [A] the pages written to, and the pages.
    """
    length, most = linalg.take(pages.length, blocks), pages.rows.shape[-1]
    order, position = length // most, length % most
    grows = (position == 0) & valid
    fresh = pages.free + jnp.cumsum(grows) - grows
    held = pages.numbers[blocks, jnp.minimum(order, pages.numbers.shape[1] - 1)]
    # Settled: looked up after the numbers are written, it would cost a copy of them all.
    own = linalg.settle(jnp.where(grows, fresh, held).astype(jnp.int32))
    page = _of_those(pages, own, valid)
    # An invalid round adds zeros to a row that is not there yet.
    return page, pages._replace(
        rows=pages.rows.at[page, :, position].add(jnp.where(along(valid, rows), rows, 0.0)),
        numbers=linalg.put(pages.numbers, (blocks, order), own),
        length=linalg.put(pages.length, (blocks,), length + valid),
        free=pages.free + jnp.sum(grows, dtype=jnp.int32),
    )


def turn(pages: Pages, blocks: Array, valid: Array) -> tuple[Array, Pages]:
    """Go on to the next page of each shown block that learns, [] or [A]: [A] page numbers."""
    count = jnp.maximum(-(-linalg.take(pages.length, blocks) // pages.rows.shape[-1]), 1)
    was = linalg.take(pages.turn, blocks)
    order = was % count
    after = jnp.where(valid, order + 1, was)
    page = linalg.settle(linalg.take(pages.numbers, blocks, order))
    return _of_those(pages, page, valid), pages._replace(
        turn=linalg.put(pages.turn, (blocks,), after)
    )


def _of_those(pages: Pages, page: Array, learns: Array) -> Array:
    """Put a page that is none in place of those of shown blocks that do not learn.

    A block that never learnt has no page, and number 0 would be another's, written to twice.
    """
    return jnp.where(learns, page, len(pages.rows)) if learns.ndim else page


def read(pages: Pages, page: Array) -> Array:
    """Return the rows of some pages: [A], [A, F, L]."""
    if not platforms.current().fused:
        return pages.rows[page]
    # Number by number of a row, each of which then reads as one array in every consumer.
    return jnp.stack([pages.rows[page, i] for i in range(pages.rows.shape[1])], axis=1)
