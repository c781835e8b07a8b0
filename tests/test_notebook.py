"""Policies by label, sweeps of them, routers included, and a picture in one call."""

import subprocess
import sys

import matplotlib.colors
import numpy as np
import pytest
from composing import REPOSITORY
from matplotlib.collections import PolyCollection

import cqbjax
from cqbjax import datasets, offline, policies, sources
from cqbjax.results.policy_styles import STYLE
from cqbjax.results.summaries import mean_ci

SMALL = {"arrival_rate": [0.3], "num_seeds": 2, "horizon": 40}


@pytest.mark.slow
def test_policy_by_label_matches_the_command_line(tmp_path, monkeypatch):
    by_key, by_attribute = (cqbjax.policy("lints", **{k: 0.5}) for k in ("lints_alpha", "alpha"))
    assert by_key == by_attribute == policies.LinearBandit(index="thompson", alpha=0.5)
    assert cqbjax.policy("acqb").alpha_scale == 0.2, "the preset of the command line"
    assert cqbjax.policy("cqb_eps", horizon=500).explore_rounds == 50
    assert cqbjax.policy("knn_fallback", precision=2.0) == offline.TrainedRouter(
        offline.routers.KNN(), retry="fallback", precision=2.0
    )
    (tmp_path / "conf" / "policy").mkdir(parents=True)
    own = "mine:\n  _target_: cqbjax.policies.Acqb\n  c1: ${c1}\n"
    (tmp_path / "conf" / "policy" / "mine.yaml").write_text(own)
    monkeypatch.chdir(tmp_path)
    assert cqbjax.policy("mine", c1=0.7) == policies.Acqb(c1=0.7)


def test_unknown_labels_and_constants_are_rejected_in_one_sentence():
    with pytest.raises(ValueError, match="policy lintz is unknown: did you mean .*lints"):
        cqbjax.policy("lintz")
    with pytest.raises(ValueError, match="no constant alfa: did you mean alpha"):
        cqbjax.policy("lints", alfa=1)
    with pytest.raises(ValueError, match="no constant zz; choose from alpha, .*lints_alpha"):
        cqbjax.policy("lints", zz=1)
    with pytest.raises(ValueError, match="policy knn learns from a table .*dataset_source"):
        cqbjax.sweep(["random", "knn"], sources.Coin(), **SMALL)


@pytest.mark.slow
def test_sweep_of_policies_does_not_import_table_readers():
    code = (
        "import sys, cqbjax\n"
        "from cqbjax import policies, sources\n"
        "arguments = {'arrival_rate': [0.3], 'num_seeds': 1, 'horizon': 0}\n"
        "try:\n"
        "    cqbjax.sweep({'mine': policies.RandomRouting()}, sources.Coin(), **arguments)\n"
        "except ValueError as error:\n"
        "    assert 'horizon' in str(error), error\n"
        "late = {'polars', 'sklearn', 'matplotlib', 'hydra', 'cqbjax.datasets', 'cqbjax.offline'}\n"
        "assert not late & set(sys.modules), late & set(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=REPOSITORY, timeout=300)


@pytest.mark.slow
def test_labels_and_policy_objects_give_the_same_sweep():
    coin = sources.Coin(classes=[0.4, 0.8])
    data = cqbjax.sweep(["random", "best_llm"], coin, **SMALL)
    made = {label: cqbjax.policy(label) for label in ("random", "best_llm")}
    np.testing.assert_array_equal(data.queue_length, cqbjax.sweep(made, coin, **SMALL).queue_length)
    figure = cqbjax.plot(data)
    queue, regret = figure.axes
    assert "regret" in regret.get_ylabel()
    for panel, name in ((queue, "queue_length"), (regret, "regret")):
        color = STYLE["random"].color
        (band,) = (
            one for one in panel.collections
            if isinstance(one, PolyCollection)
            and matplotlib.colors.same_color(one.get_facecolor()[0][:3], color)
            and len(one.get_paths()[0].vertices) > 40
        )  # fmt: skip
        drawn = band.get_paths()[0].vertices
        interval = mean_ci(data[name].sel(policy="random", arrival_rate=0.3))
        last = drawn[drawn[:, 0] == 40][:, 1]
        expected = [interval[end].isel(round=-1).item() for end in ("low", "high")]
        np.testing.assert_allclose([last.min(), last.max()], expected, rtol=1e-5)


@pytest.mark.slow
def test_sweep_trains_routers_like_a_study(tmp_path):
    source = datasets.dataset_source("paretobandit", "data", pool_size=30, offline_size=150)
    chosen = {"knn": "knn", "own": offline.routers.KNN(), "random": policies.RandomRouting()}
    data = cqbjax.sweep(chosen, source, **SMALL)
    knn, own = (data.queue_length.sel(policy=label) for label in ("knn", "own"))
    np.testing.assert_array_equal(knn, own)
    made = offline.policies.train_policies(
        {"knn": offline.TrainedRouter(offline.routers.KNN())}, source, [0, 1], tmp_path, None
    )
    direct = cqbjax.sweep(made, source.queries, **SMALL)
    np.testing.assert_array_equal(direct.queue_length.sel(policy="knn"), knn)
