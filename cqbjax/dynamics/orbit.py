"""Users who go away after an answer that did not satisfy them, and come back."""

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from cqbjax.core.pytree import Numbers, keep_arrays, pytree
from cqbjax.core.rules import STAYS, Reaction, Users
from cqbjax.core.types import Problem

# No delay is drawn that is longer.
LONGEST = 1e9


@pytree
class Orbit(Users):
    """Away, and back: each round with a probability, or after a delay drawn from a table.

    Who fails in round t and is away for n rounds waits again from round t + n; with n = 1 that is
    the paper's user.

    Attributes:
        return_rate: h, the probability to come back after each round, the round of the failure
            included: n is geometric with mean 1 / h.
        delays: [n] rounds that others were away, one of which is drawn, in place of `return_rate`;
            None where there is no table.
    """

    return_rate: Array | float = 0.1
    delays: Numbers | None = None

    def __post_init__(self) -> None:
        """Take lists as arrays."""
        keep_arrays(self, "delays")

    def check(self, problem: Problem) -> None:
        """Refuse what is no probability, or no delay.

        Raises:
            ValueError: naming the key and what is allowed.
        """
        del problem
        if not 0 < float(self.return_rate) <= 1:
            raise ValueError(f"return_rate={float(self.return_rate):g} must lie in (0, 1] a round")
        if self.delays is not None:
            told = np.asarray(self.delays)
            if told.ndim != 1 or not told.size or not ((told >= 1) & (told <= LONGEST)).all():
                raise ValueError("delays must be a list of rounds, each at least 1")

    def draw(self, key: Array, problem: Problem) -> Array:
        """Draw how long each attempt's user would be away: [T, c] int32 rounds."""
        uniform = jax.random.uniform(key, (problem.horizon, problem.places))
        if self.delays is not None:
            told = jnp.asarray(self.delays)
            which = jnp.minimum((uniform * len(told)).astype(jnp.int32), len(told) - 1)
            return jnp.round(told[which]).astype(jnp.int32)
        return geometric(uniform, self.return_rate)

    def reacts(self, drawn: Array, attempts: Array) -> Reaction:
        """Go away for as long as was drawn."""
        del attempts
        return STAYS._replace(away=drawn)


def geometric(uniform: Array, rate: Array | float) -> Array:
    """Return how many trials of probability `rate` in (0, 1] there are up to the first success.

    Args:
        uniform: [...] in [0, 1).
        rate: [] probability.

    Returns:
        [...] int32, at least 1.
    """
    least = jnp.finfo(jnp.float32).tiny
    stays = jnp.log(jnp.maximum(1.0 - jnp.asarray(rate, float), least))
    stays = jnp.minimum(stays, -least)  # of a rate so small that what is left of one is one
    return jnp.clip(1 + jnp.floor(jnp.log1p(-uniform) / stays), 1, LONGEST).astype(jnp.int32)


def in_rounds(seconds: np.ndarray, round_seconds: float) -> np.ndarray:
    """Return times in whole rounds, none shorter than one.

    Args:
        seconds: [...] times, such as delays between a try and the next.
        round_seconds: how long a round is.

    Raises:
        ValueError: a time is negative or no number, or rounds have no length.
    """
    seconds = np.asarray(seconds, float)
    if not round_seconds > 0:
        raise ValueError(f"round_seconds={round_seconds} must be above 0")
    if not seconds.size or not (np.isfinite(seconds) & (seconds >= 0)).all():
        raise ValueError("times must be finite seconds, none of them negative")
    return np.maximum(1.0, np.ceil(seconds / round_seconds))
