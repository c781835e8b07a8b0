"""Attempts to answer a query, steps 1 to 4 of a round: one at each place that the service has.

An attempt is begun at a free place and ends in the same round, or in a later one where answers
take longer (`core.rules`). A query whose assortment holds no server that answers is not attempted:
it waits on as if it had not been picked. All masks of the four steps are here.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from cqbjax.core import contract, linalg, mnl, queueing, rng
from cqbjax.core.carry import Attempt, Carry, Lesson
from cqbjax.core.instances import Instance, choice_uniform
from cqbjax.core.observations import true_utilities, without
from cqbjax.core.types import DOWN, Feedback, Observation, Policy, Problem


class Places(NamedTuple):
    """Where a round's attempts are made.

    Attributes:
        policy: decides and learns.
        problem: shapes.
        instance: the run's fixed part.
        carry: the state at the beginning of the round.
        round_: [] int32 t.
        seen: what the policy sees.
        key: the round's.
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
        """Take a step at the one place, or at one after another: what is made is [c, ...]."""
        if self.problem.places == 1:
            return step(carried, 0, each)
        places = jnp.arange(self.problem.places, dtype=jnp.int32)
        return jax.lax.scan(lambda carried, at: step(carried, *at), carried, (places, each))

    def begin(self, taken: Any, place: Any, running: Attempt | None) -> tuple[Any, Attempt]:
        """Steps 1 and 2 at a free place; whom another has taken is not shown."""
        hidden, breach = taken
        world, rules, round_ = self.instance.world, self.instance.rules, self.round_
        queue = self.carry.queue
        seen, own, uniform = self.seen, self.key, self.instance.choice[round_ - 1]
        if self.problem.places > 1:
            seen, uniform = without(seen, hidden), uniform[place]
            own = jax.random.fold_in(rng.stream_key(own, rng.Stream.PLACES), place)
        decided = action = self.policy.select(own, self.carry.state, seen)
        available, answered = None if rules is None else rules.available(round_), None
        if available is not None:
            shown = action.of_shown(available[action.servers], False)
            answered = jnp.any(shown)
            if action.shown is not None or self.problem.assortment_size > 1:
                action = action._replace(shown=shown)
        row = queue.row[action.slot]
        utilities = true_utilities(self.instance, row, round_)
        if world.logged is None:
            uniform = choice_uniform(self.problem, self.instance, queue, action, uniform)
            choice = mnl.choose(uniform, action.of_shown(utilities[action.servers], DOWN))
        else:
            choice = jnp.where(world.logged.satisfied[row], 0, self.problem.assortment_size)
        valid, last = self.carry.length > 0, round_
        if rules is not None:
            valid = jnp.any(queueing.waiting(seen.queue))
            last = round_ + rules.takes(round_, place, world.prompts[row], action.answering) - 1
            last = last if answered is None else jnp.where(answered, last, round_)
            valid = valid if running is None else valid & ~running.here
            served = valid if answered is None else valid & answered
            hidden = hidden | (served & (self.slots == action.slot))
        if breach is not None:
            breach = contract.watch(breach, self.problem, seen.queue, decided, round_, valid)
        begun = Attempt(action, utilities, choice, valid, last, answered)
        if running is not None:
            begun = jax.tree.map(lambda old, new: jnp.where(running.here, old, new), running, begun)
        return (hidden, breach), begun

    def end(self, changed: Any, place: Any, attempt: Attempt) -> tuple[Any, Any]:
        """Steps 3 and 4 of an attempt whose last round this is."""
        state, queue, back, late = changed
        rules, round_ = self.instance.rules, self.round_
        action, told, slot = attempt.action, attempt.choice, attempt.action.slot
        over = attempt.here if rules is None else attempt.here & (attempt.last <= round_)
        # Without an answer there is no outcome: nothing is paid, learnt or counted.
        ends = over if attempt.answered is None else over & attempt.answered
        departed = ends & (attempt.choice < self.problem.assortment_size)
        gone, heard, gave_up = departed, ends, None
        if rules is not None:
            reaction = rules.reacts(round_, place, self.carry.queue.served[slot] + 1)
            gave_up = ends & ~departed & reaction.leaves
            gone, slot = departed | gave_up, jnp.where(ends, slot, len(self.slots))
            back = jnp.where(self.slots == slot, round_ + reaction.away, back)
            likeliest = linalg.first_argmax(
                action.of_shown(attempt.utilities[action.servers], DOWN)
            )
            told = jnp.where(gave_up & reaction.pretends, likeliest, told)
            reaches = rules.hears(round_, place)
            heard = ends if reaches is None else ends & reaches
        late, state = self._learn(late, state, place, Lesson(None, action, told, heard))
        logged = self.instance.world.logged
        next_row = None if logged is None else logged.next[queue.row[action.slot]]
        queue = queueing.serve(queue, slot, action.answering, gone, round_, next_row)
        return (state, queue, back, late), (over, ends, departed, gave_up)

    def _learn(self, late: Any, state: Any, place: Any, lesson: Lesson) -> tuple[Any, Any]:
        """Step 4: what is late by now, and the policy's state."""
        problem, round_, seen, action = self.problem, self.round_, self.seen, lesson.action
        number = None if problem.places == 1 else (round_ - 1) * problem.places + place + 1
        lasting = self.carry.open is not None and self.carry.open.places is not None
        if late is not None or lasting:
            lesson = lesson._replace(query=queueing.entry(self.carry.queue, action.slot))
            late, lesson = _put_off(late, lesson, round_, place)
            seen = _as_it_was(seen, self.instance, lesson)
        feedback = Feedback(lesson.choice, lesson.heard, number)
        return late, self.policy.update(state, seen, lesson.action, feedback)


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
