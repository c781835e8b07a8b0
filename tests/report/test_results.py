"""Results: whole or not at all, refused when torn, combined exactly."""

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr
from fabricated import fabricate

from cqbjax import files
from cqbjax.report import results


def store(folder: Path, ds: xr.Dataset, **varied: Any) -> None:
    results.save(ds, {"varied": varied, "device": "cpu"}, "horizon: 60\n", folder)


def hidden(folder: Path) -> list[str]:
    return [path.name for path in folder.iterdir() if path.name.startswith(".")]


def test_what_is_saved_is_what_is_loaded(tmp_path: Path) -> None:
    ds = fabricate(every=5, stand_in="", beta=0.5)
    store(tmp_path / "point", ds)
    for path in (tmp_path, tmp_path / "point", tmp_path / "point" / "arrays.nc"):
        back = results.load(path)
        xr.testing.assert_identical(back, ds)
        assert {n: back[n].dtype for n in back.data_vars} == {n: ds[n].dtype for n in ds.data_vars}
    assert {path.name for path in (tmp_path / "point").iterdir()} == {
        "arrays.nc", "manifest.json", "config.yaml",
    }  # fmt: skip
    assert (tmp_path / "point" / "config.yaml").read_text() == "horizon: 60\n"
    assert results.read_manifest(tmp_path / "point" / "arrays.nc")["device"] == "cpu"
    assert results.load_points(tmp_path)[0].attrs["path"] == str(tmp_path / "point")
    assert hidden(tmp_path) == []


def test_compression_pays(tmp_path: Path) -> None:
    ds = fabricate(num_seeds=40, horizon=400)
    store(tmp_path / "point", ds)
    assert (tmp_path / "point" / "arrays.nc").stat().st_size < ds.nbytes / 2


@pytest.mark.parametrize("call", [1, 2])
def test_a_crash_in_the_swap_leaves_the_old_result(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: int
) -> None:
    """Killed before either rename (nothing after it runs), the old result is still what loads."""
    old, new = fabricate(horizon=20), fabricate(horizon=30)
    store(tmp_path / "point", old)
    real, calls = os.replace, []

    def die(source: Any, target: Any) -> None:
        calls.append(source)
        if len(calls) >= call:
            raise KeyboardInterrupt
        real(source, target)

    monkeypatch.setattr(os, "replace", die)
    # A killed process does not clean up: neither the roll-back nor the removal happens.
    monkeypatch.setattr(Path, "rename", lambda *_: None)
    monkeypatch.setattr(results.shutil, "rmtree", lambda *_, **__: None)
    with pytest.raises(KeyboardInterrupt):
        store(tmp_path / "point", new)
    monkeypatch.undo()
    assert (tmp_path / "point").exists() == (call == 1)
    for path in (tmp_path, tmp_path / "point"):
        xr.testing.assert_identical(results.load(path), old)
    assert len(hidden(tmp_path)) == call
    store(tmp_path / "point", new)
    xr.testing.assert_identical(results.load(tmp_path), new)
    assert hidden(tmp_path) == []


@pytest.mark.parametrize("name", ["arrays.nc", "config.yaml", "manifest.json"])
def test_a_failure_while_writing_leaves_the_old_result(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    old = fabricate(horizon=20)
    store(tmp_path / "point", old)
    real = Path.open

    def disk_full(self: Path, *arguments: Any, **options: Any) -> Any:
        if self.name == name:
            raise OSError("disk full")
        return real(self, *arguments, **options)

    monkeypatch.setattr(Path, "open", disk_full)
    with pytest.raises(OSError, match="disk full"):
        store(tmp_path / "point", fabricate(horizon=30))
    monkeypatch.undo()
    xr.testing.assert_identical(results.load(tmp_path), old)
    assert hidden(tmp_path) == []


def test_a_failed_swap_rolls_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    old = fabricate(horizon=20)
    store(tmp_path / "point", old)
    real = os.replace

    def refuse(source: Any, target: Any) -> None:
        if str(source).endswith(".partial"):
            raise PermissionError("no")
        real(source, target)

    monkeypatch.setattr(os, "replace", refuse)
    with pytest.raises(PermissionError):
        store(tmp_path / "point", fabricate(horizon=30))
    xr.testing.assert_identical(results.load(tmp_path / "point"), old)
    assert hidden(tmp_path) == []


def test_a_half_written_first_result_is_never_read(tmp_path: Path) -> None:
    store(tmp_path / "point", fabricate())
    (tmp_path / "point").rename(tmp_path / ".other.partial")
    with pytest.raises(results.ResultError, match="no result under"):
        results.load(tmp_path)


def test_other_peoples_files_survive_a_new_result(tmp_path: Path) -> None:
    store(tmp_path / "study", fabricate(horizon=20))
    store(tmp_path / "study" / "nested", fabricate(K=2))
    (tmp_path / "study" / "notes.txt").write_text("mine")
    store(tmp_path / "study", fabricate(horizon=30))
    assert (tmp_path / "study" / "notes.txt").read_text() == "mine"
    assert {point.attrs["K"] for point in results.load_points(tmp_path)} == {1, 2}
    assert results.load(tmp_path / "study" / "arrays.nc").sizes["round"] == 30


def test_a_truncated_arrays_file_is_refused(tmp_path: Path) -> None:
    store(tmp_path / "point", fabricate())
    arrays = tmp_path / "point" / "arrays.nc"
    arrays.write_bytes(arrays.read_bytes()[:-100])
    with pytest.raises(results.ResultError, match="arrays.nc is torn: its checksum"):
        results.load(tmp_path)


def test_one_changed_byte_is_refused(tmp_path: Path) -> None:
    store(tmp_path / "point", fabricate())
    arrays = tmp_path / "point" / "arrays.nc"
    content = bytearray(arrays.read_bytes())
    content[len(content) // 2] ^= 1
    arrays.write_bytes(content)
    with pytest.raises(results.ResultError, match="checksum"):
        results.load(tmp_path)


@pytest.mark.parametrize(
    ("name", "message"),
    [("manifest.json", "holds no result: manifest.json"), ("arrays.nc", "arrays.nc is missing")],
)
def test_a_missing_file_is_named(tmp_path: Path, name: str, message: str) -> None:
    store(tmp_path / "point", fabricate())
    (tmp_path / "point" / name).unlink()
    with pytest.raises(results.ResultError, match=message):
        results.load(tmp_path)


def test_a_torn_manifest_is_named(tmp_path: Path) -> None:
    store(tmp_path / "point", fabricate())
    file = tmp_path / "point" / "manifest.json"
    file.write_text(file.read_text()[:30])
    with pytest.raises(results.ResultError, match="manifest.json is torn"):
        results.load(tmp_path)


def test_nothing_there(tmp_path: Path) -> None:
    with pytest.raises(results.ResultError, match="no such folder"):
        results.load(tmp_path / "absent")
    with pytest.raises(results.ResultError, match="no result under"):
        results.load(tmp_path)
    (tmp_path / "other.txt").write_text("")
    with pytest.raises(results.ResultError, match="give a folder or its arrays.nc"):
        results.load(tmp_path / "other.txt")


def test_points_combine_over_k_and_arrival_rate(tmp_path: Path) -> None:
    points = {
        (k, rate): fabricate(
            ("acqb", "q_ucb", "random") if k == 1 else ("random", "acqb"),
            rates=(rate,), K=k, num_seeds=4, horizon=30 * k,
        )
        for k, rate in [(1, 0.6), (1, 0.7), (2, 0.7)]
    }  # fmt: skip
    for (k, rate), ds in points.items():
        store(tmp_path / f"K={k},rate={rate}", ds, arrival_rate=rate, **{"source.K": k})
    grid = results.load(tmp_path)
    assert dict(grid.sizes) == {"K": 2, "policy": 3, "arrival_rate": 2, "seed": 4, "round": 60}
    assert grid["queue_length"].dims == ("K", "policy", "arrival_rate", "seed", "round")
    assert grid["seconds_per_round"].dims == ("K", "policy", "arrival_rate")
    for (k, rate), ds in points.items():
        part = grid.sel(K=k, arrival_rate=[rate], policy=ds["policy"], round=ds["round"])
        for name in results.VARIABLES:
            values = part[name].transpose(*ds[name].dims, ...).values
            np.testing.assert_array_equal(np.squeeze(values), np.squeeze(ds[name].values))
    assert grid["queue_length"].sel(K=2, arrival_rate=0.6).isnull().all()
    assert grid["queue_length"].sel(K=2, policy="q_ucb").isnull().all()
    assert grid["queue_length"].sel(K=1, round=slice(31, None)).isnull().all()
    assert grid.attrs["num_servers"] == 5 and "K" not in grid.attrs and "horizon" not in grid.attrs


def test_a_complete_grid_keeps_its_integers(tmp_path: Path) -> None:
    for k in (1, 2):
        for servers in (3, 5):
            store(tmp_path / f"{k}{servers}", fabricate(K=k, num_servers=servers))
    grid = results.load(tmp_path)
    assert grid["queue_length"].dims[:2] == ("K", "num_servers")
    assert grid["queue_length"].dtype == np.int32
    assert grid["seconds_per_round"].dims == ("K", "num_servers", "policy")


def test_other_varied_keys_become_dimensions(tmp_path: Path) -> None:
    for scale in (0.3, 1.0):
        store(tmp_path / str(scale), fabricate(), **{"policy.alpha_scale": scale})
    assert results.load(tmp_path)["policy.alpha_scale"].values.tolist() == [0.3, 1.0]


def test_a_stand_in_label_is_not_lost(tmp_path: Path) -> None:
    store(tmp_path / "a", fabricate(K=1))
    store(tmp_path / "b", fabricate(K=2, stand_in="a slice"))
    assert results.load(tmp_path).attrs["stand_in"] == "a slice"


def test_two_points_for_one_combination_are_refused(tmp_path: Path) -> None:
    store(tmp_path / "a", fabricate(rates=(0.6, 0.7)))
    store(tmp_path / "b", fabricate(rates=(0.7,), horizon=20))
    with pytest.raises(ValueError, match=r"/a and .*/b both hold arrival_rate=0.7"):
        results.load(tmp_path)
    assert len(results.load_points(tmp_path)) == 2


def test_several_experiments_are_named(tmp_path: Path) -> None:
    store(tmp_path / "a", fabricate())
    store(tmp_path / "b", fabricate(experiment="routerbench"))
    with pytest.raises(results.ResultError, match=r"several experiments \(routerbench, synthetic"):
        results.load(tmp_path)
    assert results.load(tmp_path / "b").attrs["experiment"] == "routerbench"


def test_what_cannot_be_stored_is_named_before_anything_is_written(tmp_path: Path) -> None:
    faults: list[tuple[xr.Dataset, str]] = [
        (fabricate().drop_vars("departures"), "lacks departures"),
        (fabricate().transpose("seed", ...), "queue_length has dimensions"),
        (fabricate().drop_vars("seed"), "dimension seed has no coordinate"),
        (fabricate(slackness=None), "attribute slackness is None"),
        (fabricate(stand_in=True), "attribute stand_in is True"),
        (fabricate().drop_attrs(deep=False), "attribute experiment is missing"),
    ]
    for ds, message in faults:
        with pytest.raises(results.ResultError, match=message):
            store(tmp_path / "point", ds)
    with pytest.raises(results.ResultError, match=r"varied\. c1 is \[1\]"):
        store(tmp_path / "point", fabricate(), c1=[1])
    with pytest.raises(results.ResultError, match="varied must map"):
        results.save(fabricate(), {"varied": ["K"]}, "", tmp_path / "point")
    assert list(tmp_path.iterdir()) == []


def test_the_manifest_carries_the_checksum(tmp_path: Path) -> None:
    store(tmp_path / "point", fabricate())
    manifest = json.loads((tmp_path / "point" / "manifest.json").read_text())
    assert len(manifest["arrays_sha256"]) == 64 and manifest["varied"] == {}


def test_a_file_is_written_whole_or_not_at_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = tmp_path / "table.csv"
    files.write_atomic(target, b"old")

    def fail(*_: Any) -> None:
        raise OSError("no")

    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(OSError, match="no"):
        files.write_atomic(target, b"new")
    assert target.read_bytes() == b"old" and hidden(tmp_path) == []
