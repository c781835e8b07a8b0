"""Servers that are down at random or on a schedule, join later or leave for good."""

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from cqbjax.core.inputs import Condition, check_each, check_interval, read_when
from cqbjax.core.pytree import Numbers, pytree
from cqbjax.core.scenario import ServiceModel
from cqbjax.core.types import Problem


@read_when(
    length=Condition("share"), servers=Condition("share"), down_from=Condition("period"),
    down_rounds=Condition("period"),
)  # fmt: skip
@pytree
class Outages(ServiceModel):
    """Some servers do not answer in some rounds; policies see which (`Observation.available`).

    A server that is down does not answer, so it cannot satisfy the user. On a schedule, server j is
    down in `down_rounds[j]` rounds of each period, from its round `down_from[j]` on.

    Attributes:
        share: fraction of all rounds in which a server is down, in [0, 1).
        length: mean length of an outage in rounds; it ends with probability 1 / length per round.
        servers: [n] numbers of the servers with outages, which are independent; None or empty: all.
        since: [N] the round in which each server joins; None or empty: all join in round 1.
        until: [N] the last round of each server; None or empty: all stay.
        period: number of rounds after which the schedule repeats, such as the rounds of a day;
            None: no schedule.
        down_from: [N] the round of the period, counted from 1, in which each server goes down.
        down_rounds: [N] the rounds that each server then stays down, which may reach into the next
            period; 0: the server is never down; None or empty: no server is ever down.
    """

    share: Array | float = 0.0
    length: Array | float = 100.0
    servers: Numbers | None = None
    since: Numbers | None = None
    until: Numbers | None = None
    period: Array | float | None = None
    down_from: Numbers | None = None
    down_rounds: Numbers | None = None

    def check(self, problem: Problem) -> None:
        """Validate the share, the length and the servers.

        Raises:
            ValueError: naming the key and what is allowed.
        """
        check_interval(self, "[0, 1)", "share")
        share, length, count = float(self.share), float(self.length), problem.num_servers
        least = max(1.0, share / (1 - share))
        if not least <= length < float("inf"):
            raise ValueError(f"length={length:g} must be at least {least:g} rounds at this share")
        if self.servers is not None:
            servers = np.asarray(self.servers)
            if servers.ndim != 1 or not np.isin(servers, np.arange(count)).all():
                raise ValueError(f"servers={servers.tolist()} must be numbers in 0..{count - 1}")
        check_each(self, "[1, inf]", count, "server", "since", "until")
        schedule = ("period", "down_from", "down_rounds")
        if self.period is None and self.down_from is None and self.down_rounds is None:
            return
        for key in schedule:
            if getattr(self, key) is None:
                raise ValueError(f"{key} must be given too: {', '.join(schedule)} are a schedule")
        check_interval(self, "[1, inf)", "period")
        rounds = f"{float(self.period or 0):.12g}"
        check_each(self, f"[1, {rounds}]", count, "server", "down_from")
        check_each(self, f"[0, {rounds}]", count, "server", "down_rounds")
        for key in schedule:
            value = np.asarray(getattr(self, key), float)
            if (value % 1).any():
                raise ValueError(f"{key}={value.tolist()} must be whole rounds")

    def draw(self, key: Array, problem: Problem) -> Array:
        """Draw which servers answer in each round, outages in steady state: [T, N] bool."""
        rounds, count = problem.horizon, problem.num_servers
        uniform = jax.random.uniform(key, (rounds, count))
        first = jax.random.uniform(jax.random.fold_in(key, 1), (count,)) >= self.share
        ends = 1 / jnp.asarray(self.length, float)
        begins = ends * self.share / (1 - jnp.asarray(self.share, float))

        def step(up: Array, uniform: Array) -> tuple[Array, Array]:
            return jnp.where(up, uniform >= begins, uniform < ends), up

        answers = jax.lax.scan(step, first, uniform)[1]
        if self.servers is not None:
            numbers = jnp.asarray(self.servers)[:, None]
            answers = answers | ~jnp.any(jnp.arange(count) == numbers, axis=0)
        t = jnp.arange(1, rounds + 1)[:, None]
        if self.since is not None:
            answers = answers & (t >= jnp.asarray(self.since))
        if self.until is not None:
            answers = answers & (t <= jnp.asarray(self.until))
        if self.period is not None:
            into = jnp.mod(t - jnp.asarray(self.down_from), jnp.asarray(self.period))
            answers = answers & (into >= jnp.asarray(self.down_rounds))
        return answers

    def available(self, drawn: Array) -> Array:
        """Return which servers answer: [N] bool."""
        return drawn
