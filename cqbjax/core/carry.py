"""The state that a run carries from round to round: queue, policy, recorders and dynamics."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from cqbjax.core import contract, queueing, recorders
from cqbjax.core.instances import Instance
from cqbjax.core.recorders import STANDARD, QueueLength, Recorder
from cqbjax.core.scenario import Dynamics
from cqbjax.core.types import (
    Action,
    Policy,
    Problem,
    Queue,
    blank_action,
    read_needs,
)

# A round that never comes.
NEVER = np.iinfo(np.int32).max


class Attempt(NamedTuple):
    """The attempt on a service channel, or an empty channel.

    Attributes:
        action: the query's slot and the servers.
        utilities: [N] true utilities of the query when the attempt began.
        choice: [] int32 position in `action.servers` of the accepted answer, K for none.
        active: [] bool whether a query is in service.
        last: [] int32 last round of the attempt.
        answered: [] bool whether any of the servers answers; None if all always answer.
    """

    action: Action
    utilities: Array
    choice: Array
    active: Array
    last: Array
    answered: Array | None = None


class PendingFeedback(NamedTuple):
    """The feedback of an attempt, which the policy receives at once or later.

    Attributes:
        query: the queue's entry of the slot when the attempt ended, leaves [...].
        action: the query's slot and the servers.
        choice: [] int32 the reported choice; it is wrong if the user only pretends satisfaction.
        heard: [] bool whether the policy receives the feedback.
    """

    query: Any
    action: Action
    choice: Array
    heard: Array


class DynamicsState(NamedTuple):
    """State of the user and service dynamics.

    Attributes:
        return_round: [C] int32 round from which each slot's query waits (in the past if it already
            waits); `NEVER` while it is in service.
        patience: [C] int32 rounds that it will still wait unserved; None: unlimited.
        attempts: the attempt in service, leaves [...], or with c > 1 channels [c, ...]; None if
            each attempt ends in its round.
        pending: feedback not yet delivered, leaves [delay, c, ...], with that of round t at index
            (t - 1) mod delay; None if feedback is immediate.
    """

    return_round: Array
    patience: Array | None
    attempts: Attempt | None
    pending: PendingFeedback | None = None


class Carry(NamedTuple):
    """The state that a run carries from round to round.

    Attributes:
        queue: the masked queue.
        slot_features: [..., C] features of each slot's query, slots last so that scoring a queue
            runs along contiguous slots. None if the policy needs no contexts, or if the source has
            a pool, has a log, or may let several queries arrive per round.
        arrived: [] bool A(t-1), whether any query arrived in the previous round.
        newest: [] int32 slot of x^(t-1), the query that arrived then (the last one of several).
        state: the policy's state.
        recorded: the states of the recorders, by name, including those of `STANDARD`.
        overflow: [] int32 the first round in which a query found no free slot, or 0.
        peak: [] int32 the most slots taken so far.
        breach: the first action that breaks the contract; None if actions are not checked.
        dynamics: state of the user and service dynamics; None in the paper's model, whose queries
            all wait.
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
    dynamics: DynamicsState | None = None

    @property
    def length(self) -> Array:
        """[] int32 Q(t), read from its recorder: a second copy would cost time every round."""
        length: Array = self.recorded[QueueLength.name]
        return length


def start(
    policy: Policy, problem: Problem, instance: Instance, capacity: int, watched: bool = False,
    recording: Sequence[Recorder] = STANDARD,
) -> Carry:  # fmt: skip
    """Return the state before round 1: an empty queue of `capacity` slots.

    Args:
        policy: decides and learns.
        problem: the static settings.
        instance: the part of the run that is fixed before round 1.
        capacity: C.
        watched: whether every action is checked against the contract.
        recording: the recorders.
    """
    one = (problem.dim,) if problem.parameters == "disjoint" else (problem.num_servers, problem.dim)
    needs = read_needs(policy)
    counted = problem.num_servers if needs.offer_counts else None
    several = problem.max_arrivals > 1
    moving = several or instance.workload.log is not None
    numbered = several and any(one.numbered for one in recording)
    queue = queueing.empty_queue(capacity, counted, needs.entry_rounds, numbered)
    return Carry(
        queue,
        # Not an empty array: jaxlib 0.11 crashes on one in a program for several devices.
        None if problem.pooled or moving or not needs.contexts else jnp.zeros((*one, capacity)),
        jnp.bool_(False),
        jnp.zeros((), jnp.int32),
        policy.init(problem, instance.workload.contexts),
        recorders.start(recording, problem),
        jnp.zeros((), jnp.int32),
        jnp.zeros((), jnp.int32),
        contract.empty_breach(problem) if watched else None,
        None
        if instance.dynamics is None
        else _start_dynamics(policy, problem, instance.dynamics, queue),
    )


def _start_dynamics(
    policy: Policy, problem: Problem, dynamics: Dynamics, queue: Queue
) -> DynamicsState:
    """Return the state of the dynamics before round 1."""
    none, zero = jnp.zeros_like(queue.row), jnp.zeros((), jnp.int32)
    size = problem.assortment_size
    marked = read_needs(policy).smaller_assortments or (problem.outages and size > 1)
    action = blank_action(size, marked)
    idle = late = None
    if dynamics.lasting:
        lead = () if problem.channels == 1 else (problem.channels,)
        utilities, none_here = jnp.zeros(problem.num_servers), action.explored
        answered = none_here if problem.outages else None
        idle = _repeat(Attempt(action, utilities, zero, none_here, zero, answered), lead)
    if dynamics.delay > 0:
        nothing = PendingFeedback(queueing.slot_entry(queue, zero), action, zero, action.explored)
        late = _repeat(nothing, (dynamics.delay, problem.channels))
    return DynamicsState(none, None if dynamics.patience is None else none, idle, late)


def _repeat(tree: Any, lead: tuple[int, ...]) -> Any:
    """Repeat a tree along leading axes."""
    return jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (*lead, *leaf.shape)), tree)
