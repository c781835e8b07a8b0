"""What the keys of a study may hold, refused before anything runs."""

import functools

import pytest
from composing import EXPERIMENTS, compose_config
from hydra.errors import HydraException
from hypothesis import Phase, given
from hypothesis import settings as settings_of
from hypothesis import strategies as st
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException
from tiers import cases

from cqbjax.cli._instantiate import make
from cqbjax.experiments import configs, grid, study_types, validation

REFUSED = {
    "num_seeds": "null", "horizon": "null", "first_seed": "1.5", "dim": "many", "chunk": "1.5",
    "record_every": "often", "num_samples": "2.5", "capacity": "null", "slackness": "null",
    "lambda0": "0", "kappa": "-1", "c1": "fast", "alpha_scale": "true", "spread": "se",
    "queue": "longest", "table": "all", "K": "[1,1]", "num_servers": "[3,few]",
    "parameters": "null", "arrival_rate": "[0.6,fast]", "table_rounds": "[0]",
    "memory_gb": "0",
}  # fmt: skip


@pytest.mark.parametrize("key", REFUSED)
def test_invalid_study_values_are_rejected_with_their_key(key):
    config = compose_config(
        f"{key}={REFUSED[key]}", "num_seeds=2" if key != "num_seeds" else "horizon=9"
    )
    with pytest.raises(ValueError, match=rf"^{key}=.* must be ") as refusal:
        study_types.prepare_points(config, make)
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize("key", ["K", "slackness", "parameters", "alpha_scale"])
def test_empty_grids_are_rejected(key):
    with pytest.raises(ValueError, match=rf"^{key}=\[\] must be a value or a list"):
        grid.compose(compose_config(f"{key}=[]"))


@pytest.mark.slow
def test_shipped_experiments_pass_validation():
    for name in EXPERIMENTS:
        assert grid.compose(compose_config(f"experiment={name}"))


OF_KINDS = [
    (["kind=switching", "kind.block=0"], "kind.block=0 must be a whole number of rounds"),
    (["kind=slopes"], r"kind.windows=.* must be a list of pairs"),
    (["kind=slopes", "kind.windows=[[9,9]]"], r"kind.windows=\[\[9, 9\]\] must be"),
    (["kind=slopes", "kind.windows=[[1,2,3]]"], "kind.windows=.* must be a list of pairs"),
    (["kind=slopes", "kind.windows=[[9,9999999]]"], "ends in round 9,999,999: horizon="),
    (["kind=switching", "policy=[optimal]"], "policy names only optimal, and Switching needs an"),
    (["kind=eigenvalues", "policy=[random]"], "policy random keeps no V: name ACQB or a relative"),
    (["kind=eigenvalues", "users=[orbit]"], "users=orbit is of a sweep, and Eigenvalues is none"),
    (["kind._target_=cqbjax.policies.Acqb"], "kind=.* must be made from cqbjax.experiments"),
]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "message"), cases(OF_KINDS, [words for words, _ in OF_KINDS[:2]], several=True)
)
def test_invalid_study_type_settings_are_rejected(words, message):
    with pytest.raises(ValueError, match=message):
        study_types.prepare_points(compose_config(*words, "horizon=40"), make)


def test_missing_explore_rounds_is_rejected():
    with pytest.raises(ValueError, match="explore_rounds=None must be"):
        configs.exploration_length(None, 10, 1.0)


def test_non_numeric_c1_is_rejected_by_rules_that_read_it():
    with pytest.raises(ValueError, match="c1=fast must be a number for explore_rounds=stabilised"):
        configs.exploration_length("stabilised", 10, "fast")


def test_keys_unread_by_the_source_are_rejected():
    config = configs.from_omegaconf(OmegaConf.create({"source": {"dataset": "sprout"}}))
    with pytest.raises(ValueError, match="num_servers is of the synthetic source.*sprout"):
        validation.validate_overrides(["K=2", "num_servers=3"], config)
    validation.validate_overrides(["K=2", "horizon=30"], config)
    own = {"_target_": "mine.Source", "servers": "${num_servers}"}
    config = configs.from_omegaconf(OmegaConf.create({"source": own, "num_servers": 3}))
    validation.validate_overrides(["num_servers=3"], config)
    with pytest.raises(ValueError, match=r"dim is not read by the source here, mine\.Source"):
        validation.validate_overrides(["dim=3"], config)


def test_all_grid_points_are_validated_before_running():
    config = compose_config("K=[1,9]", "num_seeds=2", "horizon=12")
    with pytest.raises(ValueError, match="K=9 must lie"):
        study_types.prepare_points(config, make)
    ready = study_types.prepare_points(config.with_values({"K": [1, 2]}), make)
    assert [one.point.config.K for one in ready] == [1, 2]


# Anything that a word of the command line, or a YAML file, can put there.
ANYTHING = st.one_of(
    st.none(), st.booleans(), st.integers(-3, 3), st.sampled_from([10**9, 10**12, 2**31, 2**63]),
    st.floats(), st.sampled_from(["", "auto", "by_rule", "many", "1", "0.5", "a/b", "é\n"]),
    st.lists(st.one_of(st.integers(-1, 3), st.floats(), st.sampled_from(["x", "0.5"])), max_size=3),
    st.dictionaries(st.sampled_from(["x", "jump_at", "metric", "_target_"]), st.integers(0, 2)),
)  # fmt: skip
KEYS = (
    "K", "num_servers", "dim", "slackness", "parameters", "arrival_rate", "rates_by_K",
    "policies_by_K", "arrivals", "burst", "burst_rounds", "batch_most", "batch_sizes", "trace",
    "drift", "drift.jump_at", "drift.quarter", "num_seeds", "first_seed", "horizon",
    "record_every", "record", "queries", "capacity", "chunk", "memory_gb", "shard_runs",
    "explore_rounds", "kappa", "lambda0", "alpha_scale", "c1", "num_samples", "precision",
    "compared", "objective", "table_rounds", "spread", "queue", "table", "policy",
    "policy.acqb.schedule", "policy.acqb.retry", "policy.acqb.window", "policy.acqb.estimator",
    "users", "service", "source.slackness", "source.num_servers", "kind.prefix",
)  # fmt: skip


@functools.cache
def plain():
    """A small study, as it was written."""
    return compose_config("num_seeds=2", "horizon=12", "policy=[optimal,acqb,random]").unresolved


def points_with(changed):
    """Return the points of a study with some keys changed; None where that is refused."""
    config = OmegaConf.create(configs.to_plain(plain()))
    try:
        for key, value in changed.items():
            OmegaConf.update(config, key, value, merge=False)
        return study_types.prepare_points(configs.from_omegaconf(config), make)
    except (ValueError, HydraException, OmegaConfBaseException) as refusal:
        assert str(refusal)
        return None


@pytest.mark.slow
@settings_of(max_examples=400, deadline=None, derandomize=True, phases=[Phase.generate])
@given(changed=st.dictionaries(st.sampled_from(KEYS), ANYTHING, min_size=1, max_size=2))
def test_random_study_values_are_rejected_in_one_sentence_or_valid(changed):
    for ready in points_with(changed) or ():
        asked = ready.point.config
        assert all(type(asked[key]) is int for key in validation.WHOLE_KEYS)
        assert asked.horizon >= 1 and asked.num_seeds >= 1 and 1 <= asked.K <= asked.num_servers
        assert all(0 <= rate <= 1 for rate in asked.arrival_rate) or asked.arrivals == "batches"
        assert asked.capacity == "auto" or asked.capacity >= 1
        assert asked.record_every is None or asked.horizon % asked.record_every == 0
        assert set(ready.policies) - {"optimal"} and all(
            isinstance(one, str) for one in ready.policies
        )


@pytest.mark.slow
def test_valid_study_values_are_accepted():
    for key, value in {"K": 2, "slackness": 0.1, "drift.jump_at": 3, "spread": "sd"}.items():
        assert points_with({key: value})
