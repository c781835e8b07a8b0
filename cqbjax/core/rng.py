"""Random numbers by address: each draw is determined by (seed, round, stream).

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
# Seeds of runs are smaller.
MAX_SEED = 2**31
# Rounds drawn per loop iteration if a program was compiled for a longer horizon than the run's.
BLOCK = 64


class Stream(enum.IntEnum):
    """The purpose of a draw, which is the last part of its address."""

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
    """Return the key of the run with this seed.

    The key is the same on CPU and GPU, and for every setting of JAX's default PRNG.

    Raises:
        ValueError: the seed is out of range (JAX would silently use its last 32 bits). Arrays, as
            under `jax.vmap`, are not checked.
    """
    if not isinstance(seed, Array):
        check_seed(seed)
    return jax.random.wrap_key_data(threefry_prng_impl.seed(jnp.asarray(seed)), impl=WRITTEN_OUT)


def check_seed(seed: Any) -> None:
    """Raise ValueError for a seed that is not a whole number from 0 to 2^31 - 1."""
    if not (is_integer(seed) and 0 <= seed < MAX_SEED):
        raise ValueError(f"seed={seed} must be a whole number from 0 to 2^31 - 1")


def round_key(key: Array, round_: Array | int) -> Array:
    """Return the key of one round; round 0 is for draws before the first round."""
    return jax.random.fold_in(key, round_)


def stream_key(key: Array, stream: Stream) -> Array:
    """Return the key of one stream under a round's key."""
    return jax.random.fold_in(key, int(stream))


def batchable_key(key: Array) -> Array:
    """Return the key for JAX's rejection samplers, such as gamma; it does not change the draws.

    JAX samples a batch one number after another, except on a GPU with a key of JAX's own type: then
    it samples the whole batch in parallel. For a GPU program this returns such a key, if
    `jax_threefry_partitionable` is on (the default); without it the draws would differ.
    """
    # JAX's type stubs do not list its settings.
    partitionable = jax.config.jax_threefry_partitionable  # type: ignore[attr-defined]
    if not (platforms.get_current().fused and partitionable):
        return key
    return jax.random.wrap_key_data(jax.random.key_data(key), impl="threefry2x32")


def uniform(key: Array, stream: Stream) -> Array:
    """Draw one uniform in [0, 1) from a stream of a round's key, with 23 bits at any precision."""
    return jax.random.uniform(stream_key(key, stream), dtype=jnp.float32).astype(float)


def round_uniforms(key: Array, rounds: Array, stream: Stream) -> Array:
    """Draw the uniforms of one stream for many rounds at once: [T], the same as round by round.

    Within `limit_draws`, only the blocks of `BLOCK` rounds that the run reaches are drawn; the
    others are zero. If `BLOCK` does not divide T, all rounds are drawn.
    """
    rounds, current = jnp.asarray(rounds), rng.current_run_length()
    draw = jax.vmap(lambda t: uniform(round_key(key, t), stream))
    if current is None or len(rounds) % BLOCK:
        return draw(rounds)

    def more(block: Array, uniforms: Array) -> Array:
        at = block * BLOCK
        drawn = draw(jax.lax.dynamic_slice_in_dim(rounds, at, BLOCK))
        return jax.lax.dynamic_update_slice_in_dim(uniforms, drawn, at, 0)

    blocks = jnp.minimum(-(-current.rounds // BLOCK), len(rounds) // BLOCK)
    return jax.lax.fori_loop(0, blocks, more, jnp.zeros(len(rounds)))


def normals(key: Array, stream: Stream, shape: tuple[int, ...]) -> Array:
    """Draw standard normals from a stream of a round's key; the bits are equal on CPU and GPU.

    The bits are threefry's, as in `jax.random.normal`, but both words of a block are used and the
    cipher's rounds are unrolled, so that bits and normals are one vectorised loop. This is twice as
    fast on a CPU, where nine samples per round (K = 2) are a large part of the work at d = 384.

    Args:
        key: the round's key.
        stream: the stream of the draw.
        shape: shape of the result.
    """
    size = math.prod(shape)
    counter = jnp.arange(-(-size // 2), dtype=jnp.uint32)
    # The barrier keeps XLA from computing the cipher's block again for each number below.
    words = linalg.add_barrier(
        threefry(jax.random.key_data(stream_key(key, stream)), counter, jnp.uint32(0))
    )
    # One long row with a barrier before the reshape: XLA does not vectorise short rows.
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
    """Convert 32 random bits to a standard normal, by the inverse error function of a uniform."""
    mantissa = (word >> 9) | jnp.uint32(0x3F800000)
    unit = jax.lax.bitcast_convert_type(mantissa, jnp.float32) - np.float32(1.0)
    least = np.nextafter(np.float32(-1.0), np.float32(0.0))
    symmetric = unit * (np.float32(1.0) - least) + least
    return np.float32(math.sqrt(2.0)) * jax.lax.erf_inv(symmetric)


def _fold_in(key: Array, number: Array | int) -> Array:
    """Return the words of the key that a number and a parent key determine."""
    words = threefry(key, jnp.uint32(0), jnp.asarray(number).astype(jnp.uint32))
    # A barrier, so that a long draw does not derive its key again for each number.
    return linalg.add_barrier(jnp.stack(words))


def _blocks(key: Array, shape: tuple[int, ...]) -> tuple[Array, Array]:
    """Return both words of one block per element; the shape has fewer than 2^32 elements."""
    counter = jnp.arange(math.prod(shape), dtype=jnp.uint32)
    first, second = threefry(key, jnp.uint32(0), counter)
    return first.reshape(shape), second.reshape(shape)


def _split(key: Array, shape: tuple[int, ...]) -> Array:
    """Return the words of new keys: [*shape, 2]."""
    return jnp.stack(_blocks(key, shape), axis=-1)


def _random_bits(key: Array, bit_width: int, shape: tuple[int, ...]) -> Array:
    """Return random unsigned integers of `bit_width` bits."""
    first, second = _blocks(key, shape)
    if bit_width == 64:
        return (first.astype(jnp.uint64) << 32) | second.astype(jnp.uint64)
    return (first ^ second).astype(f"uint{bit_width}")


# JAX's threefry, bit for bit, with the cipher's rounds unrolled. On a CPU, JAX's version runs them
# in loops of small kernels, about 320 per round of ACQB, which also compile slowly.
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
    """The horizon of a run whose program was compiled for a longer horizon.

    Attributes:
        rounds: [] int32 T. Draws for later rounds are not used.
        root: [] float32 T^(-1/2), with the same rounding as in a program compiled for T.
    """

    rounds: Any
    root: Any


_CURRENT: ContextVar[RunLength | None] = ContextVar("run_length", default=None)


def run_length(horizon: int) -> RunLength:
    """Return the `RunLength` of a horizon T."""
    return RunLength(np.int32(horizon), np.asarray(horizon**-0.5, np.float32))


def current_run_length() -> RunLength | None:
    """Return the length set by `limit_draws`; None if the program has the run's horizon."""
    return _CURRENT.get()


@contextlib.contextmanager
def limit_draws(run_length: RunLength | None) -> Iterator[None]:
    """Skip draws of rounds after the end of a run, up to whole blocks; None: draw all."""
    token = _CURRENT.set(run_length)
    try:
        yield
    finally:
        _CURRENT.reset(token)
