"""The offline-trained routers on planted structure, known answers and the real slice."""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import polars as pl
import pytest
from tiers import cases

from cqbjax.core import rng
from cqbjax.offline.contrastive import ContrastiveConfig
from cqbjax.offline.projection import fit_heads
from cqbjax.offline.routers import (
    KNN,
    MLP,
    UMR,
    Carrot,
    Conditional,
    Logistic,
    OfflineSplit,
    Router,
    RouterDC,
    Zero,
)
from cqbjax.offline.routers.base import cluster, cross_validate
from cqbjax.offline.routers.knn import (
    choose_k,
    lost_utility,
    mean_of_nearest,
    squared_error,
)
from cqbjax.offline.routers.routerdc import (
    draw_batch,
    lay_out_clusters,
    sample_llm_loss,
    sample_sample_loss,
)

RHO = 0.5
ROUTERS: dict[str, Router] = {
    "zero": Zero(),
    "knn": KNN(),
    "mlp": MLP(learning_rate=1e-2, max_iter=60),
    "umr": UMR(),
    "routerdc": RouterDC(steps=200, learning_rate=1e-3, width=64),
    "carrot": Carrot(),
    "logistic": Logistic(ridges=(0.1, 1.0)),
    "conditional": Conditional(),
}


def planted(seed: int, n: int = 400, d: int = 12) -> tuple[OfflineSplit, np.ndarray]:
    """Four clusters; in each one server is good and cheap, but server 4 is fair everywhere."""
    rng = np.random.default_rng(seed)
    cluster = rng.integers(0, 4, n)
    centres = np.random.default_rng(99).normal(size=(4, d))
    x = centres[cluster] + 0.35 * rng.normal(size=(n, d))
    x /= np.linalg.norm(x, axis=1, keepdims=True)
    chance = np.full((n, 6), 0.1)
    chance[:, 4] = 0.5
    chance[np.arange(n), cluster] = 0.9
    performance = (rng.random((n, 6)) < chance).astype(float)
    cost = np.clip(np.linspace(0.1, 0.5, 6) + 0.02 * rng.normal(size=(n, 6)), 0, 1)
    # As the log of a service would show it: satisfied users, who mind the cost too.
    departure = np.clip(performance - RHO * cost, 0.02, 0.98)
    return OfflineSplit(x, performance, cost, departure), chance - RHO * cost


@functools.cache
def fitted(name: str) -> Any:
    """Train a router on the planted structure once, for all that looks at it."""
    return ROUTERS[name].fit(planted(0)[0], rho=RHO, seed=0)


def routed(scores: np.ndarray, utility: np.ndarray) -> float:
    """Mean expected utility of the servers with the highest score."""
    return float(utility[np.arange(len(utility)), scores.argmax(axis=1)].mean())


@pytest.mark.slow
@pytest.mark.parametrize("name", ROUTERS)
def test_every_router_beats_random_on_planted_structure(name: str) -> None:
    held, utility = planted(1)
    scores = fitted(name).predict(held.embeddings)
    assert scores.shape == utility.shape and np.isfinite(scores).all()
    reached, oracle = routed(scores, utility), float(utility.max(axis=1).mean())
    fixed = float(utility.mean(axis=0).max())
    assert reached > utility.mean() + 0.1
    if name == "zero":
        assert reached == pytest.approx(fixed)
    else:
        assert reached > fixed + 0.6 * (oracle - fixed)


@pytest.mark.slow
@pytest.mark.parametrize("name", ROUTERS)
def test_the_same_seed_gives_the_same_router(name: str) -> None:
    split, _ = planted(0)
    again = ROUTERS[name].fit(split, rho=RHO, seed=0)
    prompts = split.embeddings[:7]
    np.testing.assert_array_equal(fitted(name).predict(prompts), again.predict(prompts))


@pytest.mark.slow
@pytest.mark.parametrize("name", ROUTERS)
def test_a_prediction_depends_on_no_other_prompt_of_the_batch(name: str) -> None:
    held, _ = planted(4, n=40)
    router = fitted(name)
    together = router.predict(held.embeddings)
    alone = np.concatenate([router.predict(held.embeddings[i : i + 1]) for i in range(8)])
    np.testing.assert_allclose(together[:8], alone, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("grid", cases([(15,), (5, 20, 80)], [(15,)]))
def test_carrot_is_knn_when_cost_depends_on_the_model_alone(grid: tuple[int, ...]) -> None:
    split, _ = planted(5)
    constant = dataclasses.replace(split, cost=np.tile(np.linspace(0, 1, 6), (400, 1)))
    held, _ = planted(6)
    for seed in range(3):
        tuned = Carrot(grid).tune(constant, rho=5.0, seed=seed)
        carrot = tuned.fit(constant, rho=5.0, seed=seed).predict(held.embeddings)
        knn = KNN(tuned.grid).fit(constant, rho=5.0, seed=seed).predict(held.embeddings)
        np.testing.assert_allclose(carrot, knn, atol=1e-12)
    tuned = Carrot(grid).tune(split, rho=5.0, seed=0)
    knn, carrot = (
        router.fit(split, rho=5.0, seed=0).predict(held.embeddings)
        for router in (KNN(tuned.grid), tuned)
    )
    assert np.abs(knn - carrot).max() > 0.01


def test_zero_router_is_the_best_fixed_llm_of_the_split() -> None:
    for seed in range(5):
        rng = np.random.default_rng(seed)
        split = OfflineSplit(rng.normal(size=(30, 4)), rng.random((30, 7)), rng.random((30, 7)))
        for rho in (0.0, 1.0, 5.0):
            totals = [
                sum(split.performance[i, j] - rho * split.cost[i, j] for i in range(30))
                for j in range(7)
            ]
            scores = Zero().fit(split, rho=rho, seed=0).predict(rng.normal(size=(3, 4)))
            assert (scores.argmax(axis=1) == int(np.argmax(totals))).all()


def test_knn_averages_over_the_nearest_prompts_by_cosine() -> None:
    split, _ = planted(7, n=60)
    queries = planted(8, n=12)[0].embeddings * 3.0
    scores = KNN((9,)).fit(split, rho=RHO, seed=0).predict(queries)
    for query, score in zip(queries, scores, strict=True):
        cosine = [query @ row / np.linalg.norm(query) for row in split.embeddings]
        nearest = sorted(range(60), key=lambda i: -cosine[i])[:9]
        expected = split.performance[nearest].mean(axis=0) - RHO * split.cost.mean(axis=0)
        np.testing.assert_allclose(score, expected, atol=1e-12)


def test_carrot_averages_cost_over_another_number_of_prompts_than_performance() -> None:
    draw = np.random.default_rng(0)
    x, held = draw.normal(size=(12, 3)), draw.normal(size=(4, 3))
    split = OfflineSplit(x, draw.random((12, 2)), draw.random((12, 2)))
    carrot = Carrot(grid=(1,), cost_grid=(6,)).fit(split, rho=2.0, seed=0)
    near = np.argsort(-held @ (x / np.linalg.norm(x, axis=1, keepdims=True)).T, axis=1)
    cost = split.cost[near[:, :6]].mean(axis=1)
    np.testing.assert_allclose(carrot.predict(held), split.performance[near[:, 0]] - 2.0 * cost)


def test_rows_tied_with_the_kth_neighbour_share_its_weight() -> None:
    # Cosines with the query are 1; .6 four times, twice by one vector and once by a longer one; -1.
    stored = np.array([[3, 4], [3, -4], [1, 0], [3, 4], [-1, 0], [6, 8]], np.float32)
    values = np.array([[0.0, 8], [4, 0], [7, 7], [4, 0], [100, 100], [0, 0]])
    expected = {1: [7, 7], 2: [9, 9], 4: [13, 13], 5: [15, 15], 6: [115, 115]}
    for seed in range(30):
        rows = np.random.default_rng(seed).permutation(6)
        means = mean_of_nearest(stored[rows], values[rows], np.array([[2.0, 0]]), (*expected,))
        totals = means[:, 0] * np.array([[k] for k in expected])
        np.testing.assert_allclose(totals, list(expected.values()), atol=1e-12)
        np.testing.assert_array_equal(means[..., 0], means[..., 1])


def test_zero_embeddings_are_equally_near_to_all_prompts() -> None:
    stored, values = np.eye(4), np.arange(8.0).reshape(4, 2)
    means = mean_of_nearest(stored, values, np.zeros((1, 4)), (1, 3))
    np.testing.assert_allclose(means, np.broadcast_to(values.mean(axis=0), (2, 1, 2)))


def repeated(seed: int, n: int = 60) -> tuple[OfflineSplit, np.ndarray]:
    """Planted structure of which two thirds share two vectors, as RouterBench's slice has it."""
    split, _ = planted(seed, n)
    rows = np.where(np.arange(n) % 3 < 2, np.arange(n) % 2, np.arange(n))
    return dataclasses.replace(split, embeddings=split.embeddings[rows]), split.embeddings


def permute_servers(split: OfflineSplit, rows: Any, servers: Any) -> OfflineSplit:
    """The same split with other rows first, or other LLMs."""
    cells = (split.performance, split.cost, split.departure)
    return OfflineSplit(split.embeddings[rows], *(each[rows][:, servers] for each in cells))


TUNED: dict[str, Router] = {
    "zero": Zero(),
    "knn": KNN((2, 5, 30)),
    "carrot": Carrot((2, 5, 30)),
    "umr": UMR((2, 3)),
    "mlp": MLP(((3,), (4,)), max_iter=5),
    "routerdc": RouterDC(steps=5, width=8, clusters=2),
}


@pytest.mark.filterwarnings("ignore:UMR")
@pytest.mark.parametrize("name", cases(TUNED, ["zero", "knn"]))
def test_router_predictions_do_not_depend_on_the_order_of_rows(name: str) -> None:
    (split, queries), router = repeated(3), TUNED[name]
    for rho in (0.0, RHO):
        first = router.fit(split, rho=rho, seed=0).predict(queries)
        for seed in range(2):
            other = permute_servers(
                split, np.random.default_rng(seed).permutation(60), np.arange(6)
            )
            assert router.tune(other, rho=rho, seed=0) == router.tune(split, rho=rho, seed=0)
            predicted = router.fit(other, rho=rho, seed=0).predict(queries)
            atol = 1e-14 if name == "zero" else 0.0  # its mean is summed in the order of rows
            np.testing.assert_allclose(predicted, first, rtol=0.0, atol=atol)


@pytest.mark.filterwarnings("ignore:UMR")
@pytest.mark.parametrize("name", cases(["zero", "knn", "carrot", "umr"], ["knn"]))
def test_router_predictions_do_not_depend_on_the_order_of_llms(name: str) -> None:
    (split, queries), router = repeated(3), TUNED[name]
    for rho in (0.0, RHO):
        first = router.fit(split, rho=rho, seed=0).predict(queries)
        for seed in range(2):
            servers = np.random.default_rng(seed).permutation(6)
            other = permute_servers(split, np.arange(60), servers)
            assert router.tune(other, rho=rho, seed=0) == router.tune(split, rho=rho, seed=0)
            predicted = router.fit(other, rho=rho, seed=0).predict(queries)
            np.testing.assert_allclose(predicted, first[:, servers], atol=1e-12)


@pytest.mark.slow
def test_log_odds_follow_the_order_of_rows_and_llms_by_the_solvers_tolerance_alone() -> None:
    (split, queries), router = repeated(3), Logistic((1.0,))
    first = router.fit(split, rho=RHO, seed=0).predict(queries)
    draw = np.random.default_rng(0)
    rows, servers = draw.permutation(60), draw.permutation(6)
    predicted = router.fit(permute_servers(split, rows, servers), rho=RHO, seed=0).predict(queries)
    np.testing.assert_allclose(predicted, first[:, servers], atol=2e-3)


def test_tied_servers_have_their_utility_averaged() -> None:
    utility, predicted = np.array([[0.2, 0.6, 1.0]]), np.array([[[0.5, 0.5, 0.0]]])
    assert lost_utility(utility, np.zeros(3))(predicted, np.array([0])) == pytest.approx(-0.4)


SETTINGS: dict[str, Any] = {
    "generator": lambda: jax.default_prng_impl("rbg"),
    "partitionable": lambda: jax.threefry_partitionable(False),
    "64 bits": lambda: jax.enable_x64(True),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", SETTINGS)
def test_jax_settings_do_not_change_a_fit(name: str) -> None:
    split, _ = planted(3, n=40)
    config = ContrastiveConfig(
        hidden=6, outputs=3, epochs=3, iota_pos=0.2, iota_neg=0.0, prompts_per_epoch=10
    )

    def fits() -> list[np.ndarray]:
        router = RouterDC(steps=5, width=8, clusters=2).fit(split, rho=RHO, seed=3)
        key = rng.stream_key(rng.run_key(3), rng.Stream.HEAD)
        utility, every = split.utility(RHO), np.ones((1, 40), bool)
        params, _ = fit_heads(key[None], split.embeddings, utility, every, config)
        return [router.predict(split.embeddings), *map(np.asarray, jax.tree.leaves(params))]

    first = fits()
    with SETTINGS[name]():
        for mine, other in zip(first, fits(), strict=True):
            np.testing.assert_array_equal(mine, other)


def test_chosen_k_minimises_the_cross_validated_error() -> None:
    from sklearn.model_selection import GridSearchCV, KFold
    from sklearn.neighbors import KNeighborsRegressor

    split, _ = planted(9, n=150)
    grid = (1, 4, 16, 64)
    search = GridSearchCV(
        KNeighborsRegressor(metric="cosine", algorithm="brute"),
        {"n_neighbors": grid},
        scoring="neg_mean_squared_error",
        cv=KFold(5, shuffle=True, random_state=3),
    ).fit(split.embeddings, split.performance)
    chosen = choose_k(
        split.embeddings, split.performance, squared_error(split.performance), grid, 5, 3
    )
    assert chosen == search.best_params_["n_neighbors"]
    means = mean_of_nearest(split.embeddings, split.performance, split.embeddings[:4], grid)
    nearest = np.argsort(-split.embeddings @ split.embeddings[2])[:4]
    np.testing.assert_allclose(means[1, 2], split.performance[nearest].mean(axis=0))


def test_utility_criterion_is_the_held_out_routing_utility() -> None:
    split, _ = planted(9, n=150)
    price = RHO * split.cost.mean(axis=0)
    loss = lost_utility(split.utility(RHO), price)
    rows, predicted = np.arange(40, 60), np.random.default_rng(0).random((2, 20, 6))
    for g, lost in enumerate(loss(predicted, rows)):
        earned = 0.0
        for i, row in enumerate(rows):
            server = int(np.argmax([predicted[g, i, j] - price[j] for j in range(6)]))
            earned += split.performance[row, server] - RHO * split.cost[row, server]
        assert -lost == pytest.approx(earned)


def test_umr_error_is_the_mean_within_the_cluster() -> None:
    split, _ = planted(10, n=200)
    predicted = UMR((4,)).train(split.embeddings, split.performance, 4, 0)(split.embeddings)
    centres = cluster(split.embeddings, 4, 0).cluster_centers_
    label = ((split.embeddings[:, None] - centres[None]) ** 2).sum(axis=2).argmin(axis=1)
    assert len(set(label)) == 4
    for c in range(4):
        expected = np.tile(split.performance[label == c].mean(axis=0), (sum(label == c), 1))
        np.testing.assert_allclose(predicted[label == c], expected, atol=1e-9)


@pytest.mark.slow
def test_umr_and_routerdc_accept_fewer_distinct_embeddings_than_clusters() -> None:
    split, _ = planted(11, n=60)
    repeated = dataclasses.replace(split, embeddings=split.embeddings[np.arange(60) % 3])
    for router in (UMR(), RouterDC(steps=5, width=8)):
        scores = router.fit(repeated, rho=RHO, seed=0).predict(split.embeddings)
        assert np.isfinite(scores).all()


@pytest.mark.slow
def test_routerdc_losses_match_scalar_code() -> None:
    rng = np.random.default_rng(0)
    cosine, target = rng.uniform(-1, 1, (40, 6)), rng.uniform(-0.6, 1.0, (40, 6))
    target[0] = -0.5  # no positive
    target[1] = 0.9  # every negative masked

    @jax.jit  # one operation after another is a compilation each
    def llm_loss(cosine):
        return sample_llm_loss(cosine, jnp.asarray(target), 3, 2, 0.0, 0.5)

    loss = np.asarray(llm_loss(jnp.asarray(cosine)))
    for i in range(40):
        order = sorted(range(6), key=lambda j: -target[i, j])
        negatives = [j for j in order[-2:] if target[i, j] <= 0.5]
        total = 0.0
        for j in order[:3]:
            if target[i, j] > 0:
                rest = sum(np.exp(cosine[i, m]) for m in negatives)
                total -= np.log(np.exp(cosine[i, j]) / (np.exp(cosine[i, j]) + rest))
        assert loss[i] == pytest.approx(total, abs=1e-5)
    assert loss[0] == loss[1] == 0.0

    gradient = jax.jit(jax.grad(lambda cosine: llm_loss(cosine).sum()))
    assert np.isfinite(gradient(jnp.asarray(cosine))).all()
    anchor, same, other = (
        rng.normal(size=(2, 5)),
        rng.normal(size=(2, 5)),
        rng.normal(size=(2, 3, 5)),
    )
    losses = jax.jit(sample_sample_loss)(jnp.asarray(anchor), jnp.asarray(same), jnp.asarray(other))
    for i in range(2):
        top = np.exp(anchor[i] @ same[i])
        rest = sum(np.exp(anchor[i] @ row) for row in other[i])
        assert float(losses[i]) == pytest.approx(-np.log(top / (top + rest)), rel=1e-5)


@pytest.mark.slow
def test_routerdc_draws_from_the_right_clusters() -> None:
    split, _ = planted(12, n=90)
    grouping = lay_out_clusters(split.embeddings, 4, 0)
    label = np.zeros(90, int)
    order, start = np.asarray(grouping.order), np.asarray(grouping.start)
    label[:] = start  # a cluster is known by where it starts
    seen = set()
    for seed in range(30):
        batch = draw_batch(jax.random.key(seed), grouping, 64, 3)
        rows, same, other = (np.asarray(a) for a in batch)
        assert (label[rows] == label[same]).all()
        assert (label[rows][:, None] != label[other]).all()
        seen |= set(other.ravel().tolist())
    assert seen == set(range(90)) and sorted(order) == list(range(90))


def test_bad_splits_are_refused_by_row_and_column() -> None:
    split, _ = planted(13, n=20)
    for name, value, sentence in (
        ("performance", 1.5, r"performance row 3, column 2 is 1.5; it must be in \[0, 1\]"),
        ("cost", -0.1, r"cost row 3, column 2 is -0.1"),
        ("cost", np.nan, r"cost row 3, column 2 is nan"),
        ("embeddings", np.inf, "embeddings row 3, column 2 is inf; it must be finite"),
    ):
        values = getattr(split, name).copy()
        values[3, 2] = value
        with pytest.raises(ValueError, match=sentence):
            dataclasses.replace(split, **{name: values})
    with pytest.raises(ValueError, match="needs at least 10"):
        OfflineSplit(split.embeddings[:4], split.performance[:4], split.cost[:4])
    with pytest.raises(ValueError, match=r"cost has shape \(20, 3\); it must be \(20, "):
        dataclasses.replace(split, cost=split.cost[:, :3])
    with pytest.raises(ValueError, match="every k of"):
        KNN((500,)).fit(split, rho=1.0, seed=0)


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: KNN(()), "KNN grid"),
        (lambda: Carrot((0, 4)), "CARROT grid"),
        (lambda: UMR((0,)), "UMR grid"),
        (lambda: MLP(((),)), "MLP grid"),
        (lambda: RouterDC(top_k=0), "top_k=0 must be a whole number in"),
    ],
)
def test_bad_settings_are_refused_by_name(make, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        make()


@pytest.mark.slow
def test_a_tuned_knn_beats_the_best_fixed_model_on_the_real_slice(shared_data) -> None:
    table = pl.read_parquet(shared_data / "routerbench" / "routerbench.parquet")
    score = table.select(pl.col(r"^score\|.*$")).to_numpy()
    cost = table.select(pl.col(r"^cost\|.*$")).to_numpy()
    x = np.load(shared_data / "routerbench" / "minilm_l6_v2.npy").astype(np.float32)
    complete = np.isfinite(score).all(axis=1)
    score, cost, x = score[complete], cost[complete] / cost.max(), x[complete]
    raw = score - 5.0 * cost
    low, high = raw.min(axis=1, keepdims=True), raw.max(axis=1, keepdims=True)
    departure = 0.1 + 0.89 * (raw - low) / (high - low)
    order = np.random.default_rng(7).permutation(len(x))
    pool, rest = order[:1000], order[1000:]
    split = OfflineSplit(x[rest], score[rest], cost[rest])
    scores = KNN().fit(split, rho=5.0, seed=0).predict(x[pool])
    assert routed(scores, departure[pool]) > departure[pool].mean(axis=0).max() + 0.005


def test_tied_settings_resolve_to_the_first_of_the_grid():
    """For k, the smallest; each held-out row counts once."""
    draw = np.random.default_rng(0)
    x, values, rows = draw.normal(size=(40, 3)), draw.random((40, 2)), []

    def loss(predicted, held):
        rows.extend(held)
        return np.zeros(len(predicted))

    assert choose_k(x, values, loss, (20, 5, 10), 4, 0) == 5 and sorted(rows) == list(range(40))
    assert cross_validate([3.0, 1.0, 2.0], lambda grid, *_: [1.0] * len(grid), 40, 4, 0) == 3.0
    assert cross_validate([3.0, 1.0, 2.0], lambda grid, *_: grid, 40, 4, 0) == 1.0
