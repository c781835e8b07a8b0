"""Recorders of answers: cost, quality and share of traffic."""

import dataclasses
from collections.abc import Mapping

import jax.numpy as jnp
import numpy as np
from jax import Array

from cqbjax.core import mnl
from cqbjax.core.labels import LLM
from cqbjax.core.recorders.protocol import Recorder, Round, Summary, SumRecorder, Sums
from cqbjax.core.types import AnswerCosts, Problem, mask_unoffered


class Ratio(SumRecorder):
    """A ratio of two sums over the rounds so far; the terms are numerator and denominator."""

    def read(self, state: Sums) -> Array:
        """Return the ratio; NaN if the denominator is zero."""
        numerator, denominator = state[0]
        return jnp.where(denominator > 0, numerator / denominator, jnp.nan)


def answer_costs(round_: Round) -> tuple[AnswerCosts, Array]:
    """Return the costs and scores of a round's workload, and the table rows of its attempts."""
    costs = round_.workload.answer_costs
    assert costs is not None, "the source must have costs and scores"
    return costs, round_.before.row[round_.action.slot]


def attempt_cost(round_: Round) -> Array:
    """Return the cost of the answers of a round's attempts, at its prices, in USD: [], or [c]."""
    costs, row = answer_costs(round_)
    servers = round_.action.servers
    each = costs.dollars[row[..., None], servers]
    if round_.prices is not None:
        each = each * round_.prices[servers]
    return jnp.sum(mask_unoffered(round_.action.offered, each, 0.0), axis=-1)


def chosen_server(round_: Round) -> Array:
    """Return the server that the user chose in each attempt of a round: [], or [c].

    If the user chose no server, the result is an arbitrary server.
    """
    servers = round_.action.servers
    choice = jnp.minimum(round_.choice, servers.shape[-1] - 1)[..., None]
    return jnp.take_along_axis(servers, choice, axis=-1)[..., 0]


class TableRatio(Ratio):
    """Base class of ratios that need the costs or scores of answers."""

    def check(self, problem: Problem) -> None:
        """Raise ValueError, naming the recorder, for a source without costs and scores."""
        if not problem.has_costs:
            raise ValueError(
                f"record={self.name} needs a table with costs and scores, and this source has none"
            )


@dataclasses.dataclass(frozen=True)
class CostPerQuery(TableRatio):
    """The cost of all answers in USD, divided by the number of satisfied queries."""

    name, label, unit, better = "dollars", "Dollars a query", "USD a satisfied query", "less"

    def terms(self, round_: Round) -> tuple[Array, Array]:
        """Return the cost, and the departures."""
        cost = jnp.where(round_.valid, attempt_cost(round_), 0.0)
        return cost, round_.departed.astype(float)


@dataclasses.dataclass(frozen=True)
class AnswerScore(TableRatio):
    """The mean graded quality of the accepted answers."""

    name, label, unit, better = "score", "Score of the accepted answer", "", "more"

    def terms(self, round_: Round) -> tuple[Array, Array]:
        """Return the accepted answers' scores, and the departures."""
        costs, row = answer_costs(round_)
        score = costs.scores[row, chosen_server(round_)]
        return jnp.where(round_.departed, score, 0.0), round_.departed.astype(float)


# Up to this many servers, tables have a column for each share; the arrays have all.
MAX_SUMMARIES = 16


@dataclasses.dataclass(frozen=True)
class TrafficShare(Recorder):
    """Each server's share of all answers."""

    name, label, unit, dims = "traffic", "Share of traffic", "", (LLM,)

    def start(self, problem: Problem) -> Array:
        """Return zero counts."""
        return jnp.zeros(problem.num_servers, jnp.int32)

    def update(self, state: Array, round_: Round) -> Array:
        """Count the servers that answered."""
        action = round_.action
        if action.servers.ndim == 1:
            return state + (mnl.mark_servers(action.answering_servers, len(state)) & round_.valid)
        answers = jnp.broadcast_to(round_.valid[:, None], action.servers.shape)
        return state.at[action.servers].add(
            mask_unoffered(action.offered, answers, False).astype(jnp.int32)
        )

    def read(self, state: Array) -> Array:
        """Return the shares; NaN before the first answer."""
        return state / jnp.sum(state)

    def summaries(self, stored: np.ndarray, horizon: int) -> Mapping[str, Summary]:
        """Return each server's share if there are at most `MAX_SUMMARIES` servers."""
        if stored.shape[-1] > MAX_SUMMARIES:
            return {}
        return {
            f"traffic_{j}": Summary(stored[..., j], self.label, self.unit, "", server=j)
            for j in range(stored.shape[-1])
        }
