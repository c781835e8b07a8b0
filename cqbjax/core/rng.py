"""Randomness by address: every draw is named by (seed, round, stream).

Adding a stream, a seed, a round or a policy never changes another draw, so every policy meets the
same arrivals, contexts and choice uniforms: the coupling process of the paper's appendix.
"""

import contextlib
import enum
import math
from collections.abc import Iterator
from contextvars import ContextVar
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.extend.random import define_prng_impl, threefry_prng_impl

from cqbjax.core import linalg, platforms, rng
from cqbjax.core.inputs import is_integer

# Threefry-2x32 with 20 rounds (Salmon et al., 2011): rotations of even and odd groups, key parity.
ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))
PARITY = np.uint32(0x1BD11BDA)
# Seeds of runs lie below.
MAX_SEED = 2**31
# Rounds that are drawn at once where a program has room for more than a run has.
BLOCK = 64


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
    BURST = 12
    CHANNELS = 13
    USERS = 14
    SERVICE = 15
    PATIENCE = 16
    BATCH = 17
    FIXED_OUTCOME = 18
    REPLACEMENT = 19


def run_key(seed: Array | int) -> Array:
    """Return the key of the run with this seed: on CPU and GPU, and however JAX's PRNG is set.

    Raises:
        ValueError: a number out of range, of which JAX takes the last 32 bits. Under `jax.vmap`
            seeds are arrays, which are not checked.
    """
    if not isinstance(seed, Array) and not (is_integer(seed) and 0 <= seed < MAX_SEED):
        raise ValueError(f"seed={seed} must be a whole number from 0 to 2^31 - 1")
    return jax.random.wrap_key_data(threefry_prng_impl.seed(jnp.asarray(seed)), impl=WRITTEN_OUT)


def round_key(key: Array, round_: Array | int) -> Array:
    """Return the key of one round; round 0 is the instance, before the first round."""
    return jax.random.fold_in(key, round_)


def stream_key(key: Array, stream: Stream) -> Array:
    """Return the key of one stream under a round's key."""
    return jax.random.fold_in(key, int(stream))


def batchable_key(key: Array) -> Array:
    """Return keys for JAX's rejection samplers, such as its gamma: the draws are the same.

    For a batch JAX carries those out one number after another, unless the key is of its own kind
    and the program for a GPU: then all numbers take their turns together. They are the same only
    while `jax_threefry_partitionable` is on, as by default.
    """
    # JAX's settings are attributes that its types do not list.
    partitionable = jax.config.jax_threefry_partitionable  # type: ignore[attr-defined]
    if not (platforms.get_current().fused and partitionable):
        return key
    return jax.random.wrap_key_data(jax.random.key_data(key), impl="threefry2x32")


def uniform(key: Array, stream: Stream) -> Array:
    """Draw one uniform in [0, 1) from a stream of a round's key, of 23 bits in any precision."""
    return jax.random.uniform(stream_key(key, stream), dtype=jnp.float32).astype(float)


def round_uniforms(key: Array, rounds: Array, stream: Stream) -> Array:
    """Draw the uniforms of one stream for many rounds at once: [T], the same as round by round.

    Those after the last round of a shorter run (`extent.drawing`) are zero, about.
    """
    rounds, until = jnp.asarray(rounds), rng.current_run_length()
    drawn = jax.vmap(lambda t: uniform(round_key(key, t), stream))
    if until is None or len(rounds) % BLOCK:
        return drawn(rounds)

    def more(block: Array, uniforms: Array) -> Array:
        at = block * BLOCK
        some = drawn(jax.lax.dynamic_slice_in_dim(rounds, at, BLOCK))
        return jax.lax.dynamic_update_slice_in_dim(uniforms, some, at, 0)

    blocks = jnp.minimum(-(-until.rounds // BLOCK), len(rounds) // BLOCK)
    return jax.lax.fori_loop(0, blocks, more, jnp.zeros(len(rounds)))


def normals(key: Array, stream: Stream, shape: tuple[int, ...]) -> Array:
    """Draw standard normals from a stream of a round's key; the bits are equal on CPU and GPU.

    The bits are threefry's, as `jax.random.normal` uses them, but both words of a block are used
    and the rounds are written out, so that bits and normals are one vectorised loop: twice as fast
    on a CPU, where nine samples a round (K = 2) are a good part of all work at d = 384.

    Args:
        key: the round's key.
        stream: of the draw.
        shape: of the result.
    """
    size = math.prod(shape)
    counter = jnp.arange(-(-size // 2), dtype=jnp.uint32)
    # Settled: within the joining below, each number would compute the cipher's whole block anew.
    words = linalg.add_barrier(
        threefry(jax.random.key_data(stream_key(key, stream)), counter, jnp.uint32(0))
    )
    # One long row, settled before it is reshaped: in short rows XLA computes number by number.
    drawn = linalg.add_barrier(jnp.concatenate([_normal(word) for word in words])[:size])
    return drawn.reshape(shape).astype(float)


@jax.jit
def threefry(key: Array, first: Array, second: Array) -> tuple[Array, Array]:
    """Return the two words of the threefry-2x32 block cipher.

    Args:
        key: [2] uint32.
        first: [...] uint32, the first word of each block's counter.
        second: [...] uint32, its second word.
    """
    keys = (key[0], key[1], key[0] ^ key[1] ^ PARITY)
    x, y = first + keys[0], second + keys[1]
    for group in range(5):
        for turn in ROTATIONS[group % 2]:
            x = x + y
            y = ((y << turn) | (y >> (32 - turn))) ^ x
        x = x + keys[(group + 1) % 3]
        y = y + keys[(group + 2) % 3] + jnp.uint32(group + 1)
    return x, y


def _normal(word: Array) -> Array:
    """Turn 32 random bits into a standard normal: the inverse error function of a uniform."""
    mantissa = (word >> 9) | jnp.uint32(0x3F800000)
    unit = jax.lax.bitcast_convert_type(mantissa, jnp.float32) - np.float32(1.0)
    least = np.nextafter(np.float32(-1.0), np.float32(0.0))
    symmetric = unit * (np.float32(1.0) - least) + least
    return np.float32(math.sqrt(2.0)) * jax.lax.erf_inv(symmetric)


def _fold_in(key: Array, number: Array | int) -> Array:
    """Return the words of the key under a number's address."""
    words = threefry(key, jnp.uint32(0), jnp.asarray(number).astype(jnp.uint32))
    # Settled, so that a long draw does not derive its key again for each number.
    return linalg.add_barrier(jnp.stack(words))


def _blocks(key: Array, shape: tuple[int, ...]) -> tuple[Array, Array]:
    """Return both words of one block for each element of a shape below 2^32 elements."""
    counter = jnp.arange(math.prod(shape), dtype=jnp.uint32)
    first, second = threefry(key, jnp.uint32(0), counter)
    return first.reshape(shape), second.reshape(shape)


def _split(key: Array, shape: tuple[int, ...]) -> Array:
    """Return the words of new keys: [*shape, 2]."""
    return jnp.stack(_blocks(key, shape), axis=-1)


def _random_bits(key: Array, bit_width: int, shape: tuple[int, ...]) -> Array:
    """Return random bits, `bit_width` of them in each element."""
    first, second = _blocks(key, shape)
    if bit_width == 64:
        return (first.astype(jnp.uint64) << 32) | second.astype(jnp.uint64)
    return (first ^ second).astype(f"uint{bit_width}")


# JAX's threefry, bit for bit, with the cipher's rounds written out. On a CPU JAX's own keeps them
# in loops of small kernels, some 320 in a round of ACQB, which take long to compile too.
WRITTEN_OUT = define_prng_impl(
    key_shape=(2,),
    seed=threefry_prng_impl.seed,
    split=_split,
    random_bits=_random_bits,
    fold_in=_fold_in,
    name="threefry2x32 written out",
    tag="fryw",
)


class RunLength(NamedTuple):
    """The horizon of a run whose program was compiled for a longer one.

    Attributes:
        rounds: [] int32 T. What is drawn for later rounds is of no account.
        root: [] T^(-1/2), rounded once, as where T is known when a program is traced.
    """

    rounds: Any
    root: Any


_CURRENT: ContextVar[RunLength | None] = ContextVar("extent", default=None)


def run_length(horizon: int) -> RunLength:
    """Return the extent of a horizon."""
    return RunLength(np.int32(horizon), np.asarray(horizon**-0.5, np.float32))


def current_run_length() -> RunLength | None:
    """Return the extent of the runs that are drawn; None where a program is of their horizon."""
    return _CURRENT.get()


@contextlib.contextmanager
def limit_draws(extent: RunLength | None) -> Iterator[None]:
    """Draw no more rounds than these, about."""
    token = _CURRENT.set(extent)
    try:
        yield
    finally:
        _CURRENT.reset(token)
