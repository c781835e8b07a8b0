"""Bandits that ignore contexts: Q-UCB, Q-ThS, and one ranking of the LLMs for all queries.

Q-UCB and Q-ThS are Algorithms 1 and 2 of Krishnasamy et al. (2021). `LlmRanking` is what gateways
deploy today. All three policies learn only counts of each LLM. They can be combined with any
schedule. `LlmRanking` can be combined with any retry rule, Q-UCB and Q-ThS with those that need no
log-odds.
"""

from typing import Literal, NamedTuple

import jax.numpy as jnp
from jax import Array

from cqbjax.core import mnl, queueing, rng
from cqbjax.core.inputs import Condition, check_interval, read_when
from cqbjax.core.pytree import option, pytree, static
from cqbjax.core.types import Action, Feedback, Needs, Observation, Problem
from cqbjax.policies import retries
from cqbjax.policies.assortments import (
    choose_query_and_servers,
    draw_assortment_rank,
    draw_log_gammas,
    draw_tie,
    mask_unavailable,
    replace_unavailable,
    unrank_available,
)
from cqbjax.policies.retries import Tally

# The index of a server that was never offered: above all others, and below `retries.CACHED`.
NEVER_OFFERED = 50.0
# The largest success probability whose log-odds a bound of `index="ucb"` is taken for.
LARGEST_BOUND = 0.999


class LlmCounts(NamedTuple):
    """Counts of each server, and outcomes by prompt.

    Attributes:
        offered: [N] attempts with the server whose feedback arrived, T_S(t-1) of Q-UCB. With a
            `discount` below 1 earlier attempts count less, here and in `accepted`.
        accepted: [N] how many attempts in `offered` ended with the server's answer accepted.
        tally: outcomes by prompt for `retry="cache"` and `retry="recall"`, else None.
    """

    offered: Array
    accepted: Array
    tally: Tally | None = None


class _CountBandit:
    """What the bandits of this module share.

    Attributes:
        schedule: the queue rule that picks the query, or `joint`: the query whose assortment,
            chosen by the rule `retry`, has the best index.
        retry: how a query that returns is routed (`retries.Retry`).
    """

    schedule: queueing.Schedule | Array
    retry: retries.Retry

    @property
    def needs(self) -> Needs:
        """Return what the retry rule needs; contexts are not needed."""
        return Needs(contexts=False, offer_counts=retries.needs_offer_counts(self.retry))

    def init(self, problem: Problem, contexts: Array) -> LlmCounts:
        """Return empty counts."""
        zeros = jnp.zeros(problem.num_servers)
        return LlmCounts(zeros, zeros, retries.init_tally(self.retry, problem, contexts))

    def choose(
        self, key: Array, index: Array, state: LlmCounts, observation: Observation,
        precision: Array | float = 1.0,
    ) -> tuple[Array, list[Array]]:  # fmt: skip
        """Return the slot of the schedule, and the best servers for its query.

        Args:
            key: of the round.
            index: [N] index of each server; log-odds for the rules `posterior` and `recall`.
            state: the counts.
            observation: the round.
            precision: s of those two rules.
        """
        utilities = jnp.broadcast_to(index, (len(observation.queue.row), len(index)))
        tie = draw_tie(key, self.schedule)
        return choose_query_and_servers(
            self.schedule, observation, utilities, tie, self.retry, state.tally, precision
        )

    def count(
        self, state: LlmCounts, observation: Observation, action: Action, feedback: Feedback,
        counts: Array,
    ) -> LlmCounts:  # fmt: skip
        """Count offered and chosen servers if `counts` ([] bool), and the prompt's outcome."""
        number = observation.problem.num_servers
        return LlmCounts(
            state.offered + (mnl.mark_servers(action.answering_servers, number) & counts),
            state.accepted + (mnl.mark_choice(action.servers, feedback.choice, number) & counts),
            retries.update_tally(state.tally, observation, action, feedback),
        )


@pytree
class QueueingBandit(_CountBandit):
    """Q-UCB or Q-ThS for K = 1, with exploration with probability min(1, 3 N log(t)^2 / t).

    Attributes:
        index: `ucb` (mu + sqrt(log(t)^2 / (2 T_S)) for a server that was offered T_S times before
            round t, with mu the accepted share) or `thompson` (a Beta posterior sample).
        schedule: as in `LlmRanking`.
        retry: as in `LlmRanking`, in rounds that do not explore.
        exploration: `own`, as above, or `none`.
    """

    index: Literal["ucb", "thompson"] = static(default="ucb")
    schedule: queueing.Schedule | Array = option(default="oldest")
    retry: Literal["same", "fallback", "cache"] = static(default="same")
    exploration: Literal["own", "none"] = static(default="own")

    def check(self, problem: Problem) -> None:
        """Validate the index, and that K = 1, for which the algorithms are defined.

        Raises:
            ValueError: naming what is allowed.
        """
        if problem.assortment_size != 1:
            raise ValueError(
                f"q_ucb and q_ths are defined for K=1 only, and K={problem.assortment_size}: "
                "leave them out of `policies`"
            )

    def select(self, key: Array, state: LlmCounts, observation: Observation) -> Action:
        """Serve the schedule's query with a random server or the server of the highest index."""
        problem, t = observation.problem, observation.round.astype(float)
        rate = jnp.minimum(1.0, 3.0 * problem.num_servers * jnp.log(t) ** 2 / t)
        explored = rng.uniform(key, rng.Stream.EXPLORE) < rate
        if self.exploration == "none":
            explored = jnp.zeros_like(explored)
        if self.index == "ucb":
            offered = jnp.maximum(state.offered, 1.0)
            index = state.accepted / offered + jnp.sqrt(jnp.log(t) ** 2 / (2.0 * offered))
            index = jnp.where(state.offered > 0, index, NEVER_OFFERED)
        else:
            index = self.sample(key, state)
        slot, best = self.choose(key, index, state, observation)
        server = jnp.where(explored, draw_assortment_rank(key, problem), best[0])
        servers = replace_unavailable(key, server.astype(jnp.int32)[None], observation)
        return Action(slot, servers, explored)

    def sample(self, key: Array, state: LlmCounts) -> Array:
        """Draw from Beta(successes + 1, failures + 1) of each server, as `jax.random.beta`: [N]."""
        failed = state.offered - state.accepted
        logarithms = draw_log_gammas(key, state.accepted + 1.0, failed + 1.0)
        scaled = jnp.exp(logarithms - jnp.max(logarithms, axis=0))
        return scaled[0] / (scaled[0] + scaled[1])

    def update(
        self, state: LlmCounts, observation: Observation, action: Action, feedback: Feedback
    ) -> LlmCounts:
        """Count the attempt and, if the answer was accepted, the success."""
        return self.count(state, observation, action, feedback, feedback.valid)


@read_when(
    tries=Condition("index", "best"), width=Condition("index", "ucb"),
    discount=Condition("index", "thompson", "greedy", "ucb"),
    precision=Condition("retry", "posterior", "recall"),
)  # fmt: skip
@pytree
class LlmRanking(_CountBandit):
    """One ranking of the LLMs for all queries.

    Attributes:
        index: `best`: explore then commit. Assortments take turns until each server that answers
            was offered `tries` times; then the ranking by share of accepted answers is fixed.
            `thompson`: in every round, servers are ranked by draws from Beta(1 + accepted, 1 + not
            accepted) (Thompson 1933). `greedy`: by the mean of this distribution. `ucb`: by the
            mean plus `width` standard deviations, in place of the quantile of Kaufmann (2012).
            Ties go to the lower number. With K > 1, an offered server counts as not accepted if the
            user chose another answer.
        tries: how often `index="best"` offers each server before it fixes the ranking.
        width: the standard deviations that `index="ucb"` adds to the mean.
        discount: gamma, by which each attempt multiplies all counts before it is counted, so that
            the ranking follows preferences that change (Garivier and Moulines 2011); 1: never.
        schedule: the queue rule that picks the query, or `joint`: the query whose assortment,
            chosen by the rule `retry`, has the best ranks.
        retry: how a query that returns is routed: `same`; `fallback`, the next server in the
            ranking, as gateways do; `cache`, first the server that satisfied the same prompt
            before; or `posterior` or `recall`. In these two, a server's log-odds, which are the
            same for all queries, are conditioned on the server's outcomes with the query or with
            its prompt.
        precision: s, the weight of these log-odds in `posterior` and `recall`, in attempts.
    """

    index: Literal["best", "thompson", "greedy", "ucb"] = static(default="best")
    tries: Array | float = 10.0
    width: Array | float = 1.0
    discount: Array | float = 1.0
    schedule: queueing.Schedule | Array = option(default="oldest")
    retry: retries.Retry = static(default="same")
    precision: Array | float = 1.0

    def check(self, problem: Problem) -> None:
        """Validate the options and the constants.

        Raises:
            ValueError: naming the setting and what is allowed.
        """
        check_interval(self, "[1, inf]", "tries")
        check_interval(self, "[0, inf]", "width")
        check_interval(self, "(0, 1]", "discount")
        check_interval(self, "(0, inf)", "precision")

    def select(self, key: Array, state: LlmCounts, observation: Observation) -> Action:
        """Serve a query with the assortment whose turn it is, or with the best servers."""
        problem = observation.problem
        trying = self._trying(state, observation)
        accepted, failed = state.accepted + 1.0, state.offered - state.accepted + 1.0
        if self.index == "thompson":
            drawn = draw_log_gammas(key, accepted, failed)
            index = drawn[0] - drawn[1]
        elif self.index == "ucb":
            mean = accepted / (accepted + failed)
            index = mean + self.width * jnp.sqrt(mean * (1.0 - mean) / (accepted + failed + 1.0))
            if self.retry in ("posterior", "recall"):
                bound = jnp.minimum(index, LARGEST_BOUND)
                index = jnp.log(bound) - jnp.log1p(-bound)
        else:
            index = jnp.log(accepted) - jnp.log(failed)
        slot, best = self.choose(key, index, state, observation, self.precision)
        turn = observation.round % mnl.num_assortments(problem.num_servers, problem.assortment_size)
        tried = unrank_available(key, turn, observation)
        return Action(slot, jnp.where(trying, tried, mnl.sort_picks(best)), trying)

    def _trying(self, state: LlmCounts, observation: Observation) -> Array:
        """Return whether a server that answers was offered fewer than `tries` times: [] bool."""
        if self.index != "best":
            return jnp.bool_(False)
        return jnp.min(mask_unavailable(state.offered, observation, jnp.inf)) < self.tries

    def update(
        self, state: LlmCounts, observation: Observation, action: Action, feedback: Feedback
    ) -> LlmCounts:
        """Count offered and chosen servers; `best` stops counting when it commits."""
        counts = feedback.valid
        if self.index == "best":
            counts = counts & self._trying(state, observation)
        else:
            factor = jnp.where(counts, self.discount, 1.0)
            state = state._replace(offered=factor * state.offered, accepted=factor * state.accepted)
        return self.count(state, observation, action, feedback, counts)
