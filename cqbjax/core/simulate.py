"""One run: the round, and the loop over the horizon.

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
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from cqbjax.core import contract, linalg, metrics, platforms, queueing, recorders, rng
from cqbjax.core.attempts import Places
from cqbjax.core.carry import NEVER, Carry, Open, start
from cqbjax.core.instances import Instance, draw_instance
from cqbjax.core.observations import observe, true_utilities
from cqbjax.core.recorders import ALWAYS, Recorder, Round, regret
from cqbjax.core.types import Policy, Problem, Queue, Source

__all__ = ["Carry", "Instance", "Stretch", "advance", "draw_instance", "every_round", "observe",
           "run_round", "start", "trace", "true_utilities"]  # fmt: skip


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
    seen = observe(policy, problem, instance, carry, round_)
    key = rng.round_key(instance.key, round_)
    places = Places(policy, problem, instance, carry, round_, seen, key)
    nobody, running, back, late = None, None, None, None
    if carry.open is not None:
        nobody, (back, _, running, late) = jnp.zeros(places.slots.shape, bool), carry.open
    (taken, breach), tried = places.each(places.begin, (nobody, carry.breach), running)
    changed = carry.state, carry.queue, back, late
    (state, queue, back, late), ended = places.each(places.end, changed, tried)
    over, valid, departed, gave_up = ended
    lost_patience, still = None, tried._replace(here=tried.here & ~over)
    unanswered = None if tried.answered is None else over & ~valid
    if carry.open is not None:
        # Who is in service waits again when the attempt says so.
        back = jnp.where(taken & (back <= round_), NEVER, back)
        unserved = queueing.waiting(seen.queue) & ~taken
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
    full = Round(
        problem, round_, world, carry.queue, tried.action, tried.utilities, tried.choice, valid,
        departed, queue, length, state, gave_up, lost_patience,
        None if running is None else still.here, None if rules is None else rules.prices(round_),
        unanswered,
    )  # fmt: skip
    after = Carry(
        queue, _store(carry.slot_features, world.contexts, rows, newest, came),
        arrives if problem.arrivals_a_round == 1 else arrives > 0, newest,
        state, recorders.update(recording, carry.recorded, full),
        jnp.where((carry.overflow == 0) & lost, round_, carry.overflow),
        jnp.maximum(carry.peak, taken_slots), breach, opened,
    )  # fmt: skip
    lost_here = regret.of_attempts(tried.utilities, tried.action, over)
    served = tried.action, tried.choice, valid
    return after, metrics.decision(carry.queue, *served, lost_here, state)


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


class Stretch(NamedTuple):
    """Some rounds of a run; traced numbers, or known ones where a GPU counts to them by itself.

    Attributes:
        first: [] int32 the first of them.
        every: [] int32 rounds a record.
        records: [] int32 how many records.
    """

    first: Any
    every: Any
    records: Any


def advance(
    policy: Policy, problem: Problem, instance: Instance, carry: Carry, stretch: Stretch,
    room: int, recording: Sequence[Recorder] = ALWAYS,
) -> tuple[Carry, dict[str, Any]]:  # fmt: skip
    """Run the rounds of a stretch. Its numbers are no shapes: another length is no other program.

    Args:
        policy: decides and learns.
        problem: shapes.
        instance: the run's fixed part.
        carry: the state before the stretch.
        stretch: which rounds.
        room: records that a stretch may have at most.
        recording: what is recorded.

    Returns:
        The state afterwards, and by name what recorders read: [room, ...] of those read at
        recorded rounds, of which the first `stretch.records` count; [...] of those of a run.
    """

    def record(number: Array, kept: tuple[Carry, dict[str, Any]]) -> tuple[Carry, dict[str, Any]]:
        carry, read = kept
        start = stretch.first + number * stretch.every

        def one(round_: Array, carry: Carry) -> Carry:
            return run_round(policy, problem, instance, carry, round_, recording)[0]

        carry = _repeated(one, start, stretch.every, carry)
        new = recorders.read(recording, carry.recorded, "round")
        return carry, {name: read[name].at[number].set(new[name]) for name in read}

    none = jax.eval_shape(lambda: recorders.read(recording, carry.recorded, "round"))
    empty = {name: jnp.zeros((room, *one.shape), one.dtype) for name, one in none.items()}
    carry, by_round = _repeated(record, 0, stretch.records, (carry, empty))
    return carry, by_round | recorders.read(recording, carry.recorded, "run")


def _repeated(step: Callable[[Array, Any], Any], first: Any, times: Any, carry: Any) -> Any:
    """Take a step for `first`, `first` + 1, and so on, `times` times, known or traced."""
    step = jax.jit(step)
    if not isinstance(times, int):
        return jax.lax.fori_loop(first, first + times, step, carry)
    # Scanned, XLA fuses reading what belongs to a round with what follows: a GPU's kernel less.
    numbers = first + jnp.arange(times, dtype=jnp.int32)
    return jax.lax.scan(lambda carry, number: (step(number, carry), None), carry, numbers)[0]


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
