"""The contrastive head against scalar code, planted structure and its own saved bits."""

import dataclasses
import math

import jax
import jax.numpy as jnp
import numpy as np
import polars as pl
import pytest

from cqbjax.offline.contrastive import (
    ContrastiveConfig,
    draw_balanced_sample,
    draw_minibatch,
    info_nce,
    select_pairs,
    utility_cosine,
)
from cqbjax.offline.projection import fit, fit_heads, init_head, project

# Compiled whole: one operation after another is a compilation each.
utility_cosine, info_nce = jax.jit(utility_cosine), jax.jit(info_nce)
select_pairs = jax.jit(select_pairs, static_argnums=3)
draw_balanced_sample = jax.jit(draw_balanced_sample, static_argnums=2)
draw_minibatch = jax.jit(draw_minibatch, static_argnums=2)


def scalar_cosine(u: np.ndarray) -> np.ndarray:
    """Cosine of centred utilities, one pair at a time."""
    n = len(u)
    c = np.zeros((n, n))
    for i in range(n):
        for j in range(n):
            a, b = u[i] - u[i].mean(), u[j] - u[j].mean()
            c[i, j] = float(a @ b) / math.sqrt(float(a @ a) * float(b @ b))
    return c


def scalar_pairs(c, iota_pos, iota_neg, cap, valid):
    """P(i), N(i), j+ and the hardest negatives, as Algorithm 3 states them; None: skipped."""
    chosen = []
    for i in range(len(c)):
        others = [j for j in range(len(c)) if j != i and valid[i] and valid[j]]
        positives = [j for j in others if c[i, j] > iota_pos]
        negatives = sorted((c[i, j], j) for j in others if c[i, j] < iota_neg)[:cap]
        if not positives or not negatives:
            chosen.append(None)
        else:
            chosen.append((max(positives, key=lambda j: c[i, j]), [j for _, j in negatives]))
    return chosen


def scalar_loss(z, chosen, temperature):
    """InfoNCE of each query by its definition."""
    losses = []
    for i, pair in enumerate(chosen):
        if pair is None:
            losses.append(0.0)
            continue
        top = math.exp(float(z[i] @ z[pair[0]]) / temperature)
        rest = sum(math.exp(float(z[i] @ z[j]) / temperature) for j in pair[1])
        losses.append(-math.log(top / (top + rest)))
    return np.array(losses)


def planted(seed: int, n: int = 240, d: int = 16, servers: int = 6):
    """Utility depends on the sign pattern of two faint dimensions; the loud ones are noise."""
    rng = np.random.default_rng(seed)
    cluster = rng.integers(0, 4, n)
    x = rng.normal(size=(n, d))
    signs = np.array([[1, 1], [1, -1], [-1, 1], [-1, -1]])[cluster]
    x[:, :2] = 0.9 * signs + 0.1 * rng.normal(size=(n, 2))
    x /= np.linalg.norm(x, axis=1, keepdims=True)
    taste = rng.permutation(np.eye(4, servers) * 0.9)
    u = taste[cluster] + 0.02 * rng.normal(size=(n, servers))
    return x.astype(np.float32), u.astype(np.float32), cluster


def neighbour_error(z: np.ndarray, u: np.ndarray, offline: np.ndarray) -> float:
    """Root mean square utility error of the nearest offline prompt, over the other prompts."""
    nearest = (z[~offline] @ z[offline].T).argmax(axis=1)
    return float(np.sqrt(np.mean((u[offline][nearest] - u[~offline]) ** 2)))


SMALL = ContrastiveConfig(
    hidden=64, outputs=16, prompts_per_model=15, epochs=60, learning_rate=1e-2
)


@pytest.mark.parametrize("cap", [3, 64])
@pytest.mark.parametrize("seed", range(4))
def test_pairs_and_loss_match_scalar_code(seed: int, cap: int) -> None:
    rng = np.random.default_rng(seed)
    u = rng.random((17, 5)).astype(np.float32)
    valid = rng.random(17) < 0.8
    valid[3] = False
    z = rng.normal(size=(17, 7)).astype(np.float32)
    z /= np.linalg.norm(z, axis=1, keepdims=True)
    c = utility_cosine(jnp.asarray(u))
    np.testing.assert_allclose(c, scalar_cosine(u.astype(float)), atol=2e-6)

    pairs = select_pairs(c, 0.6, -0.3, cap, jnp.asarray(valid))
    chosen = scalar_pairs(np.asarray(c), np.float32(0.6), np.float32(-0.3), cap, valid)
    assert list(np.asarray(pairs.used)) == [pair is not None for pair in chosen]
    assert 0 < sum(pair is not None for pair in chosen) < 17
    for i, pair in enumerate(chosen):
        if pair is not None:
            assert int(pairs.positive[i]) == pair[0]
            assert (
                list(np.asarray(pairs.negatives[i])[np.asarray(pairs.negative_mask[i])]) == pair[1]
            )
    loss = info_nce(jnp.asarray(z), pairs, 0.07)
    np.testing.assert_allclose(
        loss, scalar_loss(z.astype(float), chosen, 0.07), rtol=2e-5, atol=1e-5
    )


@pytest.mark.slow
def test_loss_gradient_is_finite_and_zero_for_skipped_queries() -> None:
    z = jax.random.normal(jax.random.key(0), (6, 4))
    pairs = select_pairs(jnp.eye(6), 0.5, -0.5, 64, jnp.ones(6, bool))
    assert not pairs.used.any()
    gradient = jax.grad(lambda z: jnp.sum(info_nce(z, pairs, 0.07)))(z)
    np.testing.assert_array_equal(gradient, 0.0)


def test_constant_utilities_have_no_positive_pairs() -> None:
    u = jnp.array([[0.3, 0.3, 0.3], [0.1, 0.5, 0.9], [0.9, 0.5, 0.1]])
    np.testing.assert_allclose(utility_cosine(u), [[0, 0, 0], [0, 1, -1], [0, -1, 1]], atol=1e-6)


@pytest.mark.slow
def test_rows_with_constant_utilities_are_never_negatives() -> None:
    """Its cosine is 0 beside all others, and below iota_neg; a row of another taste is one."""
    config = ContrastiveConfig(
        iota_pos=0.5, iota_neg=0.3, hidden=2, outputs=2, prompts_per_model=6, epochs=1
    )
    flat = [[1, 0, 0], [1, 0.1, 0], [1, 0, 0.1], [0.5, 0.5, 0.5]]
    used = [
        int(
            fit(
                jax.random.key(0), jnp.eye(5, 2), jnp.asarray([*flat, last]), config,
                jnp.ones(5, bool),
            )[1].used[0]
        )
        for last in ([0.2, 0.2, 0.2], [0.0, 1.0, 0.0])
    ]  # fmt: skip
    # Then all but the flat row and the one of another taste, which is alike to nobody.
    assert used == [0, 3]


@pytest.mark.slow
def test_balanced_sample_draws_each_group_evenly_and_all_of_a_small_one() -> None:
    best = np.array([0] * 30 + [1] * 3 + [3] * 20)
    u = np.eye(4, dtype=np.float32)[best]
    available = np.ones(53, bool)
    available[:10] = False
    counts = np.zeros(53)
    for seed in range(400):
        sample = draw_balanced_sample(
            jax.random.key(seed), jnp.asarray(u), 5, jnp.asarray(available)
        )
        rows = np.asarray(sample.rows)[np.asarray(sample.mask)]
        assert len(set(rows)) == len(rows) and available[rows].all()
        assert list(np.bincount(best[rows], minlength=4)) == [5, 3, 0, 5]
        slots = np.flatnonzero(np.asarray(sample.mask))
        assert (slots // 5 == best[rows]).all()
        counts[rows] += 1
    # Uniform within a group: a draw of 5 in 20 has mean 100 and sd 8.7 over 400 seeds.
    assert np.abs(counts[10:30] - 100).max() < 5 * 8.7
    assert (counts[30:33] == 400).all()


@pytest.mark.slow
def test_minibatch_takes_real_slots_first() -> None:
    mask = jnp.arange(20) % 2 == 0
    slots, valid = draw_minibatch(jax.random.key(1), mask, 8)
    assert valid.all() and len(set(np.asarray(slots).tolist())) == 8
    _, valid = draw_minibatch(jax.random.key(1), mask, 14)
    assert int(valid.sum()) == 10
    assert not (slots == draw_minibatch(jax.random.key(2), mask, 8)[0]).all()


@pytest.mark.slow
def test_head_separates_prompts_that_the_encoder_confuses() -> None:
    before, after, untrained = [], [], []
    for seed in range(4):
        x, u, _ = planted(seed)
        offline = np.arange(len(x)) < 160
        params, history = fit(jax.random.key(seed), x, u, SMALL, jnp.asarray(offline))
        z = np.asarray(project(params, x))
        z0 = np.asarray(project(init_head(jax.random.key(seed), 16, SMALL), x))
        before.append(neighbour_error(x, u, offline))
        untrained.append(neighbour_error(z0, u, offline))
        after.append(neighbour_error(z, u, offline))
        assert float(history.loss[-1]) < 0.5 * float(history.loss[0])
    assert max(after) < 0.6 * min(before)
    assert max(after) < 0.6 * min(untrained)


@pytest.mark.slow
def test_shuffled_utilities_do_not_improve_neighbours() -> None:
    x, u, _ = planted(0)
    offline = np.arange(len(x)) < 160
    wrong = u[np.random.default_rng(0).permutation(len(u))]
    params, _ = fit(jax.random.key(0), x, wrong, SMALL, jnp.asarray(offline))
    z = np.asarray(project(params, x))
    assert neighbour_error(z, u, offline) > 0.85 * neighbour_error(x, u, offline)


@pytest.mark.slow
def test_training_seeds_jointly_equals_training_them_separately() -> None:
    x, u, _ = planted(1)
    config = dataclasses.replace(SMALL, epochs=8, prompts_per_epoch=30, learning_rate=1e-3)
    keys = jax.random.split(jax.random.key(3), 3)
    available = np.random.default_rng(0).random((3, len(x))) < 0.7
    stacked, histories = fit_heads(keys, x, u, available, config)
    for seed in range(3):
        alone, history = fit(keys[seed], x, u, config, jnp.asarray(available[seed]))
        np.testing.assert_array_equal(histories.used[seed], history.used)
        np.testing.assert_allclose(histories.loss[seed], history.loss, rtol=1e-4)
        mine = jax.tree.map(lambda leaf, seed=seed: leaf[seed], stacked)
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=2e-4), mine, alone)
    first = stacked["hidden"]
    assert float(jnp.abs(first[0] - first[1]).max()) > 0.01


@pytest.mark.slow
def test_rows_outside_the_split_are_never_read() -> None:
    x, u, _ = planted(2)
    offline = np.arange(len(x)) % 3 > 0
    config = dataclasses.replace(SMALL, epochs=5, prompts_per_model=60)
    clean, _ = fit(jax.random.key(0), x, u, config, jnp.asarray(offline))
    x, u = x.copy(), u.copy()
    x[~offline], u[~offline] = np.nan, np.nan
    planted_fault, _ = fit(jax.random.key(0), x, u, config, jnp.asarray(offline))
    jax.tree.map(np.testing.assert_array_equal, clean, planted_fault)


def test_a_head_loses_no_direction_and_its_output_has_unit_length() -> None:
    x, _, _ = planted(3)
    eye = jnp.eye(16)
    mirror = {
        "hidden": jnp.concatenate([eye, -eye], axis=1), "hidden_bias": jnp.zeros(32),
        "output": jnp.concatenate([eye, -eye]), "output_bias": jnp.zeros(16),
    }  # fmt: skip
    length = np.linalg.norm(x, axis=1, keepdims=True)
    np.testing.assert_allclose(project(mirror, 3.0 * x), x / length, atol=1e-6)
    z = project(init_head(jax.random.key(0), 16, SMALL), x)
    np.testing.assert_allclose(np.linalg.norm(z, axis=1), 1.0, atol=1e-5)


@pytest.mark.slow
def test_gradient_step_is_the_sum_over_used_queries() -> None:
    x, u, _ = planted(4, n=24)
    config = dataclasses.replace(
        SMALL, epochs=1, learning_rate=0.01, weight_decay=0.1, prompts_per_model=40
    )
    key = jax.random.key(5)
    everything = jnp.ones(24, bool)
    params, history = fit(key, x, u, config, everything)
    key_sample, key_init, _ = jax.random.split(key, 3)
    sample = draw_balanced_sample(key_sample, jnp.asarray(u), 40, everything)
    rows = np.asarray(sample.rows)[np.asarray(sample.mask)]
    chosen = scalar_pairs(scalar_cosine(u[rows].astype(float)), 0.5, 0.3, 64, [True] * 24)
    start = init_head(key_init, 16, config)

    def loss(params):
        z = project(params, x[rows]) / 0.07
        total = 0.0
        for i, (best, negatives) in ((i, c) for i, c in enumerate(chosen) if c is not None):
            logits = (z[i] * 0.07) @ z[jnp.array([best, *negatives])].T
            total += jax.nn.logsumexp(logits) - logits[0]
        return total

    assert int(history.used[0]) == sum(c is not None for c in chosen) > 0
    gradient = jax.jit(jax.grad(loss))(start)
    for name, first in start.items():
        # AdamW's first step is the sign of the gradient, which rounding decides where it is small.
        large = np.abs(gradient[name]) > 1e-3
        assert large.mean() > 0.3, name
        step = first - 0.01 * (np.sign(gradient[name]) + 0.1 * first)
        np.testing.assert_allclose(params[name][large], step[large], atol=1e-4)


@pytest.mark.slow
def test_a_float_setting_does_not_recompile() -> None:
    x, u, _ = planted(5)
    config = dataclasses.replace(SMALL, epochs=2)
    everything = jnp.ones(len(x), bool)
    fit(jax.random.key(0), x, u, config, everything)
    compiled = fit._cache_size()
    changed = dataclasses.replace(config, temperature=0.5, iota_neg=0.0)
    fit(jax.random.key(1), x, u, changed, everything)
    assert fit._cache_size() == compiled


def test_initial_weights_match_flax() -> None:
    # Of flax 0.12.8, whose networks these were.
    params = init_head(jax.random.key(0), 16, SMALL)
    assert params["hidden"].shape == (16, SMALL.hidden)
    np.testing.assert_array_equal(params["hidden"][0, :2], np.float32([0.06883957, 0.52221066]))
    np.testing.assert_array_equal(params["output"][0, :2], np.float32([-0.14841747, -0.044642657]))


@pytest.mark.parametrize(
    ("setting", "sentence"),
    [
        ({"temperature": 0.0}, r"temperature=0 must be a number in \(0, inf\)"),
        ({"iota_pos": 0.1}, r"iota_pos=0.1 must be a number in \[0.3, 1\)"),
        ({"epochs": 0}, "epochs=0"),
        ({"prompts_per_epoch": 2}, "prompts_per_epoch=2"),
    ],
)
def test_bad_settings_are_refused_by_name(setting: dict, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        ContrastiveConfig(**setting)


@pytest.mark.slow
def test_bad_data_is_refused_by_name() -> None:
    x, u, _ = planted(7)
    keys, everything = jax.random.split(jax.random.key(0), 2), np.ones((2, 240), bool)
    with pytest.raises(ValueError, match="head of seed 0 learnt nothing"):
        fit_heads(keys, x, np.zeros_like(u), everything, SMALL)


@pytest.mark.slow
def test_head_trains_on_the_real_slice(shared_data) -> None:
    table = pl.read_parquet(shared_data / "routerbench" / "routerbench.parquet")
    score = table.select(pl.col(r"^score\|.*$")).to_numpy()
    cost = table.select(pl.col(r"^cost\|.*$")).to_numpy()
    x = np.load(shared_data / "routerbench" / "minilm_l6_v2.npy").astype(np.float32)
    u = score - 5.0 * cost / cost.max()
    offline = np.isfinite(u).all(axis=1) & (np.random.default_rng(0).random((2, len(u))) < 0.6)
    config = ContrastiveConfig()
    params, history = fit_heads(jax.random.split(jax.random.key(0), 2), x, u, offline, config)
    assert (np.asarray(history.loss[:, -1]) < np.asarray(history.loss[:, 0])).all()
    assert (np.asarray(history.used) > 40).all()
    z = jax.vmap(project, (0, None))(params, x)
    np.testing.assert_allclose(np.linalg.norm(z, axis=2), 1.0, atol=1e-4)
