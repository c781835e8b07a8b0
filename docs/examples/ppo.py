"""Train PPO through gymnasium
===========================

Train a policy that routes and schedules, with a library for reinforcement learning::

    pip install "cqbjax[rl]"
    python ppo.py

Each of three LLMs is good at one of three kinds of prompt. MaskablePPO of sb3-contrib chooses a
waiting query and an LLM. It observes the kind, the waiting time and the number of attempts of each
query, and learns only from the queue length. It is compared with uniform valid actions, and with
the oracle, on instances that training has not used.
"""

import gymnasium
import numpy as np
import torch
from gymnasium import spaces
from sb3_contrib import MaskablePPO
from scipy import stats
from stable_baselines3.common.vec_env import DummyVecEnv

import cqbjax
from cqbjax import policies, sources
from cqbjax.env import Env
from cqbjax.gymnasium_env import GymnasiumEnv

SUCCESS = [[0.8, 0.15, 0.15], [0.15, 0.8, 0.15], [0.15, 0.15, 0.8]]
# Rounds per run, and instances that are simulated by turns in training.
ROUNDS, RUNS = 200, 8
STEPS = 30_000
EVALUATED = range(1_000_000, 1_000_020)


class Flat(gymnasium.Wrapper):
    """One vector as observation, and one number as action: slot * LLMs + LLM."""

    def __init__(self, env: gymnasium.Env) -> None:
        """Declare the spaces."""
        super().__init__(env)
        slots, self.servers = env.action_space.nvec
        columns = env.observation_space["features"].shape[-1] + 2
        self.action_space = spaces.Discrete(slots * self.servers)
        self.observation_space = spaces.Box(-1.0, np.inf, (slots * columns,), np.float32)

    def reset(self, **options):
        """Start a run."""
        seen, info = self.env.reset(**options)
        return self.flatten(seen, info), info

    def step(self, action):
        """Simulate a round."""
        seen, *outcome, info = self.env.step(np.array(divmod(int(action), int(self.servers))))
        return self.flatten(seen, info), *outcome, info

    def flatten(self, seen, info):
        """Return the observation, zero for free slots, and store the mask."""
        slots, assortments = info["action_mask"]
        self.mask = np.outer(slots, assortments).astype(bool).ravel()
        waited = np.log1p(seen["round"] - seen["arrived"])
        columns = [seen["features"], waited[:, None], np.log1p(seen["served"])[:, None]]
        waiting = (seen["arrived"] > 0)[:, None]
        return (np.concatenate(columns, axis=1) * waiting).astype(np.float32).ravel()

    def action_masks(self):
        """Return the valid actions, as sb3-contrib asks for them."""
        return self.mask


def make(env: Env) -> Flat:
    """Return an environment; all that share `env` are compiled once."""
    return Flat(GymnasiumEnv(env))


def evaluate(model: MaskablePPO, env: Env) -> dict[str, np.ndarray]:
    """Return the mean queue length of each policy on each instance; a seed names an instance."""
    swept = cqbjax.sweep(
        {"random": policies.RandomRouting()}, env.source, arrival_rate=[env.arrival_rate],
        seeds=list(EVALUATED), horizon=ROUNDS, record_every=1,
    )  # fmt: skip
    queues = swept.queue_length.mean("round").squeeze()
    flat, means = make(env), []
    for seed in EVALUATED:
        (seen, _), rewards, ended = flat.reset(seed=seed), [], False
        while not ended:
            action, _ = model.predict(seen, deterministic=True, action_masks=flat.mask)
            seen, reward, _, ended, _ = flat.step(action)
            rewards.append(reward)
        means.append(-np.mean(rewards))
    return {
        "random": queues.sel(policy="random").values,
        "PPO": np.array(means),
        "oracle": queues.sel(policy="optimal").values,
    }


def train(steps: int = STEPS) -> dict[str, np.ndarray]:
    """Train, and return the mean queue length of each policy on each evaluated instance."""
    torch.set_num_threads(1)
    source = sources.SuccessProbabilities(matrix=SUCCESS)
    env = Env(source, arrival_rate=0.3, horizon=ROUNDS, capacity=16)
    several = DummyVecEnv([lambda: make(env)] * RUNS)
    model = MaskablePPO(
        "MlpPolicy", several, n_steps=256, batch_size=512, gamma=0.9, learning_rate=1e-3, seed=0
    )
    model.learn(steps)
    return evaluate(model, env)


def interval(values: np.ndarray) -> str:
    """Return the mean and its 95% interval as text."""
    low, high = stats.ttest_1samp(values, 0).confidence_interval(0.95)
    return f"{values.mean():.2f} [{low:.2f}, {high:.2f}]"


if __name__ == "__main__":
    queues = train()
    print("mean queue on new instances, 95% interval")
    for name, values in queues.items():
        print(f"{name}: {interval(values)}")
    print(f"PPO - random: {interval(queues['PPO'] - queues['random'])}")
