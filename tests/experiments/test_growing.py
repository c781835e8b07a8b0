"""Seeds, rates and policies that are added to a study give the numbers of one study at once."""

import numpy as np
import pytest
from composing import run_command

from cqbjax.results import store as results

pytestmark = pytest.mark.slow
TIMES = {"seconds_per_round", "compile_seconds"}
POOL = ("source=paretobandit", "source.pool_size=30")
STUDIES = {
    "sweep": ("experiment=synthetic", "K=1", "num_servers=2", "dim=2", "horizon=40"),
    "routers": (*POOL, "K=1", "horizon=40"),
    "offline_value": (*POOL, "kind=offline_value"),
    "sensitivity": ("kind=sensitivity", "experiment=synthetic", "K=1", "horizon=12", "dim=2",
                    "num_servers=2", "kind.alpha_scale=[0.6]", "kind.c1=[]", "kind.lambda0=[]",
                    "kind.M=[]", "arrival_rate=0.4"),
    "replay": ("experiment=wildchat", "horizon=60", "record_every=5", "table_rounds=[30,60]",
               "compared=null"),
}  # fmt: skip
POLICIES = {
    "sweep": ("[acqb]", "[acqb,random]"), "routers": ("[knn]", "[knn,random]"),
    "offline_value": ("[knn,random]", "[knn,random]"), "replay": ("[optimal]", "[optimal,acqb]"),
}  # fmt: skip


def run(folder, kind, words, data):
    words = [*STUDIES[kind], *words, "name=grown", f"results_dir={folder}",
             f"cache_dir={folder / 'fits'}", f"data_dir={data}"]  # fmt: skip
    done = run_command("run", *words)
    assert done.returncode == 0, done.stderr
    (stored,) = (folder / "data").iterdir()
    return results.load_points(stored)


@pytest.mark.parametrize("kind", STUDIES)
def test_extended_study_equals_a_study_run_at_once(kind, tmp_path, request):
    data = request.getfixturevalue("generated") if kind == "replay" else tmp_path
    few, many = POLICIES.get(kind, (None, None))
    first, both = ([f"policy={labels}"] * (labels is not None) for labels in (few, many))
    # Only these read other arrival rates.
    rated = kind in ("sweep", "routers")
    rate, rates = (["arrival_rate=[0.2]"], ["arrival_rate=[0.2,0.3]"]) if rated else ([], [])
    grown = tmp_path / "grown"
    run(grown, kind, ["num_seeds=2", *first, *rate], data)
    run(grown, kind, ["num_seeds=3", *first, *rate], data)
    run(grown, kind, ["num_seeds=1", *(["first_seed=3"] if kind != "sensitivity" else []),
                      *first, *rate], data)  # fmt: skip
    last = "num_seeds=4" if kind != "sensitivity" else "num_seeds=3"
    grown_points = run(grown, kind, [last, *both, *rates], data)
    whole_points = run(tmp_path / "whole", kind, [last, *both, *rates], data)
    assert len(grown_points) == len(whole_points) > 0
    for one, other in zip(grown_points, whole_points, strict=True):
        assert {*one.data_vars} == {*other.data_vars}
        assert one.sizes["seed"] == int(last[-1])
        for name in {*other.data_vars} - TIMES:
            same = one[name].sel({key: other[name][key] for key in other[name].dims
                                  if key in other[name].coords})  # fmt: skip
            np.testing.assert_array_equal(same, other[name], err_msg=name)


def test_added_policies_are_compared_with_the_oracle_of_their_study(tmp_path, monkeypatch):
    """The oracle of this task asks another LLM on a retry; the paper's asks the same forever."""
    monkeypatch.setitem(STUDIES, "retries", ("arena=retries", "source.pool_size=30", "horizon=90"))
    folders = [tmp_path / name for name in ("grown", "whole")]
    run(folders[0], "retries", ["policy=[random]", "num_seeds=3"], tmp_path)
    (grown,), (whole,) = (
        run(folder, "retries", ["policy=[random,greedy]", "num_seeds=3"], tmp_path)
        for folder in folders
    )
    for name in ("departures", "optimal_queue_length", "regret"):
        same = grown[name].sel({"policy": whole.policy} if "policy" in grown[name].dims else {})
        np.testing.assert_array_equal(same, whole[name], err_msg=name)
