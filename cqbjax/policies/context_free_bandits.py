"""Bandits that ignore contexts: Q-UCB, Q-ThS, and one ranking of the LLMs for all queries.

Q-UCB and Q-ThS are Algorithms 1 and 2 of Krishnasamy et al. (2021). `LlmRanking` is what gateways
deploy today.
"""

from typing import Literal, NamedTuple

import jax.numpy as jnp
from jax import Array

from cqbjax.core import mnl, queueing, rng
from cqbjax.core.inputs import Condition, is_number, read_when
from cqbjax.core.pytree import check_options, pytree, static
from cqbjax.core.types import Action, Feedback, Needs, Observation, Problem
from cqbjax.policies import retries
from cqbjax.policies.assortments import (
    choose_query_and_servers,
    draw_assortment_rank,
    draw_log_gammas,
    mask_unavailable,
    replace_unavailable,
)
from cqbjax.policies.retries import Tally


class PlayCounts(NamedTuple):
    """Counts of each server.

    Attributes:
        played: [N] int32, T_S(t-1).
        accepted: [N] int32, successes.
    """

    played: Array
    accepted: Array


@pytree
class QueueingBandit:
    """Q-UCB or Q-ThS for K = 1: FIFO, exploration with probability min(1, 3 N log(t)^2 / t).

    Attributes:
        index: `ucb` (mu + sqrt(log(t)^2 / (2 T_S))) or `thompson` (a Beta posterior sample).
    """

    index: Literal["ucb", "thompson"] = static(default="ucb")

    needs = Needs(contexts=False)

    def check(self, problem: Problem) -> None:
        """Validate the index, and that K = 1, for which the algorithms are defined.

        Raises:
            ValueError: naming what is allowed.
        """
        check_options(self)
        if problem.assortment_size != 1:
            raise ValueError(
                f"q_ucb and q_ths are defined for K=1 only, and K={problem.assortment_size}: "
                "leave them out of `policies`"
            )

    def init(self, problem: Problem, contexts: Array) -> PlayCounts:
        """Return empty counts."""
        zeros = jnp.zeros(problem.num_servers, jnp.int32)
        return PlayCounts(zeros, zeros)

    def select(self, key: Array, state: PlayCounts, observation: Observation) -> Action:
        """Serve the oldest query with a random server or the server of the highest index."""
        problem, t = observation.problem, observation.round.astype(float)
        rate = jnp.minimum(1.0, 3.0 * problem.num_servers * jnp.log(t) ** 2 / t)
        explored = rng.uniform(key, rng.Stream.EXPLORE) < rate
        if self.index == "ucb":
            played = jnp.maximum(state.played, 1.0)
            index = state.accepted / played + jnp.sqrt(jnp.log(t) ** 2 / (2.0 * played))
            index = jnp.where(state.played > 0, index, jnp.inf)
        else:
            index = self.sample(key, state)
        index = mask_unavailable(index, observation, -jnp.inf)
        server = jnp.where(explored, draw_assortment_rank(key, problem), jnp.argmax(index))
        slot = queueing.pick("oldest", observation.queue, jnp.zeros(()))
        servers = replace_unavailable(key, server.astype(jnp.int32)[None], observation)
        return Action(slot, servers, explored)

    def sample(self, key: Array, state: PlayCounts) -> Array:
        """Draw from Beta(successes + 1, failures + 1) of each server, as `jax.random.beta`: [N]."""
        failed = state.played - state.accepted
        logarithms = draw_log_gammas(key, state.accepted + 1.0, failed + 1.0)
        scaled = jnp.exp(logarithms - jnp.max(logarithms, axis=0))
        return scaled[0] / (scaled[0] + scaled[1])

    def update(
        self, state: PlayCounts, observation: Observation, action: Action, feedback: Feedback
    ) -> PlayCounts:
        """Count the play and, if the answer was accepted, the success."""
        servers = jnp.arange(observation.problem.num_servers)
        here = (servers == action.servers[0]) & feedback.valid
        return PlayCounts(state.played + here, state.accepted + (here & (feedback.choice == 0)))


class RankingState(NamedTuple):
    """Counts of each server, and outcomes by prompt.

    Attributes:
        offered: [N] int32, attempts with the server whose feedback arrived.
        accepted: [N] int32, attempts of these in which the server's answer was accepted.
        tally: outcomes by prompt for `retry="cache"`, else None.
    """

    offered: Array
    accepted: Array
    tally: Tally | None


@read_when(tries=Condition("index", "best"))
@pytree
class LlmRanking:
    """One ranking of the LLMs for all queries, which are served FIFO.

    Attributes:
        index: `best`: explore then commit. Assortments take turns until each server that answers
            was offered `tries` times; then the ranking by share of accepted answers is fixed.
            `thompson`: in every round, servers are ranked by draws from Beta(1 + accepted, 1 + not
            accepted) (Thompson 1933).
        tries: how often `index="best"` offers each server before it fixes the ranking.
        retry: how a query that returns is routed: `same`; `fallback`, the next server in the
            ranking, as gateways do; or `cache`, first the server that satisfied the same prompt
            before.
    """

    index: Literal["best", "thompson"] = static(default="best")
    tries: Array | float = 10.0
    retry: Literal["same", "fallback", "cache"] = static(default="same")

    @property
    def needs(self) -> Needs:
        """Return what the retry rule needs; contexts are not needed."""
        return Needs(contexts=False, offer_counts=retries.needs_offer_counts(self.retry))

    def check(self, problem: Problem) -> None:
        """Validate the options and the number of tries.

        Raises:
            ValueError: naming the setting and what is allowed.
        """
        check_options(self)
        if not is_number(self.tries) or not float(self.tries) >= 1:
            raise ValueError(f"tries={self.tries} must be a number, at least 1")

    def init(self, problem: Problem, contexts: Array) -> RankingState:
        """Return empty counts."""
        zeros = jnp.zeros(problem.num_servers, jnp.int32)
        return RankingState(zeros, zeros, retries.init_tally(self.retry, problem, contexts))

    def select(self, key: Array, state: RankingState, observation: Observation) -> Action:
        """Serve the oldest query with the assortment whose turn it is, or with the best servers."""
        problem = observation.problem
        trying = self._trying(state, observation)
        accepted, failed = state.accepted + 1.0, state.offered - state.accepted + 1.0
        if self.index == "best":
            log_odds = jnp.log(accepted) - jnp.log(failed)
        else:
            drawn = draw_log_gammas(key, accepted, failed)
            log_odds = drawn[0] - drawn[1]
        utilities = jnp.broadcast_to(log_odds, (len(observation.queue.row), problem.num_servers))
        utilities = retries.revise_utilities(
            self.retry, utilities, observation, state.tally, jnp.ones(())
        )
        slot, best = choose_query_and_servers(
            "oldest", observation, utilities, jnp.zeros(()), self.retry
        )
        turn = observation.round % mnl.num_assortments(problem.num_servers, problem.assortment_size)
        tried = mnl.unrank_assortment(turn, problem.num_servers, problem.assortment_size)
        tried = replace_unavailable(key, tried, observation)
        return Action(slot, jnp.where(trying, tried, mnl.sort_picks(best)), trying)

    def _trying(self, state: RankingState, observation: Observation) -> Array:
        """Return whether a server that answers was offered fewer than `tries` times: [] bool."""
        if self.index != "best":
            return jnp.bool_(False)
        return jnp.min(mask_unavailable(state.offered, observation, jnp.inf)) < self.tries

    def update(
        self, state: RankingState, observation: Observation, action: Action, feedback: Feedback
    ) -> RankingState:
        """Count offered and chosen servers; `best` stops counting when it commits."""
        number = observation.problem.num_servers
        counts = feedback.valid
        if self.index == "best":
            counts = counts & self._trying(state, observation)
        return RankingState(
            state.offered + (mnl.mark_servers(action.answering_servers, number) & counts),
            state.accepted + (mnl.mark_choice(action.servers, feedback.choice, number) & counts),
            retries.update_tally(state.tally, observation, action, feedback),
        )
