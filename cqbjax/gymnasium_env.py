"""The environment with gymnasium's interface: `pip install "cqbjax[gymnasium]"`.

    import gymnasium
    import cqbjax.gymnasium_env  # registers the id

    env = gymnasium.make("cqbjax/Routing-v0", arrival_rate=0.7, horizon=1000)
    observation, info = env.reset(seed=0)
    action = env.action_space.sample(mask=info["action_mask"])
    observation, reward, terminated, truncated, info = env.step(action)

`gymnasium.make_vec("cqbjax/Routing-v0", num_envs=256)` simulates 256 runs in each compiled call.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space
from jax import Array
from jax.experimental.xla_metadata import set_xla_metadata

from cqbjax.core import mnl, rng
from cqbjax.core.inputs import is_integer
from cqbjax.core.types import Action, Observation
from cqbjax.env import Env, EnvState
from cqbjax.sources import Synthetic

__all__ = ["GymnasiumEnv", "GymnasiumVectorEnv"]

# Queue slots of an environment that is made by its id; each observation contains all of them.
CAPACITY = 64
# XLA's attributes of a function that it compiles to one kernel. As thirty kernels of half a
# microsecond each, the step of one run is handed from thread to thread. A version of XLA that does
# not know the attributes ignores them.
IN_ONE_KERNEL = {"inlineable": "false", "xla_cpu_small_call": "true"}
OUTCOME = "served_oldest", "length", "departed", "overflow"

Arrays = dict[str, np.ndarray]


class GymnasiumEnv(gymnasium.Env[Arrays, np.ndarray]):
    """An environment that simulates one run at a time.

    An action has two numbers: the slot to serve, and the rank of an assortment in lexicographic
    order. `info["action_mask"]` marks the valid slots and the valid assortments. If the slot is
    free, the oldest query is served, and `info["served_oldest"]` is True. A run is truncated after
    its last round; it never terminates.

    Attributes:
        env: the functional environment.
    """

    metadata: dict[str, Any] = {"render_modes": []}

    def __init__(self, env: Env | None = None, **arguments: Any) -> None:
        """Take the functional environment, or the arguments of one.

        Args:
            env: the functional environment. Objects that share one `env` also share its compiled
                programs.
            **arguments: of `Env`, in place of `env`. Without them the source is
                `sources.Synthetic()` and the queue has 64 slots.
        """
        self.env = _make_env(env, arguments)
        self.action_space, self.observation_space = _make_spaces(self.env)
        self._runs = _Runs(self.env, None)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Arrays, dict[str, Any]]:
        """Start the run of this seed, as in a sweep; None: the run of a random seed.

        Raises:
            ValueError: the seed is not a whole number from 0 to 2^31 - 1.
        """
        if seed is not None:
            rng.check_seed(seed)  # raises before anything changes
            seed = int(seed)  # gymnasium rejects NumPy integers
        super().reset(seed=seed)
        number = int(self.np_random.integers(rng.MAX_SEED - 1)) if seed is None else seed
        observation, info = self._runs.reset(np.int32(number))
        return observation, {"seed": number, "action_mask": info["action_mask"]}

    def step(self, action: np.ndarray) -> tuple[Arrays, float, bool, bool, dict[str, Any]]:
        """Simulate a round.

        Raises:
            ValueError: the action is outside the action space, or no run was started.
        """
        observation, info = self._runs.step(action)
        for name in OUTCOME:
            info[name] = info[name].item()
        return observation, -float(info["length"]), False, self._runs.ended, info


class GymnasiumVectorEnv(VectorEnv[Arrays, np.ndarray, np.ndarray]):
    """An environment that simulates several runs in each compiled call.

    Spaces and `info` are those of `GymnasiumEnv` with a leading axis. All runs have the same
    horizon, so they are truncated together. The next `step` ignores its actions and starts runs of
    random seeds (gymnasium's `AutoresetMode.NEXT_STEP`).

    Attributes:
        env: the functional environment.
    """

    metadata: dict[str, Any] = {"render_modes": [], "autoreset_mode": AutoresetMode.NEXT_STEP}

    def __init__(self, num_envs: int = 1, env: Env | None = None, **arguments: Any) -> None:
        """Take the number of runs, and the functional environment or the arguments of one.

        Args:
            num_envs: at least 1.
            env: as in `GymnasiumEnv`.
            **arguments: as in `GymnasiumEnv`.

        Raises:
            ValueError: `num_envs` is below 1.
        """
        if not is_integer(num_envs) or num_envs < 1:
            raise ValueError(f"num_envs={num_envs} must be a whole number, at least 1")
        self.env, self.num_envs = _make_env(env, arguments), int(num_envs)
        self.single_action_space, self.single_observation_space = _make_spaces(self.env)
        self.observation_space = batch_space(self.single_observation_space, self.num_envs)
        self.action_space = _BatchedActions(
            0, np.tile(self.single_action_space.nvec - 1, (self.num_envs, 1)), dtype=np.int64
        )
        self._runs = _Runs(self.env, self.num_envs)

    def reset(
        self, *, seed: int | Sequence[int] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Arrays, dict[str, Any]]:
        """Start a run for each seed, as in a sweep.

        Args:
            seed: seed of the first run, and the following seeds for the others; or a list of all
                seeds; None draws them.
            options: not used.

        Raises:
            ValueError: a seed is not a whole number from 0 to 2^31 - 1, or the list does not hold
                `num_envs` seeds.
        """
        if seed is not None:
            seeds: Any = seed
            if is_integer(seed):
                seeds = [seeds + i for i in range(self.num_envs)]
            if isinstance(seeds, str) or np.ndim(seeds) != 1 or len(seeds) != self.num_envs:
                raise ValueError(f"seed={seed} must be one seed, or a list of {self.num_envs}")
            for number in seeds:
                rng.check_seed(number)
            super().reset(seed=int(seeds[0]))
        else:
            seeds = self.np_random.integers(rng.MAX_SEED - 1, size=self.num_envs)
        numbers = np.asarray(seeds, np.int32)
        observation, info = self._runs.reset(numbers)
        return observation, {"seed": numbers, "action_mask": info["action_mask"]}

    def step(
        self, actions: np.ndarray
    ) -> tuple[Arrays, np.ndarray, np.ndarray, np.ndarray, dict[str, Any]]:
        """Simulate a round of each run, or start the next runs.

        Raises:
            ValueError: the actions are outside the action space, or no run was started.
        """
        never: np.ndarray = np.zeros(self.num_envs, bool)
        if self._runs.ended:
            observation, info = self.reset()
            return observation, np.zeros(self.num_envs), never, never.copy(), info
        observation, info = self._runs.step(actions)
        ended = np.full(self.num_envs, self._runs.ended)
        return observation, -info["length"].astype(float), never, ended, info


class _BatchedActions(spaces.Box):
    """Actions of several runs, which can be sampled from `info["action_mask"]`."""

    def sample(self, mask: Any = None, probability: None = None) -> np.ndarray:
        """Draw uniform actions, of the valid ones if there is a mask ([n, C], [n, assortments])."""
        if mask is None:
            return super().sample(None, probability)
        drawn = [(marks * self.np_random.random(marks.shape)).argmax(axis=-1) for marks in mask]
        return np.stack(drawn, axis=-1)


class _Runs:
    """The runs of an adapter. Their state stays on the device, in one array.

    Attributes:
        ended: whether the last round has been simulated.
    """

    def __init__(self, env: Env, num_envs: int | None) -> None:
        self._env, self.ended = env, False
        self._reset, self._step, self._records = _compile(env, num_envs)
        self._instances = self._state = None
        self._shape = (2,) if num_envs is None else (num_envs, 2)
        self._ends = np.array([env.capacity, env.num_assortments], np.uint64)

    def reset(self, seeds: Any) -> tuple[Arrays, dict[str, Any]]:
        """Start the runs of these seeds."""
        self.ended = False
        self._instances, self._state, packed = self._reset(seeds)
        return self._read(packed)

    def step(self, actions: Any) -> tuple[Arrays, dict[str, Any]]:
        """Simulate a round of each run."""
        if self._state is None:
            raise ValueError("reset() must be called before the first step()")
        actions = np.asarray(actions)
        integers = actions.dtype.kind in "iu" and actions.shape == self._shape
        # Negative integers become the largest ones.
        if not integers or (actions.astype(np.uint64) >= self._ends).any():
            slots, sets = self._ends
            raise ValueError(
                f"action={actions} must be a slot below {slots} and an assortment below {sets}"
            )
        self._state, packed = self._step(self._instances, self._state, actions.astype(np.int32))
        return self._read(packed)

    def _read(self, packed: Array) -> tuple[Arrays, dict[str, Any]]:
        """Copy the results of a call to the host, and return observation and info."""
        copied, (wide, narrow) = np.array(packed), self._records
        bytes_ = copied[-narrow.itemsize :].astype(np.int8)
        both = np.ndarray((), wide, copied), np.ndarray((), narrow, bytes_)
        arrays = {name: record[name] for record in both for name in record.dtype.names or ()}
        observation = {name: arrays[name] for name in self._env.spaces}
        info: dict[str, Any] = {name: arrays[name] for name in OUTCOME}
        info["action_mask"] = arrays["slots"], arrays["assortments"]
        self.ended = observation["round"].item(0) > self._env.problem.horizon
        return observation, info


@functools.lru_cache(maxsize=8)
def _compile(
    env: Env, num_envs: int | None
) -> tuple[Callable[..., Any], Callable[..., Any], list[np.dtype[Any]]]:
    """Compile an environment for all adapters that share it.

    Args:
        env: the functional environment.
        num_envs: number of runs per call; None: one run, without an axis.

    Returns:
        `reset`, which takes seeds and returns instances, the packed state and packed results;
        `step`, which takes instances, the state, which it donates, and actions, and returns the
        next state and results; and the record types of packed results of 32 and of 8 bits.
    """
    problem = env.problem
    map_runs: Any = (lambda function: function) if num_envs is None else jax.vmap

    def collect(seen: Observation, length: Any, departed: Any, **outcome: Any) -> tuple[Any, Any]:
        queue, available = seen.queue, seen.available
        slots, assortments = env.action_mask(seen)
        marks = {
            "slots": slots, "assortments": assortments,
            "available": jnp.ones(problem.num_servers) if available is None else available,
        }  # fmt: skip
        counts = {
            "arrived": queue.arrived, "served": queue.served, "offered": queue.offer_counts,
            "round": seen.round, "length": length, "departed": departed,
        }  # fmt: skip
        numbers = {name: jnp.asarray(one, jnp.int32) for name, one in counts.items()}
        outcome = {name: jnp.asarray(one, bool) for name, one in outcome.items()}
        return numbers | {"features": seen.features.astype(jnp.float32)}, outcome | {
            name: one.astype(jnp.int8) for name, one in marks.items()
        }

    @map_runs
    def reset(seed: Array) -> tuple[Any, Any, Any]:
        seen, state = env.reset(rng.run_key(seed))
        blank = collect(seen, served_oldest=False, length=0, departed=0, overflow=False)
        return state.instance, state[1:], blank

    @map_runs
    def step(instance: Any, changing: Any, action: Array) -> tuple[Any, Any]:
        state = EnvState(instance, *changing)
        slot, arrived = action[0], env.observe(state).queue.arrived
        free = arrived[slot] == 0
        oldest = jnp.argmin(jnp.where(arrived > 0, arrived, problem.horizon + 1))
        slot = jnp.where(free, oldest.astype(jnp.int32), slot)
        servers = mnl.unrank_assortment(action[1], problem.num_servers, problem.assortment_size)
        taken = Action(slot, servers, jnp.bool_(False))
        seen, state, _, _, info = env.step(instance.key, state, taken)
        return state[1:], collect(
            seen, served_oldest=free & jnp.any(arrived > 0), length=info.length,
            departed=info.departed, overflow=info.overflow,
        )  # fmt: skip

    seeds = jax.ShapeDtypeStruct(() if num_envs is None else (num_envs,), jnp.int32)
    _, shapes, results = jax.eval_shape(reset, seeds)

    # JAX sorts the keys of a dictionary.
    records = [np.dtype([(k, v.dtype, v.shape) for k, v in sorted(r.items())]) for r in results]
    in_one_kernel = num_envs is None and jax.default_backend() == "cpu"

    @jax.jit
    def reset_packed(seeds: Array) -> tuple[Any, Array, Array]:
        instances, changing, results = reset(seeds)
        return instances, _pack(changing), _pack(results)

    @jax.jit
    def step_packed(instances: Any, packed: Array, actions: Array) -> tuple[Array, Array]:
        changing, results = step(instances, _unpack(packed, shapes), actions)
        return _pack(changing), _pack(results)

    @functools.partial(jax.jit, donate_argnums=1)
    def step_donated(*arguments: Any) -> Any:
        packed = step_packed(*arguments)
        return set_xla_metadata(packed, **IN_ONE_KERNEL) if in_one_kernel else packed

    return reset_packed, step_donated, records


def _as_integers(leaf: Array) -> Array:
    """Reinterpret the bits of floats as integers."""
    if not jnp.issubdtype(leaf.dtype, jnp.floating):
        return leaf
    return jax.lax.bitcast_convert_type(leaf, f"int{8 * leaf.dtype.itemsize}")


def _pack(tree: Any) -> Array:
    """Return all leaves in one array of integers: each array of a call costs microseconds."""
    return jnp.concatenate([_as_integers(leaf).ravel() for leaf in jax.tree.leaves(tree)])


def _unpack(packed: Array, shapes: Any) -> Any:
    """Return the tree of these shapes and types that was packed."""
    leaves, tree = jax.tree.flatten(shapes)
    parts = jnp.split(packed, np.cumsum([leaf.size for leaf in leaves])[:-1])

    def restore(part: Array, like: Any) -> Array:
        part = part.reshape(like.shape).astype(jax.eval_shape(_as_integers, like).dtype)
        same = part.dtype == like.dtype
        return part if same else jax.lax.bitcast_convert_type(part, like.dtype)

    return jax.tree.unflatten(tree, map(restore, parts, leaves))


def _make_env(env: Env | None, arguments: dict[str, Any]) -> Env:
    """Return the functional environment of an adapter."""
    if env is None:
        defaults: dict[str, Any] = {"source": Synthetic(), "capacity": CAPACITY}
        return Env(**defaults | arguments)
    if arguments:
        raise ValueError(f"{', '.join(arguments)}: give an Env, or its arguments, not both")
    return env


def _make_spaces(env: Env) -> tuple[spaces.MultiDiscrete, Any]:
    """Return the spaces of actions and observations."""
    observations: dict[str, spaces.Space[Any]] = {
        name: spaces.Box(low, high, shape, dtype)
        for name, (shape, dtype, low, high) in env.spaces.items()
    }
    return spaces.MultiDiscrete([env.capacity, env.num_assortments]), spaces.Dict(observations)


gymnasium.register(
    "cqbjax/Routing-v0",
    entry_point="cqbjax.gymnasium_env:GymnasiumEnv",
    vector_entry_point="cqbjax.gymnasium_env:GymnasiumVectorEnv",
)
