"""The environment behind gymnasium's interface: `pip install "cqbjax[gymnasium]"`.

env = as_gymnasium(Env(source=sources.Synthetic()))
observation, info = env.reset(seed=0)
observation, reward, terminated, truncated, info = env.step(env.action_space.sample())
"""

from typing import Any

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
from gymnasium import spaces

from cqbjax.core import mnl, rng
from cqbjax.core.types import Action, Observation
from cqbjax.env.acting import Env


class GymnasiumEnv(gymnasium.Env[dict[str, np.ndarray], np.ndarray]):
    """One run at a time.

    An action is two numbers: the slot to serve, and the number of an assortment in lexicographic
    order. Where nobody waits in the slot the oldest query is served instead, and `info` says so.
    A run is truncated after its last round; it never terminates by itself.

    Attributes:
        env: the environment that is played.
    """

    metadata: dict[str, Any] = {"render_modes": []}

    def __init__(self, env: Env) -> None:
        """Compile the environment's two functions."""
        self.env = env
        self.action_space = spaces.MultiDiscrete([env.capacity, env.num_assortments])
        # Of its spaces' types gymnasium does not say what they are together.
        told: Any = spaces.Dict({
            name: spaces.Box(low, high, shape, dtype)
            for name, (shape, dtype, low, high) in env.spaces.items()
        })  # fmt: skip
        self.observation_space = told
        self._reset, self._step = jax.jit(env.reset), jax.jit(env.step)
        self._key = rng.run_key(0)
        self._seen: Any = None
        self._state: Any = None

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        """Begin a run: the sweep's of this seed, or of one that is drawn.

        Raises:
            ValueError: a seed that a sweep has not.
        """
        if seed is not None:
            rng.run_key(seed)  # raises before anything changes
            seed = int(seed)  # gymnasium takes no number of NumPy's
        super().reset(seed=seed)
        number = int(self.np_random.integers(rng.MAX_SEED - 1)) if seed is None else seed
        self._key = rng.run_key(number)
        self._seen, self._state = self._reset(self._key)
        return self._arrays(self._seen), {"seed": number}

    def step(
        self, action: np.ndarray
    ) -> tuple[dict[str, np.ndarray], float, bool, bool, dict[str, Any]]:
        """Play a round.

        Raises:
            ValueError: an action that is none, or no run was begun.
        """
        if self._seen is None:
            raise ValueError("reset() must be called before the first step()")
        if not self.action_space.contains(np.asarray(action)):
            slots, sets = self.env.capacity, self.env.num_assortments
            raise ValueError(
                f"action={action} must be a slot below {slots} and an assortment below {sets}"
            )
        slot, rank = (int(one) for one in action)
        instead = not bool(self._seen.queue.arrived[slot] > 0)
        if instead:
            slot = int(self.env.first_waiting(self._seen))
        problem = self.env.problem
        servers = mnl.unrank_assortment(
            jnp.int32(rank), problem.num_servers, problem.assortment_size
        )
        taken = Action(jnp.int32(slot), servers, jnp.bool_(False))
        self._seen, self._state, reward, done, told = self._step(self._key, self._state, taken)
        info = {
            "instead": instead, "length": int(told.length), "departed": int(told.departed),
            "overflow": bool(told.overflow),
        }  # fmt: skip
        return self._arrays(self._seen), float(reward), False, bool(done), info

    def _arrays(self, seen: Observation) -> dict[str, np.ndarray]:
        """Return an observation as arrays of the declared space."""
        queue, there = seen.queue, seen.available
        own: dict[str, Any] = {
            "features": seen.features, "arrived": queue.arrived, "served": queue.served,
            "shown": queue.shown, "round": seen.round,
            "available": np.ones(self.env.problem.num_servers) if there is None else there,
        }  # fmt: skip
        return {
            name: np.asarray(own[name], dtype).reshape(shape)
            for name, (shape, dtype, _, _) in self.env.spaces.items()
        }


def as_gymnasium(env: Env) -> GymnasiumEnv:
    """Return an environment behind gymnasium's interface."""
    return GymnasiumEnv(env)
