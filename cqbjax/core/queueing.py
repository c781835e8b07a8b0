"""The fixed-capacity masked queue: push, serve, and the rules that pick a query.

A new query takes the lowest free slot, so a run is the same at any capacity that does not overflow.
"""

from typing import Literal

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from cqbjax.core import linalg, mnl, pytree
from cqbjax.core.types import Queue

# A `Rule` needs no features; a `Schedule` is a rule or `joint`, the query with the highest score.
# In a program both are the index of the string, which is the same in both types.
Rule = Literal["oldest", "newest", "least_served", "random"]
Schedule = Literal["oldest", "newest", "least_served", "random", "joint"]
OLDEST, NEWEST, LEAST_SERVED, RANDOM, JOINT = range(5)


class QueueOverflow(ValueError):
    """A query found no free slot in a queue with the given capacity."""


def empty_queue(
    capacity: int, num_servers: int | None = None, entries: bool = False, numbered: bool = False
) -> Queue:
    """Return a queue of free slots.

    Args:
        capacity: C.
        num_servers: N, to count offers in `Queue.offer_counts`; None: not counted.
        entries: whether the queue has `Queue.entry_rounds`.
        numbered: whether the queue has `Queue.number`.
    """
    zeros = jnp.zeros(capacity, jnp.int32)
    counts = None if num_servers is None else jnp.zeros((capacity, num_servers), jnp.int32)
    entry_rounds, number = (zeros if wanted else None for wanted in (entries, numbered))
    return Queue(zeros, zeros, zeros, counts, entry_rounds, number)


def mark_waiting(queue: Queue) -> Array:
    """Mark the slots that hold a query: [C] bool."""
    return queue.arrived > 0


def push(
    queue: Queue, rows: Array, round_: Array, arrives: Array
) -> tuple[Queue, Array, Array, Array]:
    """Add the queries of a round, each into the lowest free slot.

    Args:
        queue: [C] slots.
        rows: [] int32 table row of the query that may arrive; [A] rows in order of arrival if
            several may arrive.
        round_: [] int32 round of arrival, from 1.
        arrives: [] bool whether the query arrives; with A rows, [] int32 n: the first n arrive.

    Returns:
        A tuple of the queue; the slot [] int32 of the new query (of the last one if several
        arrive); whether, or how many, queries found a slot; and whether a query was lost because no
        slot was free.
    """
    if rows.ndim:
        # Number of free slots up to each slot. For one query a minimum needs fewer steps (below).
        place = linalg.add_barrier(linalg.running_sum((~mark_waiting(queue)).astype(jnp.int32)))
        here = ~mark_waiting(queue) & (place <= arrives)
        first = (round_ - 1) * len(rows)
        rows = rows[jnp.clip(place - 1, 0, len(rows) - 1)]
        slot = linalg.first_argmax(jnp.where(here, place, 0))
        lost = arrives > place[-1]
        came = jnp.minimum(arrives, place[-1])
    else:
        slots = jnp.arange(queue.row.shape[0], dtype=jnp.int32)
        free = jnp.min(jnp.where(mark_waiting(queue), len(slots), slots))
        full, slot = free == len(slots), jnp.minimum(free, len(slots) - 1)
        here = (slots == slot) & arrives & ~full
        lost = arrives & full
        came = arrives & ~lost
        first, place = round_ - 1, jnp.int32(1)
    pushed = Queue(
        row=jnp.where(here, rows, queue.row),
        arrived=jnp.where(here, round_, queue.arrived),
        served=jnp.where(here, 0, queue.served),
        offer_counts=(
            None if queue.offer_counts is None else jnp.where(here[:, None], 0, queue.offer_counts)
        ),
        entry_rounds=(
            None if queue.entry_rounds is None else jnp.where(here, round_, queue.entry_rounds)
        ),
        number=None if queue.number is None else jnp.where(here, first + place - 1, queue.number),
    )
    return pushed, slot, came, lost


def serve(
    queue: Queue, slot: Array, servers: Array, departs: Array, round_: Array,
    next_row: Array | None = None,
) -> Queue:  # fmt: skip
    """Serve a slot's query once; free the slot if the query departs.

    Args:
        queue: [C] slots.
        slot: [] int32.
        servers: [K] int32 the assortment.
        departs: [] bool.
        round_: [] int32.
        next_row: [] int32 the query's table row from now on; None: it does not change.
    """
    here = jnp.arange(queue.row.shape[0]) == slot
    counts = queue.offer_counts
    if counts is not None:
        counts = counts + (here[:, None] & mnl.mark_servers(servers, counts.shape[1]))
    return Queue(
        row=queue.row if next_row is None else jnp.where(here, next_row, queue.row),
        arrived=jnp.where(here & departs, 0, queue.arrived),
        served=queue.served + here,
        offer_counts=counts,
        entry_rounds=(
            None if queue.entry_rounds is None else jnp.where(here, round_, queue.entry_rounds)
        ),
        number=queue.number,
    )


def pick_marked(mask: Array, uniform: Array) -> Array:
    """Pick uniformly among the marked slots: the floor(u * count)-th of them in slot order.

    Args:
        mask: [C] bool.
        uniform: [] in [0, 1).

    Returns:
        [] int32 slot; 0 if no slot is marked.
    """
    words = linalg.pack_bits(mask)
    counts = jax.lax.population_count(words).astype(jnp.int32)
    total = linalg.total(counts, axis=0)
    rank = jnp.minimum((uniform * total).astype(jnp.int32), total - 1)
    passed = linalg.running_sum(counts) <= rank  # words that end before the rank-th mark
    at = linalg.total(passed.astype(jnp.int32), axis=0)
    here = jnp.arange(len(words)) == at
    word = linalg.total(jnp.where(here, words, jnp.uint32(0)), axis=0)
    left = rank - linalg.total(jnp.where(passed, counts, 0), axis=0)
    return linalg.WORD * at + linalg.nth_bit(word, left)


def pick(
    schedule: Schedule | Array, queue: Queue, uniform: Array, score: Array | None = None
) -> Array:
    """Pick one waiting query.

    Each rule ranks the waiting queries, and `uniform` picks one of those that are tied for first
    place. `joint` picks the highest score, and the first slot in a tie. The schedule is an input of
    the program, so runs with different schedules share one program and one batch.

    Args:
        schedule: `oldest` (FIFO), `newest` (LIFO), `least_served` (round-robin: uniformly among the
            queries served least often), `random`, or `joint` (the highest score); the string or its
            index.
        queue: [C] slots.
        uniform: [] in [0, 1), breaks ties.
        score: [C] score of each slot's query, for `joint`; None if `joint` is not allowed.

    Returns:
        [] int32 slot.

    Raises:
        ValueError: for an unknown rule.
    """
    rule = pytree.option_index(Rule if score is None else Schedule, schedule, "schedule")
    here = mark_waiting(queue)
    far = np.iinfo(np.int32).max
    rank = jnp.where(rule == OLDEST, queue.arrived, 0)
    rank = jnp.where(rule == NEWEST, -queue.arrived, rank)
    rank = jnp.where(rule == LEAST_SERVED, queue.served, rank)
    rank = jnp.where(here, rank, far)
    slot = pick_marked(here & (rank == jnp.min(rank)), uniform)
    if score is None:
        return slot
    # Not through `pick_marked`: counting the marks of the highest score slows a round by a fifth.
    best = linalg.first_argmax(jnp.where(here, score, -jnp.inf))
    return jnp.where(rule == JOINT, best, slot)
