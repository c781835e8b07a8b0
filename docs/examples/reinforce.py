"""Train a scheduler by REINFORCE
==============================

Train a schedule in the environment, and enter it into the arena::

    python reinforce.py     # writes scheduler.npz
    cqbjax arena policy=reinforce.py:Scheduler

LinUCB estimates how likely each LLM is to satisfy each waiting query. A small network learns which
query to serve. It scores each query by that estimate, by its waiting time, by its number of
attempts and by the queue length. Half of the queries in training are hard. Training uses only the
seeds for tuning.
"""

import dataclasses
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import Array

from cqbjax import Action, Observation, mnl, policies, pytree, queueing, rng, sources
from cqbjax.env import Env

FILE = Path("scheduler.npz")
FIRST_SEED = 1_000_000
# Instances per update, repetitions of each instance, rounds per run, and updates.
INSTANCES, TIMES, ROUNDS, UPDATES = 8, 8, 150, 40
INPUTS, HIDDEN = 4, 16
# Discount factor per round.
DISCOUNT = 0.95


def init_network(key: Array) -> dict[str, Array]:
    """Return untrained parameters of the network."""
    key_first, key_last = jax.random.split(key)
    draw = jax.nn.initializers.lecun_normal()
    return {
        "first": draw(key_first, (INPUTS, HIDDEN)), "first_bias": jnp.zeros(HIDDEN),
        "last": draw(key_last, (HIDDEN, 1)), "last_bias": jnp.zeros(1),
    }  # fmt: skip


def score(first: Array, first_bias: Array, last: Array, last_bias: Array, seen: Array) -> Array:
    """Return the network's scores [...] of queries [..., 4]."""
    return (jnp.tanh(seen @ first + first_bias) @ last + last_bias)[..., 0]


def chances(policy: policies.LinearBandit, state, observation: Observation) -> Array:
    """Return LinUCB's index of every slot and server: [C, N]."""
    x = observation.features
    along = jnp.einsum("bij,cj->cbi", state.inverse, x)
    width = jnp.sqrt(jnp.maximum(jnp.einsum("cbi,ci->cb", along, x), 0.0))
    return jnp.einsum("cbi,bi->cb", along, state.target) + policy.alpha * width


def inputs(observation: Observation, index: Array) -> Array:
    """Return the network's features of each slot: [C, 4]."""
    queue = observation.queue
    waited = (observation.round - queue.arrived).astype(float)
    length = jnp.sum(queueing.mark_waiting(queue)).astype(float)
    columns = (
        index.max(axis=-1), jnp.log1p(waited), jnp.log1p(queue.served.astype(float)),
        jnp.full(len(waited), jnp.log1p(length)),
    )  # fmt: skip
    return jnp.stack(columns, axis=-1)


def logits(parameters, seen: Array, waiting: Array) -> Array:
    """Return the network's scores of waiting queries, and -1e9 for other slots: [C]."""
    return jnp.where(waiting, score(**parameters, seen=seen), -1e9)


def stored(name: str) -> Array:
    """Return an array of the file that training writes."""
    return jnp.asarray(np.load(FILE)[name])


@pytree
class Scheduler:
    """LinUCB's routing with the learnt schedule.

    Attributes:
        first: [4, 16] weights; `first_bias`, `last` and `last_bias` are the other parameters.
        router: estimates how likely each query is to be satisfied.
    """

    first: Array = dataclasses.field(default_factory=lambda: stored("first"))
    first_bias: Array = dataclasses.field(default_factory=lambda: stored("first_bias"))
    last: Array = dataclasses.field(default_factory=lambda: stored("last"))
    last_bias: Array = dataclasses.field(default_factory=lambda: stored("last_bias"))
    router: policies.LinearBandit = policies.LinearBandit()

    def check(self, problem) -> None:
        """Raise ValueError for shared parameters, which the index above does not support."""
        if problem.parameters != "disjoint":
            raise ValueError("Scheduler is for disjoint parameters")

    def init(self, problem, contexts):
        """Return the router's initial state."""
        return self.router.init(problem, contexts)

    def select(self, key, state, observation) -> Action:
        """Serve the query with the highest score, using its best servers by LinUCB's index."""
        index = chances(self.router, state, observation)
        there = observation.available
        index = index if there is None else jnp.where(there, index, -1e4)
        seen = inputs(observation, index)
        scores = score(self.first, self.first_bias, self.last, self.last_bias, seen)
        slot = jnp.argmax(jnp.where(queueing.mark_waiting(observation.queue), scores, -jnp.inf))
        servers = mnl.best_servers(index[slot], observation.problem.assortment_size)
        return Action(slot.astype(jnp.int32), servers, jnp.bool_(False))

    def update(self, state, observation, action, feedback):
        """Update the router's state."""
        return self.router.update(state, observation, action, feedback)


class Round(NamedTuple):
    """One round of a rollout: the network's features, the action, and the reward."""

    seen: Array
    waiting: Array
    slot: Array
    reward: Array


def rollout(env: Env, parameters, key: Array, mask: Array) -> Round:
    """Simulate a run that draws queries by the softmax of their scores: each field [T, ...].

    Args:
        env: the environment.
        parameters: parameters of the network.
        key: key of the run, which determines its queries and users.
        mask: [] int32, separates the draws of actions in repetitions of the same run.
    """
    router = policies.LinearBandit()
    observation, state = env.reset(key)

    def one(carried, _):
        observation, state, own = carried
        full = env.with_problem(observation)
        index = chances(router, own, full)
        seen, waiting = inputs(full, index), queueing.mark_waiting(full.queue)
        drawn = jax.random.fold_in(rng.round_key(key, observation.round), mask)
        slot = jax.random.categorical(drawn, logits(parameters, seen, waiting)).astype(jnp.int32)
        action = Action(slot, mnl.best_servers(index[slot], 1), jnp.bool_(False))
        observation, state, reward, _, info = env.step(key, state, action)
        own = router.update(own, full, info.action, info.feedback)
        return (observation, state, own), Round(seen, waiting, slot, reward)

    begun = router.init(env.problem, state.instance.workload.contexts)
    return jax.lax.scan(one, (observation, state, begun), length=env.problem.horizon)[1]


def loss(parameters, rounds: Round) -> Array:
    """Return REINFORCE's loss: minus the log probability of each action times its advantage.

    Args:
        parameters: parameters of the network.
        rounds: [instances, repetitions, T, ...]; the baseline is the mean over the repetitions of
            an instance, which meet the same queries and users.
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
    # With at most one query in the queue there is no choice.
    several = rounds.waiting.sum(axis=-1) > 1
    spread = advantage.std() + 1e-6
    return -jnp.sum(chosen * advantage / spread * several) / jnp.maximum(several.sum(), 1)


def train(updates: int = UPDATES, rounds: int = ROUNDS) -> tuple[float, float]:
    """Train, write the parameters to a file, and return the mean queue before and after."""
    # Half of the queries are hard, so that scheduling matters.
    source = sources.Coin(classes=[0.3, 0.9], num_servers=2)
    env = Env(source, arrival_rate=0.42, horizon=rounds, capacity=64)
    first = parameters = init_network(jax.random.key(0))
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
    # Evaluate on instances that training has not used.
    before, after = (-float(played(one, keys_of(0)).reward.mean()) for one in (first, parameters))
    np.savez(FILE, **parameters)
    return before, after


def keys_of(update: int) -> Array:
    """Return the keys of the instances of an update."""
    return jax.vmap(rng.run_key)(FIRST_SEED + update * INSTANCES + np.arange(INSTANCES))


if __name__ == "__main__":
    before, after = train()
    print(f"mean queue on new instances: {before:.2f} before, {after:.2f} after")
