"""The points of a study: their policies, rates, seeds and names, beside plain words."""

from types import SimpleNamespace

import pytest
from composing import compose_config
from fabricated import fabricate

from cqbjax.cli._instantiate import make
from cqbjax.core.labels import PAPER, USER_DATA
from cqbjax.datasets import DatasetSource, ServedRates, choose_arrival_rates
from cqbjax.experiments import display, grid, study_types
from cqbjax.experiments.configs import Config
from cqbjax.experiments.grid import GridPoint
from cqbjax.experiments.sweeps import Sweep


def config(**keys):
    return Config({
        "K": 2, "arrival_rate": None, "rates_by_K": {1: [0.5], 2: [0.6, 0.7]},
        "policies_by_K": None, "policy": {"acqb": {}, "q_ucb": {}, "random": {}}, **keys,
    })  # fmt: skip


def test_seeds_count_up_from_first_seed():
    assert list(grid.list_seeds(config(first_seed=5, num_seeds=3))) == [5, 6, 7]


def test_arrival_rates_are_configured_directly_or_by_k():
    assert grid.list_rates(config()) == [0.6, 0.7]
    assert grid.list_rates(config(K=1)) == [0.5]
    assert grid.list_rates(config(arrival_rate=0.4)) == [0.4]
    assert grid.list_rates(config(arrival_rate=[0.4, 0.3])) == [0.4, 0.3]
    assert grid.list_rates(config(arrival_rate="by_rule")) == "by_rule"
    with pytest.raises(ValueError, match="rates_by_K is for 1, 2, not for K=3"):
        grid.list_rates(config(K=3))


def test_single_server_policies_are_skipped_at_k_2_and_others_by_policies_by_k():
    assert grid.find_left_out(config(K=1)) == {}
    assert grid.find_left_out(config()) == {"q_ucb": "defined for K=1 only"}
    some = config(policies_by_K={2: ["random", "q_ucb"]})
    assert grid.find_left_out(some) == {
        "acqb": "not in policies_by_K of K=2", "q_ucb": "defined for K=1 only"
    }  # fmt: skip
    assert grid.find_left_out(config(K=1, policies_by_K={2: ["random"]})) == {}


@pytest.mark.parametrize(
    ("provenance", "own", "by_rule"),
    [(PAPER, True, False), (PAPER, False, True), (USER_DATA, True, True)],
)
def test_rates_by_rule_are_the_papers_on_the_papers_data(provenance, own, by_rule):
    served = ServedRates(0.6, 0.7, (0,), 0.9)
    source = DatasetSource.__new__(DatasetSource)
    object.__setattr__(source, "table", SimpleNamespace(provenance=provenance))
    object.__setattr__(source, "_cached", {("served", 2): served})
    asked = config(arrival_rate="by_rule", rates_by_K={2: [0.61, 0.71]} if own else None)
    rates = grid.resolve_rates(GridPoint("p", asked, {}, {}), source).config.arrival_rate
    assert rates == (list(choose_arrival_rates(served)) if by_rule else [0.61, 0.71])
    with pytest.raises(ValueError, match="arrival_rate=by_rule needs a dataset as source"):
        grid.resolve_rates(GridPoint("p", asked, {}, {}), object())


@pytest.mark.slow
def test_table_rounds_before_the_first_recorded_round_are_rejected():
    words = ("num_seeds=2", "horizon=100", "record_every=10")
    assert study_types.prepare_points(compose_config(*words, "table_rounds=[10,100]"), make)
    with pytest.raises(ValueError, match=r"table_rounds=.* must not lie before round 10"):
        study_types.prepare_points(compose_config(*words, "table_rounds=[9,100]"), make)


@pytest.mark.parametrize(
    ("words", "rounds"),
    [("horizon=3000", [1500, 3000]), ("horizon=7", [3, 7]), ("horizon=1", [1, 1]),
     ("horizon=30 record_every=30", [30, 30]), ("horizon=30 table_rounds=[9]", [9]),
     ("experiment=routerbench horizon=600", [300, 600])],
)  # fmt: skip
def test_table_rounds_default_to_half_and_end_of_the_run(words, rounds):
    assert compose_config(*words.split()).table_rounds == rounds


def test_tables_over_several_horizons_end_at_each_horizon():
    points = [fabricate(("acqb", "random"), horizon=rounds) for rounds in (40, 80)]
    config = compose_config("horizon=[40,80]", "policy=[acqb,random]")
    first = grid.compose(config)[0].config
    made = display.build_table(points, first).select("horizon", "round").unique()
    assert sorted(made.rows()) == [(40, 20), (40, 40), (80, 20), (80, 40), (80, 80)]
    assert {20, 40, 80} <= {*Sweep().select_rounds(config, 100)}
