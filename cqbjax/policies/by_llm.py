"""What is run today: one order of the LLMs for all queries, and no look at the query."""

from typing import Literal, NamedTuple

import jax.numpy as jnp
from jax import Array

from cqbjax.core import mnl
from cqbjax.core.inputs import is_number
from cqbjax.core.pytree import check_options, pytree, static
from cqbjax.core.types import Action, Feedback, Needs, Observation, Problem
from cqbjax.policies import retries
from cqbjax.policies.picking import best_answer, gamma_logarithms, instead, of_available
from cqbjax.policies.retries import Tally


class Shown(NamedTuple):
    """Counts of each server, and what is remembered of prompts.

    Attributes:
        shown: [N] int32, attempts with the server that were heard of.
        accepted: [N] int32, those of them whose answer was its own.
        tally: what became of every prompt's attempts, for `retry="cache"`, else None.
    """

    shown: Array
    accepted: Array
    tally: Tally | None


@pytree
class ByLlm:
    """The LLM that pleases most users, for the oldest query, whatever it asks.

    Attributes:
        index: `best`: each assortment is shown in turn until each server that answers was shown
            `tries` times, then the order of their shares of accepted answers is kept (explore then
            commit). `thompson`: the order of draws from Beta(1 + accepted, 1 + not), anew in every
            round (Thompson 1933).
        tries: of `best`, attempts.
        retry: what a query gets when it comes back: `same`; `fallback`, the next server in the
            order, as gateways do; or `cache`, first of all the server that satisfied the same
            prompt before.
    """

    index: Literal["best", "thompson"] = static(default="best")
    tries: Array | float = 10.0
    retry: Literal["same", "fallback", "cache"] = static(default="same")

    @property
    def needs(self) -> Needs:
        """Return no contexts, and what the retry rule needs."""
        return Needs(contexts=False, offer_counts=retries.needs_offer_counts(self.retry))

    def check(self, problem: Problem) -> None:
        """Refuse an unknown word, and a number of tries that is none.

        Raises:
            ValueError: naming the setting and what is allowed.
        """
        check_options(self)
        if not is_number(self.tries) or not float(self.tries) >= 1:
            raise ValueError(f"tries={self.tries} must be a number, at least 1")

    def init(self, problem: Problem, contexts: Array) -> Shown:
        """Return empty counts."""
        zeros = jnp.zeros(problem.num_servers, jnp.int32)
        return Shown(zeros, zeros, retries.begin(self.retry, problem, contexts))

    def select(self, key: Array, state: Shown, observation: Observation) -> Action:
        """Serve the oldest query by the assortment whose turn it is, or by the first servers."""
        problem = observation.problem
        trying = self._trying(state, observation)
        utilities = jnp.broadcast_to(
            self._order(key, state), (len(observation.queue.row), problem.num_servers)
        )
        revised = retries.revised(self.retry, utilities, observation, state.tally, jnp.ones(()))
        slot, picks = best_answer("oldest", observation, revised, jnp.zeros(()), self.retry)
        count = mnl.num_assortments(problem.num_servers, problem.assortment_size)
        turn = observation.round % count
        tried = mnl.unrank_assortment(turn, problem.num_servers, problem.assortment_size)
        best = mnl.sort_picks(picks)
        return Action(slot, jnp.where(trying, instead(key, tried, observation), best), trying)

    def _trying(self, state: Shown, observation: Observation) -> Array:
        """Tell whether a server that answers was shown too rarely: [] bool."""
        if self.index != "best":
            return jnp.bool_(False)
        return jnp.min(of_available(state.shown, observation, jnp.inf)) < self.tries

    def _order(self, key: Array, state: Shown) -> Array:
        """Return what servers are ordered by: [N], log-odds of a share of accepted answers."""
        accepted, failed = state.accepted + 1.0, state.shown - state.accepted + 1.0
        if self.index == "best":
            return jnp.log(accepted) - jnp.log(failed)
        drawn = gamma_logarithms(key, accepted, failed)
        return drawn[0] - drawn[1]

    def update(
        self, state: Shown, observation: Observation, action: Action, feedback: Feedback
    ) -> Shown:
        """Count who was shown and who was chosen; of `best` only while it tries."""
        number = observation.problem.num_servers
        counts = feedback.valid
        if self.index == "best":
            counts = counts & self._trying(state, observation)
        return Shown(
            state.shown + (mnl.mark_servers(action.answering_servers, number) & counts),
            state.accepted + (mnl.mark_choice(action.servers, feedback.choice, number) & counts),
            retries.add(state.tally, observation, action, feedback),
        )
