"""What changes from round to round: the queue, the policy's state, what is recorded."""

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
    """A query in service, or nobody.

    Attributes:
        action: which query, which servers.
        utilities: [N] true utilities of the query when it was begun.
        choice: [] int32 position in `action.servers` of the answer that pleases, K for none.
        active: [] bool whether there is one.
        last: [] int32 its last round.
        answered: [] bool whether any of the servers answers; None where all always do.
    """

    action: Action
    utilities: Array
    choice: Array
    active: Array
    last: Array
    answered: Array | None = None


class PendingFeedback(NamedTuple):
    """What is learnt from an attempt, at once or later.

    Attributes:
        query: the slot's leaves of the queue when the attempt ended, leaves [...].
        action: which query, which servers.
        choice: [] int32 what the service hears that was chosen.
        heard: [] bool whether it hears.
    """

    query: Any
    action: Action
    choice: Array
    heard: Array


class DynamicsState(NamedTuple):
    """State of the user and service dynamics.

    Attributes:
        return_round: [C] int32 the round from which a slot's query waits: past if it does, `NEVER`
            while it is in service.
        patience: [C] int32 rounds that it will still wait unserved; None: any number.
        attempts: the attempt in service, or those of several channels, leaves [c, ...]; None where
            each attempt ends in its round.
        pending: feedback not yet delivered, leaves [delay, c, ...]: that of round t at
            (t - 1) mod delay; None where feedback is immediate.
    """

    return_round: Array
    patience: Array | None
    attempts: Attempt | None
    pending: PendingFeedback | None = None


class Carry(NamedTuple):
    """What changes from round to round.

    Attributes:
        queue: the masked queue.
        slot_features: [..., C] features of each slot's query, slots last so that scoring a queue
            runs along contiguous slots; None for a pooled source or one whose rows change or come
            together, and for a policy that needs no contexts.
        arrived: [] bool A(t-1), whether any arrived.
        newest: [] int32 slot of x^(t-1), the last of several.
        state: the policy's.
        recorded: the states of the recorders, by name; those of `ALWAYS` among them.
        overflow: [] int32 the first round in which a query found no free slot, 0 if none did.
        peak: [] int32 the most slots taken so far.
        breach: the first action that breaks the contract; None where nobody watches.
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
        """[] int32 Q(t): the recorder's, since a second number would be copied every round."""
        length: Array = self.recorded[QueueLength.name]
        return length


def start(
    policy: Policy, problem: Problem, instance: Instance, capacity: int, watched: bool = False,
    recording: Sequence[Recorder] = STANDARD,
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
    needs = read_needs(policy)
    counted = problem.num_servers if needs.offer_counts else None
    several = problem.max_arrivals > 1
    moving = several or instance.workload.log is not None
    numbered = several and any(one.numbered for one in recording)
    queue = queueing.empty_queue(capacity, counted, needs.entry_rounds, numbered)
    return Carry(
        queue,
        # Not an array without elements: in a program for several devices jaxlib 0.11 dies of one.
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
    """Return what is kept of nobody."""
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
