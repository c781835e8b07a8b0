"""One run: the round, and the scan over the horizon. Every mask is here.

The order of a round (README "One round"):

    t   see      X_t: the queue and its features
    1   select   (x_t, S_t) by the policy
    2   choose   U ~ Unif(0, 1), shared by all policies, against the cumulative p_j(x_t, S_t);
                 or what a log says
    3   depart   the query leaves iff a server was chosen and the queue was not empty
    4   learn    the policy's update; nothing is learnt from an empty queue
    5   arrive   A(t) = (v < rate), or what the source says; who is new is visible from round t + 1
    6   record   Q(t+1), regret, departures, exploration, and what else is asked for
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from cqbjax.core import contract, metrics, mnl, platforms, queueing, recorders, rng
from cqbjax.core.instances import Instance, draw_instance
from cqbjax.core.recorders import ALWAYS, QueueLength, Recorder, Round, regret
from cqbjax.core.types import (
    LONG_WAIT,
    Feedback,
    Observation,
    Policy,
    Problem,
    Queue,
    Source,
    is_blind,
    is_entry_aware,
    is_retry_aware,
)


class Carry(NamedTuple):
    """What changes from round to round.

    Attributes:
        queue: the masked queue.
        slot_features: [..., C] features of each slot's query, slots last so that scoring a queue
            runs along contiguous slots; None for a pooled source or one whose rows change or come
            together, and for a blind policy, whose rounds need none.
        arrived: [] bool A(t-1), whether any arrived.
        newest: [] int32 slot of x^(t-1), the last of several.
        state: the policy's.
        recorded: the states of the recorders, by name; those of `ALWAYS` among them.
        overflow: [] int32 the first round in which a query found no free slot, 0 if none did.
        peak: [] int32 the longest queue so far.
        breach: the first action that breaks the contract; None where nobody watches.
    """

    queue: Queue
    slot_features: Array | None
    arrived: Array
    newest: Array
    state: Any
    recorded: dict[str, Any]
    overflow: Array
    peak: Array
    breach: contract.Breach | None = None

    @property
    def length(self) -> Array:
        """[] int32 Q(t): the recorder's, since a second number would be copied every round."""
        length: Array = self.recorded[QueueLength.name]
        return length


def start(
    policy: Policy, problem: Problem, instance: Instance, capacity: int, watched: bool = False,
    recording: Sequence[Recorder] = ALWAYS,
) -> Carry:  # fmt: skip
    """Return the state before round 1: an empty queue of `capacity` slots.

    Args:
        policy: decides and learns.
        problem: shapes.
        instance: the run's fixed part.
        capacity: C.
        watched: whether every action is held against the contract.
        recording: what is recorded.
    """
    one = (problem.dim,) if problem.parameters == "disjoint" else (problem.num_servers, problem.dim)
    counted = problem.num_servers if is_retry_aware(policy) else None
    moving = problem.arrivals_a_round > 1 or instance.world.logged is not None
    return Carry(
        queueing.empty(capacity, counted, is_entry_aware(policy)),
        # Not an array without elements: in a program for several devices jaxlib 0.11 dies of one.
        None if problem.pooled or moving or is_blind(policy) else jnp.zeros((*one, capacity)),
        jnp.bool_(False),
        jnp.zeros((), jnp.int32),
        policy.init(problem, instance.world.contexts),
        recorders.start(recording, problem),
        jnp.zeros((), jnp.int32),
        jnp.zeros((), jnp.int32),
        contract.no_breach(problem) if watched else None,
    )


def observe(
    policy: Policy, problem: Problem, instance: Instance, carry: Carry, round_: Array
) -> Observation:
    """Gather what the policy may see at the beginning of a round."""
    world, queue = instance.world, carry.queue
    if carry.slot_features is None:
        features = world.contexts[queue.row]
    else:
        features = jnp.moveaxis(carry.slot_features, -1, 0)
    if problem.age_column is not None:
        features = _aged(features, problem.age_column, round_ - queue.arrived)
    return Observation(
        problem=problem,
        round=round_,
        queue=queue,
        features=features,
        arrived=carry.arrived,
        newest=carry.newest,
        prompts=world.prompts[queue.row],
        utilities=world.utilities[queue.row] if policy.informed else None,
    )


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
    world = instance.world
    observation = observe(policy, problem, instance, carry, round_)
    key = rng.round_key(instance.key, round_)
    action = policy.select(key, carry.state, observation)

    served_row = carry.queue.row[action.slot]
    utilities = world.utilities[served_row]
    if world.logged is None:
        choice = mnl.choose(instance.choice[round_ - 1], utilities[action.servers])
    else:
        choice = jnp.where(world.logged.satisfied[served_row], 0, problem.assortment_size)
    valid = carry.length > 0
    departed = valid & (choice < problem.assortment_size)
    feedback = Feedback(choice, valid)
    breach = carry.breach
    if breach is not None:
        breach = contract.watch(breach, problem, carry.queue, action, round_, valid)

    state = policy.update(carry.state, observation, action, feedback)
    next_row = None if world.logged is None else world.logged.next[served_row]
    queue = queueing.serve(carry.queue, action.slot, action.servers, departed, round_, next_row)
    rows, arrives = world.arrival_rows[round_ - 1], instance.arrives[round_ - 1]
    queue, newest, came, lost = queueing.push(queue, rows, round_, arrives)
    # Kept up to date, not counted: that would be a pass over all slots.
    length = carry.length - departed + came
    seen = Round(
        problem, round_, world, carry.queue, action, utilities, choice, valid, departed, queue,
        length, state,
    )  # fmt: skip
    after = Carry(
        queue,
        _store(carry.slot_features, world.contexts, rows, newest, came),
        arrives if problem.arrivals_a_round == 1 else arrives > 0,
        newest,
        state,
        recorders.update(recording, carry.recorded, seen),
        jnp.where((carry.overflow == 0) & lost, round_, carry.overflow),
        jnp.maximum(carry.peak, length),
        breach,
    )
    lost_here = regret.of_round(utilities, action.servers, valid)
    return after, metrics.decision(observation, action, feedback, lost_here, state)


def _store(
    slots: Array | None, contexts: Array, row: Array, slot: Array, here: Array
) -> Array | None:
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
    policy: Policy,
    problem: Problem,
    instance: Instance,
    carry: Carry,
    first: Array,
    num_records: int,
    record_every: int,
    recording: Sequence[Recorder] = ALWAYS,
) -> tuple[Carry, dict[str, Any]]:
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
    key: Array,
    policy: Policy,
    source: Source,
    arrival_rate: Array | float,
    problem: Problem,
    capacity: int,
    states: bool = True,
) -> tuple[metrics.Decision, Carry]:
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
    key: Array,
    policy: Policy,
    source: Source,
    arrival_rate: Array | float,
    problem: Problem,
    capacity: int,
    states: bool = True,
) -> metrics.Decision:
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
    arguments = key, policy, source, arrival_rate, problem, capacity, states
    decisions, carry = every_round(*arguments)
    if isinstance(carry.overflow, jax.core.Tracer):
        raise TypeError("trace looks at its run: under jit or vmap use simulate.every_round")
    if carry.overflow > 0:
        raise queueing.QueueOverflow(
            f"capacity={capacity} overflowed in round {carry.overflow}: raise it"
        )
    if carry.breach is not None and carry.breach.round > 0:
        first, slot, servers = carry.breach
        raise contract.ContractError(contract.sentence(problem, int(first), int(slot), servers))
    return decisions
