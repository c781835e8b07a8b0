"""The queue as an environment; behind gymnasium's interface in `cqbjax.env.gymnasium`."""

from cqbjax.env.acting import Env, State, Told, play

__all__ = ["Env", "State", "Told", "play"]
