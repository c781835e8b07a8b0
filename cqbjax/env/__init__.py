"""The queue as an environment; behind gymnasium's interface in `cqbjax.env.gymnasium`."""

from cqbjax.env.acting import Env, EnvState, StepInfo, play

__all__ = ["Env", "EnvState", "StepInfo", "play"]
