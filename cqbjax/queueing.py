"""The fixed-capacity masked queue: push, remove, and the rules by which a query is picked.

A new query takes the lowest free slot, so a run is the same at any capacity that does not overflow.
"""

from typing import Literal, get_args

import jax.numpy as jnp
from jax import Array

from cqbjax import linalg
from cqbjax.types import Queue

Rule = Literal["oldest", "newest", "least_served", "random"]


def empty(capacity: int) -> Queue:
    """Return a queue of `capacity` free slots."""
    zeros = jnp.zeros(capacity, jnp.int32)
    return Queue(row=zeros, arrived=zeros, served=zeros)


def waiting(queue: Queue) -> Array:
    """Mark the slots that hold a query: [C] bool."""
    return queue.arrived > 0


def length(queue: Queue) -> Array:
    """Return Q(t), the number of waiting queries: [] int32."""
    return jnp.sum(waiting(queue), dtype=jnp.int32)


def push(queue: Queue, row: Array, round_: Array, arrives: Array) -> tuple[Queue, Array, Array]:
    """Add a query where `arrives`.

    Args:
        queue: [C] slots.
        row: [] int32 table row of the new query.
        round_: [] int32 round of arrival, from 1.
        arrives: [] bool.

    Returns:
        The queue, the slot taken ([] int32), and whether the query was lost for want of a slot.
    """
    slots = jnp.arange(queue.row.shape[0])
    slot = linalg.first_true(~waiting(queue))
    full = jnp.all(waiting(queue))
    here = (slots == slot) & arrives & ~full
    pushed = Queue(
        row=jnp.where(here, row, queue.row),
        arrived=jnp.where(here, round_, queue.arrived),
        served=jnp.where(here, 0, queue.served),
    )
    return pushed, slot, arrives & full


def serve(queue: Queue, slot: Array, departs: Array) -> Queue:
    """Count one service of a slot's query and free the slot where it `departs`."""
    here = jnp.arange(queue.row.shape[0]) == slot
    return queue._replace(
        arrived=jnp.where(here & departs, 0, queue.arrived),
        served=queue.served + here,
    )


def nth_marked(mask: Array, uniform: Array) -> Array:
    """Pick uniformly among the marked slots: the floor(u * count)-th of them in slot order.

    Args:
        mask: [C] bool.
        uniform: [] in [0, 1).

    Returns:
        [] int32 slot; 0 where nothing is marked.
    """
    count = jnp.sum(mask, dtype=jnp.int32)
    rank = jnp.minimum((uniform * count).astype(jnp.int32), count - 1)
    return linalg.first_true(linalg.running_count(mask) == rank + 1)


def pick(rule: Rule, queue: Queue, uniform: Array) -> Array:
    """Pick one waiting query by a rule that looks at no features.

    Args:
        rule: `oldest` (FIFO), `newest` (LIFO), `least_served` (round-robin: uniformly among the
            queries served least often) or `random`.
        queue: [C] slots.
        uniform: [] in [0, 1), used by the random rules.

    Returns:
        [] int32 slot.

    Raises:
        ValueError: for a rule that there is none of.
    """
    here = waiting(queue)
    far = jnp.iinfo(jnp.int32).max
    if rule == "oldest":
        return linalg.first_argmax(-jnp.where(here, queue.arrived, far))
    if rule == "newest":
        return linalg.first_argmax(queue.arrived)
    if rule == "random":
        return nth_marked(here, uniform)
    if rule != "least_served":
        raise ValueError(f"the queue rule {rule} is unknown; {', '.join(get_args(Rule))} are known")
    served = jnp.where(here, queue.served, far)
    return nth_marked(here & (served == jnp.min(served)), uniform)
