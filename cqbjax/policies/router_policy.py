"""A router trained offline: fixed scores, paired with a schedule."""

from typing import Literal

import jax.numpy as jnp
import numpy as np
from jax import Array

from cqbjax.core import mnl, queueing, rng
from cqbjax.core.inputs import check_interval
from cqbjax.core.pytree import option, pytree, static
from cqbjax.core.types import Action, Feedback, Needs, Observation, Problem
from cqbjax.policies import retries
from cqbjax.policies.assortments import choose_query_and_servers
from cqbjax.policies.retries import RecallBy, Retry, Tally


@pytree
class RouterPolicy:
    """A router trained offline: fixed scores for every prompt and server.

    Attributes:
        scores: [P, N] predicted utility of each server for each prompt of the dataset; or [I, N]
            for each row of the run's context table, if `by="row"`. Higher is better.
        by: what a row of `scores` is for: `prompt`, a prompt of the dataset; or `row`, a row of the
            run's table. Row i is a different prompt for each seed, so `row` needs a `PerSeed` with
            one policy per seed.
        schedule: `oldest` (FIFO, as the paper pairs routers), any other queue rule, or `joint`
            (priority: the query and assortment with the highest predicted scores).
        retry: how a query that returns is routed: `same` (as in the paper), `fallback` (the best
            servers not offered to it yet; `joint` then ranks queries by these servers' scores),
            `posterior` (scores are log-odds, lowered by the query's own failures), `recall` (scores
            are log-odds, conditioned on the outcomes of all queries with the same prompt) or
            `cache` (as `fallback`, but first the servers that satisfied a query with the same
            prompt).
        precision: s, the weight of the scores in `posterior` and `recall`, in attempts
            (`retries.condition_on_outcomes`).
        recall_by: what identifies a prompt for `recall` and `cache`: its `row` of the table, or its
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
        """Return an empty tally if the retry rule needs one, else None."""
        return retries.init_tally(self.retry, problem, contexts, self.recall_by)

    def update(
        self, state: Tally | None, observation: Observation, action: Action, feedback: Feedback
    ) -> Tally | None:
        """Add the outcome to the tally, if there is one."""
        return retries.update_tally(state, observation, action, feedback)

    def check(self, problem: Problem) -> None:
        """Validate the options, and that the scores fit the source.

        Raises:
            ValueError: naming the option, or what is wrong with `scores`.
        """
        check_interval(self, "(0, inf)", "precision")
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
        """Serve the query of the schedule with the K servers of the highest scores."""
        which = observation.prompts if self.by == "prompt" else observation.queue.row
        slot, best = choose_query_and_servers(
            self.schedule, observation, self.scores[which], rng.uniform(key, rng.Stream.QUERY),
            self.retry, state, self.precision,
        )  # fmt: skip
        return Action(slot, mnl.sort_picks(best), jnp.bool_(False))
