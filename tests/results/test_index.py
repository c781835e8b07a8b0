"""The index of a result store: which runs are there, and which of several is read."""

import numpy as np
import pytest
import xarray as xr
from fabricated import fabricate, save_point
from tiers import cases

from cqbjax.results import store as results
from cqbjax.results.index import CacheKey, ResultIndex, RunRequest

POINT, LABELS = "K=1", ("acqb", "random")


def store_part(folder, name, day, key="c", regret=0.0, **policies):
    """Store a part of a point whose regret is one number."""
    point = fabricate(LABELS, num_seeds=2, horizon=6).sel(policy=list(policies))
    point["regret"] = point["regret"] * 0 + regret
    manifest = {"experiment": "mine", "point": POINT, "key": key, "policies": policies}
    save_point(point, manifest | {"finished": day}, "K: 1\n", folder / f"{name}.nc")


def regrets(point):
    """Return each policy's regret, in the order in which they stand."""
    last = point["regret"].isel(arrival_rate=0, seed=0, round=-1)
    return dict(zip(point["policy"].values.tolist(), last.values.tolist(), strict=True))


def index_of(folder):
    return ResultIndex.of_study(folder, "mine")


def read(folder, key="c", **policies):
    (point,) = index_of(folder).read([RunRequest(POINT, CacheKey(key, policies))])
    return regrets(point)


def missing_of(folder, key, **policies):
    return set(index_of(folder).missing(RunRequest(POINT, CacheKey(key, policies))))


def test_policies_are_missing_unless_stored_with_key_and_point(tmp_path):
    store_part(tmp_path, "a", "1", acqb="k1", random="k2")
    assert missing_of(tmp_path, "c", acqb="k1", random="k2") == set()
    assert missing_of(tmp_path, "c", acqb="k3", random="k2") == {"acqb"}
    assert missing_of(tmp_path, "c", acqb="k1", zero="k1") == {"zero"}
    assert missing_of(tmp_path, "d", acqb="k1") == {"acqb"}
    other = RunRequest("K=2", CacheKey("c", {"acqb": "k1"}))
    assert set(index_of(tmp_path).missing(other)) == {"acqb"}
    with pytest.raises(ValueError, match="is of experiment mine, and .* is where those of other"):
        ResultIndex.of_study(tmp_path, "other")


@pytest.mark.parametrize("newer", cases(["a", "z"], ["a"]))
def test_newer_of_two_results_with_one_key_is_read(tmp_path, newer):
    store_part(tmp_path, "m", "1", regret=1.0, acqb="k1", random="k2")
    store_part(tmp_path, newer, "2", regret=2.0, acqb="k1")
    assert read(tmp_path, acqb="k1", random="k2") == {"acqb": 2.0, "random": 1.0}


def test_policies_are_read_by_their_cache_key(tmp_path):
    store_part(tmp_path, "a", "1", regret=1.0, acqb="k1", random="k2")
    store_part(tmp_path, "b", "2", regret=2.0, acqb="k3", random="k2")
    assert read(tmp_path, acqb="k1", random="k2") == {"acqb": 1.0, "random": 2.0}
    assert read(tmp_path, acqb="k3") == {"acqb": 2.0}


def test_reading_by_key_does_not_modify_files(tmp_path):
    store_part(tmp_path, "a", "1", key="c", regret=1.0, acqb="k1")
    store_part(tmp_path, "b", "2", key="d", regret=2.0, acqb="k1")
    before = {name: (tmp_path / f"{name}.nc").read_bytes() for name in "ab"}
    assert read(tmp_path, "d", acqb="k1") == {"acqb": 2.0}
    assert before == {name: (tmp_path / f"{name}.nc").read_bytes() for name in "ab"}
    assert read(tmp_path, "c", acqb="k1") == {"acqb": 1.0}
    assert before["b"] == (tmp_path / "b.nc").read_bytes()
    manifest = results.read_manifest(tmp_path / "a.nc")
    assert manifest["order"] == 1 and manifest["finished"] == "1"
    assert regrets(results.load(tmp_path)) == {"acqb": 1.0}


def test_a_damaged_file_is_set_aside_and_its_points_are_missing(tmp_path):
    store_part(tmp_path, "a", "1", acqb="k1")
    file = tmp_path / "a.nc"
    content = bytearray(file.read_bytes())
    content[1000] ^= 1
    file.write_bytes(content)
    with pytest.raises(results.ResultError, match="was damaged and is set aside"):
        read(tmp_path, acqb="k1")
    assert missing_of(tmp_path, "c", acqb="k1") == {"acqb"}
    assert {path.name for path in tmp_path.iterdir()} == {".a.nc.torn"}


def test_requested_rounds_are_read(tmp_path):
    store_part(tmp_path, "a", "1", acqb="k1")
    asked = [RunRequest(POINT, CacheKey("c", {"acqb": "k1"}))]
    (point,) = index_of(tmp_path).read(asked, rounds=[4, 6])
    np.testing.assert_array_equal(point["round"], [4, 6])


WHOLE = fabricate(LABELS, (0.3, 0.4, 0.5), num_seeds=5, horizon=6, every=2)


def keep_runs(folder, name, rates, seeds, labels=LABELS, day=None, **keys):
    """Store some runs of a point."""
    runs = WHOLE.sel(policy=list(labels), arrival_rate=list(rates), seed=list(seeds))
    manifest = {
        "experiment": "mine", "point": POINT, "key": "c", "finished": day or name,
        "policies": {label: keys.get(label, "k") for label in labels},
        "cells": {"arrival_rate": list(rates), "seed": list(seeds)},
    }  # fmt: skip
    save_point(runs, manifest, "K: 1\n", folder / f"{name}.nc")


def request(rates, seeds, labels=LABELS):
    return RunRequest(POINT, CacheKey("c", dict.fromkeys(labels, "k")), rates, seeds)


def assert_identical_data(one, other):
    both = (data.drop_vars(["seconds_per_round", "compile_seconds"]) for data in (one, other))
    xr.testing.assert_identical(*(data.drop_attrs() for data in both))


@pytest.mark.slow
def test_seeds_and_rates_of_several_files_are_merged_in_any_order(tmp_path):
    keep_runs(tmp_path, "b", [0.5, 0.3], [3, 4])
    keep_runs(tmp_path, "a", [0.3, 0.5], [0, 1, 2])
    keep_runs(tmp_path, "c", [0.4], range(5))
    index = index_of(tmp_path)
    assert index.missing(request([0.4, 0.3, 0.5], range(5))) == {}
    lacking = index.missing(request([0.3, 0.6], [4, 5]))
    assert lacking == dict.fromkeys(LABELS, [(0.3, 5), (0.6, 4), (0.6, 5)])
    (point,) = index.read([request([0.5, 0.4], [4, 1])])
    assert_identical_data(point, WHOLE.sel(arrival_rate=[0.5, 0.4], seed=[4, 1]))
    for data in (results.load(tmp_path), *results.load_points(tmp_path)):
        assert_identical_data(data, WHOLE)
    assert index.outdated() == []


@pytest.mark.slow
def test_files_of_two_studies_are_one_dataset(tmp_path):
    keep_runs(tmp_path / "one", "a", [0.3, 0.4], [0, 1, 2])
    keep_runs(tmp_path / "two", "b", [0.3, 0.4], [3, 4])
    both = results.load([tmp_path / "one", tmp_path / "two"])
    assert_identical_data(both, WHOLE.sel(arrival_rate=[0.3, 0.4]))
    keep_runs(tmp_path / "two", "c", [0.5], [0], ["random"])
    assert results.load([tmp_path / "two", tmp_path / "one"]).sizes["arrival_rate"] == 3


@pytest.mark.slow
def test_a_point_with_other_seeds_of_a_policy_or_rate_is_read_in_complete_parts(tmp_path):
    keep_runs(tmp_path, "a", [0.3, 0.4], range(5))
    keep_runs(tmp_path, "b", [0.4, 0.5], [0, 1], ["random"], random="other")
    parts = results.load_points(tmp_path)
    sizes = {(*one.policy.values, *one.arrival_rate.values): one.sizes["seed"] for one in parts}
    assert sizes == {("acqb", 0.3, 0.4): 5, ("random", 0.4, 0.5): 2}, "a newer random replaced it"
    assert all(one.queue_length.dtype == np.int32 for one in parts)
    whole = results.load(tmp_path)
    assert whole.policy.values.tolist() == ["acqb", "random"] and whole.sizes["arrival_rate"] == 3
    cell = {"arrival_rate": 0.4, "seed": [0, 1]}
    same = whole.queue_length.sel(cell).transpose("policy", "seed", "round")
    np.testing.assert_array_equal(same, WHOLE.queue_length.sel(cell))
    assert whole.queue_length.sel(policy="acqb", arrival_rate=0.5).isnull().all()
    assert whole.queue_length.sel(policy="random", arrival_rate=0.4, seed=4).isnull().all()


@pytest.mark.slow
def test_a_file_is_outdated_once_all_its_runs_are_newer_elsewhere(tmp_path):
    keep_runs(tmp_path, "a", [0.3, 0.4], [0, 1])
    keep_runs(tmp_path, "b", [0.3, 0.4], [1, 2])
    assert index_of(tmp_path).outdated() == []
    keep_runs(tmp_path, "c", [0.3], [0])
    assert index_of(tmp_path).outdated() == []
    keep_runs(tmp_path, "d", [0.4], [0])
    assert [file.stem for file in index_of(tmp_path).outdated()] == ["a"]
