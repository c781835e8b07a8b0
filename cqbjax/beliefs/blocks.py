"""Belief by blocks: a root of V inverse and a running estimate of each."""

from functools import reduce
from typing import NamedTuple

import jax.numpy as jnp
from jax import Array

from cqbjax import linalg
from cqbjax.beliefs import gaussian, running
from cqbjax.beliefs.gaussian import Posterior
from cqbjax.beliefs.rows import Row
from cqbjax.types import Observation, Problem


class State(NamedTuple):
    """Posterior and estimate.

    Attributes:
        posterior: W and the counts of every block.
        estimate: the estimator's own state; its `theta` is [B, d].
    """

    posterior: Posterior
    estimate: running.State


def init(problem: Problem, contexts: Array, lambda0: Array) -> State:
    """Return V = lambda0 I and theta = 0; the context table is not looked at."""
    del contexts
    return State(gaussian.init(problem, lambda0), running.init(problem, lambda0))


def learnt(state: State) -> Array:
    """Return in how many rounds each block was learnt from: [B]."""
    return state.posterior.learnt


def theta(state: State, contexts: Array) -> Array:
    """Return the estimates: [B, d]; any leading axes of the state are kept."""
    del contexts
    return state.estimate.theta


def sampled(state: State, observation: Observation, alpha: Array, normal: Array) -> Array:
    """Return the largest of M sampled utilities of every slot and server.

    Args:
        state: the belief.
        observation: the round.
        alpha: [B] radius.
        normal: [M, B, d] standard normals.

    Returns:
        [C, N] max over m of x' (theta + alpha W z_m).
    """
    drawn = gaussian.sample(state.posterior, state.estimate.theta, alpha, normal)
    return largest_inner(observation.features, drawn)


def bounded(state: State, observation: Observation, alpha: Array) -> Array:
    """Return the upper confidence bound x'theta + alpha ||x||_{V^-1}: [C, N]."""
    features = observation.features
    spread = gaussian.spread(state.posterior, features)
    return inner(features, state.estimate.theta) + alpha * spread


def update(state: State, problem: Problem, new: Row, exact_steps: int = 0) -> State:
    """Absorb one round: V first, then the estimate (Algorithm 1 lines 9 to 11)."""
    shape = gaussian.observe(state.posterior, problem, new.features, new.servers, new.valid)
    estimate = running.update(state.estimate, problem, new, exact_steps)
    return State(shape, estimate)


def inner(features: Array, theta: Array) -> Array:
    """Return x_c' theta_j for every slot and server: [C, N].

    Args:
        features: [C, d] (disjoint) or [C, N, d] (shared).
        theta: [B, d].
    """
    if features.shape[-1] > linalg.SMALL:
        if features.ndim == 3:
            return features @ theta[0]
        return features @ theta.T
    slots_last = jnp.moveaxis(features, 0, -1)
    if features.ndim == 2:
        slots_last = slots_last[None]
    parts = [slots_last[:, i] * theta[:, i, None] for i in range(theta.shape[-1])]
    return linalg.settle(reduce(jnp.add, parts)).T


def largest_inner(features: Array, drawn: Array) -> Array:
    """Return max_m x_c' theta~_mj of every slot and server: [C, N].

    Args:
        features: [C, d] (disjoint) or [C, N, d] (shared).
        drawn: [M, B, d].
    """
    if features.shape[-1] > linalg.SMALL or features.ndim == 3:
        return reduce(jnp.maximum, [inner(features, one) for one in drawn])
    # A server at a time, so that one kernel runs along the slots with a server's samples at hand.
    servers = [
        reduce(jnp.maximum, [linalg.vecmat(one, features.T) for one in samples])
        for samples in jnp.swapaxes(drawn, 0, 1)
    ]
    return linalg.settle(jnp.stack(servers)).T
