"""How many queries are in service at a time, and how long an attempt takes."""

import dataclasses
from typing import Literal, Self

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from cqbjax.core import linalg
from cqbjax.core.inputs import TableNames, check_interval, join_positions
from cqbjax.core.pytree import Numbers, pytree, static
from cqbjax.core.scenario import ServiceModel
from cqbjax.core.types import Problem
from cqbjax.dynamics.users import MAX_ROUNDS, draw_geometric


@pytree
class SingleChannel(ServiceModel):
    """The paper's service: one query per round, attempts of one round, servers always available."""

    matches_paper = True


@pytree
class ServiceChannels(ServiceModel):
    """Several queries per round: the policy selects one for each channel in turn.

    Each selection is among the queries not selected yet. The policy learns from all of them at the
    end of the round, not between its selections.

    Attributes:
        count: c, channels.
    """

    count: int = static(default=1)

    @property
    def channels(self) -> int:
        """Return c."""
        return self.count

    def check(self, problem: Problem) -> None:
        """Validate the number of channels.

        Raises:
            ValueError: naming the key and what is allowed.
        """
        check_interval(self, "[1, inf)", "count", whole=True)


@pytree
class ServiceTimes(ServiceModel):
    """An attempt takes some rounds and occupies a channel until its last one.

    Feedback arrives in the last round. An assortment takes as long as its slowest server.

    Attributes:
        rounds: service times, at least 1: a single number, [N] for each server, or [P, N] for each
            prompt of the source's table and each server.
        law: `fixed`: `rounds` is a whole number; `geometric`: `rounds` is the mean.
        names: names of the rows (prompts) and columns (LLMs) of `rounds`, by which they are matched
            to those of the source; None: they are in the source's order.
    """

    rounds: Numbers | float = 1.0
    law: Literal["fixed", "geometric"] = static(default="fixed")
    names: TableNames | None = static(default=None)

    multi_round = True

    def join_names(self, names: TableNames | None) -> Self:
        """Return the service times with rows and columns in the source's order.

        Raises:
            ValueError: naming missing or unknown prompts and LLMs; or the source has no names.
        """
        file = self.names
        if file is None:
            return self
        if names is None:
            raise ValueError(
                f"{file.where}: latencies are joined by prompt_id and LLM, and the source has no "
                "table of named ones: give rounds in their place"
            )
        rows = join_positions(file.prompts, names.prompts, file.where, "prompt_id", names.where)
        columns = join_positions(file.servers, names.servers, file.where, "LLM", names.where)
        table = np.asarray(self.rounds)[np.ix_(rows, columns)]
        return dataclasses.replace(self, rounds=table, names=None)

    def check(self, problem: Problem) -> None:
        """Validate the number of rounds.

        Raises:
            ValueError: naming the key and what is allowed.
        """
        rounds, servers = np.asarray(self.rounds, float), problem.num_servers
        prompts = problem.num_prompts or (problem.num_rows if problem.pooled else 0)
        text = f"rounds={rounds.tolist()}" if rounds.ndim < 2 else f"rounds of shape {rounds.shape}"
        if rounds.shape not in ((), (servers,), (prompts, servers)):
            table = f", or a table of {prompts} prompts and these" if prompts else ""
            raise ValueError(f"{text} must be a number, one for each of {servers} servers{table}")
        if not ((rounds >= 1) & (rounds <= MAX_ROUNDS)).all():
            raise ValueError(
                f"{text} must be at least 1 round an attempt, and at most {MAX_ROUNDS}"
            )
        if self.law == "fixed" and not (rounds == np.floor(rounds)).all():
            raise ValueError(f"{text} must be whole where law=fixed")

    def draw(self, key: Array, problem: Problem) -> Array:
        """Draw a uniform for the service time of each attempt: [T, c]."""
        return jax.random.uniform(key, (problem.horizon, problem.channels))

    def service_time(self, drawn: Array, channel: Array, prompt: Array, servers: Array) -> Array:
        """Return the service time of the slowest of servers [K] for a prompt: [] int32."""
        rounds = jnp.asarray(self.rounds)
        rounds = rounds[prompt] if rounds.ndim > 1 else rounds
        mean = linalg.maximum(rounds[servers], axis=-1) if rounds.ndim else rounds
        if self.law == "fixed":
            return mean.astype(jnp.int32)
        return draw_geometric(drawn[channel], 1 / mean)
