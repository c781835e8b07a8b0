"""Servers that are down for a while, that join, or that leave."""

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from cqbjax.core.pytree import Numbers, keep_arrays, pytree
from cqbjax.core.rules import Service
from cqbjax.core.types import Problem


@pytree
class Outages(Service):
    """Some servers do not answer in some rounds; policies see which (`Observation.available`).

    An answer asked of a server that is down is none, and cannot satisfy.

    Attributes:
        share: of the rounds in which a server is down, in [0, 1).
        length: mean rounds of an outage: its end has probability 1 / length a round.
        servers: [n] numbers of those that it happens to, each by itself; None or none: all.
        since: [N] the first round of each server: it joins there; None or none: all are there from
            the start.
        until: [N] the last round of each server: it leaves after it; None or none: all stay.
    """

    share: Array | float = 0.0
    length: Array | float = 100.0
    servers: Numbers | None = None
    since: Numbers | None = None
    until: Numbers | None = None

    def __post_init__(self) -> None:
        """Take lists as arrays, and empty ones as none."""
        keep_arrays(self, "servers", "since", "until")

    def check(self, problem: Problem) -> None:
        """Refuse what is no share, no length or no server.

        Raises:
            ValueError: naming the key and what is allowed.
        """
        share, length, count = float(self.share), float(self.length), problem.num_servers
        if not 0 <= share < 1:
            raise ValueError(f"share={share:g} must lie in [0, 1)")
        least = max(1.0, share / (1 - share))
        if not least <= length < float("inf"):
            raise ValueError(f"length={length:g} must be at least {least:g} rounds at this share")
        if self.servers is not None:
            told = np.asarray(self.servers)
            if told.ndim != 1 or not np.isin(told, np.arange(count)).all():
                raise ValueError(f"servers={told.tolist()} must be numbers in 0..{count - 1}")
        for key in ("since", "until"):
            value = getattr(self, key)
            rounds = np.ones(count) if value is None else np.asarray(value, float)
            if rounds.shape != (count,) or not (rounds >= 1).all():
                raise ValueError(
                    f"{key}={rounds.tolist()} must be a round, from 1 on, for each of {count} "
                    "servers"
                )

    def draw(self, key: Array, problem: Problem) -> Array:
        """Draw who answers when: [T, N] bool, each server's outages in steady state."""
        rounds, count = problem.horizon, problem.num_servers
        uniform = jax.random.uniform(key, (rounds, count))
        first = jax.random.uniform(jax.random.fold_in(key, 1), (count,)) >= self.share
        ends = 1 / jnp.asarray(self.length, float)
        begins = ends * self.share / (1 - jnp.asarray(self.share, float))

        def step(up: Array, uniform: Array) -> tuple[Array, Array]:
            return jnp.where(up, uniform >= begins, uniform < ends), up

        there = jax.lax.scan(step, first, uniform)[1]
        if self.servers is not None:
            numbers = jnp.asarray(self.servers)[:, None]
            there = there | ~jnp.any(jnp.arange(count) == numbers, axis=0)
        t = jnp.arange(1, rounds + 1)[:, None]
        if self.since is not None:
            there = there & (t >= jnp.asarray(self.since))
        if self.until is not None:
            there = there & (t <= jnp.asarray(self.until))
        return there

    def available(self, drawn: Array) -> Array:
        """Return who answers: [N] bool."""
        return drawn
