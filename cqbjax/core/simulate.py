"""One run: the round, and the loop over the horizon.

The order of a round (README "One round"):

    t   see      X_t: the queue and its features
    1   select   (x_t, S_t) by the policy, once for each free service channel
    2   choose   U ~ Unif(0, 1), shared by all policies, against the cumulative p_j(x_t, S_t);
                 or the recorded outcome if the source replays a log
    3   depart   the query leaves iff a server was chosen and the queue was not empty
    4   learn    the policy's update, which ignores a round with an empty queue
    5   arrive   A(t) = (v < rate), or the source's draw; new queries are visible from round t + 1
    6   record   Q(t+1), regret, departures, exploration, and the values of further recorders

User and service dynamics (`core.scenario`) are resolved when the round is traced: without them the
program is the paper's round.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from cqbjax.core import contract, linalg, platforms, queueing, rng
from cqbjax.core.attempts import AttemptRunner
from cqbjax.core.carry import NEVER, Carry, DynamicsState, start
from cqbjax.core.instances import Instance, draw_instance
from cqbjax.core.observations import observe, true_utilities
from cqbjax.core.recorders import STANDARD, Recorder, Round
from cqbjax.core.recorders.queue import round_regret
from cqbjax.core.types import NO_SERVER, Policy, Problem, Queue, Source, mask_unoffered

__all__ = ["Carry", "Instance", "Segment", "advance", "draw_instance", "run_rounds", "observe",
           "run_round", "start", "trace", "true_utilities"]  # fmt: skip


class Decision(NamedTuple):
    """One round in full, for tests and for inspecting a run.

    With c > 1 channels, the fields of attempts have a leading axis [c].

    Attributes:
        query: [] int32 arrival round of the served query, 0 where the queue was empty.
        row: [] int32 its table row.
        servers: [K] int32; -1 in place of a server that was not offered.
        choice: [] int32 position in `servers`, K for a retrial.
        explored: [] bool.
        valid: [] bool whether a query was served.
        regret: [] float of this round.
        state: the policy's state after the round.
    """

    query: Array
    row: Array
    servers: Array
    choice: Array
    explored: Array
    valid: Array
    regret: Array
    state: Any


def run_round(
    policy: Policy, problem: Problem, instance: Instance, carry: Carry, round_: Array,
    recording: Sequence[Recorder] = STANDARD,
) -> tuple[Carry, Decision]:  # fmt: skip
    """Advance one run by one round.

    Args:
        policy: decides and learns.
        problem: the static settings.
        instance: the part of the run that is fixed before round 1.
        carry: the state at the beginning of the round.
        round_: [] int32 t, from 1.
        recording: the recorders, the same as in `start`.

    Returns:
        The state at the beginning of round t + 1, and the round in full.
    """
    workload, dynamics = instance.workload, instance.dynamics
    seen = observe(policy, problem, instance, carry, round_)
    key = rng.round_key(instance.key, round_)
    runner = AttemptRunner(policy, problem, instance, carry, round_, seen, key)
    taken, running, return_rounds, pending = None, None, None, None
    if carry.dynamics is not None:
        return_rounds, patience, running, pending = carry.dynamics
        taken = jnp.zeros(runner.slots.shape, bool)
    (taken, breach), attempt = runner.scan_channels(runner.begin, (taken, carry.breach), running)
    changed = carry.state, carry.queue, return_rounds, pending
    (state, queue, return_rounds, pending), ended = runner.scan_channels(
        runner.end, changed, attempt
    )
    over, valid, departed, abandoned = ended
    reneged, continued = None, attempt._replace(active=attempt.active & ~over)
    unanswered = None if attempt.answered is None else over & ~valid
    if carry.dynamics is not None:
        # A query in service waits again only after its attempt.
        return_rounds = jnp.where(taken & (return_rounds <= round_), NEVER, return_rounds)
        if patience is not None:
            unserved = queueing.mark_waiting(seen.queue) & ~taken
            patience = patience - unserved
            reneged = unserved & (patience <= 0)
            queue = queue._replace(arrived=jnp.where(reneged, 0, queue.arrived))

    rows, arrives = workload.arrival_rows[round_ - 1], instance.arrivals[round_ - 1]
    queue, newest, admitted, lost = queueing.push(queue, rows, round_, arrives)
    if carry.dynamics is None:
        # Updated rather than counted, which would take a pass over all slots.
        dynamics_state, length = None, carry.length - departed + admitted
    else:
        attempts = None if running is None else continued
        dynamics_state = DynamicsState(return_rounds, patience, attempts, pending)
        dynamics_state = _admit(instance, dynamics_state, queue, round_)
        waits = dynamics_state.return_round <= round_ + 1
        length = jnp.sum(queueing.mark_waiting(queue) & waits, dtype=jnp.int32)
    full = Round(
        problem, round_, workload, carry.queue, attempt.action, attempt.utilities, attempt.choice,
        valid, departed, queue, length, state, abandoned, reneged,
        None if running is None else continued.active,
        None if dynamics is None else dynamics.combine("prices", round_),
        unanswered,
    )  # fmt: skip
    after = Carry(
        queue, _store_features(carry.slot_features, workload.contexts, rows, newest, admitted),
        arrives if problem.max_arrivals == 1 else arrives > 0, newest,
        state, {one.name: one.update(carry.recorded[one.name], full) for one in recording},
        jnp.where((carry.overflow == 0) & lost, round_, carry.overflow), breach, dynamics_state,
    )  # fmt: skip
    regret = round_regret(attempt.utilities, attempt.action, over)
    action, slot = attempt.action, attempt.action.slot
    return after, Decision(
        jnp.where(valid, carry.queue.arrived[slot], 0), carry.queue.row[slot],
        mask_unoffered(action.offered, action.servers, NO_SERVER), attempt.choice,
        action.explored & valid, valid, regret, state,
    )  # fmt: skip


def _admit(instance: Instance, before: DynamicsState, queue: Queue, round_: Array) -> DynamicsState:
    """Set the return round and the patience of the queries that arrived in this round."""
    new, patience, dynamics = queue.arrived == round_, before.patience, instance.dynamics
    if patience is not None and dynamics is not None and dynamics.patience is not None:
        drawn = dynamics.patience[round_ - 1]
        if len(drawn) > 1:
            order = linalg.add_barrier(linalg.running_sum(new.astype(jnp.int32))) - 1
            drawn = drawn[jnp.clip(order, 0, len(drawn) - 1)]
        patience = jnp.where(new, drawn, patience)
    return before._replace(return_round=jnp.where(new, 0, before.return_round), patience=patience)


def _store_features(
    slots: Array | None, contexts: Array, row: Array, slot: Array, admitted: Array
) -> Any:
    """Store the new query's features by slot, so that rounds need not gather the whole queue."""
    if slots is None:
        return None
    if platforms.get_current().fused:
        # Without an arrival, write out of bounds: writing the old value would read it first.
        index = jnp.where(admitted, slot, slots.shape[-1])
        return slots.at[..., index].set(contexts[row], mode="drop")
    mark = (jnp.arange(slots.shape[-1]) == slot) & admitted
    return jnp.where(mark, contexts[row][..., None], slots)


class Segment(NamedTuple):
    """A range of rounds that one call of the program simulates.

    The numbers are traced; `every` and `records` are Python integers if the loop is a scan of fixed
    length (`_repeat_step`).

    Attributes:
        first: [] int32 first round.
        every: [] int32 rounds per record.
        records: [] int32 number of records.
    """

    first: Any
    every: Any
    records: Any


def advance(
    policy: Policy, problem: Problem, instance: Instance, carry: Carry, segment: Segment,
    max_records: int, recording: Sequence[Recorder] = STANDARD,
    map_runs: Callable[[Callable[..., Any]], Callable[..., Any]] = lambda function: function,
) -> tuple[Carry, dict[str, Any]]:  # fmt: skip
    """Run the rounds of a segment. Its length is traced: another length does not recompile.

    Args:
        policy: decides and learns.
        problem: shapes.
        instance: the run's fixed part.
        carry: the state before the segment.
        segment: the rounds.
        max_records: the most records of any segment.
        recording: the recorders.
        map_runs: `jax.vmap` if the arguments hold several runs, which share the segment. Around
            this function, `vmap` would batch each loop several times, to find what has an axis.

    Returns:
        The state afterwards, and the recorded arrays by name: [max_records, ...] of recorders read
        at recorded rounds, of which the first `segment.records` are valid; [...] of those read at
        the end of the run.
    """

    def read(carry: Carry, per: str) -> dict[str, Any]:
        chosen = [one for one in recording if one.per == per]
        read_run = map_runs(lambda states: {one.name: one.read(states[one.name]) for one in chosen})
        return read_run(carry.recorded)

    def record(index: Array, before: tuple[Carry, dict[str, Any]]) -> tuple[Carry, dict[str, Any]]:
        carry, records = before
        start = segment.first + index * segment.every

        def step(round_: Array, carry: Carry) -> Carry:
            run = map_runs(lambda p, i, c: run_round(p, problem, i, c, round_, recording)[0])
            return run(policy, instance, carry)

        carry = _repeat_step(step, start, segment.every, carry)
        store = map_runs(lambda stored, new: stored.at[index].set(new))
        return carry, jax.tree.map(store, records, read(carry, "round"))

    allocate = map_runs(lambda new: jnp.zeros((max_records, *new.shape), new.dtype))
    empty = jax.tree.map(allocate, read(carry, "round"))
    carry, by_round = _repeat_step(record, 0, segment.records, (carry, empty))
    return carry, by_round | read(carry, "run")


def _repeat_step(step: Callable[[Array, Any], Any], first: Any, times: Any, carry: Any) -> Any:
    """Take a step for `first`, `first` + 1, and so on, `times` times (an integer or traced)."""
    step = jax.jit(step)
    if not isinstance(times, int):
        return jax.lax.fori_loop(first, first + times, step, carry)
    # In a scan, XLA fuses reading a round's inputs with their use, which saves a GPU kernel.
    numbers = first + jnp.arange(times, dtype=jnp.int32)
    return jax.lax.scan(lambda carry, number: (step(number, carry), None), carry, numbers)[0]


def run_rounds(
    key: Array, policy: Policy, source: Source, arrival_rate: Array | float, problem: Problem,
    capacity: int, states: bool = True,
) -> tuple[Decision, Carry]:  # fmt: skip
    """Simulate one run; return every round in full, and the final state.

    The final state says whether a query was lost (`Carry.overflow`). This function can be compiled
    and batched; its arguments are those of `trace`.
    """
    instance = draw_instance(key, source, jnp.asarray(arrival_rate, float), problem)
    carry = start(policy, problem, instance, capacity, contract.is_third_party(policy))

    def step(carry: Carry, round_: Array) -> tuple[Carry, Decision]:
        carry, decision = run_round(policy, problem, instance, carry, round_)
        return carry, decision if states else decision._replace(state=())

    rounds = jnp.arange(1, problem.horizon + 1, dtype=jnp.int32)
    carry, decisions = jax.lax.scan(step, carry, rounds)
    return decisions, carry


def trace(
    key: Array, policy: Policy, source: Source, arrival_rate: Array | float, problem: Problem,
    capacity: int, states: bool = True,
) -> Decision:  # fmt: skip
    """Run once and return every round in full: each field of `Decision` with a leading [T].

    For tests and notebooks; `sweep` is the batched way.

    Args:
        key: the run's key, `rng.run_key(seed)`.
        policy: decides and learns.
        source: where queries come from.
        arrival_rate: lambda, queries per round.
        problem: the static settings, `source.problem(K, T)`.
        capacity: queue slots.
        states: whether to return the policy's state after every round. This takes T times its size:
            85 GB for ACQB at N = 11, d = 384 and T = 5,000. If False, `state` is ().

    Raises:
        QueueOverflow: a query found no free slot.
        ContractError: an action of a user-defined policy breaks the contract.
    """
    decisions, carry = run_rounds(key, policy, source, arrival_rate, problem, capacity, states)
    if isinstance(carry.overflow, jax.core.Tracer):
        raise TypeError("trace cannot be traced: under jit or vmap use simulate.run_rounds")
    if carry.overflow > 0:
        raise queueing.QueueOverflow(
            f"capacity={capacity} overflowed in round {carry.overflow}: raise it"
        )
    if carry.breach is not None and carry.breach.round > 0:
        first, slot, servers = carry.breach
        raise contract.ContractError(
            contract.describe_breach(problem, int(first), int(slot), servers)
        )
    return decisions
