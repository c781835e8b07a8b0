"""The rows of every parameter block in pages, which `running_estimate` visits in turn.

All blocks take pages from one store, so that some may grow faster than others.
"""

from typing import NamedTuple

import jax.numpy as jnp
from jax import Array

from cqbjax.core import linalg, platforms
from cqbjax.core.types import Problem, broadcast_marks
from cqbjax.estimation import likelihood, loss_model

# Rows in a page where rows couple several blocks, and where they do not (measured in
# docs/notebook/estimator.md).
PAGE_COUPLED, PAGE_ALONE = 64, 128


class PagedHistory(NamedTuple):
    """Q pages of L rows each, of all blocks.

    Attributes:
        rows: [Q, F, L] the numbers of each row (`likelihood.encode_rows`); zero where there is no
            row.
        models: [Q, G] c and H of each page (`LossModel.pack_vector`), as last expanded.
        numbers: [B, Z] int32 the pages of each block in order, Z the most that a block can have.
        turn: [B] int32 position in that order of the page that each block visits next.
        length: [B] int32 number of rows.
        free: [] int32 the first free page.
    """

    rows: Array
    models: Array
    numbers: Array
    turn: Array
    length: Array
    free: Array


def page_size(problem: Problem) -> int:
    """Return L, the rows of a page."""
    return PAGE_COUPLED if loss_model.width(problem) > 1 else PAGE_ALONE


def max_pages(problem: Problem) -> int:
    """Return Z, the most pages of a block."""
    return -(-problem.attempts // page_size(problem))


def init(problem: Problem) -> PagedHistory:
    """Return empty pages for the whole horizon."""
    blocks = problem.num_blocks
    touched = 1 if problem.parameters == "shared" else problem.assortment_size
    most = page_size(problem)
    total = blocks + touched * problem.attempts // most
    return PagedHistory(
        jnp.zeros((total, likelihood.row_size(problem), most)),
        jnp.zeros((total, loss_model.vector_size(problem))),
        jnp.zeros((blocks, max_pages(problem)), jnp.int32),
        jnp.zeros(blocks, jnp.int32),
        jnp.zeros(blocks, jnp.int32),
        jnp.zeros((), jnp.int32),
    )


def append(
    pages: PagedHistory, blocks: Array, rows: Array, valid: Array
) -> tuple[Array, PagedHistory]:
    """Write one row behind the last row of each offered block, on a new page if that is full.

    Args:
        pages: all pages.
        blocks: [A] int32, distinct.
        rows: [A, F], from `likelihood.encode_rows`.
        valid: [] or [A] bool; False changes nothing.

    Returns:
        [A] the pages written to, and all pages.
    """
    length, most = linalg.take(pages.length, blocks), pages.rows.shape[-1]
    order, position = length // most, length % most
    grows = (position == 0) & valid
    fresh = pages.free + jnp.cumsum(grows) - grows
    held = pages.numbers[blocks, jnp.minimum(order, pages.numbers.shape[1] - 1)]
    # The barrier puts the look-up before the write of `numbers`, which would otherwise be copied.
    own = linalg.add_barrier(jnp.where(grows, fresh, held).astype(jnp.int32))
    page = _skip_blocks(pages, own, valid)
    # An invalid round adds zeros to a row that does not exist yet.
    return page, pages._replace(
        rows=pages.rows.at[page, :, position].add(
            jnp.where(broadcast_marks(valid, rows), rows, 0.0)
        ),
        numbers=linalg.put(pages.numbers, (blocks, order), own),
        length=linalg.put(pages.length, (blocks,), length + valid),
        free=pages.free + jnp.sum(grows, dtype=jnp.int32),
    )


def next_page(pages: PagedHistory, blocks: Array, valid: Array) -> tuple[Array, PagedHistory]:
    """Move to the next page of each offered block that learns, [] or [A]: [A] page numbers."""
    count = jnp.maximum(-(-linalg.take(pages.length, blocks) // pages.rows.shape[-1]), 1)
    was = linalg.take(pages.turn, blocks)
    order = was % count
    after = jnp.where(valid, order + 1, was)
    page = linalg.add_barrier(linalg.take(pages.numbers, blocks, order))
    return _skip_blocks(pages, page, valid), pages._replace(
        turn=linalg.put(pages.turn, (blocks,), after)
    )


def _skip_blocks(pages: PagedHistory, page: Array, learns: Array) -> Array:
    """Replace the page numbers of blocks that do not learn by a number past the last page.

    A block that never learnt has no page, and number 0 would be a page of another block.
    """
    return jnp.where(learns, page, len(pages.rows)) if learns.ndim else page


def read_rows(pages: PagedHistory, page: Array) -> Array:
    """Return the rows of some pages: [A], [A, F, L]."""
    if not platforms.get_current().fused:
        return pages.rows[page]
    # One number of the rows at a time: each then is one array for every consumer.
    return jnp.stack([pages.rows[page, i] for i in range(pages.rows.shape[1])], axis=1)
