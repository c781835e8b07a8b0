"""Recorders of answers: cost, quality and share of traffic."""

import abc
import dataclasses
from collections.abc import Mapping

import jax.numpy as jnp
import numpy as np
from jax import Array

from cqbjax.core import linalg, mnl
from cqbjax.core.labels import LLM
from cqbjax.core.recorders.protocol import Recorder, Round, Summary, Sums
from cqbjax.core.types import AnswerCosts, Problem


class Ratio(Recorder):
    """Base class of recorders that store the quotient of two sums over the run."""

    def start(self, problem: Problem) -> Sums:
        """Return two zero sums, numerator and denominator, as compensated sums [2]."""
        del problem
        return jnp.zeros(2), jnp.zeros(2)

    def update(self, state: Sums, round_: Round) -> Sums:
        """Add this round's numerator and denominator."""
        over, under = self.parts(round_)
        return linalg.add_compensated(*state, jnp.stack([jnp.sum(over), jnp.sum(under)]))

    @abc.abstractmethod
    def parts(self, round_: Round) -> tuple[Array, Array]:
        """Return the terms of numerator and denominator: [], or [c] with c > 1 channels."""

    def read(self, state: Sums) -> Array:
        """Return the ratio, or NaN if the denominator is zero."""
        over, under = state[0]
        return jnp.where(under > 0, over / under, jnp.nan)


def answer_costs(round_: Round) -> tuple[AnswerCosts, Array]:
    """Return the table of costs and scores, and the table rows of the served queries."""
    told = round_.workload.answer_costs
    assert told is not None, "the source must know costs and scores"
    return told, round_.before.row[round_.action.slot]


def attempt_cost(round_: Round, told: AnswerCosts, row: Array) -> Array:
    """Return the cost of all answers of each attempt, at the round's prices: [], or [c]."""
    servers = round_.action.servers
    each = told.dollars[row[..., None], servers]
    if round_.prices is not None:
        each = each * round_.prices[servers]
    return jnp.sum(round_.action.mask_hidden(each, 0.0), axis=-1)


class TableRatio(Ratio):
    """Base class of ratios that need the costs or scores of answers."""

    def check(self, problem: Problem) -> None:
        """Check that the source has costs and scores.

        Raises:
            ValueError: naming the recorder.
        """
        if not problem.has_costs:
            raise ValueError(
                f"record={self.name} needs a table with costs and scores, and this source has none"
            )


@dataclasses.dataclass(frozen=True)
class CostPerQuery(TableRatio):
    """Cost of all answers that were shown, divided by the number of satisfied queries."""

    name, label, unit, better = "dollars", "Dollars a query", "USD a satisfied query", "less"

    def parts(self, round_: Round) -> tuple[Array, Array]:
        """Return the cost of the attempts, and whether their queries departed satisfied."""
        cost = attempt_cost(round_, *answer_costs(round_))
        return jnp.where(round_.valid, cost, 0.0), round_.departed.astype(float)


@dataclasses.dataclass(frozen=True)
class AnswerScore(TableRatio):
    """Mean graded quality of the accepted answers."""

    name, label, unit, better = "score", "Score of the accepted answer", "", "more"

    def parts(self, round_: Round) -> tuple[Array, Array]:
        """Return the scores of accepted answers, and whether there was one."""
        told, row = answer_costs(round_)
        last = round_.action.servers.shape[-1] - 1
        choice = jnp.minimum(round_.choice, last)[..., None]
        server = jnp.take_along_axis(round_.action.servers, choice, axis=-1)[..., 0]
        return jnp.where(round_.departed, told.scores[row, server], 0.0), round_.departed.astype(
            float
        )


# With more servers, tables do not list their shares; the stored arrays hold them all the same.
MAX_SUMMARIES = 16


@dataclasses.dataclass(frozen=True)
class TrafficShare(Recorder):
    """For each server, its share of all answers that were shown."""

    name, label, unit, dims = "traffic", "Share of traffic", "", (LLM,)

    def start(self, problem: Problem) -> Array:
        """Return zero counts."""
        return jnp.zeros(problem.num_servers, jnp.int32)

    def update(self, state: Array, round_: Round) -> Array:
        """Count the servers that were shown."""
        action = round_.action
        if action.servers.ndim == 1:
            return state + (mnl.mark_servers(action.answering_servers, len(state)) & round_.valid)
        answers = jnp.broadcast_to(round_.valid[:, None], action.servers.shape)
        return state.at[action.servers].add(action.mask_hidden(answers, False).astype(jnp.int32))

    def read(self, state: Array) -> Array:
        """Return the shares, NaN if no answer was shown."""
        return state / jnp.sum(state)

    def summaries(self, stored: np.ndarray, horizon: int) -> Mapping[str, Summary]:
        """Return each server's share, if there are at most `MAX_SUMMARIES` servers."""
        del horizon
        if stored.shape[-1] > MAX_SUMMARIES:
            return {}
        return {
            f"traffic_{j}": Summary(stored[..., j], self.label, self.unit, "", server=j)
            for j in range(stored.shape[-1])
        }
