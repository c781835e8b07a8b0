"""A small user model to copy: a user returns later after each failed attempt.

To add your own, in a folder of your own:

1. Copy this file to `my_users.py` there and change the class.
2. Write `conf/users/mine.yaml` there; its one key is the name in overrides and results:

       mine:
         _target_: my_users.BacksOff
         rounds: 3

3. Run it with `cqbjax run users=[mine]` (in a checkout `python scripts/run.py ...`).

A service model is a subclass of `cqbjax.ServiceModel`, with its YAML file in `conf/service/`.
"""

import jax
import jax.numpy as jnp
from jax import Array

from cqbjax import PAPER_REACTION, Problem, Reaction, UserModel, pytree


@pytree
class BacksOff(UserModel):
    """The return delay is `rounds` times the attempts so far, times a random factor from 1 to 2.

    Attributes:
        rounds: a number that can be swept without compiling again. What fixes a shape or chooses
            code is declared by `static(default=...)`.
    """

    rounds: Array | float = 3.0

    def check(self, problem: Problem) -> None:
        """Raise ValueError, in one sentence, for settings out of range."""
        if not float(self.rounds) >= 1:
            raise ValueError(f"rounds={float(self.rounds):g} must be at least 1")

    def draw(self, key: Array, problem: Problem) -> Array:
        """Draw all randomness beforehand, for each round and channel, so that policies share it."""
        return jax.random.uniform(key, (problem.horizon, problem.channels))

    def react(self, drawn: Array, attempts: Array) -> Reaction:
        """Return what one user does; `drawn` is for this round and channel, without batch axes."""
        delay = self.rounds * attempts * (1 + drawn)
        return PAPER_REACTION._replace(return_delay=jnp.round(delay).astype(jnp.int32))
