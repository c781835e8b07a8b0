"""One run: the round, and the scan over the horizon. Every mask is here.

The order of a round (README "One round"):

    t   see      X_t: the queue and its features
    1   select   (x_t, S_t) by the policy, once for each place that is free
    2   choose   U ~ Unif(0, 1), shared by all policies, against the cumulative p_j(x_t, S_t);
                 or what a log says
    3   depart   the query leaves iff a server was chosen and the queue was not empty
    4   learn    the policy's update; nothing is learnt from an empty queue
    5   arrive   A(t) = (v < rate), or what the source says; who is new is visible from round t + 1
    6   record   Q(t+1), regret, departures, exploration, and what else is asked for

What users and the service do beside the paper's (`core.rules`) is chosen when the round is traced:
without rules none of it is in the program.
"""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from cqbjax.core import contract, linalg, metrics, mnl, platforms, queueing, recorders, rng
from cqbjax.core.carry import NEVER, Attempt, Carry, Lesson, Open, start
from cqbjax.core.instances import Instance, choice_uniform, draw_instance
from cqbjax.core.recorders import ALWAYS, Recorder, Round, regret
from cqbjax.core.types import (
    DOWN,
    LONG_WAIT,
    Feedback,
    Observation,
    Policy,
    Problem,
    Queue,
    Source,
)

__all__ = ["Carry", "Instance", "advance", "draw_instance", "every_round", "observe", "run_round",
           "start", "trace"]  # fmt: skip


def observe(
    policy: Policy, problem: Problem, instance: Instance, carry: Carry, round_: Array
) -> Observation:
    """Gather what the policy may see at the beginning of a round."""
    world, queue, rules = instance.world, carry.queue, instance.rules
    slots = carry.slot_features
    features = world.contexts[queue.row] if slots is None else jnp.moveaxis(slots, -1, 0)
    if problem.age_column is not None:
        features = _aged(features, problem.age_column, round_ - queue.arrived)
    seen = Observation(
        problem=problem,
        round=round_,
        queue=queue,
        features=features,
        arrived=carry.arrived,
        newest=carry.newest,
        prompts=world.prompts[queue.row],
        utilities=true_utilities(instance, queue.row, round_) if policy.informed else None,
        available=None if rules is None else rules.available(round_),
        extent=instance.extent,
    )
    return seen if carry.open is None else _without(seen, carry.open.back > round_)


def _without(seen: Observation, hidden: Array) -> Observation:
    """Leave the queries of some slots [C] out of the queue: they are away, or in service."""
    queue = seen.queue._replace(arrived=jnp.where(hidden, 0, seen.queue.arrived))
    return seen._replace(queue=queue, arrived=seen.arrived & ~hidden[seen.newest])


def true_utilities(instance: Instance, rows: Array, round_: Array) -> Array:
    """Return the utilities of table rows [...] in a round: [..., N], `DOWN` of who is not there."""
    drift, rules = instance.world.drift, instance.rules
    utilities = instance.world.utilities[rows]
    if drift is not None:
        cos, sin = drift.cos[round_ - 1], drift.sin[round_ - 1]
        utilities = cos * utilities + sin * drift.other[rows]
    there = None if rules is None else rules.available(round_)
    return utilities if there is None else jnp.where(there, utilities, DOWN)


def _aged(features: Array, column: int, waited: Array) -> Array:
    """Multiply a column of the slots' features by what became of it in rounds of waiting [C]."""
    rounds = jnp.maximum(waited, 0).astype(features.dtype)
    age = jnp.minimum(jnp.log1p(rounds) / jnp.log1p(LONG_WAIT), 1.0)
    here = jnp.arange(features.shape[-1]) == column
    return features * jnp.where(here, jnp.expand_dims(age, tuple(range(1, features.ndim))), 1.0)


def run_round(
    policy: Policy, problem: Problem, instance: Instance, carry: Carry, round_: Array,
    recording: Sequence[Recorder] = ALWAYS,
) -> tuple[Carry, metrics.Decision]:  # fmt: skip
    """Advance one run by one round.

    Args:
        policy: decides and learns.
        problem: shapes.
        instance: the run's fixed part.
        carry: the state at the beginning of the round.
        round_: [] int32 t, from 1.
        recording: what is recorded, as `start` was told.

    Returns:
        The state at the beginning of round t + 1, and the round in full.
    """
    world, rules = instance.world, instance.rules
    here = jnp.arange(carry.queue.row.shape[0])
    observation = observe(policy, problem, instance, carry, round_)
    key = rng.round_key(instance.key, round_)

    def begin(taken: Any, place: Any, running: Attempt | None) -> tuple[Any, Attempt]:
        """Steps 1 and 2 at a free place; whom another has taken is not shown."""
        hidden, breach = taken
        seen, own, uniform = observation, key, instance.choice[round_ - 1]
        if problem.places > 1:
            seen, uniform = _without(observation, hidden), uniform[place]
            own = jax.random.fold_in(rng.stream_key(key, rng.Stream.PLACES), place)
        action = policy.select(own, carry.state, seen)
        row = carry.queue.row[action.slot]
        utilities = true_utilities(instance, row, round_)
        if world.logged is None:
            uniform = choice_uniform(problem, instance, carry.queue, action, uniform)
            choice = mnl.choose(uniform, action.of_shown(utilities[action.servers], DOWN))
        else:
            choice = jnp.where(world.logged.satisfied[row], 0, problem.assortment_size)
        valid, last = carry.length > 0, round_
        if rules is not None:
            valid = jnp.any(queueing.waiting(seen.queue))
            last = round_ + rules.takes(round_, place, world.prompts[row], action.answering) - 1
            valid = valid if running is None else valid & ~running.here
            hidden = hidden | (valid & (here == action.slot))
        if breach is not None:
            breach = contract.watch(breach, problem, seen.queue, action, round_, valid)
        begun = Attempt(action, utilities, choice, valid, last)
        if running is not None:
            begun = jax.tree.map(lambda old, new: jnp.where(running.here, old, new), running, begun)
        return (hidden, breach), begun

    def end(changed: Any, place: Any, attempt: Attempt) -> tuple[Any, Any]:
        """Steps 3 and 4 of an attempt whose last round this is."""
        state, queue, back, late = changed
        action, told, slot = attempt.action, attempt.choice, attempt.action.slot
        ends = attempt.here if rules is None else attempt.here & (attempt.last <= round_)
        departed = ends & (attempt.choice < problem.assortment_size)
        gone, heard, gave_up = departed, ends, None
        if rules is not None:
            reaction = rules.reacts(round_, place, carry.queue.served[slot] + 1)
            gave_up = ends & ~departed & reaction.leaves
            gone, slot = departed | gave_up, jnp.where(ends, slot, len(here))
            back = jnp.where(here == slot, round_ + reaction.away, back)
            likeliest = linalg.first_argmax(
                action.of_shown(attempt.utilities[action.servers], DOWN)
            )
            told = jnp.where(gave_up & reaction.pretends, likeliest, told)
            reaches = rules.hears(round_, place)
            heard = ends if reaches is None else ends & reaches
        number = None if problem.places == 1 else (round_ - 1) * problem.places + place + 1
        lesson, seen = Lesson(None, action, told, heard), observation
        if late is not None or running is not None:
            lesson = lesson._replace(query=queueing.entry(carry.queue, action.slot))
            late, lesson = _put_off(late, lesson, round_, place)
            seen = _as_it_was(observation, instance, lesson)
        feedback = Feedback(lesson.choice, lesson.heard, number)
        state = policy.update(state, seen, lesson.action, feedback)
        next_row = None if world.logged is None else world.logged.next[queue.row[action.slot]]
        queue = queueing.serve(queue, slot, action.answering, gone, round_, next_row)
        return (state, queue, back, late), (ends, departed, gave_up)

    nobody, running, back, late = None, None, None, None
    if carry.open is not None:
        nobody, (back, _, running, late) = jnp.zeros(here.shape, bool), carry.open
    (taken, breach), tried = _at_places(problem, begin, (nobody, carry.breach), running)
    changed = carry.state, carry.queue, back, late
    (state, queue, back, late), ended = _at_places(problem, end, changed, tried)
    valid, departed, gave_up = ended
    lost_patience, still = None, tried._replace(here=tried.here & ~valid)
    if carry.open is not None:
        # Who is in service waits again when the attempt says so.
        back = jnp.where(taken & (back <= round_), NEVER, back)
        unserved = queueing.waiting(observation.queue) & ~taken
        queue, bears, lost_patience = _bear(queue, carry.open.bears, unserved)

    rows, arrives = world.arrival_rows[round_ - 1], instance.arrives[round_ - 1]
    queue, newest, came, lost = queueing.push(queue, rows, round_, arrives)
    if carry.open is None:
        # Kept up to date, not counted: that would be a pass over all slots.
        opened, length = None, carry.length - departed + came
        taken_slots = length
    else:
        opened = Open(back, bears, None if running is None else still, late)
        opened = _welcomed(instance, opened, queue, round_)
        length = jnp.sum(queueing.waiting(queue) & (opened.back <= round_ + 1), dtype=jnp.int32)
        taken_slots = queueing.length(queue)
    seen = Round(
        problem, round_, world, carry.queue, tried.action, tried.utilities, tried.choice, valid,
        departed, queue, length, state, gave_up, lost_patience,
        None if running is None else still.here, None if rules is None else rules.prices(round_),
    )  # fmt: skip
    after = Carry(
        queue, _store(carry.slot_features, world.contexts, rows, newest, came),
        arrives if problem.arrivals_a_round == 1 else arrives > 0, newest,
        state, recorders.update(recording, carry.recorded, seen),
        jnp.where((carry.overflow == 0) & lost, round_, carry.overflow),
        jnp.maximum(carry.peak, taken_slots), breach, opened,
    )  # fmt: skip
    lost_here = regret.of_attempts(tried.utilities, tried.action, valid)
    served = tried.action, tried.choice, valid
    return after, metrics.decision(carry.queue, *served, lost_here, state)


def _at_places(
    problem: Problem, step: Callable[..., tuple[Any, Any]], carried: Any, each: Any
) -> tuple[Any, Any]:
    """Take a step of the round at the one place, or at one after another: made [c, ...]."""
    if problem.places == 1:
        return step(carried, 0, each)
    places = jnp.arange(problem.places, dtype=jnp.int32)
    return jax.lax.scan(lambda carried, at: step(carried, *at), carried, (places, each))


def _put_off(late: Any, lesson: Lesson, round_: Array, place: Any) -> tuple[Any, Lesson]:
    """Keep a lesson for later, and return the one that is due: at once where none is late."""
    if late is None:
        return None, lesson
    at = (round_ - 1) % len(late.heard), place
    due = jax.tree.map(lambda kept: kept[at], late)
    return jax.tree.map(lambda kept, new: kept.at[at].set(new), late, lesson), due


def _as_it_was(seen: Observation, instance: Instance, lesson: Lesson) -> Observation:
    """Show a query as it was when it was served: its slot may be another's by now."""
    world, slot, was = instance.world, lesson.action.slot, lesson.query
    return seen._replace(
        queue=jax.tree.map(lambda leaf, own: leaf.at[slot].set(own), seen.queue, was),
        features=seen.features.at[slot].set(world.contexts[was.row]),
        prompts=seen.prompts.at[slot].set(world.prompts[was.row]),
    )


def _bear(queue: Queue, bears: Array | None, unserved: Array) -> tuple[Queue, Any, Any]:
    """Let who waited unserved [C] bear a round less, and leave after the last one."""
    if bears is None:
        return queue, None, None
    bears = bears - unserved
    leaves = unserved & (bears <= 0)
    return queue._replace(arrived=jnp.where(leaves, 0, queue.arrived)), bears, leaves


def _welcomed(instance: Instance, opened: Open, queue: Queue, round_: Array) -> Open:
    """Let who has just come wait, for as long as it bears to."""
    new, bears, rules = queue.arrived == round_, opened.bears, instance.rules
    if bears is not None and rules is not None and rules.patience is not None:
        patience = rules.patience[round_ - 1]
        if len(patience) > 1:
            order = linalg.settle(linalg.running_sum(new.astype(jnp.int32))) - 1
            patience = patience[jnp.clip(order, 0, len(patience) - 1)]
        bears = jnp.where(new, patience, bears)
    return opened._replace(back=jnp.where(new, 0, opened.back), bears=bears)


def _store(slots: Array | None, contexts: Array, row: Array, slot: Array, here: Array) -> Any:
    """Keep the new query's features in its slot, so that rounds need not gather the whole queue."""
    if slots is None:
        return None
    if platforms.current().fused:
        # Nowhere, rather than what is there once more, which would have to be read.
        place = jnp.where(here, slot, slots.shape[-1])
        return slots.at[..., place].set(contexts[row], mode="drop")
    mark = (jnp.arange(slots.shape[-1]) == slot) & here
    return jnp.where(mark, contexts[row][..., None], slots)


def advance(
    policy: Policy, problem: Problem, instance: Instance, carry: Carry, first: Array,
    num_records: int, record_every: int, recording: Sequence[Recorder] = ALWAYS,
) -> tuple[Carry, dict[str, Any]]:  # fmt: skip
    """Scan `num_records * record_every` rounds from round `first`, recording every n-th.

    Returns:
        The state afterwards, and by name what recorders read: [num_records, ...] of those read at
        recorded rounds, [...] after the last round of those of a run.
    """

    def one(carry: Carry, round_: Array) -> tuple[Carry, None]:
        return run_round(policy, problem, instance, carry, round_, recording)[0], None

    def segment(carry: Carry, start: Array) -> tuple[Carry, dict[str, Any]]:
        carry = jax.lax.scan(one, carry, start + jnp.arange(record_every, dtype=jnp.int32))[0]
        return carry, recorders.read(recording, carry.recorded, "round")

    starts = first + record_every * jnp.arange(num_records, dtype=jnp.int32)
    carry, by_round = jax.lax.scan(segment, carry, starts)
    return carry, by_round | recorders.read(recording, carry.recorded, "run")


def every_round(
    key: Array, policy: Policy, source: Source, arrival_rate: Array | float, problem: Problem,
    capacity: int, states: bool = True,
) -> tuple[metrics.Decision, Carry]:  # fmt: skip
    """Run once: every round in full, and what is left at the end, which says if a query was lost.

    It can be compiled and batched; arguments are those of `trace`.
    """
    instance = draw_instance(key, source, jnp.asarray(arrival_rate, float), problem)
    carry = start(policy, problem, instance, capacity, contract.is_foreign(policy))

    def one(carry: Carry, round_: Array) -> tuple[Carry, metrics.Decision]:
        carry, decision = run_round(policy, problem, instance, carry, round_)
        return carry, decision if states else decision._replace(state=())

    rounds = jnp.arange(1, problem.horizon + 1, dtype=jnp.int32)
    carry, decisions = jax.lax.scan(one, carry, rounds)
    return decisions, carry


def trace(
    key: Array, policy: Policy, source: Source, arrival_rate: Array | float, problem: Problem,
    capacity: int, states: bool = True,
) -> metrics.Decision:  # fmt: skip
    """Run once and return every round in full: each field of `metrics.Decision` with a leading [T].

    For tests and notebooks; `sweep` is the batched way.

    Args:
        key: the run's key, `rng.run_key(seed)`.
        policy: decides and learns.
        source: where queries come from.
        arrival_rate: lambda, queries a round.
        problem: shapes, `source.problem(K, T)`.
        capacity: queue slots.
        states: whether the policy's state after every round is kept: T times its bytes, which at
            N = 11, d = 384 and T = 5,000 are 85 GB for ACQB. Without, `state` is ().

    Raises:
        QueueOverflow: a query found no free slot.
        ContractError: an action of a policy that is none of this package's breaks the contract.
    """
    decisions, carry = every_round(key, policy, source, arrival_rate, problem, capacity, states)
    if isinstance(carry.overflow, jax.core.Tracer):
        raise TypeError("trace looks at its run: under jit or vmap use simulate.every_round")
    if carry.overflow > 0:
        full = f"capacity={capacity} overflowed in round {carry.overflow}: raise it"
        raise queueing.QueueOverflow(full)
    if carry.breach is not None and carry.breach.round > 0:
        first, slot, servers = carry.breach
        raise contract.ContractError(contract.sentence(problem, int(first), int(slot), servers))
    return decisions
