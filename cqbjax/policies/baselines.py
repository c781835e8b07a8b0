"""Policies that learn nothing online: optimal, random, and a router trained beforehand."""

from typing import Literal

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from cqbjax import linalg, mnl, queueing, rng
from cqbjax.pytree import check_words, pytree, static
from cqbjax.types import Action, Feedback, Observation, Problem

State = tuple[()]
# A queue rule, or `joint`: the query and the assortment of the highest score together.
Schedule = Literal["joint", "oldest", "newest", "least_served", "random"]


def best_pair(utilities: Array, observation: Observation) -> tuple[Array, Array]:
    """Return argmax over waiting queries x and assortments S of R(x, S).

    Args:
        utilities: [C, N] utilities of each slot's query.
        observation: the round.

    Returns:
        Slot ([] int32) and servers ([K] int32); ties go to the lowest slot and servers.
    """
    size = observation.problem.assortment_size
    here = queueing.waiting(observation.queue)
    score = jnp.where(here, mnl.best_score(utilities, size), -jnp.inf)
    slot = linalg.first_argmax(score)
    return slot, mnl.best_servers(utilities[slot], size)


def random_assortment(key: Array, problem: Problem) -> Array:
    """Draw the rank of an assortment uniformly from C: [] int32, in lexicographic order."""
    count = mnl.num_assortments(problem.num_servers, problem.assortment_size)
    return jax.random.randint(rng.stream_key(key, rng.Stream.ASSORTMENT), (), 0, count, jnp.int32)


class LearnsNothing:
    """The empty state of a policy that learns nothing online."""

    def init(self, problem: Problem, contexts: Array) -> State:
        """Return the empty state."""
        del problem, contexts
        return ()

    def update(
        self, state: State, observation: Observation, action: Action, feedback: Feedback
    ) -> State:
        """Learn nothing."""
        del observation, action, feedback
        return state


@pytree
class Optimal(LearnsNothing):
    """The optimal policy pi*, which knows theta*: the pair of the largest true departure rate."""

    informed = True

    def select(self, key: Array, state: State, observation: Observation) -> Action:
        """Take the best pair under the true utilities."""
        del key, state
        assert observation.utilities is not None
        slot, servers = best_pair(observation.utilities, observation)
        return Action(slot, servers, jnp.bool_(False))


@pytree
class RandomRouting(LearnsNothing):
    """RAND (`schedule="random"`) and RAND_ROUT (`schedule="oldest"`): a uniform assortment.

    Attributes:
        schedule: the queue rule that picks the query.
    """

    schedule: queueing.Rule = static(default="random")

    informed = False

    def check(self, problem: Problem) -> None:
        """Refuse an unknown queue rule.

        Raises:
            ValueError: naming it and those that there are.
        """
        del problem
        check_words(self)

    def select(self, key: Array, state: State, observation: Observation) -> Action:
        """Pick the query by the rule and the assortment uniformly."""
        del state
        problem = observation.problem
        query = rng.uniform(key, rng.Stream.QUERY)
        rank = random_assortment(key, problem)
        servers = mnl.unrank_assortment(rank, problem.num_servers, problem.assortment_size)
        slot = queueing.pick(self.schedule, observation.queue, query)
        return Action(slot, servers, jnp.bool_(False))


@pytree
class Routed(LearnsNothing):
    """A router trained beforehand: fixed scores for every prompt and server.

    Attributes:
        scores: [P, N] predicted utility of every prompt of the dataset, higher is better; or [I, N]
            of every row of the run's own context table, if `by="row"`.
        by: what the rows of `scores` are: `prompt`, the same for all runs, or `row`. A row is
            another prompt in each run: give `sweep` such a policy in a `PerSeed`.
        schedule: `oldest` (FIFO, as the paper pairs routers), any other queue rule, or `joint`
            (priority: the query and assortment of the highest predicted scores).
    """

    scores: Array
    by: Literal["prompt", "row"] = static(default="prompt")
    schedule: Schedule = static(default="oldest")

    informed = False

    def check(self, problem: Problem) -> None:
        """Refuse an unknown word, and scores that do not fit the source.

        Raises:
            ValueError: naming the word, or what is wrong with `scores`.
        """
        check_words(self)
        scores = np.asarray(self.scores)
        if self.by == "prompt":
            rows, what = problem.num_prompts or problem.num_rows, "the source {} prompts"
        else:
            rows, what = problem.num_rows, "a run's table {} rows"
        if scores.ndim != 2 or scores.shape[0] != rows:
            raise ValueError(f"scores has {scores.shape[0]} rows, and {what.format(rows)}")
        if scores.shape[1] != problem.num_servers:
            raise ValueError(
                f"scores has {scores.shape[1]} columns, the source {problem.num_servers} servers"
            )
        if not np.isfinite(scores).all():
            raise ValueError("scores must be finite numbers")

    def select(self, key: Array, state: State, observation: Observation) -> Action:
        """Take the K servers of the highest scores for the query picked."""
        del state
        rows = observation.queue.row
        scores = self.scores[observation.prompts[rows] if self.by == "prompt" else rows]
        if self.schedule == "joint":
            slot, servers = best_pair(scores, observation)
            return Action(slot, servers, jnp.bool_(False))
        query = rng.uniform(key, rng.Stream.QUERY)
        slot = queueing.pick(self.schedule, observation.queue, query)
        servers = mnl.best_servers(scores[slot], observation.problem.assortment_size)
        return Action(slot, servers, jnp.bool_(False))
