"""Policies trained offline: the right seed's, trained once, without a look at the pool."""

import dataclasses
import importlib
import subprocess
import sys
from operator import attrgetter
from pathlib import Path
from types import SimpleNamespace

import dataset_files
import hydra
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from composing import compose_config

import cqbjax
from cqbjax import PerSeed
from cqbjax.core import rng
from cqbjax.datasets import (  # fmt: skip
    DatasetSource,
    ServedRates,
    choose_arrival_rates,
    embeddings,
    mnl_utilities,
    served_rates,
    source,
)
from cqbjax.datasets.prepare import prepare
from cqbjax.engine.progress import Reporter
from cqbjax.engine.validation import build_spec
from cqbjax.experiments import configs, display, grid, loop, study_types
from cqbjax.experiments.configs import Config
from cqbjax.offline import ProjectedPolicy, TrainedRouter, WarmStart, fits, projection
from cqbjax.offline.contrastive import ContrastiveConfig
from cqbjax.offline.policies import train_policies
from cqbjax.offline.routers import KNN, MLP, UMR, Carrot, Conditional, Logistic, RouterDC, Zero
from cqbjax.offline.routers.base import ScoringRouter
from cqbjax.policies import (
    Acqb,
    ContextWrapper,
    Intercept,
    RandomRouting,
    ReplacedContexts,
    RouterPolicy,
)
from cqbjax.results.index import ResultIndex
from cqbjax.sources import PromptPool

CONF = Path(__file__).resolve().parents[2] / "conf"
SEEDS = [5, 2, 9]
SMALL_HEAD = ContrastiveConfig(hidden=6, outputs=3, epochs=3, iota_pos=0.2, iota_neg=0.0)


@pytest.fixture
def dataset(tmp_path) -> DatasetSource:
    """60 made-up RouterBench prompts with embeddings of 3 dimensions, a pool of 12."""
    dataset_files.write("routerbench", tmp_path / "files", 60)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(embeddings, "load_encoder", lambda *_: embed)
        prepare("routerbench", tmp_path, tmp_path / "files", progress=False)
    return source.dataset_source("routerbench", tmp_path, pool_size=12)


def embed(prompts: tuple[str, ...]) -> np.ndarray:
    """Place a prompt by its topic and a little noise."""
    topic = dataset_files.topics(len(prompts))
    angle = 2 * np.pi * topic / len(dataset_files.TOPICS)
    noise = np.random.default_rng(3).normal(scale=0.05, size=(len(prompts), 3))
    return np.stack([np.cos(angle), np.sin(angle), np.ones(len(angle))], axis=1) / 2 + noise


def sweep(policies, prompt_pool: PromptPool, seeds=SEEDS, **changed):
    arguments = {"arrival_rate": [0.3, 0.5], "horizon": 30, "chunk": 2} | changed
    return cqbjax.sweep(policies, prompt_pool, seeds=seeds, **arguments)


def pools(prompt_pool: PromptPool, seeds=SEEDS) -> list[np.ndarray]:
    return [np.asarray(prompt_pool.pool(rng.run_key(seed))) for seed in seeds]


@pytest.mark.slow
def test_per_seed_policies_are_used_for_their_seed(dataset):
    prompt_pool = dataset.queries
    answers = [
        RouterPolicy(scores=np.asarray(prompt_pool.utilities)[pool], by="row", schedule="joint")
        for pool in pools(prompt_pool)
    ]
    policies = {"right": PerSeed(answers), "wrong": PerSeed(answers[1:] + answers[:1])}
    data = sweep(policies, prompt_pool)
    # Whoever routes by the true utilities is the optimal policy; another seed's answers are not.
    assert (data.regret.sel(policy="right") == 0).all()
    np.testing.assert_array_equal(data.queue_length.sel(policy="right"), data.optimal_queue_length)
    assert (data.regret.sel(policy="wrong").isel(round=-1) > 0.5).all()


@pytest.mark.slow
def test_scores_by_pool_row_decide_like_scores_by_prompt(dataset):
    prompt_pool = dataset.queries
    scores = np.random.default_rng(0).normal(size=prompt_pool.utilities.shape)
    policies = {"prompt": RouterPolicy(scores=jnp.asarray(scores))}
    policies["row"] = PerSeed(
        [RouterPolicy(scores=scores[pool], by="row") for pool in pools(prompt_pool)]
    )
    data = sweep(policies, prompt_pool, K=2)
    for field in ("queue_length", "regret", "departures"):
        values = data[field]
        np.testing.assert_array_equal(values.sel(policy="prompt"), values.sel(policy="row"))


@pytest.mark.slow
def test_acqb_cl_with_the_identity_head_is_acqb(dataset):
    base, queries = Acqb(alpha_scale=0.5), dataset.queries
    length = jnp.linalg.norm(queries.contexts, axis=1, keepdims=True)
    prompt_pool = dataclasses.replace(queries, contexts=queries.contexts / length)
    eye = jnp.eye(3)
    head = {
        "hidden": jnp.concatenate([eye, -eye], axis=1), "hidden_bias": jnp.zeros(6),
        "output": jnp.concatenate([eye, -eye]), "output_bias": jnp.zeros(3),
    }  # fmt: skip
    contexts = [projection.project(head, prompt_pool.contexts[pool]) for pool in pools(prompt_pool)]
    turned = [table[:, ::-1] * 2 for table in contexts]
    data = sweep(
        {
            "acqb": base,
            "acqb_cl": PerSeed(
                [
                    ContextWrapper(policy=base, view=ReplacedContexts(contexts=table))
                    for table in contexts
                ]
            ),
            "other": PerSeed(
                [
                    ContextWrapper(policy=base, view=ReplacedContexts(contexts=table))
                    for table in turned
                ]
            ),
        },
        prompt_pool,
    )
    for field in ("queue_length", "regret", "departures", "explored"):
        values = data[field]
        np.testing.assert_array_equal(values.sel(policy="acqb"), values.sel(policy="acqb_cl"))
    assert (data.regret.sel(policy="acqb") != data.regret.sel(policy="other")).any()


@pytest.mark.slow
def test_intercept_view_equals_contexts_with_a_constant_column(dataset):
    prompt_pool, base = dataset.queries, Acqb(alpha_scale=0.5)
    # Half of a unit context's squared norm is the constant's.
    longer = jnp.pad(prompt_pool.contexts, ((0, 0), (0, 1)), constant_values=1.0) * jnp.sqrt(0.5)
    data = sweep(
        {
            "constant": ContextWrapper(policy=base, view=Intercept(share=0.5)),
            "table": PerSeed(
                [
                    ContextWrapper(policy=base, view=ReplacedContexts(contexts=longer[pool]))
                    for pool in pools(prompt_pool)
                ]
            ),
            "less": ContextWrapper(policy=base, view=Intercept(share=0.1)),
        },
        prompt_pool,
    )
    for field in ("queue_length", "regret", "departures", "explored"):
        values = data[field]
        np.testing.assert_array_equal(values.sel(policy="constant"), values.sel(policy="table"))
    assert (data.regret.sel(policy="constant") != data.regret.sel(policy="less")).any()
    with pytest.raises(ValueError, match=r"share=1.5 must be a number in \[0, 1\]"):
        sweep({"p": ContextWrapper(policy=base, view=Intercept(share=1.5))}, prompt_pool)


@pytest.mark.slow
def test_a_policy_may_see_contexts_of_another_dimension(dataset):
    wide = ContextWrapper(policy=Acqb(), view=ReplacedContexts(contexts=jnp.ones((12, 5))))
    problem = dataset.queries.problem(1, 8)
    belief = wide.init(problem, jnp.zeros(problem.contexts_shape)).belief
    assert belief.posterior.root.shape[-2:] == (5, 5)
    assert belief.estimate.theta.shape == (11, 5)


@pytest.mark.parametrize(
    ("policy", "message"),
    [
        (PerSeed([RandomRouting()] * 2), "policy p is for 2 seeds, and the sweep has 3"),
        (
            PerSeed([RouterPolicy(scores=np.ones((n, 11)), by="row") for n in (12, 12, 11)]),
            "policy p of seed 9 must have the structure and the shapes of that of seed 5",
        ),
        (PerSeed([RouterPolicy(scores=np.ones((9, 11)), by="row")] * 3),
         "scores has 9 rows.*12 rows"),
        (
            PerSeed([ContextWrapper(policy=Acqb(),
                                    view=ReplacedContexts(contexts=np.ones((9, 3))))] * 3),
            r"contexts has shape \(9, 3\).*12 rows",
        ),
        (
            PerSeed([ContextWrapper(policy=Acqb(), view=ReplacedContexts(contexts=np.full((12, 3), np.nan)))] * 3),  # noqa: E501
            "contexts must be finite",
        ),
        (
            PerSeed([ContextWrapper(policy=Acqb(lambda0=0.0), view=ReplacedContexts(contexts=np.ones((12, 3))))] * 3),  # noqa: E501
            r"lambda0=0 must be a number in \(0, inf\)",
        ),
    ],
)  # fmt: skip
def test_bad_shapes_are_refused_in_a_sentence_before_compiling(policy, message, dataset):
    with pytest.raises(ValueError, match=message):
        build_spec({"p": policy}, dataset.queries, [0.5], SEEDS, 10)


def test_a_fit_learns_from_its_seeds_split_alone_and_predicts_its_pool(dataset, tmp_path):
    made = train_policies(
        {"zero": TrainedRouter(Zero()), "knn": TrainedRouter(KNN(grid=(3,)), "joint")},
        dataset, SEEDS, tmp_path, None,
    )  # fmt: skip
    utility = dataset.table.performance - dataset.rho * dataset.cost
    for i, seed in enumerate(SEEDS):
        parts = dataset.split(seed)
        zero, knn = (made[label].policies[i] for label in ("zero", "knn"))
        expected = np.tile(utility[parts.offline].mean(axis=0), (12, 1))
        np.testing.assert_allclose(zero.scores, expected, rtol=1e-6)
        fitted = KNN(grid=(3,)).fit(
            fits.make_fit_data(dataset, tmp_path).offline(parts.offline), rho=dataset.rho, seed=seed
        )
        pool = np.asarray(dataset.queries.contexts)[parts.pool]
        np.testing.assert_allclose(knn.scores, fitted.predict(pool), rtol=1e-5, atol=1e-6)
        assert (zero.schedule, knn.schedule) == ("oldest", "joint")


@dataclasses.dataclass(frozen=True)
class SeedRouter:
    """A router that predicts the seed of the split on which it was tuned."""

    tuned_at: int = -1

    def tune(self, split, *, rho, seed):
        return dataclasses.replace(self, tuned_at=seed)

    def fit(self, split, *, rho, seed):
        return ScoringRouter(lambda x: np.full((len(x), 2), self.tuned_at))


def test_a_router_is_tuned_on_each_seeds_split_or_once_for_all(dataset, tmp_path):
    for tuning_seed, known in ((None, SEEDS), (7, [7, 7, 7])):
        policies = {"seeds": TrainedRouter(SeedRouter())}
        made = train_policies(policies, dataset, SEEDS, tmp_path, tuning_seed)["seeds"].policies
        assert [np.unique(one.scores).tolist() for one in made] == [[seed] for seed in known]


def test_fits_are_not_reused_for_other_training_data(dataset, tmp_path):
    table, noise = dataset.table, np.random.default_rng(0).uniform(0.1, 0.9, dataset.cost.shape)
    changed = {
        "performance": (KNN(grid=(3,)), {"table": dataclasses.replace(table, performance=noise)}),
        "cost": (KNN(grid=(3,)), {"cost": noise}),
        "departures": (Logistic(ridges=(1.0,)), {"probabilities": noise}),
    }
    for name, (router, values) in changed.items():
        for one in (dataset, dataclasses.replace(dataset, **values)):
            data = fits.make_fit_data(one, tmp_path)
            (fitted,) = fits.predict_utilities({5: router}, data).values()
            parts = one.split(5)
            refitted = router.fit(data.offline(parts.offline), rho=one.rho, seed=5)
            known = refitted.predict(one.embeddings[parts.pool])
            np.testing.assert_allclose(
                fitted["utilities"], known, rtol=1e-4, atol=1e-5, err_msg=name
            )


def test_a_head_trains_on_the_offline_split_of_its_seed(dataset, tmp_path, monkeypatch):
    marked = []

    def fit_heads(keys, embeddings, utilities, available, config):
        marked.extend(available)
        return {"weights": np.zeros((len(keys), 1), np.float32)}, None

    monkeypatch.setattr(projection, "fit_heads", fit_heads)
    projection.train_heads(SMALL_HEAD, fits.make_fit_data(dataset, tmp_path), SEEDS)
    for rows, seed in zip(marked, SEEDS, strict=True):
        np.testing.assert_array_equal(np.flatnonzero(rows), dataset.split(seed).offline)


def garbled(dataset: DatasetSource, seed: int, rows: np.ndarray) -> DatasetSource:
    """Replace scores, costs and embeddings of these rows, all but the embeddings of the pool."""
    noise = np.random.default_rng(1)
    performance, cost = dataset.table.performance.copy(), dataset.cost.copy()
    performance[rows], cost[rows] = noise.random((2, len(rows), performance.shape[1]))
    probabilities = dataset.probabilities.copy()
    probabilities[rows] = noise.uniform(0.1, 0.9, (len(rows), performance.shape[1]))
    # What a router is asked about has to stay, for its answers to be compared.
    contexts, remaining = np.asarray(dataset.queries.contexts).copy(), dataset.split(seed).pool
    others = np.setdiff1d(rows, remaining)
    contexts[others] = noise.normal(size=(len(others), contexts.shape[1]))
    return dataclasses.replace(
        dataset,
        queries=dataclasses.replace(dataset.queries, contexts=jnp.asarray(contexts)),
        table=dataclasses.replace(dataset.table, performance=performance),
        cost=cost,
        probabilities=probabilities,
    )


LEARNT = {
    "zero": TrainedRouter(Zero()),
    "knn": TrainedRouter(KNN(grid=(2, 4, 8))),
    "mlp": TrainedRouter(MLP(grid=((8,), (4, 4)), max_iter=20)),
    "umr": TrainedRouter(UMR(grid=(2, 4))),
    "routerdc": TrainedRouter(RouterDC(width=8, steps=10, clusters=2)),
    "carrot": TrainedRouter(Carrot(grid=(2, 4, 8))),
    "logistic": TrainedRouter(Logistic(ridges=(0.5, 2.0))),
    "conditional": TrainedRouter(Conditional(num_types=8)),
    "acqb_cl": ProjectedPolicy(Acqb(), SMALL_HEAD),
    "acqb_warm": WarmStart(Acqb()),
    "acqb_cl_warm": WarmStart(Acqb(), head=SMALL_HEAD),
}


def learnt(label: str, dataset: DatasetSource, folder: Path) -> np.ndarray:
    """Return what a policy of seed 5, its hyper-parameters chosen on its own split, goes by."""
    made = train_policies({label: LEARNT[label]}, dataset, [5], folder, None)[label]
    return np.asarray(max(jax.tree.leaves(made.policies[0]), key=np.size))


@pytest.mark.slow
@pytest.mark.parametrize("label", LEARNT)
def test_fits_read_only_the_offline_split(label, dataset, tmp_path):
    """The pool's scores, and all that a size or a duplicate leaves out, may be anything."""
    dataset = dataclasses.replace(dataset, offline_size=30)
    offline_rows = dataset.split(5).offline
    others = np.setdiff1d(np.arange(dataset.table.num_prompts), offline_rows)
    assert len(others) == 30 and set(dataset.split(5).pool) <= set(others)
    true = learnt(label, dataset, tmp_path)
    np.testing.assert_array_equal(true, learnt(label, garbled(dataset, 5, others), tmp_path))
    inside = garbled(dataset, 5, offline_rows)
    assert (true != learnt(label, inside, tmp_path)).any(), "else the test could not fail"


@pytest.mark.slow
def test_fits_are_cached_until_a_setting_changes(dataset, tmp_path, monkeypatch):
    head = ProjectedPolicy(Acqb(), SMALL_HEAD)
    policies = {"knn": TrainedRouter(KNN(grid=(3, 5))), "acqb_cl": head}
    first = train_policies(policies, dataset, SEEDS, tmp_path, 77)

    def refuse(*args, **kwargs):
        raise AssertionError("a fit was repeated")

    for owner, name in ((KNN, "fit"), (KNN, "tune"), (projection, "fit_heads")):
        monkeypatch.setattr(owner, name, refuse)
    # The priority pairing shares the router's fits, and the order of the seeds is the caller's.
    policies["knn_priority"] = dataclasses.replace(policies["knn"], schedule="joint")
    again = train_policies(policies, dataset, SEEDS[::-1], tmp_path, 77)
    for label, leaf in (("knn", attrgetter("scores")), ("acqb_cl", attrgetter("view.contexts"))):
        for one, two in zip(first[label].policies, again[label].policies[::-1], strict=True):
            np.testing.assert_array_equal(leaf(one), leaf(two))
    for changed in (
        {"knn": TrainedRouter(KNN(grid=(4,)))},
        {"acqb_cl": ProjectedPolicy(Acqb(), dataclasses.replace(SMALL_HEAD, epochs=4))},
    ):
        with pytest.raises(AssertionError, match="repeated"):
            train_policies(changed, dataset, SEEDS, tmp_path, None)
    with pytest.raises(AssertionError, match="repeated"):
        train_policies(policies, dataset, [6], tmp_path, 77)
    damaged = next(tmp_path.glob("routerbench/router_*.npz"))
    damaged.write_bytes(damaged.read_bytes()[:50])
    with pytest.raises(ValueError, match="not readable, delete it to make it again"):
        train_policies(policies, dataset, SEEDS, tmp_path, 77)


OWN_ROUTER = """
import dataclasses
import numpy as np
from own_level import LEVEL

class ConstantScores:
    def predict(self, embeddings):
        return np.full((len(embeddings), 11), LEVEL)

@dataclasses.dataclass(frozen=True)
class ConstantRouter:
    def tune(self, split, *, rho, seed):
        return self

    def fit(self, split, *, rho, seed):
        return ConstantScores()
"""


def test_user_defined_routers_are_refitted_after_edits_of_imports(dataset, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "own_router.py").write_text(OWN_ROUTER)
    scores = []
    for level in (1.0, 1.0, 25.0):
        (tmp_path / "own_level.py").write_text(f"LEVEL = {level}\n")
        for name in ("own_router", "own_level"):
            monkeypatch.delitem(sys.modules, name, raising=False)
        importlib.invalidate_caches()
        router = importlib.import_module("own_router").ConstantRouter()
        made = train_policies({"own": TrainedRouter(router)}, dataset, [5], tmp_path / "fits", 5)
        scores.append(float(made["own"].policies[0].scores[0, 0]))
    assert scores == [1.0, 1.0, 25.0]
    assert len(list((tmp_path / "fits").rglob("router_5_*.npz"))) == 2


# Makes each kind of fit, or reads those that are kept.
FITTED = """
from cqbjax.datasets.source import dataset_source
from cqbjax.offline import TrainedRouter, WarmStart
from cqbjax.offline.policies import train_policies
from cqbjax.offline.routers import KNN, MLP, UMR, Carrot, Logistic
from cqbjax.policies import Acqb
fixed = KNN(grid=(5,)), Carrot(grid=(2,)), UMR(grid=(2,)), Logistic(ridges=(1.0,))
routers = *fixed, MLP(grid=((2,),), max_iter=2)
policies = {str(router): TrainedRouter(router) for router in routers} | {"warm": WarmStart(Acqb())}
source = dataset_source("routerbench", folder, pool_size=12)
train_policies(policies, source, [5], folder / "fits", None)
"""


@pytest.mark.slow
def test_stored_fits_are_read_without_the_libraries_that_made_them(dataset, tmp_path):
    exec(FITTED, {"folder": tmp_path})
    code = (
        f"import pathlib, sys\nfolder = pathlib.Path({str(tmp_path)!r})\n{FITTED}"
        "print({'sklearn', 'scipy.stats', 'scipy.linalg'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stdout == "set()\n", done.stdout + done.stderr


@pytest.mark.slow
def test_dataset_hash_is_computed_once_and_covers_all_training_data(dataset, tmp_path, monkeypatch):
    hashed, real = [], source.arrays_digest
    monkeypatch.setattr(source, "arrays_digest", lambda arrays: hashed.append(1) or real(arrays))
    train_policies({"zero": TrainedRouter(Zero())}, dataset, SEEDS, tmp_path, None)
    projection.train_heads(SMALL_HEAD, fits.make_fit_data(dataset, tmp_path), SEEDS[:1])
    assert len(hashed) == 1
    digests = {dataset.digest}
    for field in ("performance", "cost", "contexts", "probabilities"):
        table, cost, chances = dataset.table, dataset.cost, dataset.probabilities
        prompt_pool = dataset.queries
        if field == "performance":
            table = dataclasses.replace(table, performance=table.performance / 2)
        elif field == "cost":
            cost = cost / 2
        elif field == "probabilities":
            chances = chances / 2
        else:
            prompt_pool = dataclasses.replace(prompt_pool, contexts=prompt_pool.contexts / 2)
        changed = {"table": table, "cost": cost, "queries": prompt_pool, "probabilities": chances}
        digests.add(dataclasses.replace(dataset, **changed).digest)
    assert len(digests) == 5


@pytest.mark.slow
def test_a_trained_head_is_stored_and_loaded_bit_for_bit(dataset, tmp_path, monkeypatch):
    fresh, real = [], projection.fit_heads
    monkeypatch.setattr(projection, "fit_heads", lambda *a: fresh.append(real(*a)) or fresh[-1])
    made = train_policies(
        {"acqb_cl": ProjectedPolicy(Acqb(), SMALL_HEAD)}, dataset, SEEDS, tmp_path, None
    )
    users = projection.train_heads(SMALL_HEAD, fits.make_fit_data(dataset, tmp_path), SEEDS)
    assert len(fresh) == 1, "the heads of the study are the ones that the user gets"
    files = {int(path.name.split("_")[1]): path for path in tmp_path.rglob("head_*.npz")}
    assert set(files) == set(SEEDS)
    for i, seed in enumerate(SEEDS):
        params = users[seed]
        trained = jax.tree.map(lambda leaf, i=i: np.asarray(leaf[i]), fresh[0][0])
        assert jax.tree.structure(params) == jax.tree.structure(trained)
        for one, two in zip(jax.tree.leaves(params), jax.tree.leaves(trained), strict=True):
            np.testing.assert_array_equal(one.view(np.uint32), two.view(np.uint32))
        pool = dataset.queries.contexts[dataset.split(seed).pool]
        z = projection.project(params, pool)
        np.testing.assert_array_equal(z, made["acqb_cl"].policies[i].view.contexts)
    files[2].write_bytes(files[2].read_bytes()[:50])
    with pytest.raises(ValueError, match="head_2_.*not readable, delete it to make it again"):
        train_policies(
            {"acqb_cl": ProjectedPolicy(Acqb(), SMALL_HEAD)}, dataset, SEEDS, tmp_path, None
        )


@pytest.mark.parametrize(
    "router", [KNN(grid=(2, 4)), Carrot(grid=(2, 4)), UMR(grid=(2, 3)), MLP(max_iter=3)],
    ids=lambda router: type(router).__name__,
)  # fmt: skip
def test_tuned_routers_are_stored_and_loaded_unchanged(router, dataset, tmp_path):
    data = fits.make_fit_data(dataset, tmp_path)
    split = data.offline(dataset.split(77).offline)
    chosen = router.tune(split, rho=5.0, seed=77)
    assert fits.tune_router(router, data, 77) == chosen == fits.tune_router(router, data, 77)
    free, fixed = (
        one.fit(split, rho=5.0, seed=77).predict(dataset.embeddings) for one in (router, chosen)
    )
    np.testing.assert_array_equal(free, fixed)
    assert len(chosen.grid) == 1 < len(router.grid)


@pytest.mark.slow
def test_splits_of_two_sizes_share_routerdcs_program(dataset, tmp_path):
    data, router = fits.make_fit_data(dataset, tmp_path), RouterDC(steps=2, clusters=2)
    program = router.fit.__globals__["train"]
    program.clear_cache()
    made = [
        router.fit(data.offline(np.arange(n)), rho=5.0, seed=0).predict(dataset.embeddings[-4:])
        for n in (30, 31)
    ]
    assert program._cache_size() == 1
    assert (made[0] != made[1]).any()


def test_a_planted_evaluation_prompt_is_refused(dataset, tmp_path, monkeypatch):
    parts, prompts = dataset.split(5), list(dataset.table.prompts)
    prompts[parts.offline[0]] = prompts[parts.pool[3]]
    table = dataclasses.replace(dataset.table, prompts=tuple(prompts))
    leaking = dataclasses.replace(dataset, table=table)
    assert parts.offline[0] not in leaking.split(5).offline, "the duplicate is left out"
    monkeypatch.setattr(source, "drop_pool_texts", lambda parts, prompts: parts)
    leaking = dataclasses.replace(leaking)  # which remembers no split
    with pytest.raises(ValueError, match="has the same text as pool row"):
        train_policies({"zero": TrainedRouter(Zero())}, leaking, [5], tmp_path, None)


@pytest.mark.slow
def test_routers_are_fitted_without_the_pool_of_the_run(dataset):
    for seed in SEEDS:
        parts = dataclasses.replace(dataset, offline_size=20).split(seed)
        prompt_pool = dataset.queries.draw_workload(
            rng.run_key(seed), 0.5, dataset.queries.problem(1, 4)
        )
        np.testing.assert_array_equal(parts.pool, prompt_pool.prompts)
        assert len(parts.offline) == 20 and not set(parts.offline) & set(parts.pool)


def test_served_rates_match_a_hand_computation():
    u = np.array([[0.5, 0.2], [0.25, 0.8]])
    served = served_rates(u)
    # Server 0 needs 2 and 4 tries, so 1/3 a round; server 1 needs 5 and 1.25, so 1/3.125.
    assert served.best_fixed == pytest.approx(1 / 3) and served.best_assortment == (0,)
    assert served.random == pytest.approx(2 / (1 / 0.35 + 1 / 0.525))
    assert served.oracle == pytest.approx(2 / (2 + 1.25))
    pair = [1 + 0.25, 1 / 3 + 4]  # odds of both servers together
    both = 2 / sum((1 + odds) / odds for odds in pair)
    assert served_rates(u, 2) == ServedRates(
        *[pytest.approx(both)] * 2, (0, 1), pytest.approx(both)
    )
    with pytest.raises(ValueError, match="K=3 must lie in 1..N, and N=2"):
        served_rates(u, 3)
    with pytest.raises(ValueError, match="too many to choose arrival rates by rule"):
        served_rates(np.full((1, 60), 0.5), 4)


@pytest.mark.parametrize(
    ("served", "rates"),
    [
        # The paper's throughputs of RAND_ROUT and ZERO on SPROUT at its highest rate: its rates.
        (ServedRates(0.768, 0.843, (0,), 0.99), (0.7, 0.8, 0.9)),
        (ServedRates(0.6, 0.8, (0,), 1.0), (0.55, 0.7, 0.85)),
        (ServedRates(0.8, 0.6, (0,), 1.0), (0.55, 0.7, 0.85)),
        (ServedRates(0.501, 0.509, (0,), 0.52), (0.45, 0.505, 0.51)),
    ],
)
def test_rates_by_rule_lie_below_between_and_above_the_served_rates(served, rates):
    assert choose_arrival_rates(served) == pytest.approx(rates)


@pytest.mark.slow
def test_served_rates_match_long_runs():
    u = np.array([[0.9, 0.3], [0.2, 0.4], [0.6, 0.5]])
    prompt_pool = PromptPool(
        contexts=jnp.ones((3, 2)), utilities=jnp.asarray(mnl_utilities(u)), pool_size=3
    )
    fixed = RouterPolicy(scores=jnp.asarray([[1.0, 0.0]] * 3))
    data = sweep(
        {"fixed": fixed, "random": RandomRouting(schedule="oldest")}, prompt_pool, range(40),
        arrival_rate=[0.95], horizon=500, capacity=500, chunk=40,
    )  # fmt: skip
    per_round = data.departures.isel(round=-1, arrival_rate=0).mean("seed") / 500
    served = 1 / np.mean(1 / u[:, 0])
    assert float(per_round.sel(policy="fixed")) == pytest.approx(served, abs=0.015)
    assert float(per_round.sel(policy="random")) == pytest.approx(served_rates(u).random, abs=0.015)
    assert served < u[:, 0].mean() - 0.1, "the mean departure probability is no service rate"


class RecordingConsole:
    """A console that keeps what is printed."""

    def __init__(self):
        self.lines = []

    def print(self, *words, **_):
        self.lines.append(" ".join(map(str, words)))


@pytest.mark.slow
def test_an_experiment_on_generated_files_is_labelled_everywhere(tmp_path):
    name = "sprout"
    dataset_files.write(name, tmp_path / "files", 60)
    # Embeddings of the user's own, in 16 dimensions.
    turned = np.linalg.qr(np.random.default_rng(4).normal(size=(16, 3)))[0].T
    np.save(tmp_path / "own.npy", embed(("",) * 60) @ turned)
    prepare(name, tmp_path, tmp_path / "files", embeddings=tmp_path / "own.npy", progress=False)
    configs.register_resolvers()
    target = "cqbjax.offline.contrastive.ContrastiveConfig"
    small = f"{{_target_: {target}, hidden: 32, outputs: 16, iota_pos: 0.2, iota_neg: 0}}"
    config = compose_config(
        f"experiment={name}", "policy=[optimal,acqb_cl,knn,zero_priority,random]", "num_seeds=2",
        f"policy.acqb_cl.head={small}", "horizon=20", f"data_dir={tmp_path}",
        f"results_dir={tmp_path / 'results'}", f"cache_dir={tmp_path / 'fits'}",
        "source.pool_size=12", "arrival_rate=by_rule", "policies_by_K={2:[optimal,random]}",
    )  # fmt: skip
    console = RecordingConsole()
    ready = study_types.prepare_points(
        config,
        hydra.utils.instantiate,
    )
    index = ResultIndex(tmp_path / "results")
    assert not loop.run_points(ready, index, hydra.utils.instantiate, Reporter(), console, True)  # type: ignore[arg-type]
    points = loop.read_back(ready, index)
    assert [point.attrs["K"] for point in points] == [1, 2]
    assert [point.attrs["dim"] for point in points] == [16, 16]
    assert not list((tmp_path / "results").glob(".*")), "finished points leave nothing unfinished"
    assert "knn" in points[0].policy and "knn" not in points[1].policy
    written = display.write_output(ready[0].study_type.show(points, config), config, name)
    assert all("made-up content" in point.attrs["stand_in"] for point in points)
    assert any("made-up content" in line and "arrival rates" in line for line in console.lines)
    assert "made-up content" in (tmp_path / "results" / "tables" / f"{name}.md").read_text()
    remaining = [path.name.split("_")[0] for path in (tmp_path / "fits" / name).iterdir()]
    assert len(written) == 3 and remaining.count("router") == 4 and remaining.count("head") == 2
    rates = choose_arrival_rates(
        source.dataset_source(name, tmp_path, **{"cost_rule": config.source.cost_rule}).served(2)
    )
    np.testing.assert_allclose(points[1].arrival_rate, rates)


def test_rates_by_rule_keep_the_papers_rates_on_its_data(dataset):
    config = Config(K=1, arrival_rate="by_rule", rates_by_K={1: [0.5, 0.6, 0.7]})
    point = grid.GridPoint("K=1", config, {}, {})
    stand_in = grid.resolve_rates(point, dataset).config.arrival_rate
    assert stand_in == list(choose_arrival_rates(dataset.served(1)))
    table = dataclasses.replace(dataset.table, provenance="paper")
    own = dataclasses.replace(dataset, table=table)
    assert grid.resolve_rates(point, own).config.arrival_rate == [0.5, 0.6, 0.7] != stand_in
    other = dataclasses.replace(dataset, table=dataclasses.replace(table, provenance="own"))
    assert grid.resolve_rates(point, other).config.arrival_rate == stand_in


def test_offline_predictions_follow_the_pool_order_of_each_seed(monkeypatch):
    """Contexts of a head and scores of a router alike are of the pool, in its order."""
    pools = {3: np.array([4, 1]), 5: np.array([2])}
    split = lambda seed: SimpleNamespace(pool=pools[seed], offline=np.arange(9))  # noqa: E731
    data = SimpleNamespace(source=SimpleNamespace(split=split))
    calls = []
    monkeypatch.setattr(
        projection, "project_rows",
        lambda head, data, rows, label: calls.append((head, rows)) or rows,
    )  # fmt: skip
    projected = ProjectedPolicy(Acqb(), ContrastiveConfig())
    made = projected.fit("cl", data, [5, 3], None)
    assert {seed: each["contexts"].tolist() for seed, each in made.items()} == {5: [2], 3: [4, 1]}
    assert calls[0][0] == ContrastiveConfig() and list(calls[0][1]) == [5, 3]
    routed = TrainedRouter(Zero(), schedule="joint", retry="fallback").make_policy(np.eye(3))
    assert (routed.by, routed.retry, routed.recall_by) == ("row", "fallback", "row")
    assert routed.schedule == RouterPolicy(scores=np.eye(3), schedule="joint").schedule
    np.testing.assert_array_equal(routed.scores, np.eye(3))
    shown = projected.make_policy(np.ones((3, 2)))
    assert shown.policy == Acqb() and shown.view.contexts.shape == (3, 2)
