"""Random numbers by address: the generator's bits, and the normals made of them."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.extend.random import threefry_2x32
from scipy import stats
from tiers import cases

from cqbjax.core import platforms, rng
from cqbjax.core.instances import draw_instance
from cqbjax.sources import Coin


@pytest.mark.parametrize("seed", [0, 7, 2**31 - 1])
def test_threefry_matches_jax(seed):
    key = jax.random.key_data(rng.run_key(seed))
    first, second = np.arange(50, dtype=np.uint32), np.arange(50, 100, dtype=np.uint32) ** 3
    mine = jnp.concatenate(rng.threefry(key, jnp.asarray(first), jnp.asarray(second)))
    np.testing.assert_array_equal(mine, threefry_2x32(key, np.concatenate([first, second])))


SETTINGS = [
    ("jax_default_prng_impl", "rbg"), ("jax_threefry_partitionable", False),
    ("jax_enable_x64", True), ("jax_random_seed_offset", 5),
]  # fmt: skip


@pytest.mark.parametrize(
    ("setting", "value"), cases(SETTINGS, ["jax_default_prng_impl"], several=True)
)
def test_jax_settings_do_not_change_random_numbers(setting, value):
    def draw_twice():
        key = rng.round_key(rng.run_key(7), 3)
        return [jax.random.key_data(key), jax.random.key_data(jax.random.split(key, 3)),
                rng.uniform(key, rng.Stream.CHOICE)]  # fmt: skip

    first, before = draw_twice(), getattr(jax.config, setting)
    np.testing.assert_array_equal(
        jax.random.key_data(rng.run_key(7)),
        jax.random.key_data(jax.random.key(7, impl="threefry2x32")),
    )
    jax.config.update(setting, value)
    try:
        for mine, other in zip(first, draw_twice(), strict=True):
            np.testing.assert_array_equal(mine, other)
    finally:
        jax.config.update(setting, before)


@pytest.mark.slow
@pytest.mark.parametrize("partitionable", cases([True, False], [True]))
def test_gpu_gammas_match_the_key_under_any_partitioning(partitionable):
    key = rng.run_key(7)
    with platforms.use(platforms.GPU), jax.threefry_partitionable(partitionable):
        drawn = jax.random.loggamma(rng.batchable_key(key), jnp.asarray([0.5, 3.0]))
    np.testing.assert_array_equal(drawn, jax.random.loggamma(key, jnp.asarray([0.5, 3.0])))


# In the order in which they came to be: an address never changes, new ones follow.
STREAMS = """PARAMETERS CONTEXTS POOL ARRIVAL ARRIVAL_ROW CHOICE EXPLORE QUERY ASSORTMENT NORMAL
BETA HEAD BURST CHANNELS USERS SERVICE PATIENCE BATCH"""


def test_streams_keep_their_addresses():
    known = STREAMS.split()
    assert list(rng.Stream.__members__)[: len(known)] == known
    assert [stream.value for stream in rng.Stream] == list(range(len(rng.Stream.__members__)))


def test_addresses_and_uniforms_match_jax():
    key = rng.run_key(5)
    for number in (0, 1, 4999, 2**31 - 1):
        mine, theirs = rng.round_key(key, number), jax.random.fold_in(key, number)
        np.testing.assert_array_equal(jax.random.key_data(mine), jax.random.key_data(theirs))
        for stream in (rng.Stream.CHOICE, rng.Stream.EXPLORE):
            expected = jax.random.uniform(jax.random.fold_in(theirs, int(stream)))
            assert rng.uniform(mine, stream) == expected
    rounds = jnp.arange(1, 2000)
    drawn = rng.round_uniforms(key, rounds, rng.Stream.ARRIVAL)
    alone = [rng.uniform(rng.round_key(key, t), rng.Stream.ARRIVAL) for t in (1, 7, 1999)]
    np.testing.assert_array_equal(drawn[np.array([0, 6, 1998])], np.asarray(alone))
    assert stats.kstest(np.asarray(drawn), "uniform").pvalue > 0.01


def test_choice_uniforms_are_addressed_by_round_or_by_channel_at_round_zero():
    key, source, rounds = rng.run_key(5), Coin(num_servers=3), jnp.arange(1, 10)
    problem = source.problem(1, 9)
    drawn = draw_instance(key, source, 0.4, problem)
    np.testing.assert_array_equal(
        drawn.choice_uniforms, rng.round_uniforms(key, rounds, rng.Stream.CHOICE)
    )
    # Places have keys of their own in each round: their common draws are of none.
    own = jax.random.fold_in(jax.random.fold_in(key, 0), int(rng.Stream.CHANNELS))
    drawn = draw_instance(key, source, 0.4, problem._replace(channels=2))
    np.testing.assert_array_equal(drawn.choice_uniforms, jax.random.uniform(own, (9, 2)))


@pytest.mark.slow
def test_normals_are_standard_and_independent_between_addresses():
    draw = jax.jit(
        lambda t: rng.normals(rng.round_key(rng.run_key(3), t), rng.Stream.NORMAL, (9, 5, 7))
    )
    drawn = np.stack([np.asarray(draw(t)) for t in range(400)])
    assert stats.kstest(drawn.ravel(), "norm").pvalue > 0.01
    rows = drawn.reshape(400, -1)
    # Correlations between elements of one draw and between draws, in standard errors.
    within = np.corrcoef(rows.T)[np.triu_indices(rows.shape[1], 1)] * np.sqrt(len(rows))
    between = np.corrcoef(rows)[np.triu_indices(len(rows), 1)] * np.sqrt(rows.shape[1])
    for errors in (within, between):
        assert np.abs(errors).max() < 6 and abs(errors.std() - 1.0) < 0.05


def test_extreme_random_words_give_the_outermost_normals():
    least, most = (float(rng._normal(jnp.uint32(word))) for word in (0, 2**32 - 1))
    # Of 23 bits the least number is the next above -1, the largest 3 2^-24 below 1.
    assert least == pytest.approx(stats.norm.ppf(2.0**-25), rel=1e-3)
    assert most == pytest.approx(stats.norm.isf(3 * 2.0**-25), rel=1e-3)


def test_normals_depend_on_the_address_and_not_on_batch_or_shape():
    keys = jax.vmap(rng.run_key)(jnp.arange(4))
    draw = functools.partial(rng.normals, stream=rng.Stream.NORMAL, shape=(3, 5))
    batch, by_itself = jax.jit(jax.vmap(draw))(keys), jax.jit(draw)
    for key, mine in zip(keys, batch, strict=True):
        alone = by_itself(key)
        np.testing.assert_array_equal(alone, mine)
        assert np.unique(alone).size == 15
    other = jax.jit(lambda key: rng.normals(key, rng.Stream.BETA, (3, 5)))(keys[0])
    assert not np.intersect1d(other, batch[0]).size
