"""A router trained beforehand: fixed scores, paired with a schedule."""

from typing import Literal

import jax.numpy as jnp
import numpy as np
from jax import Array

from cqbjax.core import mnl, queueing, rng
from cqbjax.core.pytree import check_options, option, pytree, static
from cqbjax.core.types import Action, Feedback, Needs, Observation, Problem
from cqbjax.policies import retries
from cqbjax.policies.picking import best_answer
from cqbjax.policies.retries import RecallBy, Retry, Tally


@pytree
class Routed:
    """A router trained beforehand: fixed scores for every prompt and server.

    Attributes:
        scores: [P, N] predicted utility of every prompt of the dataset, higher is better; or [I, N]
            of every row of the run's own context table, if `by="row"`.
        by: what the rows of `scores` are: `prompt`, the same for all runs, or `row`. A row is
            another prompt in each run: give `sweep` such a policy in a `PerSeed`.
        schedule: `oldest` (FIFO, as the paper pairs routers), any other queue rule, or `joint`
            (priority: the query and assortment of the highest predicted scores).
        retry: what a query gets when it comes back: `same` (as in the paper), `fallback` (the
            servers not shown yet, best first; priority then goes by the next assortment),
            `posterior` (scores are log-odds, and fall with the query's own failures), `recall`
            (they follow what all queries of its prompt met) or `cache` (as `fallback`, the servers
            first that satisfied a query of its prompt).
        precision: of `posterior` and `recall`, `retries.after_outcomes`.
        recall_by: by what `recall` and `cache` know a prompt: its `row` of the table, or its
            `embedding`.
    """

    scores: Array
    by: Literal["prompt", "row"] = static(default="prompt")
    schedule: queueing.Schedule | Array = option(default="oldest")
    retry: Retry = static(default="same")
    precision: Array | float = 1.0
    recall_by: RecallBy = static(default="row")

    @property
    def needs(self) -> Needs:
        """Return what the retry rule needs."""
        return Needs(offer_counts=retries.needs_offer_counts(self.retry))

    def init(self, problem: Problem, contexts: Array) -> Tally | None:
        """Return what is remembered of prompts: nothing, or an empty tally."""
        return retries.begin(self.retry, problem, contexts, self.recall_by)

    def update(
        self, state: Tally | None, observation: Observation, action: Action, feedback: Feedback
    ) -> Tally | None:
        """Remember what became of the prompt, if it is to be recalled."""
        return retries.add(state, observation, action, feedback)

    def check(self, problem: Problem) -> None:
        """Refuse an unknown word, and scores that do not fit the source.

        Raises:
            ValueError: naming the word, or what is wrong with `scores`.
        """
        check_options(self)
        retries.check_precision(self.precision)
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

    def select(self, key: Array, state: Tally | None, observation: Observation) -> Action:
        """Take the K servers of the highest scores for the query picked."""
        which = observation.prompts if self.by == "prompt" else observation.queue.row
        query = rng.uniform(key, rng.Stream.QUERY)
        scores = retries.revised(self.retry, self.scores[which], observation, state, self.precision)
        slot, picks = best_answer(self.schedule, observation, scores, query, self.retry)
        return Action(slot, mnl.sort_picks(picks), jnp.bool_(False))
