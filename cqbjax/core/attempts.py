"""Attempts to answer a query, steps 1 to 4 of a round: one per service channel.

An attempt begins on a free channel and ends in the same round, or in a later one if its service
time is longer (`core.scenario`). A query whose assortment holds no server that answers is not
attempted: it continues to wait as if it had not been selected. All masks of the four steps are
here.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from cqbjax.core import contract, linalg, mnl, queueing, rng
from cqbjax.core.carry import Attempt, Carry, PendingFeedback
from cqbjax.core.instances import Instance, choice_uniform
from cqbjax.core.observations import hide_slots, true_utilities
from cqbjax.core.types import DOWN_UTILITY, Feedback, Observation, Policy, Problem


class AttemptRunner(NamedTuple):
    """The attempts of one round.

    Attributes:
        policy: decides and learns.
        problem: the static settings.
        instance: the part of the run that is fixed before round 1.
        carry: the state at the beginning of the round.
        round_: [] int32 t.
        seen: the policy's observation.
        key: the key of the round.
    """

    policy: Policy
    problem: Problem
    instance: Instance
    carry: Carry
    round_: Array
    seen: Observation
    key: Array

    @property
    def slots(self) -> Array:
        """The numbers of the queue's slots, [C] int32."""
        return jnp.arange(self.carry.queue.row.shape[0])

    def each(self, step: Callable[..., tuple[Any, Any]], carried: Any, each: Any) -> Any:
        """Take a step for each channel in turn; with c > 1, results are stacked: [c, ...]."""
        if self.problem.channels == 1:
            return step(carried, 0, each)
        places = jnp.arange(self.problem.channels, dtype=jnp.int32)
        return jax.lax.scan(lambda carried, at: step(carried, *at), carried, (places, each))

    def begin(self, taken: Any, place: Any, running: Attempt | None) -> tuple[Any, Attempt]:
        """Steps 1 and 2 for a free channel; queries taken by other channels are hidden."""
        hidden, breach = taken
        workload, dynamics, round_ = self.instance.workload, self.instance.dynamics, self.round_
        queue = self.carry.queue
        seen, own, uniform = self.seen, self.key, self.instance.choice_uniforms[round_ - 1]
        if self.problem.channels > 1:
            seen, uniform = hide_slots(seen, hidden), uniform[place]
            own = jax.random.fold_in(rng.stream_key(own, rng.Stream.CHANNELS), place)
        decided = action = self.policy.select(own, self.carry.state, seen)
        available, answered = None if dynamics is None else dynamics.available(round_), None
        if available is not None:
            shown = action.mask_hidden(available[action.servers], False)
            answered = jnp.any(shown)
            if action.shown is not None or self.problem.assortment_size > 1:
                action = action._replace(shown=shown)
        row = queue.row[action.slot]
        utilities = true_utilities(self.instance, row, round_)
        if workload.log is None:
            uniform = choice_uniform(self.problem, self.instance, queue, action, uniform)
            choice = mnl.choose(
                uniform, action.mask_hidden(utilities[action.servers], DOWN_UTILITY)
            )
        else:
            choice = jnp.where(workload.log.satisfied[row], 0, self.problem.assortment_size)
        valid, last = self.carry.length > 0, round_
        if dynamics is not None:
            valid = jnp.any(queueing.mark_waiting(seen.queue))
            last = (
                round_
                + dynamics.service_time(
                    round_, place, workload.prompts[row], action.answering_servers
                )
                - 1
            )
            last = last if answered is None else jnp.where(answered, last, round_)
            valid = valid if running is None else valid & ~running.active
            served = valid if answered is None else valid & answered
            hidden = hidden | (served & (self.slots == action.slot))
        if breach is not None:
            breach = contract.record_breach(
                breach, self.problem, seen.queue, decided, round_, valid
            )
        begun = Attempt(action, utilities, choice, valid, last, answered)
        if running is not None:
            begun = jax.tree.map(
                lambda old, new: jnp.where(running.active, old, new), running, begun
            )
        return (hidden, breach), begun

    def end(self, changed: Any, place: Any, attempt: Attempt) -> tuple[Any, Any]:
        """Steps 3 and 4 of an attempt, if it ends in this round."""
        state, queue, back, late = changed
        dynamics, round_ = self.instance.dynamics, self.round_
        action, told, slot = attempt.action, attempt.choice, attempt.action.slot
        over = attempt.active if dynamics is None else attempt.active & (attempt.last <= round_)
        # Without an answer there is no outcome: nothing is paid, learnt or counted.
        ends = over if attempt.answered is None else over & attempt.answered
        departed = ends & (attempt.choice < self.problem.assortment_size)
        gone, heard, gave_up = departed, ends, None
        if dynamics is not None:
            reaction = dynamics.react(round_, place, self.carry.queue.served[slot] + 1)
            gave_up = ends & ~departed & reaction.leaves
            gone, slot = departed | gave_up, jnp.where(ends, slot, len(self.slots))
            back = jnp.where(self.slots == slot, round_ + reaction.away, back)
            likeliest = linalg.first_argmax(
                action.mask_hidden(attempt.utilities[action.servers], DOWN_UTILITY)
            )
            told = jnp.where(gave_up & reaction.pretends, likeliest, told)
            reaches = dynamics.feedback_arrives(round_, place)
            heard = ends if reaches is None else ends & reaches
        late, state = self._learn(late, state, place, PendingFeedback(None, action, told, heard))
        logged = self.instance.workload.log
        next_row = None if logged is None else logged.next[queue.row[action.slot]]
        queue = queueing.serve(queue, slot, action.answering_servers, gone, round_, next_row)
        return (state, queue, back, late), (over, ends, departed, gave_up)

    def _learn(self, late: Any, state: Any, place: Any, lesson: PendingFeedback) -> tuple[Any, Any]:
        """Step 4: return the pending feedback and the policy's state."""
        problem, round_, seen, action = self.problem, self.round_, self.seen, lesson.action
        number = None if problem.channels == 1 else (round_ - 1) * problem.channels + place + 1
        lasting = self.carry.dynamics is not None and self.carry.dynamics.attempts is not None
        if late is not None or lasting:
            lesson = lesson._replace(query=queueing.slot_entry(self.carry.queue, action.slot))
            late, lesson = _delay_feedback(late, lesson, round_, place)
            seen = _restore_query(seen, self.instance, lesson)
        feedback = Feedback(lesson.choice, lesson.heard, number)
        return late, self.policy.update(state, seen, lesson.action, feedback)


def _delay_feedback(
    late: Any, lesson: PendingFeedback, round_: Array, place: Any
) -> tuple[Any, PendingFeedback]:
    """Store new feedback and return the feedback that is due; without a delay, the new one."""
    if late is None:
        return None, lesson
    at = (round_ - 1) % len(late.heard), place
    due = jax.tree.map(lambda kept: kept[at], late)
    return jax.tree.map(lambda kept, new: kept.at[at].set(new), late, lesson), due


def _restore_query(seen: Observation, instance: Instance, lesson: PendingFeedback) -> Observation:
    """Show a query as it was when it was served; another query may have its slot by now."""
    workload, slot, was = instance.workload, lesson.action.slot, lesson.query
    return seen._replace(
        queue=jax.tree.map(lambda leaf, own: leaf.at[slot].set(own), seen.queue, was),
        features=seen.features.at[slot].set(workload.contexts[was.row]),
        prompts=seen.prompts.at[slot].set(workload.prompts[was.row]),
    )
