"""How long an attempt takes; its place is taken meanwhile."""

import dataclasses
from typing import Literal, Self

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from cqbjax.core import linalg
from cqbjax.core.given import TableNames, places_of
from cqbjax.core.pytree import Numbers, check_words, keep_arrays, pytree, static
from cqbjax.core.rules import Service
from cqbjax.core.types import Problem
from cqbjax.dynamics.orbit import LONGEST, geometric


@pytree
class Rounds(Service):
    """An attempt takes some rounds, and a query's place until its last one.

    What the user says is heard in the last round. Of an assortment the slowest server counts.

    Attributes:
        rounds: what an attempt takes, at least 1: one number, [N] of each server, or [P, N] of
            each prompt of the source's table and server.
        law: `fixed`: whole rounds, always as many; `geometric`: as many on average.
        names: of the rows and columns of `rounds`, which are joined by them to those of the source;
            None: by their order.
    """

    rounds: Numbers | float = 1.0
    law: Literal["fixed", "geometric"] = static(default="fixed")
    names: TableNames | None = static(default=None)

    lasting = True

    def __post_init__(self) -> None:
        """Take lists as arrays."""
        keep_arrays(self, "rounds")

    def joined(self, names: TableNames | None) -> Self:
        """Return the kind with rows and columns in the order of the source's.

        Raises:
            ValueError: naming prompts and LLMs that are missing or unknown, or the source has none.
        """
        own = self.names
        if own is None:
            return self
        if names is None:
            raise ValueError(
                f"{own.where}: latencies are joined by prompt_id and LLM, and the source has no "
                "table of named ones: give rounds in their place"
            )
        rows = places_of(own.prompts, names.prompts, own.where, "prompt_id", names.where)
        columns = places_of(own.servers, names.servers, own.where, "LLM", names.where)
        table = np.asarray(self.rounds)[np.ix_(rows, columns)]
        return dataclasses.replace(self, rounds=table, names=None)

    def check(self, problem: Problem) -> None:
        """Refuse what is no number of rounds.

        Raises:
            ValueError: naming the key and what is allowed.
        """
        check_words(self)
        told, servers = np.asarray(self.rounds, float), problem.num_servers
        prompts = problem.num_prompts or (problem.num_rows if problem.pooled else 0)
        said = f"rounds={told.tolist()}" if told.ndim < 2 else f"rounds of shape {told.shape}"
        if told.shape not in ((), (servers,), (prompts, servers)):
            table = f", or a table of {prompts} prompts and these" if prompts else ""
            raise ValueError(f"{said} must be a number, one for each of {servers} servers{table}")
        if not ((told >= 1) & (told <= LONGEST)).all():
            raise ValueError(f"{said} must be at least 1 round an attempt, and at most {LONGEST}")
        if self.law == "fixed" and not (told == np.floor(told)).all():
            raise ValueError(f"{said} must be whole where law=fixed")

    def draw(self, key: Array, problem: Problem) -> Array:
        """Draw the uniforms of the lengths: [T, c]."""
        return jax.random.uniform(key, (problem.horizon, problem.places))

    def rounds_of(self, uniform: Array, prompt: Array, servers: Array) -> Array:
        """Return how long the slowest of some servers [K] takes for a prompt: [] int32."""
        own = jnp.asarray(self.rounds)
        own = own[prompt] if own.ndim > 1 else own
        mean = linalg.largest(own[servers], axis=-1) if own.ndim else own
        return mean.astype(jnp.int32) if self.law == "fixed" else geometric(uniform, 1 / mean)

    def takes(self, drawn: Array, place: Array, prompt: Array, servers: Array) -> Array:
        """Return how many rounds the attempt takes: [] int32."""
        return self.rounds_of(drawn[place], prompt, servers)
