"""A small kind of users to copy: who has failed often comes back later and later.

To add your own, in a folder of your own:

1. Copy this file to `my_users.py` there and change the class.
2. Write `conf/users/mine.yaml` there; its one key is the name in overrides and results:

       mine:
         _target_: my_users.BacksOff
         rounds: 3

3. Run it with `cqbjax run users=[mine]` (in a checkout `python scripts/run.py ...`).

A kind of service is made the same way from `core.rules.Service`, in `conf/service/`.
"""

import jax
import jax.numpy as jnp
from jax import Array

from cqbjax.core.pytree import pytree
from cqbjax.core.rules import STAYS, Reaction, Users
from cqbjax.core.types import Problem


@pytree
class BacksOff(Users):
    """Away for `rounds` times the attempts so far, and up to as long again by chance.

    Attributes:
        rounds: a number that can be swept without compiling again. What fixes a shape or chooses
            code is declared by `static(default=...)`.
    """

    rounds: Array | float = 3.0

    def check(self, problem: Problem) -> None:
        """Say in one sentence what is out of range, before anything compiles."""
        if not float(self.rounds) >= 1:
            raise ValueError(f"rounds={float(self.rounds):g} must be at least 1")

    def draw(self, key: Array, problem: Problem) -> Array:
        """Draw all chance beforehand, for each round and place: every policy meets the same."""
        return jax.random.uniform(key, (problem.horizon, problem.places))

    def reacts(self, drawn: Array, attempts: Array) -> Reaction:
        """Say what one user does: `drawn` is of this round and place, no batch axis anywhere."""
        away = self.rounds * attempts * (1 + drawn)
        return STAYS._replace(away=jnp.round(away).astype(jnp.int32))
