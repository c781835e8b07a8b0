"""Who is evaluated on and who may be learned from: the online pool and the offline rest."""

from collections.abc import Sequence
from typing import NamedTuple

import jax
import numpy as np

from cqbjax.core import rng
from cqbjax.sources.routing import draw_pool

# One program for all seeds: operation by operation a pool takes ten times as long.
_drawn = jax.jit(draw_pool, static_argnums=(1, 2))


class Split(NamedTuple):
    """Hold row indices of a table.

    Attributes:
        pool: [pool_size] rows of the online pool, in drawn order.
        offline: [P - pool_size] (fewer without twins) rows for offline training, ascending.
    """

    pool: np.ndarray
    offline: np.ndarray


def split(num_prompts: int, pool_size: int = 1000, seed: int = 0) -> Split:
    """Draw the online pool of a run; the offline split is everything else.

    The pool is the one that the simulator draws for this seed. The result depends on the three
    arguments alone: not on the table's content, the policy or how many seeds are run.

    Args:
        num_prompts: P.
        pool_size: prompts of the online pool, at least 1 and less than P.
        seed: not negative.

    Returns:
        Disjoint rows that together are all of 0 .. P-1.

    Raises:
        ValueError: pool_size or seed outside what is allowed.
    """
    if not 1 <= pool_size < num_prompts:
        raise ValueError(
            f"pool_size must be in [1, {num_prompts - 1}], less than all prompts, got {pool_size}."
        )
    if seed < 0:
        raise ValueError(f"seed must not be negative, got {seed}.")
    pool = np.asarray(_drawn(rng.run_key(seed), num_prompts, pool_size))
    return Split(pool=pool, offline=np.setdiff1d(np.arange(num_prompts), pool))


def without_twins(parts: Split, prompts: Sequence[str]) -> Split:
    """Drop offline prompts whose text also stands in the pool.

    MMLU-Pro has 159 prompts whose text occurs more than once, RouterBench 2: under another id
    an evaluation prompt could otherwise be learned from.

    Args:
        parts: rows of the table.
        prompts: [P] texts.
    """
    seen = {prompts[i].strip() for i in parts.pool}
    keep = np.array([prompts[i].strip() not in seen for i in parts.offline], bool)
    return parts._replace(offline=parts.offline[keep])


def check_no_leak(
    pool: Sequence[int] | np.ndarray,
    offline: Sequence[int] | np.ndarray,
    prompt_ids: Sequence[str],
    prompts: Sequence[str],
) -> None:
    """Refuse an offline set that holds an evaluation prompt, by row, by id or by text.

    Args:
        pool: rows that are evaluated.
        offline: rows that are learned from.
        prompt_ids: [P].
        prompts: [P] texts; they are compared with white space at the ends left out.

    Raises:
        ValueError: naming the first leaked prompt and how it leaked.
    """
    rows = {int(i) for i in pool}
    ids = {prompt_ids[i] for i in rows}
    texts = {prompts[i].strip(): i for i in rows}
    for i in (int(row) for row in offline):
        twin = texts.get(prompts[i].strip())
        if i in rows or prompt_ids[i] in ids:
            how = "is itself in the online pool"
        elif twin is not None:
            how = f"has the same text as pool row {twin} (prompt id {prompt_ids[twin]!r})"
        else:
            continue
        raise ValueError(f"offline split: row {i} (prompt id {prompt_ids[i]!r}) {how}.")
