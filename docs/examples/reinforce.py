"""Train a scheduler by REINFORCE
==============================

A schedule is trained in the environment, and enters the arena::

    python reinforce.py     # leaves scheduler.npz
    cqbjax arena policy=reinforce.py:Scheduler

LinUCB says how likely each waiting query is to be satisfied by each LLM. Which query to serve is
learnt: a small network scores each of them, by that chance, by how long it has waited and by how
often it was served. Half of the queries it is trained on are hard. Its seeds are those for tuning,
and no others.
"""

import dataclasses
from pathlib import Path
from typing import NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import Array

from cqbjax import policies, sources
from cqbjax.core import mnl, queueing, rng
from cqbjax.core.pytree import pytree
from cqbjax.core.types import Action, Observation
from cqbjax.env import Env

FILE = Path("scheduler.npz")
FIRST_SEED = 1_000_000
# Of each update: worlds, how often each is played, and rounds.
WORLDS, TIMES, ROUNDS, UPDATES = 8, 8, 150, 40
INPUTS, HIDDEN = 4, 16
# What a round is worth a round later.
DISCOUNT = 0.95


class Network(nn.Module):
    """Scores of queries: [..., 4] -> [...]."""

    @nn.compact
    def __call__(self, seen: Array) -> Array:
        """Return the scores."""
        hidden = nn.tanh(nn.Dense(HIDDEN, name="first")(seen))
        return nn.Dense(1, name="last")(hidden)[..., 0]


def chances(policy: policies.Linear, state, observation: Observation) -> Array:
    """Return LinUCB's index of every slot and server: [C, N]."""
    x = observation.features
    along = jnp.einsum("bij,cj->cbi", state.inverse, x)
    width = jnp.sqrt(jnp.maximum(jnp.einsum("cbi,ci->cb", along, x), 0.0))
    return jnp.einsum("cbi,bi->cb", along, state.target) + policy.alpha * width


def inputs(observation: Observation, index: Array) -> Array:
    """Return what the network sees of each slot: [C, 4]."""
    queue = observation.queue
    waited = (observation.round - queue.arrived).astype(float)
    length = jnp.sum(queueing.waiting(queue)).astype(float)
    columns = (
        index.max(axis=-1), jnp.log1p(waited), jnp.log1p(queue.served.astype(float)),
        jnp.full(len(waited), jnp.log1p(length)),
    )  # fmt: skip
    return jnp.stack(columns, axis=-1)


def logits(parameters, seen: Array, waiting: Array) -> Array:
    """Return the network's scores of the queries that wait, and next to nothing of others."""
    return jnp.where(waiting, Network().apply(parameters, seen), -1e9)


def stored(name: str) -> Array:
    """Return an array of the file that training leaves."""
    return jnp.asarray(np.load(FILE)[name])


@pytree
class Scheduler:
    """LinUCB's routing, and the schedule that was learnt.

    Attributes:
        first: [4, 16] weights; `first_bias`, `last`, `last_bias`: the others.
        router: says how likely each query is to be satisfied.
    """

    first: Array = dataclasses.field(default_factory=lambda: stored("first"))
    first_bias: Array = dataclasses.field(default_factory=lambda: stored("first_bias"))
    last: Array = dataclasses.field(default_factory=lambda: stored("last"))
    last_bias: Array = dataclasses.field(default_factory=lambda: stored("last_bias"))
    router: policies.Linear = policies.Linear()

    informed = False

    def check(self, problem) -> None:
        """Refuse shared parameters, for which the index above is not written."""
        if problem.parameters != "disjoint":
            raise ValueError("Scheduler is for disjoint parameters")

    def init(self, problem, contexts):
        """Begin as the router does."""
        return self.router.init(problem, contexts)

    def select(self, key, state, observation) -> Action:
        """Serve the query of the highest score by the best servers of its index."""
        index = chances(self.router, state, observation)
        there = observation.available
        index = index if there is None else jnp.where(there, index, -1e4)
        seen = inputs(observation, index)
        hidden = jnp.tanh(seen @ self.first + self.first_bias)
        score = (hidden @ self.last + self.last_bias)[..., 0]
        slot = jnp.argmax(jnp.where(queueing.waiting(observation.queue), score, -jnp.inf))
        servers = mnl.best_servers(index[slot], observation.problem.assortment_size)
        return Action(slot.astype(jnp.int32), servers, jnp.bool_(False))

    def update(self, state, observation, action, feedback):
        """Learn as the router does."""
        return self.router.update(state, observation, action, feedback)


class Round(NamedTuple):
    """What is kept of a round: what the network saw, what was drawn, and the reward."""

    seen: Array
    waiting: Array
    slot: Array
    reward: Array


def rollout(env: Env, parameters, key: Array, mask: Array) -> Round:
    """Play a run, each query drawn by the softmax of its score: each field [T, ...].

    Args:
        env: where.
        parameters: of the network.
        key: of the run: its queries, users and chance.
        mask: [] int32, tells apart what is drawn where the same run is played several times.
    """
    router = policies.Linear()
    observation, state = env.reset(key)

    def one(carried, _):
        observation, state, own = carried
        full = env.full(observation)
        index = chances(router, own, full)
        seen, waiting = inputs(full, index), queueing.waiting(full.queue)
        drawn = jax.random.fold_in(rng.round_key(key, observation.round), mask)
        slot = jax.random.categorical(drawn, logits(parameters, seen, waiting)).astype(jnp.int32)
        action = Action(slot, mnl.best_servers(index[slot], 1), jnp.bool_(False))
        observation, state, reward, _, told = env.step(key, state, action)
        own = router.update(own, full, told.action, told.feedback)
        return (observation, state, own), Round(seen, waiting, slot, reward)

    begun = router.init(env.problem, state.instance.world.contexts)
    return jax.lax.scan(one, (observation, state, begun), length=env.problem.horizon)[1]


def loss(parameters, rounds: Round) -> Array:
    """Return REINFORCE's loss: minus the log chance of what was drawn, by its advantage.

    Args:
        parameters: of the network.
        rounds: [worlds, times, T, ...]; the baseline is the mean over the times that a world was
            played, which met the same queries and users.
    """

    def before(later: Array, reward: Array) -> tuple[Array, Array]:
        worth = reward + DISCOUNT * later
        return worth, worth

    rewards = jnp.moveaxis(rounds.reward, -1, 0)
    worth = jax.lax.scan(before, jnp.zeros(rewards.shape[1:]), rewards, reverse=True)[1]
    worth = jnp.moveaxis(worth, 0, -1)
    advantage = worth - worth.mean(axis=1, keepdims=True)
    logs = jax.nn.log_softmax(logits(parameters, rounds.seen, rounds.waiting))
    chosen = jnp.take_along_axis(logs, rounds.slot[..., None], axis=-1)[..., 0]
    # With one query in the queue, or none, there was nothing to choose.
    several = rounds.waiting.sum(axis=-1) > 1
    spread = advantage.std() + 1e-6
    return -jnp.sum(chosen * advantage / spread * several) / jnp.maximum(several.sum(), 1)


def train(updates: int = UPDATES, rounds: int = ROUNDS) -> tuple[float, float]:
    """Train, leave the parameters in a file, and return the mean queue before and after."""
    # Half of the queries are hard: whom to serve matters.
    source = sources.Coin(classes=[0.3, 0.9], num_servers=2)
    env = Env(source, arrival_rate=0.42, horizon=rounds, capacity=64)
    first = parameters = Network().init(jax.random.key(0), jnp.zeros(INPUTS))
    optimizer = optax.adam(0.03)

    @jax.jit
    def played(parameters, keys) -> Round:
        masks = jnp.arange(TIMES)
        each = jax.vmap(lambda key, mask: rollout(env, parameters, key, mask), (None, 0))
        return jax.vmap(each, (0, None))(keys, masks)

    @jax.jit
    def changed(parameters, moments, rounds: Round):
        change, moments = optimizer.update(jax.grad(loss)(parameters, rounds), moments)
        return optax.apply_updates(parameters, change), moments

    moments = optimizer.init(parameters)
    for number in range(1, updates + 1):
        keys = keys_of(number)
        parameters, moments = changed(parameters, moments, played(parameters, keys))
    # On worlds that no update has met.
    before, after = (-float(played(one, keys_of(0)).reward.mean()) for one in (first, parameters))
    layers = parameters["params"]
    np.savez(
        FILE, first=layers["first"]["kernel"], first_bias=layers["first"]["bias"],
        last=layers["last"]["kernel"], last_bias=layers["last"]["bias"],
    )  # fmt: skip
    return before, after


def keys_of(update: int) -> Array:
    """Return the keys of the worlds of an update."""
    return jax.vmap(rng.run_key)(FIRST_SEED + update * WORLDS + np.arange(WORLDS))


if __name__ == "__main__":
    before, after = train()
    print(f"mean queue on other worlds: {before:.2f} before, {after:.2f} after")
