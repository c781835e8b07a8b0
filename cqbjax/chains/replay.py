"""The replay: one slot, and the scan over them. Every mask is here.

The order of a slot is that of a round of the simulator (README "One round"):

    t   see      the queue: of every chain that has begun, the next conversation
    1   select   one waiting query
    2   depart   its chain leaves if the conversation is its last; else the next one of the chain
                 is in the queue from slot t + 1, in its place
    3   learn    whether it left; nothing from an empty queue
    4   arrive   the roots of slot t, visible from slot t + 1
    5   record   Q(t + 1), departures, exploration
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from cqbjax.chains.instance import DIM, LONG, Run, Tables
from cqbjax.chains.rules import Scheduler, Sight
from cqbjax.core import linalg, queueing, rng
from cqbjax.core.types import Feedback, Observation, Problem, Queue


class Totals(NamedTuple):
    """What is recorded: as `metrics.Totals`, without regret, which one server cannot have."""

    queue_length: Array
    departures: Array
    explored: Array


class Carry(NamedTuple):
    """What changes from slot to slot.

    Attributes:
        queue: the masked queue; `row` is the chain, `served` how often it was served.
        entered: [C] int32 see `Sight`.
        newest: [] int32 queue slot of the last root; meaningful only if one arrived.
        state: the scheduler's.
        totals: running sums.
        overflow: [] int32 the first slot in which a root found no place, 0 if none did.
    """

    queue: Queue
    entered: Array
    newest: Array
    state: Any
    totals: Totals
    overflow: Array


class Decision(NamedTuple):
    """One slot in full, for tests.

    Attributes:
        chain: [] int32 the chain served, -1 where the queue was empty.
        served: [] int32 how often it had been served before.
        departed: [] bool.
        queue_length: [] int32 Q(t + 1).
    """

    chain: Array
    served: Array
    departed: Array
    queue_length: Array


def problem(horizon: int) -> Problem:
    """Return the shapes as a policy sees them: one server, so that there is nothing to route."""
    return Problem(1, 1, DIM, 1, horizon, "disjoint", pooled=True)


def start(scheduler: Scheduler, horizon: int, capacity: int) -> Carry:
    """Return the state before slot 1."""
    zero = jnp.zeros((), jnp.int32)
    state = scheduler.init(problem(horizon), jnp.zeros((1, DIM)))
    queue = queueing.empty(capacity)
    return Carry(queue, jnp.zeros(capacity, jnp.int32), zero, state, Totals(*[zero] * 3), zero)


def widen(carry: Carry, capacity: int) -> Carry:
    """Return a batch of states [S, ...] with more places in the queue."""

    def padded(slots: Array) -> Array:
        return jnp.pad(slots, ((0, 0), (0, capacity - slots.shape[-1])))

    queue = jax.tree.map(padded, carry.queue)
    return carry._replace(queue=queue, entered=padded(carry.entered))


def see(tables: Tables, run: Run, carry: Carry, slot: Array, horizon: int) -> Sight:
    """Gather what is known at the beginning of slot t."""
    queue = carry.queue
    node = tables.first[queue.row] + queue.served
    # Of a free place, whatever the last query left behind.
    node = jnp.minimum(node, tables.text.shape[0] - 1)
    observation = Observation(
        problem=problem(horizon), round=slot, queue=queue,
        features=features(tables, node, queue, slot),
        arrived=run.until[slot - 1] > run.until[jnp.maximum(slot - 2, 0)],
        newest=carry.newest, prompts=tables.text[node], utilities=None,
    )  # fmt: skip
    return Sight(observation, carry.entered, node, tables)


def features(tables: Tables, node: Array, queue: Queue, slot: Array) -> Array:
    """Return the contexts that ACQB sees, none longer than one: [C, 36].

    Half of the squared length is the projected prompt's, half that of the state of the chain:
    a constant, a / (1 + a) of a attempts so far, the logarithms of the rounds in the system and of
    the prompt's tokens. All are known to a scheduler when it decides.
    """
    dtype = tables.prompts.dtype
    attempts = queue.served.astype(dtype)
    waited = jnp.maximum(slot - queue.arrived, 0).astype(dtype)
    state = jnp.stack(
        [
            jnp.ones_like(attempts), attempts / (1 + attempts),
            jnp.minimum(jnp.log1p(waited) / jnp.log1p(LONG), 1.0), tables.prompt_length[node],
        ],
        axis=-1,
    )  # fmt: skip
    prompts = tables.prompts[tables.text[node]]
    return jnp.sqrt(0.5) * jnp.concatenate([prompts, 0.5 * state], axis=-1)


def run_slot(
    scheduler: Scheduler, horizon: int, tables: Tables, run: Run, carry: Carry, slot: Array
) -> tuple[Carry, Decision]:
    """Advance one run by one slot.

    Args:
        scheduler: decides and learns.
        horizon: T.
        tables: of the log.
        run: its arrivals.
        carry: the state at the beginning of the slot.
        slot: [] int32 t, from 1.
    """
    sight = see(tables, run, carry, slot, horizon)
    action = scheduler.select(rng.round_key(run.key, slot), carry.state, sight)
    valid = queueing.length(carry.queue) > 0
    chain, served = carry.queue.row[action.slot], carry.queue.served[action.slot]
    departed = valid & (served + 1 >= tables.length[chain])
    feedback = Feedback(jnp.where(departed, 0, 1).astype(jnp.int32), valid)
    state = scheduler.update(carry.state, sight, action, feedback)

    queue = queueing.serve(carry.queue, action.slot, action.servers, departed)
    back = (jnp.arange(carry.entered.shape[0]) == action.slot) & valid & ~departed
    entered = jnp.where(back, slot, carry.entered)
    queue, entered, newest, lost = _arrive(queue, entered, run, slot)
    length, totals = queueing.length(queue), carry.totals
    totals = Totals(
        length, totals.departures + departed, totals.explored + (action.explored & valid)
    )
    overflow = jnp.where((carry.overflow == 0) & lost, slot, carry.overflow)
    after = Carry(queue, entered, newest, state, totals, overflow)
    return after, Decision(jnp.where(valid, chain, -1), served, departed, length)


def _arrive(
    queue: Queue, entered: Array, run: Run, slot: Array
) -> tuple[Queue, Array, Array, Array]:
    """Put the roots of a slot into the lowest free places, in their order."""
    before, after = run.until[slot - 1], run.until[slot]
    free = ~queueing.waiting(queue)
    place = linalg.running_sum(free.astype(jnp.int32))  # 1 for the first free place
    new = free & (place <= after - before)
    root = jnp.clip(before + place - 1, 0, run.chains.shape[0] - 1)
    queue = queue._replace(
        row=jnp.where(new, run.chains[root], queue.row),
        arrived=jnp.where(new, slot, queue.arrived),
        served=jnp.where(new, 0, queue.served),
    )
    newest = linalg.first_argmax(jnp.where(new, place, 0))
    lost = place[-1] < after - before
    return queue, jnp.where(new, slot, entered), newest, lost


def advance(
    scheduler: Scheduler, horizon: int, every: int, records: int, tables: Tables, run: Run,
    carry: Carry, first: Array,
) -> tuple[Carry, Totals]:  # fmt: skip
    """Advance one run by `records` times `every` slots.

    Args:
        scheduler: decides and learns.
        horizon: T.
        every: slots between two records.
        records: how many of them.
        tables: of the log.
        run: its arrivals.
        carry: the state at the beginning of slot `first`.
        first: [] int32.

    Returns:
        The state after them, and the totals at the end of each record [records].
    """

    def one(carry: Carry, slot: Array) -> tuple[Carry, None]:
        return run_slot(scheduler, horizon, tables, run, carry, slot)[0], None

    def record(carry: Carry, begin: Array) -> tuple[Carry, Totals]:
        carry, _ = jax.lax.scan(one, carry, begin + jnp.arange(every, dtype=jnp.int32))
        return carry, carry.totals

    begins = first + every * jnp.arange(records, dtype=jnp.int32)
    return jax.lax.scan(record, carry, begins)


def trace(scheduler: Scheduler, horizon: int, tables: Tables, run: Run, capacity: int) -> Decision:
    """Run once and return every slot in full, each field with a leading [T]: for tests."""

    def one(carry: Carry, slot: Array) -> tuple[Carry, Decision]:
        return run_slot(scheduler, horizon, tables, run, carry, slot)

    slots = jnp.arange(1, horizon + 1, dtype=jnp.int32)
    return jax.lax.scan(one, start(scheduler, horizon, capacity), slots)[1]
