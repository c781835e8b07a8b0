"""The environment with gymnasium's interface: `pip install "cqbjax[gymnasium]"`.

env = GymnasiumEnv(Env(source=sources.Synthetic()))
observation, info = env.reset(seed=0)
observation, reward, terminated, truncated, info = env.step(env.action_space.sample())
"""

from typing import Any

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
from gymnasium import spaces

from cqbjax.core import mnl, queueing, rng
from cqbjax.core.types import Action, Observation
from cqbjax.env import Env

__all__ = ["GymnasiumEnv"]


class GymnasiumEnv(gymnasium.Env[dict[str, np.ndarray], np.ndarray]):
    """An environment that simulates one run at a time.

    An action has two numbers: the slot to serve, and the rank of an assortment in lexicographic
    order. If the slot is empty, the oldest query is served, and `info["served_oldest"]` is True.
    A run is truncated after its last round; it never terminates.

    Attributes:
        env: the functional environment.
    """

    metadata: dict[str, Any] = {"render_modes": []}

    def __init__(self, env: Env) -> None:
        """Take the functional environment."""
        self.env = env
        self.action_space = spaces.MultiDiscrete([env.capacity, env.num_assortments])
        # gymnasium does not state the type of several spaces together.
        observation_space: Any = spaces.Dict({
            name: spaces.Box(low, high, shape, dtype)
            for name, (shape, dtype, low, high) in env.spaces.items()
        })  # fmt: skip
        self.observation_space = observation_space
        self._reset, self._step = jax.jit(env.reset), jax.jit(env.step)
        self._key = rng.run_key(0)
        self._seen: Any = None
        self._state: Any = None

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        """Start the run of this seed, as in a sweep, or of a random one.

        Raises:
            ValueError: the seed is not one of a sweep.
        """
        if seed is not None:
            rng.run_key(seed)  # raises before anything changes
            seed = int(seed)  # gymnasium rejects NumPy integers
        super().reset(seed=seed)
        number = int(self.np_random.integers(rng.MAX_SEED - 1)) if seed is None else seed
        self._key = rng.run_key(number)
        self._seen, self._state = self._reset(self._key)
        return self._arrays(self._seen), {"seed": number}

    def step(
        self, action: np.ndarray
    ) -> tuple[dict[str, np.ndarray], float, bool, bool, dict[str, Any]]:
        """Simulate a round.

        Raises:
            ValueError: the action is outside the action space, or no run was started.
        """
        if self._seen is None:
            raise ValueError("reset() must be called before the first step()")
        if not self.action_space.contains(np.asarray(action)):
            slots, sets = self.env.capacity, self.env.num_assortments
            raise ValueError(
                f"action={action} must be a slot below {slots} and an assortment below {sets}"
            )
        slot, rank = (int(one) for one in action)
        served_oldest = not bool(self._seen.queue.arrived[slot] > 0)
        if served_oldest:
            slot = int(queueing.pick("oldest", self._seen.queue, jnp.zeros(())))
        problem = self.env.problem
        servers = mnl.unrank_assortment(
            jnp.int32(rank), problem.num_servers, problem.assortment_size
        )
        taken = Action(jnp.int32(slot), servers, jnp.bool_(False))
        self._seen, self._state, reward, done, outcome = self._step(self._key, self._state, taken)
        info = {
            "served_oldest": served_oldest, "length": int(outcome.length),
            "departed": int(outcome.departed), "overflow": bool(outcome.overflow),
        }  # fmt: skip
        return self._arrays(self._seen), float(reward), False, bool(done), info

    def _arrays(self, seen: Observation) -> dict[str, np.ndarray]:
        """Return an observation as arrays of the observation space."""
        queue, available = seen.queue, seen.available
        values: dict[str, Any] = {
            "features": seen.features, "arrived": queue.arrived, "served": queue.served,
            "shown": queue.shown, "round": seen.round,
            "available": np.ones(self.env.problem.num_servers) if available is None else available,
        }  # fmt: skip
        return {
            name: np.asarray(values[name], dtype).reshape(shape)
            for name, (shape, dtype, _, _) in self.env.spaces.items()
        }
