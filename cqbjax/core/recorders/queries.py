"""A recorder with one row per query: arrival, departure, attempts, cost and score."""

import dataclasses
from collections.abc import Mapping

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from cqbjax.core.recorders.answers import answer_costs, attempt_cost, chosen_server
from cqbjax.core.recorders.protocol import Recorder, Round
from cqbjax.core.types import Problem, Queue

FIELDS = (
    "arrival", "first_service", "departure", "outcome", "attempts", "server", "dollars", "score",
    "prompt",
)  # fmt: skip
ARRIVAL, FIRST, DEPARTURE, OUTCOME, ATTEMPTS, SERVER, DOLLARS, SCORE, PROMPT = range(len(FIELDS))
# Outcomes of a query; `there`: it had not left by the end of the run.
OUTCOMES = ("there", "satisfied", "gave up")
THERE, SATISFIED, GAVE_UP = range(len(OUTCOMES))


@dataclasses.dataclass(frozen=True)
class QueryLog(Recorder):
    """Every query of a run, in the order of arrival: [T A, fields].

    At most A queries arrive in a round. Row (t - 1) A + i holds the query that arrived i-th in
    round t, with i from 0; without such a query the row is NaN. A value that does not exist is NaN.
    Whole numbers are exact up to 2^24. The fields are:

        arrival        round of arrival
        first_service  round in which the first attempt began
        departure      round in which the query left
        outcome        index into `OUTCOMES`
        attempts       number of attempts that ended
        server         number of the LLM whose answer was accepted
        dollars        cost of all answers, USD; NaN if the source has no costs
        score          score of the accepted answer; NaN if the source has no scores
        prompt         number of the prompt in the dataset
    """

    name, label, unit = "queries", "Queries", ""
    per, dims = "run", ("query", "field")
    numbered = True

    def start(self, problem: Problem) -> Array:
        """Return an array of NaN, without any query."""
        return jnp.full((problem.max_queries, len(FIELDS)), jnp.nan, jnp.float32)

    def update(self, state: Array, round_: Round) -> Array:
        """Log the queries that were served, left or arrived."""
        if round_.reneged is not None:
            number = jnp.where(round_.reneged, query_numbers(round_.before), len(state))
            state = state.at[number, DEPARTURE].set(round_.round.astype(jnp.float32), mode="drop")
            state = state.at[number, OUTCOME].set(GAVE_UP, mode="drop")
        return self._log_arrivals(self._log_attempts(state, round_), round_)

    def _log_attempts(self, state: Array, round_: Round) -> Array:
        """Log the attempts that ended, and the first round of those that continue."""
        slot, before, ended = round_.action.slot, round_.before, round_.valid
        served = ended if round_.in_service is None else ended | round_.in_service
        number = jnp.where(served, query_numbers(before)[slot], len(state))
        old = state.at[number].get(mode="clip")
        gave_up = round_.departed & False if round_.gave_up is None else round_.gave_up
        finished, t = round_.departed | gave_up, round_.round.astype(jnp.float32)
        server, none = chosen_server(round_), jnp.float32(jnp.nan)
        dollars = score = jnp.full_like(old[..., 0], jnp.nan)
        if round_.workload.answer_costs is not None:
            table, row = answer_costs(round_)
            dollars = jnp.where(before.served[slot] > 0, old[..., DOLLARS], 0.0)
            dollars = dollars + attempt_cost(round_)
            score = jnp.where(round_.departed, table.scores[row, server], none)
        values: dict[int, Array] = {
            DEPARTURE: jnp.where(finished, t, none),
            OUTCOME: jnp.where(round_.departed, SATISFIED, jnp.where(gave_up, GAVE_UP, THERE)),
            ATTEMPTS: before.served[slot] + 1,
            SERVER: jnp.where(round_.departed, server, none),
            DOLLARS: dollars,
            SCORE: score,
        }
        entry = {ARRIVAL: old[..., ARRIVAL], PROMPT: old[..., PROMPT]} | values
        if round_.in_service is not None:
            entry = {field: jnp.where(ended, new, old[..., field]) for field, new in entry.items()}
        entry[FIRST] = jnp.where(jnp.isnan(old[..., FIRST]), t, old[..., FIRST])
        new = jnp.stack([entry[field].astype(jnp.float32) for field in range(len(FIELDS))], axis=-1)
        return state.at[number].set(new, mode="drop")

    def _log_arrivals(self, state: Array, round_: Round) -> Array:
        """Log the queries that arrived in the round."""
        most, after = round_.problem.max_arrivals, round_.after
        first = (round_.round - 1) * most
        new = after.arrived == round_.round
        order = jnp.where(new, query_numbers(after) - first, most)
        match = order == jnp.arange(most)[:, None]
        slots = jnp.min(jnp.where(match, jnp.arange(len(new)), len(new)), axis=1)
        arrived = slots < len(new)
        prompts = round_.workload.prompts[after.row.at[slots].get(mode="clip")]
        rows = jnp.full((most, len(FIELDS)), jnp.nan, jnp.float32)
        rows = rows.at[:, ARRIVAL].set(round_.round).at[:, OUTCOME].set(THERE)
        rows = rows.at[:, ATTEMPTS].set(0).at[:, PROMPT].set(prompts)
        rows = jnp.where(arrived[:, None], rows, jnp.nan)
        # At the same position in every run of a batch.
        return jax.lax.dynamic_update_slice_in_dim(state, rows, first, 0)

    @property
    def attributes(self) -> dict[str, str]:
        """Return the attributes of the stored array, the names of fields and outcomes included."""
        names = {"fields": ",".join(FIELDS), "outcomes": ",".join(OUTCOMES)}
        return super().attributes | names


def query_numbers(queue: Queue) -> Array:
    """Return the number of each slot's query, from 0 in the order of arrival: [C] int32."""
    if queue.number is None:
        return queue.arrived - 1
    return queue.number


def query_columns(stored: np.ndarray) -> Mapping[str, np.ndarray]:
    """Return the fields of stored rows [..., fields] by name, [...] each."""
    return {name: stored[..., place] for place, name in enumerate(FIELDS)}
