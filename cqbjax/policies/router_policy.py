"""A router trained offline: fixed scores, paired with a schedule."""

from typing import Literal

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.scipy.special import logit

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
        types: [G, N] departure probabilities of types of prompts; `scores` is then the
            log-probability [P, G] or [I, G] of each prompt's type (`score_by_type`). All retry
            rules except `same` condition on the failures of the query; `recall` and `cache`
            condition on all outcomes of its prompt, and `precision` has no effect. None: scores
            are utilities.
    """

    scores: Array
    by: Literal["prompt", "row"] = static(default="prompt")
    schedule: queueing.Schedule | Array = option(default="oldest")
    retry: Retry = static(default="same")
    precision: Array | float = 1.0
    recall_by: RecallBy = static(default="row")
    types: Array | None = None

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
        columns = scores.shape[1] if self.types is None else np.shape(self.types)[1]
        if columns != problem.num_servers:
            raise ValueError(
                f"scores has {columns} columns, the source {problem.num_servers} servers"
            )
        if not np.isfinite(scores).all():
            raise ValueError("scores must be finite numbers")

    def select(self, key: Array, state: Tally | None, observation: Observation) -> Action:
        """Serve the query of the schedule with the K servers of the highest scores."""
        which = observation.prompts if self.by == "prompt" else observation.queue.row
        scores, retry = self.scores[which], self.retry
        if self.types is not None:
            scores = score_by_type(scores, self.types, *self._read_outcomes(state, observation))
            # The scores hold the outcomes already.
            retry = "same" if retry in ("posterior", "recall") else retry
        slot, best = choose_query_and_servers(
            self.schedule, observation, scores, rng.uniform(key, rng.Stream.QUERY), retry, state,
            self.precision,
        )  # fmt: skip
        return Action(slot, mnl.sort_picks(best), jnp.bool_(False))

    def _read_outcomes(self, tally: Tally | None, observation: Observation) -> tuple[Array, Array]:
        """Return acceptances and failures that the retry rule sees, of slots and servers: [C, N].

        All servers offered to a waiting query failed it. A tally of its prompt counts them too.
        """
        queue = observation.queue
        if tally is not None:
            place = tally.locate(queue.row)
            return tally.accepted[place], tally.failed[place]
        shape = (*queue.row.shape, observation.problem.num_servers)
        zeros = jnp.zeros(shape, jnp.int32)
        return zeros, zeros if self.retry == "same" else retries.read_offer_counts(queue)


def score_by_type(log_prior: Array, types: Array, accepted: Array, failed: Array) -> Array:
    """Return the log-odds that each server satisfies, given outcomes of the same prompt.

    A prompt of type g departs with probability q_gn after an answer of server n, independently of
    its other answers. Outcomes weigh the types by Bayes' rule, and the result is the log-odds of
    the posterior mean of q_gn.

    Args:
        log_prior: [C, G] log-probabilities of types, up to a constant.
        types: [G, N] q.
        accepted: [C, N] how often a server's answer satisfied.
        failed: [C, N] how often it did not.

    Returns:
        [C, N].
    """
    accepted, failed = accepted.astype(types.dtype), failed.astype(types.dtype)
    evidence = accepted @ jnp.log(types).T + failed @ jnp.log1p(-types).T
    posterior = jax.nn.softmax(log_prior + evidence, axis=-1)
    return logit(posterior @ types)
