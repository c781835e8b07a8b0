"""The state that a run carries from round to round: queue, policy, recorders and dynamics."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from cqbjax.core import contract, queueing
from cqbjax.core.instances import Instance
from cqbjax.core.recorders import STANDARD, QueueLength, Recorder
from cqbjax.core.scenario import Dynamics
from cqbjax.core.types import Action, Policy, Problem, Queue, blank_action, read_needs

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
    """The feedback of an attempt, until the policy learns from it.

    Attributes:
        query: the slot's entry in the queue when the attempt ended, leaves [...].
        action: the query and the servers.
        choice: [] int32 the choice as reported to the service.
        arrives: [] bool False where the feedback is lost or there was no attempt.
    """

    query: Any
    action: Action
    choice: Array
    arrives: Array


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
    breach: contract.Breach | None = None
    dynamics: DynamicsState | None = None

    @property
    def length(self) -> Array:
        """[] int32 Q(t), read from its recorder: a second copy would cost time every round."""
        return self.recorded[QueueLength.name]


def start(
    policy: Policy, problem: Problem, instance: Instance, capacity: int, checked: bool = False,
    recording: Sequence[Recorder] = STANDARD,
) -> Carry:  # fmt: skip
    """Return the state before round 1: an empty queue of `capacity` slots.

    Args:
        policy: decides and learns.
        problem: the static settings.
        instance: the part of the run that is fixed before round 1.
        capacity: C.
        checked: whether every action is checked against the contract.
        recording: the recorders.
    """
    needs = read_needs(policy)
    counted = problem.num_servers if needs.offer_counts else None
    several = problem.max_arrivals > 1
    numbered = several and any(recorder.numbered for recorder in recording)
    queue = queueing.empty_queue(capacity, counted, needs.entry_rounds, numbered)
    gathered = problem.pooled or several or instance.workload.log is not None
    # None rather than an empty array, on which jaxlib 0.11 crashes with several devices.
    slot_features = None
    if needs.contexts and not gathered:
        slot_features = jnp.zeros((*problem.contexts_shape[1:], capacity))
    return Carry(
        queue,
        slot_features,
        jnp.bool_(False),
        jnp.zeros((), jnp.int32),
        policy.init(problem, instance.workload.contexts),
        {recorder.name: recorder.start(problem) for recorder in recording},
        jnp.zeros((), jnp.int32),
        contract.empty_breach(problem) if checked else None,
        None
        if instance.dynamics is None
        else _start_dynamics(policy, problem, instance.dynamics, queue),
    )


def _start_dynamics(
    policy: Policy, problem: Problem, dynamics: Dynamics, queue: Queue
) -> DynamicsState:
    """Return the state of an empty system."""
    zeros, zero = jnp.zeros_like(queue.row), jnp.zeros((), jnp.int32)
    size = problem.assortment_size
    marked = read_needs(policy).smaller_assortments or (problem.outages and size > 1)
    action = blank_action(size, marked)
    false = action.explored

    def repeat(tree: Any, *axes: int) -> Any:
        return jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (*axes, *leaf.shape)), tree)

    attempts = pending = None
    if dynamics.multi_round:
        utilities, answered = jnp.zeros(problem.num_servers), false if problem.outages else None
        free = Attempt(action, utilities, zero, false, zero, answered)
        attempts = free if problem.channels == 1 else repeat(free, problem.channels)
    if dynamics.delay > 0:
        first = jax.tree.map(lambda leaf: leaf[0], queue)
        empty = PendingFeedback(first, action, zero, false)
        pending = repeat(empty, dynamics.delay, problem.channels)
    return DynamicsState(zeros, None if dynamics.patience is None else zeros, attempts, pending)
