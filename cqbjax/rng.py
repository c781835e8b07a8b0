"""Randomness by address: every draw is named by (seed, round, stream).

Adding a stream, a seed, a round or a policy never changes another draw, so every policy meets the
same arrivals, contexts and choice uniforms: the coupling process of the paper's appendix.
"""

import enum

import jax
import jax.numpy as jnp
from jax import Array


class Stream(enum.IntEnum):
    """What a draw is for; the last part of its address."""

    PARAMETERS = 0
    CONTEXTS = 1
    POOL = 2
    ARRIVAL = 3
    ARRIVAL_ROW = 4
    CHOICE = 5
    EXPLORE = 6
    QUERY = 7
    ASSORTMENT = 8
    NORMAL = 9
    BETA = 10
    HEAD = 11


def run_key(seed: Array | int) -> Array:
    """Return the key of the run with this seed; threefry bits are equal on CPU and GPU."""
    return jax.random.key(seed, impl="threefry2x32")


def round_key(key: Array, round_: Array | int) -> Array:
    """Return the key of one round; round 0 is the instance, before the first round."""
    return jax.random.fold_in(key, round_)


def stream_key(key: Array, stream: Stream) -> Array:
    """Return the key of one stream under a round's key."""
    return jax.random.fold_in(key, int(stream))


def uniform(key: Array, stream: Stream) -> Array:
    """Draw one uniform in [0, 1) from a stream of a round's key."""
    return jax.random.uniform(stream_key(key, stream))


def round_uniforms(key: Array, rounds: Array, stream: Stream) -> Array:
    """Draw the uniforms of one stream for many rounds at once: [T], the same as round by round."""
    return jax.vmap(lambda t: uniform(round_key(key, t), stream))(jnp.asarray(rounds))
