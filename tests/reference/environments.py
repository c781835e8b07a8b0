"""A policy of a sweep in an environment, to compare the two."""

from typing import Any

import jax
from jax import Array

from cqbjax.core import rng, simulate
from cqbjax.core.types import Policy
from cqbjax.env import Env, StepInfo


def play(env: Env, policy: Policy, key: Array) -> StepInfo:
    """Play a whole run with a policy, and return the outcome of each round: [T, ...]."""
    _, state = env.reset(key)

    def play_round(carried: Any, _: Any) -> tuple[Any, StepInfo]:
        state, learnt = carried
        # Unlike the environment's observation, with the true utilities if the policy needs them.
        seen = simulate.observe(policy, env.problem, state.instance, state.carry, state.round)
        action = policy.select(rng.round_key(key, state.round), learnt, seen)
        _, state, _, _, info = env.step(key, state, action)
        return (state, policy.update(learnt, seen, info.action, info.feedback)), info

    learnt = policy.init(env.problem, state.instance.workload.contexts)
    return jax.lax.scan(play_round, (state, learnt), length=env.problem.horizon)[1]
