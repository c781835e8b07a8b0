"""What the keys of a study may hold, refused before anything runs."""

import pytest
from composing import EXPERIMENTS, composed
from omegaconf import OmegaConf

from cqbjax.commands._hydra import make, make_policies
from cqbjax.studies import grid, kinds, resolvers, settings

REFUSED = {
    "num_seeds": "null", "horizon": "null", "first_seed": "1.5", "dim": "many", "chunk": "1.5",
    "record_every": "often", "num_samples": "2.5", "capacity": "null", "slackness": "null",
    "lambda0": "0", "kappa": "-1", "c1": "fast", "alpha_scale": "true", "spread": "se",
    "queue": "longest", "table": "all", "K": "[1,1]", "num_servers": "[3,few]",
    "parameters": "null", "arrival_rate": "[0.6,fast]", "table_rounds": "[0]",
    "memory_gb": "0",
}  # fmt: skip


@pytest.mark.parametrize("key", REFUSED)
def test_a_wrong_value_is_refused_by_its_key(key):
    config = composed(f"{key}={REFUSED[key]}", "num_seeds=2" if key != "num_seeds" else "horizon=9")
    with pytest.raises(ValueError, match=rf"^{key}=.* must be ") as refusal:
        kinds.checked_points(config, make, make_policies)
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize("key", ["K", "slackness", "parameters", "alpha_scale"])
def test_an_empty_grid_is_refused(key):
    with pytest.raises(ValueError, match=rf"^{key}=\[\] must be a value or a list"):
        grid.compose(composed(f"{key}=[]"))


@pytest.mark.slow
def test_every_key_of_a_study_passes_as_it_is_shipped():
    for name in EXPERIMENTS:
        assert grid.compose(composed(f"experiment={name}"))


@pytest.mark.parametrize(
    ("words", "said"),
    [(["kind=switching", "kind.block=0"], "kind.block=0 must be a whole number of rounds"),
     (["kind=slopes"], r"kind.windows=.* must be a list of pairs"),
     (["kind=slopes", "kind.windows=[[9,9]]"], r"kind.windows=\[\[9, 9\]\] must be"),
     (["kind=slopes", "kind.windows=[[1,2,3]]"], "kind.windows=.* must be a list of pairs"),
     (["kind=slopes", "kind.windows=[[9,9999999]]"], "ends in round 9,999,999: horizon="),
     (["kind=switching", "policy=[optimal]"], "policy names only optimal, and Switching needs an"),
     (["kind=eigenvalues", "policy=[random]"], "policy random keeps no V: name ACQB or a relative"),
     (["kind=eigenvalues", "users=[orbit]"], "users=orbit is of a sweep, and Eigenvalues is none"),
     (["kind._target_=cqbjax.policies.Acqb"], "kind=.* must be made from cqbjax.studies")],
)  # fmt: skip
def test_a_wrong_word_of_a_kind_of_study_is_refused(words, said):
    with pytest.raises(ValueError, match=said):
        kinds.checked_points(composed(*words, "horizon=40"), make, make_policies)


def test_no_exploration_length_is_refused():
    with pytest.raises(ValueError, match="explore_rounds=None must be"):
        resolvers.exploration_length(None, 10, 1.0)


def test_a_word_for_the_exploration_constant_is_refused_where_a_rule_reads_it():
    with pytest.raises(ValueError, match="c1=fast must be a number for explore_rounds=stabilised"):
        resolvers.exploration_length("stabilised", 10, "fast")


def test_a_key_that_the_source_does_not_read_is_refused():
    config = OmegaConf.create({"source": {"dataset": "sprout"}})
    with pytest.raises(ValueError, match="num_servers is of the synthetic source.*sprout"):
        settings.check_overrides(["K=2", "num_servers=3"], config)
    settings.check_overrides(["K=2", "horizon=30"], config)
    own = {"_target_": "mine.Source", "servers": "${num_servers}"}
    settings.check_overrides(["num_servers=3"], OmegaConf.create({"source": own}))
    with pytest.raises(ValueError, match=r"dim is not read by the source here, mine\.Source"):
        settings.check_overrides(["dim=3"], OmegaConf.create({"source": own}))


def test_no_point_runs_before_all_are_checked():
    config = composed("K=[1,9]", "num_seeds=2", "horizon=12")
    with pytest.raises(ValueError, match="K=9 must lie"):
        kinds.checked_points(config, make, make_policies)
    config.K = [1, 2]
    assert [
        ready.point.config.K for ready in kinds.checked_points(config, make, make_policies)
    ] == [1, 2]
