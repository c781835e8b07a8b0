"""Contexts by rejection: the first T candidates that score enough, in the order drawn."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from cqbjax.core import mnl, rng

# Candidates are drawn in blocks of this many, each block under its own key, so that the contexts of
# the first rounds do not depend on the horizon.
BLOCK = 128
# Contexts that are kept at once where a program has room for more than a run needs.
PART = 128

Draw = Callable[[Array], Array]


def accepted(
    draw: Draw, utilities: Draw, least: Array, size: int, horizon: int
) -> tuple[Array, Array]:
    """Keep the first T candidates of which the best assortment's log-odds reach `least`.

    Args:
        draw: a block's number -> candidates [BLOCK, ...].
        utilities: of contexts [I, ...]: [I, N].
        least: [] log-odds.
        size: K.
        horizon: T; where a run is shorter (`core.rng.RunLength`), its own contexts alone are drawn.

    Returns:
        [T, ...] contexts, and [T, N] their utilities.
    """
    zero, until = jnp.zeros((), jnp.int32), rng.current_run_length()
    begin = zero, zero

    def kept(count: int, begin: Any, first: Array, last: Array | int) -> tuple[Array, Any]:
        return _kept(draw, lambda some: mnl.best_score(utilities(some), size) >= least, count,
                     begin, first, last)  # fmt: skip

    if until is None or horizon % PART:
        contexts, _ = kept(horizon, begin, zero, horizon)
        return contexts, utilities(contexts)

    def more(part: Array, carry: tuple[Any, Any]) -> tuple[Any, Any]:
        tables, begin = carry
        first = part * PART
        contexts, begin = kept(PART, begin, first, jnp.minimum(first + PART, until.rounds))
        new = contexts, utilities(contexts)
        put = jax.lax.dynamic_update_slice_in_dim
        return tuple(put(old, own, first, 0) for old, own in zip(tables, new, strict=True)), begin

    like = jax.eval_shape(lambda: (draw(zero), utilities(draw(zero))))
    tables = tuple(jnp.zeros((horizon, *one.shape[1:]), one.dtype) for one in like)
    parts = jnp.minimum(-(-until.rounds // PART), horizon // PART)
    both: tuple[Array, Array] = jax.lax.fori_loop(0, parts, more, (tables, begin))[0]
    return both


def _kept(
    draw: Draw, enough: Draw, count: int, begin: Any, first: Array, last: Array | int
) -> tuple[Array, Any]:
    """Keep the accepted candidates first + 1, ..., first + count.

    Args:
        draw: a block's number -> candidates [BLOCK, ...].
        enough: whether candidates [n, ...] are accepted: [n].
        count: how many are kept.
        begin: accepted candidates before a block, not more than `first`, and its number.
        first: [] int32 accepted candidates that are passed over.
        last: up to which one they are needed.

    Returns:
        [count, ...] the candidates, and what the next ones may begin with.
    """
    blocks = 1 if rng.current_run_length() is not None else -(-count // BLOCK)
    one = jax.eval_shape(draw, first).shape[1:]

    def more(carry: Any) -> Any:
        table, filled, start, _ = carry
        drawn = jax.vmap(draw)(start + jnp.arange(blocks)).reshape(-1, *one)
        rank = filled + jnp.cumsum(enough(drawn), dtype=jnp.int32)
        # Position i takes the first candidate at which the count of accepted ones reaches i+1.
        wanted = first + jnp.arange(1, count + 1)
        taken = jnp.searchsorted(rank, wanted)
        fresh = (wanted > filled) & (wanted <= rank[-1])
        rows = drawn[jnp.minimum(taken, drawn.shape[0] - 1)]
        fresh = fresh.reshape(-1, *(1,) * len(one))
        return jnp.where(fresh, rows, table), rank[-1], start + blocks, (filled, start)

    def short(carry: Any) -> Array:
        few: Array = carry[1] < last
        return few

    drawn = jax.lax.while_loop(short, more, (jnp.zeros((count, *one)), *begin, begin))
    return drawn[0], drawn[3]
