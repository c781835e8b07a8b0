"""The tables of the routers: against scalar code, and the script on made-up files."""

import dataclasses
from types import SimpleNamespace

import dataset_files
import jax
import jax.numpy as jnp
import numpy as np
import polars as pl
import pytest
import scipy.stats
from composing import run_command

from cqbjax.core import rng
from cqbjax.datasets import (
    DatasetSource,
    departure_probabilities,
    embeddings,
    mnl_utilities,
)
from cqbjax.datasets.prepare import prepare
from cqbjax.datasets.table import RoutingTable
from cqbjax.offline import ProjectedPolicy, TrainedRouter, fits, projection, value
from cqbjax.offline.contrastive import ContrastiveConfig
from cqbjax.offline.routers import KNN, RouterDC, Zero
from cqbjax.policies import Acqb, RandomRouting
from cqbjax.sources import PromptPool
from reproduction import offline_value

SEEDS = [3, 8, 4]
HEAD = ContrastiveConfig(hidden=8, outputs=4)


@pytest.fixture(scope="module")
def source() -> DatasetSource:
    """80 prompts, 5 servers, embeddings of 4 dimensions that say which server is good."""
    draw = np.random.default_rng(0)
    best = draw.integers(0, 4, 80)
    x = (np.eye(4)[best] + 0.5 * draw.normal(size=(80, 4))).astype(np.float32)
    performance = np.clip(np.eye(5)[best] * 0.6 + 0.4 * draw.random((80, 5)), 0, 1)
    cost = np.linspace(0.0, 0.2, 5) * draw.random((80, 5))
    raw = performance - 2.0 * cost
    low, high = raw.min(axis=1, keepdims=True), raw.max(axis=1, keepdims=True)
    chance = 0.1 + 0.89 * (raw - low) / (high - low)
    words = tuple(f"prompt {i}" for i in range(80))
    table = RoutingTable("planted", words, words, words, tuple("abcde"), performance, cost, "toys")
    contexts, utilities = jnp.asarray(x), jnp.asarray(mnl_utilities(chance), float)
    drawn = PromptPool(contexts=contexts, utilities=utilities, pool_size=20)
    return DatasetSource(drawn, "planted", table, chance, cost, rho=2.0)


def test_baselines_without_training_are_evaluated_on_the_pool(source):
    """The best server of each prompt, the best one of the pool, and any, at the same prompts."""
    difference = 0
    for seed in range(6):
        parts, made = source.split(seed), value.evaluate_baselines(source, seed)
        chance = source.probabilities[parts.pool]
        utility = (source.table.performance - 2.0 * source.cost)[parts.pool]
        fixed = int(np.argmax([np.mean(chance[:, j]) for j in range(5)]))
        difference += fixed != int(source.probabilities[parts.offline].mean(axis=0).argmax())
        best = [int(np.argmax(row)) for row in chance]
        for name, table in (("departure", chance), ("utility", utility)):
            known = {
                value.ORACLE: np.mean([row[j] for row, j in zip(table, best, strict=True)]),
                value.BEST_FIXED: table[:, fixed].mean(), value.RANDOM: table.mean(),
                value.FALLBACK: table[:, fixed].mean(),
            }  # fmt: skip
            assert {who: one[name] for who, one in made.items()} == pytest.approx(known)
        # The LLM that is asked next is the best for those whom the first one fails.
        missed = [np.mean((1 - chance[:, fixed]) * (1 - chance[:, j])) for j in range(5)]
        least = min(missed[:fixed] + missed[fixed + 1 :])
        assert made[value.FALLBACK]["within_two"] == pytest.approx(1 - least)
    assert difference, "the pool's best server is the offline split's at every seed"


def test_smaller_offline_splits_are_sampled_from_the_whole_split(source):
    small, chosen = dataclasses.replace(source, offline_size=15), np.zeros(80)
    splits = set()
    for seed in range(40):
        offline, rest = small.split(seed).offline, source.split(seed).offline
        assert len(offline) == 15 and set(offline) <= set(rest) and (np.diff(offline) > 0).all()
        assert small.split(seed).pool.tolist() == source.split(seed).pool.tolist()
        chosen[offline] += 1
        splits.add(tuple(np.searchsorted(rest, offline)))
    assert len(splits) == 40, "seeds draw apart"
    # Each prompt is one of 15 of 80: 7.5 times in 40, with a standard deviation of 2.5.
    assert chosen.max() < 7.5 + 5 * 2.5
    whole = dataclasses.replace(source, offline_size=60)
    assert whole.split(0).offline.tolist() == source.split(0).offline.tolist()


def test_heads_are_trained_with_split_and_key_of_their_seed(source, monkeypatch):
    calls = []

    def fit(keys, embeddings, utilities, available, config):
        calls.append((keys, available))
        return {"w": np.asarray([[1.0], [2.0]])}, None

    monkeypatch.setattr(projection, "fit_heads", fit)
    data = SimpleNamespace(
        source=source,
        fit_or_load=lambda kind, label, settings, fit, at_once: dict(
            zip(settings, fit(*settings), strict=True)
        ),
    )
    made = projection.train_heads(HEAD, data, [8, 4])
    assert {seed: one["w"].tolist() for seed, one in made.items()} == {8: [1.0], 4: [2.0]}
    ((keys, available),) = calls
    for seed, key, own in zip([8, 4], keys, available, strict=True):
        assert np.flatnonzero(own).tolist() == source.split(seed).offline.tolist()
        known = rng.stream_key(rng.round_key(rng.run_key(seed), 0), rng.Stream.HEAD)
        assert (jax.random.key_data(key) == jax.random.key_data(known)).all()


def fractional(rho: float, min_max: bool, columns: list[int]) -> DatasetSource:
    """60 prompts with scores in quarters: many LLMs tie, all the more where utilities are cut."""
    draw = np.random.default_rng(0)
    performance, cost = (
        draw.choice([0, 0.25, 0.5, 0.75, 1], (60, 4)),
        draw.choice([0, 1, 2], (60, 4)),
    )
    performance[:10], cost = 0.0, (cost / 2)[:, columns]
    performance = performance[:, columns]
    chance = departure_probabilities(
        performance, cost, rho, cost_rule="none", min_max=min_max, equal_rows=0.5
    )
    words = tuple(f"prompt {i}" for i in range(60))
    names = tuple("abcd"[j] for j in columns)
    table = RoutingTable("quarters", words, words, words, names, performance, cost)
    x, utilities = jnp.ones((60, 2)), jnp.asarray(mnl_utilities(chance), float)
    drawn = PromptPool(contexts=x, utilities=utilities, pool_size=20)
    return DatasetSource(drawn, "quarters", table, chance, cost, rho=rho)


@pytest.mark.parametrize("min_max", [False, True])
@pytest.mark.parametrize("rho", [0.0, 0.5, 5.0])
def test_offline_oracle_does_not_depend_on_the_order_of_llms(rho, min_max):
    source, turned = (fractional(rho, min_max, order) for order in ([0, 1, 2, 3], [2, 0, 3, 1]))
    for seed in SEEDS:
        parts, made = source.split(seed), value.evaluate_baselines(source, seed)
        truth = source.table.performance - rho * source.cost
        best = truth[parts.pool].argmax(axis=1)
        for measure, number in value.average_served(source, parts, best).items():
            assert made[value.ORACLE][measure] == pytest.approx(number, rel=1e-12), measure
        for label, numbers in value.evaluate_baselines(turned, seed).items():
            assert numbers == pytest.approx(made[label], rel=1e-12), label


def test_best_fixed_llm_breaks_ties_by_utility():
    source = fractional(0.0, True, [0, 1, 2, 3])
    cost = np.tile([1.0, 0.75, 0.5, 0.75], (60, 1))
    flat = dataclasses.replace(
        source, table=dataclasses.replace(source.table, performance=np.zeros((60, 4))),
        probabilities=np.full((60, 4), 0.1), cost=cost, rho=5.0,
    )  # fmt: skip
    assert value.evaluate_baselines(flat, 3)[value.BEST_FIXED]["utility"] == pytest.approx(-2.5)


@pytest.mark.slow
def test_router_tables_match_hand_computations(source, tmp_path):
    routers = {
        "zero": Zero(),
        "knn": KNN(grid=(2, 3, 4, 5, 6, 8, 10)),
        "dc": RouterDC(steps=2, clusters=2),
    }
    judged = offline_value.evaluate_routers(source, routers, SEEDS, tmp_path)
    made = offline_value.seed_table(judged)
    data = fits.make_fit_data(source, tmp_path)
    own_choices = set()
    for seed in SEEDS:
        parts = source.split(seed)
        chance = source.probabilities[parts.pool]
        raw = (source.table.performance - 2.0 * source.cost)[parts.pool]
        rows = {row["policy"]: row for row in made.filter(seed=seed).iter_rows(named=True)}
        split = data.offline(parts.offline)
        own = routers["knn"].tune(split, rho=2.0, seed=seed)
        own_choices.add(own.grid[0])
        scores = own.fit(split, rho=2.0, seed=seed).predict(source.embeddings[parts.pool])
        server = scores.argmax(axis=1)
        served = rows["knn"]["departure"], rows["knn"]["utility"]
        assert served == pytest.approx([t[np.arange(20), server].mean() for t in (chance, raw)])
        first, then = chance[np.arange(20), np.argsort(-scores, axis=1, kind="stable").T[:2]]
        assert rows["knn"]["within_two"] == pytest.approx(np.mean(first + (1 - first) * then))
        assert rows["knn"]["chosen"] == str(own.grid[0])
        assert rows["oracle"]["departure"] == pytest.approx(0.99)
        best = chance.mean(axis=0).max()
        assert rows["best fixed on the pool"]["departure"] == pytest.approx(best)
        fixed_one, others = chance.mean(axis=0).argmax(), [*range(chance.shape[1])]
        others.remove(fixed_one)
        pairs = [(1 - (1 - chance[:, fixed_one]) * (1 - chance[:, j])).mean() for j in others]
        assert rows["best fixed, then another"]["within_two"] == pytest.approx(max(pairs))
        again = (1 - (1 - chance[:, fixed_one]) ** 2).mean()
        assert rows["best fixed on the pool"]["within_two"] == pytest.approx(again)
        pairs = [(1 - (1 - chance[:, j]) * (1 - chance[:, k])).mean()
                 for j in range(chance.shape[1]) for k in range(chance.shape[1])]  # fmt: skip
        assert rows["random LLM"]["within_two"] == pytest.approx(np.mean(pairs))
        assert rows["random LLM"]["utility"] == pytest.approx(raw.mean())
    assert len(own_choices) > 1, "each seed chooses by itself"
    check_averages(made, offline_value.router_table(made, {"stand_in": "toys"}))


def check_averages(by_seed: pl.DataFrame, made: pl.DataFrame) -> None:
    """Means, paired differences and counts of a table over seeds."""
    knn, fixed = (by_seed.filter(policy=label) for label in ("knn", "best fixed on the pool"))
    row = made.row(by_predicate=pl.col("policy") == "knn", named=True)
    gain = (knn["departure"] - fixed["departure"]).to_numpy()
    low, high = scipy.stats.t.interval(0.95, 2, gain.mean(), scipy.stats.sem(gain))
    interval = [row[f"over_fixed{end}"] for end in ("", "_low", "_high")]
    assert interval == pytest.approx([gain.mean(), low, high])
    counts = [int(part.split("(")[1][:-1]) for part in row["chosen"].split("; ")]
    assert sum(counts) == row["seeds"] == 3
    zero = made.row(by_predicate=pl.col("policy") == "zero", named=True)
    assert zero["chosen"] is None
    assert made["stand_in"].unique().to_list() == ["toys"]


def test_an_experiments_routers_are_taken_once():
    policies = {
        "zero": TrainedRouter(Zero()),
        "zero_priority": TrainedRouter(Zero(), "joint"),
        "random": RandomRouting(),
        "acqb_cl": ProjectedPolicy(Acqb(), HEAD),
    }
    assert offline_value.select_routers(policies) == {"zero": Zero()}


@pytest.mark.slow
def test_the_script_writes_its_tables_and_names_the_proxied_data(tmp_path, monkeypatch):
    dataset_files.write("sprout", tmp_path / "files", 120)
    noise = np.random.default_rng(0)
    encode = lambda prompts: noise.normal(size=(len(prompts), 3))  # noqa: E731
    monkeypatch.setattr(embeddings, "load_encoder", lambda *_: encode)
    prepare("sprout", tmp_path, tmp_path / "files", progress=False)
    target = "cqbjax.offline.contrastive.ContrastiveConfig"
    words = [
        "experiment=sprout", "policy=[random,acqb_cl,zero,knn,knn_priority]", "num_seeds=2",
        f"policy.acqb_cl.head={{_target_: {target}, outputs: 3, iota_pos: 0.2, iota_neg: 0}}",
        f"data_dir={tmp_path}", f"results_dir={tmp_path}", f"cache_dir={tmp_path / 'fits'}",
        "source.pool_size=20",
    ]  # fmt: skip
    done = run_command("run", "kind=offline_value", *words)
    assert done.returncode == 0, done.stderr
    again = run_command("run", "kind=offline_value", *words)
    assert again.returncode == 0, again.stderr
    assert "6 of 6 policies at the point are stored: not run again" in again.stdout
    tables = tmp_path / "tables"
    assert sorted(path.name for path in tables.iterdir()) == [
        "offline_sprout_routers.csv", "offline_sprout_routers.md", "offline_sprout_seeds.csv",
    ]  # fmt: skip
    text = (tables / "offline_sprout_routers.md").read_text()
    assert "made-up content" in text and "seeds 2" in text
    by_seed = pl.read_csv(tables / "offline_sprout_seeds.csv")
    assert by_seed.filter(policy="knn")["seed"].to_list() == [0, 1]
