"""Multirun: jobs composed as Hydra does, in one sweep, each point a result, finished ones kept."""

import copy

import hydra
import pytest
import xarray as xr
from composing import refusal_of, run_command
from hydra.errors import HydraException
from omegaconf import OmegaConf
from tiers import cases

import cqbjax
from cqbjax.cli import _compose, _instantiate
from cqbjax.core.inputs import round_fraction
from cqbjax.experiments import configs, grid, study_types
from cqbjax.results import store as results

GRID = ("-m", "name=grid", "policy=[random]", "num_seeds=2", "horizon=12")


@pytest.fixture
def hydra_context():
    """Hydra, initialised with our configurations."""
    with _compose.initialize_hydra():
        yield


JOBS = [
    ["K=1", "alpha_scale=0.1", "arrival_rate=0.5"],
    ["K=[1,2]", "alpha_scale=0.3", "arrival_rate=[0.5,0.6]"],
    ["preset=unscaled", "alpha_scale=0.3", "policy.acqb.c1=0.7"],
    ["preset=unscaled", "policy=[acqb,knn_fallback]", "policy.knn_fallback.schedule=joint"],
    ["experiment=routerbench", "source.rho=2.0", "head.epochs=3", "explore_rounds=7"],
    ["experiment=routerbench", "source=mmlu_pro", "memory_gb=null", "title='a, b'"],
    ["+policy.acqb.optimism=ucb", "~policy.random", "K=2"],
]


@pytest.mark.slow
def test_composed_jobs_match_hydra(hydra_context):
    for job, words in zip(_compose.compose_jobs(JOBS), JOBS, strict=True):
        theirs = hydra.compose("config", words)
        del job.config["grid"]
        assert job.config == OmegaConf.to_container(theirs, resolve=True)
        assert list(job.config) == list(theirs) and not job.config.errors


@pytest.mark.slow
def test_jobs_that_differ_in_values_alone_are_composed_once(hydra_context, monkeypatch):
    calls, real = [], hydra.compose
    monkeypatch.setattr(_compose, "_composed", {})  # what other tests composed
    monkeypatch.setattr(hydra, "compose", lambda *a, **k: calls.append(a[1]) or real(*a, **k))
    words = [
        [f"alpha_scale={a}", f"preset={p}"] for a in (0.1, 0.2, 0.3) for p in ("tuned", "theory")
    ]
    jobs = _compose.compose_jobs(words)
    assert calls == [["preset=tuned"], ["preset=theory"]]
    assert jobs[0].swept == {"alpha_scale": 0.1, "preset": "tuned"}
    assert jobs[3].config.alpha_scale == 0.2 and jobs[3].config.kappa == 4.0
    assert jobs[0].config.alpha_scale == 0.1, "a job's values are its own"


@pytest.mark.slow
def test_grid_points_share_policies_and_resolved_values(hydra_context, monkeypatch):
    """Of 64 points the 16 policies are made once each, and what follows a value is resolved once.

    Seconds of a sweep of thousands are these two.
    """
    made, real = [], _instantiate.make
    monkeypatch.setattr(_instantiate, "make", lambda node: made.append(node) or real(node))
    monkeypatch.setattr(configs, "_evaluated", {})
    monkeypatch.setattr(_compose, "_composed", {})  # what other tests composed
    words = ["alpha_scale=0.1,0.2,0.3,0.4", "c1=0.1,0.2,0.3,0.4", "slackness=0.01,0.02,0.03,0.04"]
    words += ["policy=[acqb]", "num_seeds=2", "horizon=12"]
    jobs, cache = _compose.compose_jobs(_compose.combine_words(words)), {}
    points = [
        point for job in jobs
        for point in study_types.prepare_points(
            job.config, _instantiate.make, job.swept, cache
        )
    ]  # fmt: skip
    assert len(points) == 64 and len({id(one.policies["acqb"]) for one in points}) == 16
    # Policies, sources, and one kind of study, of users and of service.
    assert len(made) == 16 + 4 + 3
    # Of the only resolver's two values, one is that of the files.
    assert len(configs._evaluated) == 2


@pytest.mark.slow
def test_values_are_set_and_resolved_like_omegaconf(hydra_context):
    """In turns, so that what was resolved at other values would be seen."""
    words = ["policy=[acqb,cqb_eps,knn]", "source=routerbench", "explore_rounds=stabilised"]
    written = hydra.compose("config", words)
    composed = configs.from_omegaconf(copy.deepcopy(written))
    settings = (
        {"c1": 0.3}, {"c1": 1}, {"c1": 1.0}, {"c1": 0.3, "horizon": 500},
        {"explore_rounds": "tenth", "horizon": 700}, {"explore_rounds": 12}, {},
        {"policy.acqb.c1": 0.7, "c1": 0.1}, {"c1": "${lambda0}"},
        {"lambda0": 3.0, "c1": "${kappa}"},
        {"head": {"epochs": 3}}, {"head.epochs": 4}, {"warm": None}, {"table_rounds": [3]},
        {"source.dataset": "sprout"}, {"title": "a, b"}, {"rates_by_K": {1: [0.5]}},
    )  # fmt: skip
    for values in (*settings, *settings[:4]):
        theirs = copy.deepcopy(written)
        for key, value in values.items():
            OmegaConf.update(theirs, key, value, merge=True)
        made = composed.with_values(values)
        theirs = OmegaConf.to_container(theirs, resolve=True)
        assert made == theirs and not made.errors
        assert type(made.c1) is type(theirs["c1"])
    at_last = composed.with_values({"c1": 5.0, "lambda0": 2.0}).with_values({"c1": 0.3})
    assert at_last == composed.with_values({"c1": 0.3, "lambda0": 2.0})


@pytest.mark.slow
def test_unresolvable_values_are_reported_only_if_used(hydra_context):
    words = ["explore_rounds=abc", "policy=[random,cqb_eps]", "num_seeds=2", "horizon=12"]
    (job,) = _compose.compose_jobs([words])
    with pytest.raises(ValueError, match="abc"):
        grid.compose(job.config)
    (job,) = _compose.compose_jobs([[*words, "policies_by_K={1: [random]}"]])
    assert [*grid.compose(job.config)[0].config.policy] == ["random"]
    circle = job.config.with_values({"c1": "${alpha_scale}", "alpha_scale": "${c1}"})
    with pytest.raises(ValueError, match=r"=\$\{.*\} follows itself"):
        grid.compose(circle)
    with pytest.raises(AttributeError, match="horizon of a composed configuration is set by"):
        job.config.horizon = 3


def test_overrides_are_combined_like_hydras_basic_sweeper(hydra_context):
    words = [
        "K=1,2",
        "+policy.acqb.optimism=ucb",
        "c1=range(0,2)",
        "title='a, b'",
        "~policy.random",
    ]
    assert _compose.combine_words(words) == [
        [f"K={k}", "+policy.acqb.optimism=ucb", f"c1={c}", "title='a, b'", "~policy.random"]
        for k in (1, 2)
        for c in (0, 1)
    ]
    assert _compose.combine_words(["K=1,2", "K=3"]) == [["K=3"]], "the last word counts"
    with pytest.raises(HydraException, match=r"c1=interval\(0,1\) is for a search"):
        _compose.combine_words(["c1=interval(0,1)"])


LISTS = {
    "kind=replay kind.threshold=[0.9,1] kind.min_gap=[0,60]": "kind=replay "
    "kind.threshold=0.9,1 kind.min_gap=0,60",
    "alpha_scale=[0.1,0.3]": "alpha_scale=0.1,0.3",
    "source=routerbench source.rho=[2.0,4] K=[1,2]": "source=routerbench source.rho=2.0,4 K=1,2",
    "policy=[acqb] policy.acqb.c1=[0.1,1]": "policy=[acqb] policy.acqb.c1=0.1,1",
    "experiment=synthetic_slackness c1=[0,1]": "experiment=synthetic_slackness c1=0,1 "
    "K=1,2 slackness=0.05,0.03,0.01",
    "tuning_seed=[0,null]": "tuning_seed=0,null",
}


@pytest.mark.parametrize("words", cases(LISTS, ["alpha_scale=[0.1,0.3]"]))
def test_lists_span_the_same_grid_as_a_multirun(words, hydra_context):
    (job,) = _compose.compose_jobs([words.split()])
    jobs = _compose.compose_jobs(_compose.combine_words(LISTS[words].split()))
    theirs = [point for job in jobs for point in grid.compose(job.config, job.swept)]
    ours = grid.compose(job.config)
    assert [point.name for point in ours] == [point.name for point in theirs]
    assert [point.varied for point in ours] == [point.varied for point in theirs]
    assert [point.config for point in ours] == [point.config for point in theirs]


BY_NATURE = (
    "arrival_rate=[0.5,0.6]", "table_rounds=[100,200]", "figure_policies=[acqb]",
    "experiment=theory_regret", "kind=sensitivity", "experiment=routerbench K=1",
)  # fmt: skip


@pytest.mark.parametrize("words", cases(BY_NATURE, ["arrival_rate=[0.5,0.6]"]))
def test_keys_with_a_list_as_value_are_not_expanded(words, hydra_context):
    (job,) = _compose.compose_jobs([words.split()])
    assert job.config.grid == []


@pytest.mark.slow
def test_invalid_multirun_jobs_are_rejected():
    message = refusal_of(["-m", "alpha=0.1,0.2"])
    assert message.startswith("error: alpha is no key")
    message = refusal_of(["-m", "policy=[acqb],[nobody]"])
    assert "policy nobody is unknown" in message
    message = refusal_of(["-m", "num_seeds=two,three"])
    assert "none of 2 points can run; the last one: num_seeds=three left out: num" in message


@pytest.mark.slow
def test_grid_is_stored_as_one_labelled_result_and_resumes(tmp_path):
    """A grid; then a key is widened, and only what is new runs."""
    words = (*GRID, "K=1,2", f"results_dir={tmp_path}")
    done = run_command("run", *words, "arrival_rate=0.5,0.6")
    assert done.returncode == 0, done.stderr
    folder = tmp_path / "data" / "grid"
    first = {path.name: path.stat().st_mtime_ns for path in folder.glob("*.nc")}
    assert len(first) == 1, "points that ran together share a file"
    whole = cqbjax.results.load(folder)
    assert {key: whole.sizes[key] for key in ("K", "arrival_rate", "seed")} == {
        "K": 2, "arrival_rate": 2, "seed": 2,
    }  # fmt: skip
    again = run_command("run", *words, "arrival_rate=0.5,0.6,0.7")
    assert again.returncode == 0, again.stderr
    assert "4 of 6 policies at 6 points are stored: not run again" in again.stdout
    wider = cqbjax.results.load(folder)
    assert wider.sizes["arrival_rate"] == 3
    same = wider.sel(arrival_rate=[0.5, 0.6])
    assert (same.queue_length == whole.queue_length).all() and (same.regret == whole.regret).all()
    assert first.items() <= {p.name: p.stat().st_mtime_ns for p in folder.glob("*.nc")}.items()


@pytest.mark.slow
def test_single_run_with_lists_stores_the_same_results_as_a_multirun(tmp_path):
    words = ("policy=[acqb]", "num_seeds=2", "horizon=12", f"results_dir={tmp_path}")
    assert (
        run_command("run", "name=one", *words, "slackness=[0.03,0.04]", "c1=[0,1]").returncode == 0
    )
    done = run_command("run", "-m", "name=many", *words, "slackness=0.03,0.04", "c1=0,1")
    assert done.returncode == 0, done.stderr
    one, many = (cqbjax.results.load(tmp_path / "data" / name) for name in ("one", "many"))
    assert {"slackness": 2, "c1": 2}.items() <= dict(one.sizes).items()
    times = ["seconds_per_round", "compile_seconds"]
    one, many = (data.drop_vars(times).drop_attrs() for data in (one, many))
    xr.testing.assert_identical(one, many)


@pytest.mark.slow
def test_one_bad_point_is_reported_and_the_others_run(tmp_path):
    words = (*GRID, "slackness=0.03,0.29", f"results_dir={tmp_path}")
    done = run_command("run", *words)
    assert done.returncode == 3, done.stderr
    assert "slackness=0.29 left out: slackness=0.29 cannot be met" in done.stdout.replace("\n", " ")
    (point,) = cqbjax.results.load_points(tmp_path / "data" / "grid")
    assert point.attrs["slackness"] == 0.03
    strict = run_command("run", *words, "fail_fast=true", "name=strict")
    assert strict.returncode == 2 and strict.stderr.startswith(
        "error: slackness=0.29 cannot be met"
    )
    assert not (tmp_path / "data" / "strict").exists()


@pytest.mark.slow
def test_a_dry_run_lists_the_runs_and_stores_nothing(tmp_path):
    words = (*GRID, "arrival_rate=0.4,0.5", f"results_dir={tmp_path}")
    done = run_command("run", *words, "dry_run=true")
    assert done.returncode == 0, done.stderr
    assert "random: 4 runs of" in done.stdout and "optimal: 4 runs of" in done.stdout
    assert "2 points, 0 of them stored; 2 groups, a program each; about" in done.stdout
    assert "MB are in memory until they are stored" in done.stdout
    assert not list(tmp_path.rglob("*.nc"))


@pytest.mark.slow
def test_a_search_gets_objectives_back_a_batch_at_a_time(tmp_path):
    """By Optuna: three trials at a time are one sweep, each stored by what was tried."""
    pytest.importorskip("optuna")
    done = run_command(
        "run",
        "-m", "experiment=search", "policy=[random]", "num_seeds=2", "horizon=12",
        "objective={metric: throughput, policy: random}", "hydra.sweeper.direction=maximize",
        "hydra.sweeper.n_trials=6", "hydra.sweeper.n_jobs=3", "arrival_rate=interval(0.1, 0.6)",
        "~hydra.sweeper.params.alpha_scale", "~hydra.sweeper.params.c1",
        f"results_dir={tmp_path}",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("arrival_rate=0.") == 6, "a line a trial"
    optimum = OmegaConf.load(tmp_path / "optimization_results.yaml")
    (point,) = results.load_points(tmp_path)
    assert point.sizes["arrival_rate"] == 6 and len(list(tmp_path.rglob("*.nc"))) == 2
    throughput = point.departures.sel(policy="random").isel(round=-1).mean("seed") / 12
    assert optimum.best_value == pytest.approx(float(throughput.max()))
    tried = round_fraction(optimum.best_params.arrival_rate)
    assert throughput.sel(arrival_rate=tried) == throughput.max()


@pytest.mark.slow
def test_an_objective_that_is_none_is_refused():
    message = refusal_of(["objective={metric: speed, policy: acqb}"])
    assert "objective.metric=speed does not run here; choose from gap, queue_length" in message
    message = refusal_of(["objective={metric: gap, policy: zero}"])
    assert "objective.policy=zero does not run here; choose from optimal, acqb" in message
