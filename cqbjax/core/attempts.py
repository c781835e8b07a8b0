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
from cqbjax.core.types import DOWN_UTILITY, Feedback, Observation, Policy, Problem, mask_unoffered


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

    def scan_channels(
        self, step: Callable[..., tuple[Any, Any]], carried: Any, inputs: Any
    ) -> tuple[Any, Any]:
        """Take a step on each channel in turn; with one channel outputs have no axis [c].

        Args:
            step: (carried, channel, input) -> (carried, output).
            carried: from channel to channel.
            inputs: leaves [c, ...] with several channels.
        """
        if self.problem.channels == 1:
            return step(carried, 0, inputs)
        channels = jnp.arange(self.problem.channels, dtype=jnp.int32)
        return jax.lax.scan(lambda carried, at: step(carried, *at), carried, (channels, inputs))

    def begin(self, carried: Any, channel: Any, running: Attempt | None) -> tuple[Any, Attempt]:
        """Select and choose (steps 1 and 2) on a channel, unless an attempt is running there.

        Args:
            carried: [C] bool the slots that other channels have taken, and the first breach.
            channel: number of the channel.
            running: its attempt from earlier rounds; None if each attempt ends in its round.
        """
        hidden, breach = carried
        workload, dynamics, round_ = self.instance.workload, self.instance.dynamics, self.round_
        queue = self.carry.queue
        seen, key, uniform = self.seen, self.key, self.instance.choice_uniforms[round_ - 1]
        if self.problem.channels > 1:
            seen, uniform = hide_slots(seen, hidden), uniform[channel]
            key = jax.random.fold_in(rng.stream_key(key, rng.Stream.CHANNELS), channel)
        selected = action = self.policy.select(key, self.carry.state, seen)
        available = None if dynamics is None else dynamics.combine("available", round_)
        answered = None
        if available is not None:
            offered = mask_unoffered(action.offered, available[action.servers], False)
            answered = jnp.any(offered)
            if action.offered is not None or self.problem.assortment_size > 1:
                action = action._replace(offered=offered)
        row = queue.row[action.slot]
        utilities = true_utilities(self.instance, row, round_)
        if workload.log is None:
            uniform = choice_uniform(self.problem, self.instance, queue, action, uniform)
            choice = mnl.choose(
                uniform, mask_unoffered(action.offered, utilities[action.servers], DOWN_UTILITY)
            )
        else:
            choice = jnp.where(workload.log.satisfied[row], 0, self.problem.assortment_size)
        valid, last = self.carry.length > 0, round_
        if dynamics is not None:
            valid = jnp.any(queueing.mark_waiting(seen.queue))
            prompt, servers = workload.prompts[row], action.answering_servers
            rounds = dynamics.combine("service_time", round_, channel, prompt, servers)
            last = round_ if rounds is None else round_ + jnp.maximum(jnp.int32(1), rounds) - 1
            last = last if answered is None else jnp.where(answered, last, round_)
            valid = valid if running is None else valid & ~running.active
            served = valid if answered is None else valid & answered
            hidden = hidden | (served & (self.slots == action.slot))
        if breach is not None:
            breach = contract.record_breach(
                breach, self.problem, seen.queue, selected, round_, valid
            )
        begun = Attempt(action, utilities, choice, valid, last, answered)
        if running is not None:
            begun = jax.tree.map(
                lambda old, new: jnp.where(running.active, old, new), running, begun
            )
        return (hidden, breach), begun

    def end(self, carried: Any, channel: Any, attempt: Attempt) -> tuple[Any, Any]:
        """Depart and learn (steps 3 and 4) if this is the attempt's last round.

        Args:
            carried: the policy's state, the queue, [C] return rounds, and pending feedback.
            channel: number of the channel.
            attempt: the channel's attempt.

        Returns:
            `carried`, and [] bool whether the attempt is over, ended with an answer, ended with the
            query's departure, and ended with its abandonment (None in the paper's scenario).
        """
        state, queue, return_rounds, pending = carried
        dynamics, round_ = self.instance.dynamics, self.round_
        action, reported, slot = attempt.action, attempt.choice, attempt.action.slot
        over = attempt.active if dynamics is None else attempt.active & (attempt.last <= round_)
        # Without an answer there is no outcome: it costs, teaches and counts nothing.
        ended = over if attempt.answered is None else over & attempt.answered
        departed = ended & (attempt.choice < self.problem.assortment_size)
        leaves, arrives, abandoned = departed, ended, None
        if dynamics is not None:
            reaction = dynamics.react(round_, channel, self.carry.queue.served[slot] + 1)
            abandoned = ended & ~departed & reaction.abandons
            leaves, slot = departed | abandoned, jnp.where(ended, slot, len(self.slots))
            return_rounds = jnp.where(
                self.slots == slot, round_ + reaction.return_delay, return_rounds
            )
            utilities = attempt.utilities[action.servers]
            likeliest = linalg.first_argmax(mask_unoffered(action.offered, utilities, DOWN_UTILITY))
            reported = jnp.where(abandoned & reaction.looks_satisfied, likeliest, reported)
            reaches = dynamics.combine("feedback_arrives", round_, channel)
            arrives = ended if reaches is None else ended & reaches
        feedback = PendingFeedback(None, action, reported, arrives)
        pending, state = self._learn(pending, state, channel, feedback)
        log = self.instance.workload.log
        next_row = None if log is None else log.next[queue.row[action.slot]]
        queue = queueing.serve(queue, slot, action.answering_servers, leaves, round_, next_row)
        return (state, queue, return_rounds, pending), (over, ended, departed, abandoned)

    def _learn(
        self, pending: Any, state: Any, channel: Any, feedback: PendingFeedback
    ) -> tuple[Any, Any]:
        """Update the policy (step 4); return the pending feedback and the policy's state."""
        problem, round_, seen = self.problem, self.round_, self.seen
        number = None if problem.channels == 1 else (round_ - 1) * problem.channels + channel + 1
        multi_round = self.carry.dynamics is not None and self.carry.dynamics.attempts is not None
        if pending is not None or multi_round:
            query = jax.tree.map(lambda leaf: leaf[feedback.action.slot], self.carry.queue)
            feedback = feedback._replace(query=query)
            if pending is not None:
                # Replace the oldest pending feedback, which is due now, by the new one.
                at = (round_ - 1) % len(pending.arrives), channel
                due = jax.tree.map(lambda leaf: leaf[at], pending)
                pending = jax.tree.map(lambda old, new: old.at[at].set(new), pending, feedback)
                feedback = due
            seen = _restore_query(seen, self.instance, feedback)
        delivered = Feedback(feedback.choice, feedback.arrives, number)
        return pending, self.policy.update(state, seen, feedback.action, delivered)


def _restore_query(seen: Observation, instance: Instance, feedback: PendingFeedback) -> Observation:
    """Show a query as it was during its attempt: another query may have its slot by now."""
    workload, slot, query = instance.workload, feedback.action.slot, feedback.query
    return seen._replace(
        queue=jax.tree.map(lambda leaf, old: leaf.at[slot].set(old), seen.queue, query),
        features=seen.features.at[slot].set(workload.contexts[query.row]),
        prompts=seen.prompts.at[slot].set(workload.prompts[query.row]),
    )
