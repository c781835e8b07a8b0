"""Rejection sampling of contexts: keep the first T whose best assortment has high log-odds."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from cqbjax.core import mnl, rng

# Candidates in a block; each block has its own key, so that the contexts of the first rounds do not
# depend on the horizon.
BLOCK = 128
# Contexts selected at a time by a program whose horizon exceeds the run's.
PART = 128

Draw = Callable[[Array], Array]


def draw_accepted(
    draw: Draw, utilities: Draw, least: Array, size: int, horizon: int
) -> tuple[Array, Array]:
    """Draw the first T candidates whose best assortment has log-odds of at least `least`.

    Args:
        draw: block number -> candidates [BLOCK, ...].
        utilities: contexts [I, ...] -> utilities [I, N].
        least: [] log-odds.
        size: K.
        horizon: T; a shorter run (`core.rng.RunLength`) draws only its own contexts.

    Returns:
        [T, ...] contexts, and [T, N] their utilities.
    """
    zero, until = jnp.zeros((), jnp.int32), rng.current_run_length()
    one = jax.eval_shape(draw, zero).shape[1:]

    def select(count: int, begin: Any, first: Array, last: Array | int) -> tuple[Array, Any]:
        """Select the accepted candidates first + 1, ..., first + count.

        Args:
            count: how many to select.
            begin: number of accepted candidates before a block, at most `first`, and the block.
            first: [] int32 accepted candidates to skip.
            last: the last accepted candidate that is needed.

        Returns:
            [count, ...] the candidates, and `begin` for the next call.
        """
        blocks = 1 if until is not None else -(-count // BLOCK)

        def more(carry: Any) -> Any:
            table, filled, start, _ = carry
            drawn = jax.vmap(draw)(start + jnp.arange(blocks)).reshape(-1, *one)
            enough = mnl.best_score(utilities(drawn), size) >= least
            rank = filled + jnp.cumsum(enough, dtype=jnp.int32)
            # Position i takes the first candidate at which the count of accepted ones reaches i+1.
            wanted = first + jnp.arange(1, count + 1)
            taken = jnp.searchsorted(rank, wanted)
            fresh = (wanted > filled) & (wanted <= rank[-1])
            rows = drawn[jnp.minimum(taken, drawn.shape[0] - 1)]
            fresh = fresh.reshape(-1, *(1,) * len(one))
            return jnp.where(fresh, rows, table), rank[-1], start + blocks, (filled, start)

        begun = jnp.zeros((count, *one)), *begin, begin
        drawn = jax.lax.while_loop(lambda carry: carry[1] < last, more, begun)
        return drawn[0], drawn[3]

    if until is None or horizon % PART:
        contexts, _ = select(horizon, (zero, zero), zero, horizon)
        return contexts, utilities(contexts)

    def add_part(part: Array, carry: tuple[Any, Any]) -> tuple[Any, Any]:
        tables, begin = carry
        first = part * PART
        contexts, begin = select(PART, begin, first, jnp.minimum(first + PART, until.rounds))
        new = contexts, utilities(contexts)
        put = jax.lax.dynamic_update_slice_in_dim
        return tuple(put(old, own, first, 0) for old, own in zip(tables, new, strict=True)), begin

    like = jax.eval_shape(lambda: (draw(zero), utilities(draw(zero))))
    tables = tuple(jnp.zeros((horizon, *one.shape[1:]), one.dtype) for one in like)
    parts = jnp.minimum(-(-until.rounds // PART), horizon // PART)
    return jax.lax.fori_loop(0, parts, add_part, (tables, (zero, zero)))[0]
