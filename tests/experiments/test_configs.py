"""Every configuration composes and makes its objects; wrong words are refused in a sentence."""

import re
from fractions import Fraction

import hydra
import polars as pl
import pytest
from composing import CONF, EXPERIMENTS, FILES, compose_config, refusal_of, run_command, script
from omegaconf import OmegaConf
from tiers import cases

import cqbjax
from cqbjax.cli._instantiate import make
from cqbjax.experiments import configs, grid, validation
from cqbjax.experiments.study import Factory
from cqbjax.policies import Acqb
from cqbjax.sources import Synthetic
from reproduction.paper import printed

TINY = ["num_seeds=2", "horizon=24", "policy=[random,optimal]"]


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_experiment_files_state_their_command(name):
    second = FILES[name].read_text().splitlines()[1]
    command = rf"# python scripts/run\.py (-m )?experiment={name}\b"
    assert re.match(command, second)


@pytest.mark.slow
def test_numbers_are_rounded_to_12_digits_everywhere():
    """So .1 + .2 is .3, in lists, inside groups and where another key follows it."""
    config = compose_config(
        *TINY, "arrival_rate=[0.1,0.30000000000000004]", "c1=0.30000000000000004"
    )
    assert config.arrival_rate == [0.1, 0.3] and config.c1 == 0.3
    assert compose_config("policy=[acqb]", "c1=0.30000000000000004").policy.acqb.c1 == 0.3
    assert validation.to_coordinate(0.1 + 0.2) == 0.3 and validation.to_coordinate(3) == 3
    message = refusal_of([*TINY, "source=coin", "arrival_rate=[0.3,0.30000000000000004]"])
    assert "arrival_rate" in message and "distinct" in message


def test_make_instantiates_nested_targets_like_hydra():
    one = {"_target_": "fractions.Fraction", "numerator": 1}
    whole = {
        "_target_": "types.SimpleNamespace",
        "third": [one | {"denominator": 3}],
        "later": one | {"_partial_": True},
    }
    made = make(configs.to_config(whole))
    assert made.third == [Fraction(1, 3)] and made.later(denominator=2) == Fraction(1, 2)
    for wrong, message in (({"_target_": "fractions.Half"}, "Half"), (one | {"top": 1}, "'top'")):
        with pytest.raises(ValueError, match=f"{wrong['_target_']} cannot be made: .*{message}"):
            make(configs.to_config(wrong))


# CI runs the others, tiny.
SWEPT = [name for name in EXPERIMENTS if name.startswith(("ablation_", "search"))]


@pytest.mark.slow
@pytest.mark.parametrize("name", SWEPT)
def test_every_experiment_composes_and_instantiates(name):
    points = grid.compose(compose_config(f"experiment={name}"))
    assert len({point.name for point in points}) == len(points)
    for point in points:
        assert point.config.name == name
        policies = {k: hydra.utils.instantiate(v) for k, v in point.config.policy.items()}
        assert "optimal" in policies and any(label.startswith("acqb") for label in policies)
        rates = point.config.arrival_rate
        assert rates == validation.BY_RULE or all(0 < rate < 1 for rate in rates)


OFFLINE = [
    ("routerbench", "RouterBench"), ("embedllm", "EmbedLLM"), ("sprout", "Sprout"),
    ("mmlu_pro", "EmbedLLM"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "dataset"), cases(OFFLINE, [], several=True))
def test_offline_experiments_match_policies_rounds_and_rates_of_the_paper(name, dataset):
    rows = printed.read().filter(pl.col("dataset") == dataset)
    for point in grid.compose(compose_config(f"experiment={name}")):
        theirs = rows.filter(pl.col("K") == point.config.K)
        assert set(theirs["policy"]) <= set(point.config.policy)
        assert len(set(theirs["policy"])) == {1: 13, 2: 4}[point.config.K]
        assert point.config.horizon == theirs["round"].max() == 5000
        assert set(point.config.table_rounds) == set(theirs["round"])
        if point.config.arrival_rate != validation.BY_RULE:
            assert sorted(point.config.arrival_rate) == sorted(set(theirs["arrival_rate"]))


HEADS = [
    ("sprout", (0.6, 0.3), (5, None, 10)), ("routerbench", (0.5, 0.3), (5, None, 10)),
    ("embedllm", (0.4, 0.1), (10, 30, 50)), ("mmlu_pro", (0.4, 0.1), (10, 30, 50)),
]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "thresholds", "schedule"), cases(HEADS, ["routerbench"], several=True)
)
def test_contrastive_heads_match_the_papers_settings(name, thresholds, schedule):
    (point, _) = grid.compose(compose_config(f"experiment={name}"))
    head = hydra.utils.instantiate(point.config.policy.acqb_cl).head
    assert (head.iota_pos, head.iota_neg) == thresholds
    assert (head.prompts_per_model, head.prompts_per_epoch, head.epochs) == schedule
    assert (head.temperature, head.negatives, head.outputs) == (0.07, 64, 384)
    written = set(OmegaConf.load(CONF / "head" / "routerbench.yaml")) - {"_target_"}
    assert written == set(vars(head))


@pytest.mark.slow
def test_experiments_skip_single_server_policies_at_k_2():
    points = grid.compose(compose_config("experiment=synthetic"))
    why = "defined for K=1 only"
    assert [point.left_out for point in points] == [{}, {"q_ths": why, "q_ucb": why}]
    assert "q_ucb" in points[0].config.policy and "q_ucb" not in points[1].config.policy


@pytest.mark.slow
def test_unscaled_experiment_differs_from_the_tuned_one_only_in_constants():
    tuned, ones = (
        compose_config("experiment=synthetic"),
        compose_config("experiment=synthetic_unscaled"),
    )
    changed = {key for key in tuned if tuned[key] != ones[key]}
    assert {"alpha_scale", "c1", "name", "title"} <= changed
    assert changed <= {"alpha_scale", "c1", "name", "title", "policy"}
    assert (ones.kappa, ones.lambda0, ones.alpha_scale, ones.c1) == (1, 1, 1, 1)
    assert set(ones.policy) == set(tuned.policy)


CONSTANTS = {"kappa": 1.5, "lambda0": 2.5, "alpha_scale": 3.5, "c1": 4.5, "num_samples": 7}
# What each label that is a setting of ACQB sets beside the constants.
SETTINGS = {
    "acqb": {},
    "acqb_fifo": {"schedule": "oldest"},
    "acqb_rr": {"schedule": "least_served"},
    "acqb_random": {"schedule": "random"},
    "acqb_ucb": {"optimism": "ucb"},
    "acqb_explore_fifo": {"exploration": "independent", "explore_query": "oldest"},
    "acqb_explore_lifo": {"exploration": "independent", "explore_query": "newest"},
    "acqb_explore_rr": {"exploration": "independent", "explore_query": "least_served"},
    "acqb_explore_random": {"exploration": "independent", "explore_query": "random"},
    "cqb_eps": {"exploration": "phased", "explore_rounds": 40.0},
    "acqb_windowed": {"window": 400},
    "acqb_mixed": {"exploit_size": 1},
}


@pytest.mark.slow
def test_all_acqb_labels_read_the_same_constants():
    words = [f"{key}={value}" for key, value in CONSTANTS.items()]
    labels = [*SETTINGS, "acqb_cl", "acqb_intercept"]
    config = compose_config(*words, "horizon=400", f"policy=[{','.join(labels)}]")
    policies = Factory(make, {}).make_each(config.policy)
    assert list(policies) == labels
    for label, own in SETTINGS.items():
        assert policies[label] == Acqb(**CONSTANTS, **own), label
    assert policies["acqb_cl"].base == policies["acqb_intercept"].policy == Acqb(**CONSTANTS)


PRESETS = [
    ("unscaled", {}), ("theory", {"kappa": 4.0}), ("tuned", {"alpha_scale": 0.2, "c1": 0.25}),
    ("tuned_routing", {"alpha_scale": 0.3, "c1": 0.25}),
]  # fmt: skip


@pytest.mark.parametrize(("preset", "changed"), cases(PRESETS, ["theory"], several=True))
def test_presets_default_to_ones(preset, changed):
    policies = Factory(make, {}).make_each(compose_config(f"preset={preset}").policy)
    ones = {"kappa": 1.0, "lambda0": 1.0, "alpha_scale": 1.0, "c1": 1.0, "num_samples": None}
    assert policies["acqb"] == Acqb(**ones | changed)


@pytest.mark.slow
def test_overrides_reach_the_objects():
    config = compose_config(
        "experiment=synthetic", "K=1", "alpha_scale=0.7", "policy.acqb.c1=0.9", "dim=3"
    )
    (point,) = grid.compose(config)
    policy = hydra.utils.instantiate(point.config.policy.acqb)
    assert (policy.alpha_scale, policy.c1, policy.kappa) == (0.7, 0.9, 1.0)
    assert hydra.utils.instantiate(point.config.source) == Synthetic(dim=3)


@pytest.mark.parametrize(
    ("rule", "horizon", "c1", "rounds"),
    [("tenth", 1000, 0.5, 100), ("stabilised", 5000, 0.5, 1), ("stabilised", 5000, 10.0, 99),
     (7, 10, 1.0, 7)],
)  # fmt: skip
def test_explore_rounds_rules_match_the_documented_lengths(rule, horizon, c1, rounds):
    assert configs.exploration_length(rule, horizon, c1) == rounds


@pytest.mark.parametrize("rule", ["third", -1])
def test_unknown_explore_rounds_rules_are_rejected(rule):
    with pytest.raises(ValueError, match=f"explore_rounds={rule} must be `tenth`, `stabilised`"):
        configs.exploration_length(rule, 10, 1.0)


@pytest.mark.slow
def test_run_writes_arrays_manifest_figures_and_tables(tmp_path):
    done = run_command("run", "experiment=synthetic", "K=1", *TINY, f"results_dir={tmp_path}", "-v")
    assert done.returncode == 0, done.stderr
    assert f"written: {tmp_path}/data/synthetic, {tmp_path}/tables/synthetic.csv" in done.stdout
    again = run_command("run", "experiment=synthetic", "K=1", *TINY, f"results_dir={tmp_path}")
    assert "2 of 2 policies at the point are stored: not run again" in again.stdout
    data = cqbjax.results.load(tmp_path)
    assert data.queue_length.dims == ("policy", "arrival_rate", "seed", "round")
    assert dict(data.sizes) == {"policy": 2, "arrival_rate": 1, "seed": 2, "round": 24}
    (file,) = (tmp_path / "data" / "synthetic").glob("*.nc")
    config = OmegaConf.create(cqbjax.results.read_config(file))
    assert config.horizon == 24 and cqbjax.results.read_manifest(file)["versions"]["jax"]
    assert config.num_seeds == 2
    for kind, endings in (("figures", ("png",)), ("tables", ("csv", "md"))):
        for ending in endings:
            assert (tmp_path / kind / f"synthetic.{ending}").stat().st_size > 100


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["experiment=nothing"], ["error: experiment nothing is unknown", "synthetic_servers"]),
        (["preset=best"], ["error: preset best is unknown", "tuned_routing"]),
        (["policy=[acqb,nobody]"], ["error: policy nobody is unknown", "acqb_rr"]),
        (["rate=0.5"], ["error: rate is no key", "arrival_rate"]),
        (["K=[1,9]"], ["error: K=9 must lie in 1..N, and N=5"]),
        (["arrival_rate=1.5"], ["error: arrival_rate=1.5 must lie in [0, 1]"]),
        (["arrival_rate=-0.5"], ["error: arrival_rate=-0.5 must lie in [0, 1]"]),
        (["num_seeds=many"], ["error: num_seeds=many must be a whole number"]),
        (["alpha_scale=-1"], ["error: alpha_scale=-1 must be"]),
        (["slackness=0.29"], ["error: slackness=0.29 cannot be met", "seed"]),
        (["+extra=1"], ["error: +extra is read by nothing: leave it out"]),
        (["-m", "+extra=1,2"], ["error: ", "+extra is read by nothing"]),
        (["policy=[]"], ["error: policy=[] must name at least one policy"]),
        (["policy=[optimal]"], ["error: policy names only optimal, and there is nothing to"]),
        (["num_seeds=100000000", "dry_run=true"], ["error: what is recorded takes ", " GB, and"]),
        (["num_servers=100000", "dim=100", "horizon=1000"], ["error: memory_gb must allow"]),
        (
            ["policy=[random]", "num_servers=1000000", "dim=100"],
            ["error: num_servers=1000000 times dim=100 must be at most 10,000,000"],
        ),
        (["policy=[q_ucb]", "K=2"], ["error: policy names only", "K=2: q_ucb", "K=1"]),
        (["experiment=routerbench", "data_dir=nowhere"], ["error:", "nowhere", "routerbench"]),
        (["policy=[knn]"], ["error: policy knn learns from a dataset's offline split"]),
        (["arrival_rate=fast"], ["error: arrival_rate=fast must be `by_rule`"]),
        (["arrival_rate=by_rule"], ["error: arrival_rate=by_rule needs a dataset"]),
        (["policy.acqb.alpha=1"], ["error: policy.acqb.alpha is no key"]),
        (["policy.acqb.c1=null"], ["error: policy.acqb.c1=None must be a number in"]),
        (["policy.acqb.num_samples=few"], ["error: policy.acqb.num_samples=few must be"]),
        (["K=[1,2"], ["error: K=[1,2 cannot be read"]),
        (["K=1,2"], ["error: K=1,2 is neither a list", "-m"]),
        (["policy.nobody.c1=2"], ["error: policy.nobody.c1 is no key of policy; choose from"]),
        (["+policy.acqb.alpha=1"], ["error: cqbjax.policies.Acqb cannot be made", "'alpha'"]),
        (["+policy.x._target_=nowhere.X"], ["error: nowhere.X cannot be made", "'nowhere'"]),
        (["explore_rounds=third", "policy=[cqb_eps]"], ["error: explore_rounds=third must be"]),
        (["-m", "rate=0.5,0.6"], ["error: rate is no key: did you mean arrival_rate"]),
        (["-m", "experiment=nothing"], ["error: experiment nothing is unknown", "synthetic"]),
        (["-m", "K=[1,9]"], ["error: K=9 must lie in 1..N, and N=5"]),
        (["kappa=${nothing}"], ["error: Interpolation key 'nothing' not found"]),
        (["figure_policies=[acqb,knn]"], ["error: figure_policies=knn does not run", "random"]),
        (["figure_policies=[acbq]"], ["error: figure_policies=acbq", "did you mean acqb?"]),
        (["policies_by_K={1: []}"], ["error: policy names only", "policies_by_K of K=1"]),
        (["policies_by_K={1: [random,randon]}"], ["policies_by_K=randon", "did you mean random?"]),
        (["horizon=1000000000", "table_rounds=[1000000000]"], ["error: memory_gb must allow"]),
        (["table_rounds=[10]", "record_every=20"], ["error: table_rounds=[10] must not lie"]),
    ],
)  # fmt: skip
def test_invalid_input_is_rejected_in_one_sentence_without_output(words, message, tmp_path):
    typed = {word.partition("=")[0] for word in words}
    small = [word for word in ("num_seeds=3", "horizon=40") if word.partition("=")[0] not in typed]
    error = refusal_of([*words, *small, f"results_dir={tmp_path}"])
    for part in message:
        assert part in error, error
    assert len(error.strip().splitlines()) == 1, "one sentence"
    assert not list(tmp_path.rglob("*.nc"))


@pytest.mark.slow
def test_separate_process_reports_errors_in_one_sentence(tmp_path):
    words = ["policy=[random]", "capacity=2", "num_seeds=3", "horizon=40"]
    done = script(*words, f"results_dir={tmp_path}")
    assert done.returncode != 0 and "Traceback" not in done.stderr
    assert "error: capacity=2 overflowed in round" in done.stderr
    assert "raise it, or use capacity=auto" in done.stderr
    assert not list(tmp_path.rglob("*.nc"))
