"""User dynamics: what users do after a failed attempt, and while they wait."""

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from cqbjax.core.inputs import Condition, check_interval, read_when
from cqbjax.core.pytree import Numbers, pytree
from cqbjax.core.scenario import PAPER_REACTION, Reaction, UserModel
from cqbjax.core.types import Problem

# The longest delay or patience, in rounds.
MAX_ROUNDS = 1e9


@pytree
class PersistentUsers(UserModel):
    """The paper's users: each waits again in the next round, until satisfied."""

    matches_paper = True


@pytree
class Orbit(UserModel):
    """Users go to a retrial orbit and return after a random delay.

    The delay is geometric, or it is drawn from a table of observed delays. A query that fails in
    round t with delay n waits again from round t + n. In the paper n is 1.

    Attributes:
        return_rate: h, the probability to return after each round, including the round of the
            failure: n is geometric with mean 1 / h.
        delays: [n] table of observed delays in rounds, from which each delay is drawn, in place of
            `return_rate`; None: no table.
    """

    return_rate: Array | float = 0.1
    delays: Numbers | None = None

    def check(self, problem: Problem) -> None:
        """Validate the probability and the delays.

        Raises:
            ValueError: naming the key and what is allowed.
        """
        check_interval(self, "(0, 1]", "return_rate")
        if self.delays is not None:
            delays = np.asarray(self.delays)
            fine = delays.ndim == 1 and delays.size and (delays >= 1) & (delays <= MAX_ROUNDS)
            if not np.all(fine):
                raise ValueError("delays must be a list of rounds, each at least 1")

    def draw(self, key: Array, problem: Problem) -> Array:
        """Draw the return delay of each attempt: [T, c] int32 rounds."""
        uniform = jax.random.uniform(key, (problem.horizon, problem.channels))
        if self.delays is None:
            return draw_geometric(uniform, self.return_rate)
        delays = jnp.asarray(self.delays)
        which = jnp.minimum((uniform * len(delays)).astype(jnp.int32), len(delays) - 1)
        return jnp.round(delays[which]).astype(jnp.int32)

    def react(self, drawn: Array, attempts: Array) -> Reaction:
        """Go to the orbit for the drawn delay."""
        return PAPER_REACTION._replace(return_delay=drawn)


@read_when(pretends=Condition("attempts or give_up"))
@pytree
class Impatience(UserModel):
    """Users abandon after some failed attempts, by chance, or after waiting too long.

    Attributes:
        attempts: n, number of failed attempts after which a user abandons; infinite: a user never
            abandons for this reason.
        give_up: g, the probability to abandon after each failed attempt.
        patience: number of rounds in the queue without service after which a user abandons;
            infinite: a user never abandons for this reason.
        leave: the probability to abandon after each round in the queue without service.
        pretends: the probability that abandoning after an attempt looks like satisfaction; the
            feedback is then that the likeliest answer was accepted.
    """

    attempts: Array | float = float("inf")
    give_up: Array | float = 0.0
    patience: Array | float = float("inf")
    leave: Array | float = 0.0
    pretends: Array | float = 0.0

    def check(self, problem: Problem) -> None:
        """Validate numbers of attempts and rounds, and probabilities.

        Raises:
            ValueError: naming the key and what is allowed.
        """
        for key in ("attempts", "patience"):
            value = float(getattr(self, key))
            if not (value >= 1 and (value == float("inf") or value == int(value))):
                raise ValueError(f"{key}={value:g} must be a whole number, at least 1, or infinite")
        check_interval(self, "[0, 1]", "give_up", "leave", "pretends")

    def draw(self, key: Array, problem: Problem) -> Array:
        """Draw uniforms that decide about abandoning and pretending: [T, c, 2]."""
        return jax.random.uniform(key, (problem.horizon, problem.channels, 2))

    def draw_patience(self, key: Array, problem: Problem) -> Array:
        """Draw the patience of each arriving query in rounds: [T, A] int32."""
        uniform = jax.random.uniform(key, (problem.horizon, problem.max_arrivals))
        fixed = jnp.minimum(self.patience, MAX_ROUNDS).astype(jnp.int32)
        by_chance = jnp.asarray(self.leave) > 0
        drawn = draw_geometric(uniform, jnp.where(by_chance, self.leave, 1.0))
        return jnp.where(by_chance, jnp.minimum(drawn, fixed), fixed)

    def react(self, drawn: Array, attempts: Array) -> Reaction:
        """Abandon after the last attempt, or by chance."""
        abandons = (attempts >= self.attempts) | (drawn[0] < self.give_up)
        looks_satisfied = drawn[1] < self.pretends
        return PAPER_REACTION._replace(abandons=abandons, looks_satisfied=looks_satisfied)


def draw_geometric(uniform: Array, rate: Array | float) -> Array:
    """Return the number of trials with probability `rate` in (0, 1] up to the first success.

    Args:
        uniform: [...] in [0, 1).
        rate: [] probability.

    Returns:
        [...] int32, at least 1.
    """
    least = jnp.finfo(jnp.float32).tiny
    log_failure = jnp.log(jnp.maximum(1.0 - jnp.asarray(rate, float), least))
    log_failure = jnp.minimum(log_failure, -least)  # where 1 - rate is rounded to 1
    return jnp.clip(1 + jnp.floor(jnp.log1p(-uniform) / log_failure), 1, MAX_ROUNDS).astype(
        jnp.int32
    )


def count_rounds(seconds: np.ndarray, round_seconds: float) -> np.ndarray:
    """Convert times to whole rounds, at least one each.

    Args:
        seconds: [...] times, such as delays between an attempt and the next.
        round_seconds: how long a round is.

    Raises:
        ValueError: a time is negative or not finite, or a round has no length.
    """
    seconds = np.asarray(seconds, float)
    if not round_seconds > 0:
        raise ValueError(f"round_seconds={round_seconds} must be above 0")
    if not seconds.size or not (np.isfinite(seconds) & (seconds >= 0)).all():
        raise ValueError("times must be finite seconds, none of them negative")
    return np.maximum(1.0, np.ceil(seconds / round_seconds))
