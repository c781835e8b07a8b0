"""Results: whole or not at all, refused when torn, combined exactly."""

import json
import os
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr
from fabricated import fabricate, save_point
from tiers import cases

from cqbjax.results import files
from cqbjax.results import store as results
from cqbjax.results.files import VARIABLES, StoredPoint
from cqbjax.results.index import IndexEntry, ResultIndex, label_part


def store(path: Path, ds: xr.Dataset, **varied: Any) -> Path:
    """Store a point at `path`.nc."""
    file = path.with_name(f"{path.name}.nc")
    save_point(ds, {"varied": varied, "device": "cpu"}, "horizon: 60\n", file)
    return file


def hidden_files(folder: Path) -> list[str]:
    return [path.name for path in folder.iterdir() if path.name.startswith(".")]


def test_saved_results_round_trip(tmp_path: Path) -> None:
    ds = fabricate(every=5, stand_in="", beta=0.5)
    file = store(tmp_path / "point", ds)
    for path in (tmp_path, file, str(file)):
        back = results.load(path)
        xr.testing.assert_identical(back, ds)
        assert {n: back[n].dtype for n in back.data_vars} == {n: ds[n].dtype for n in ds.data_vars}
    assert list(tmp_path.iterdir()) == [file]
    assert results.read_config(file) == "horizon: 60\n"
    assert results.read_manifest(file).items() >= {"varied": {}, "device": "cpu"}.items()
    assert results.load_points(tmp_path)[0].attrs["path"] == str(file)


@pytest.mark.slow
def test_any_netcdf_reader_opens_the_file(tmp_path: Path) -> None:
    ds = fabricate()
    with xr.open_dataset(store(tmp_path / "point", ds)) as opened:
        one = opened.load().isel(point=0)
    for name in ds.data_vars:
        np.testing.assert_array_equal(one[name], ds[name])
    assert one["configs"].item() == "horizon: 60\n" and one["seeds"].values.tolist() == [*range(8)]
    assert json.loads(one["attributes"].item())["K"] == 1


@pytest.mark.slow
def test_long_unicode_manifests_round_trip(tmp_path: Path) -> None:
    manifest = {"tuned": ["ü" * 50] * 20_000}
    save_point(fabricate(), manifest, "name: ε\n# λ\n", tmp_path / "point.nc")
    assert results.read_manifest(tmp_path / "point.nc")["tuned"] == manifest["tuned"]
    assert results.read_config(tmp_path / "point.nc") == "name: ε\n# λ\n"


@pytest.mark.slow
def test_result_files_are_compressed(tmp_path: Path) -> None:
    ds = fabricate(num_seeds=40, horizon=400)
    assert store(tmp_path / "point", ds).stat().st_size < ds.nbytes / 2


# Where a write may end.
STEPS = ("to_netcdf", "fsync", "replace")


@pytest.mark.slow
@pytest.mark.parametrize("last", STEPS)
def test_a_process_killed_while_writing_leaves_the_old_result(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, last: str
) -> None:
    """Killed at any step (nothing after it runs), the old result is still what loads."""
    old, new = fabricate(horizon=20), fabricate(horizon=30)
    file = store(tmp_path / "point", old)

    def die(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(xr.Dataset if last == "to_netcdf" else os, last, die)
    # A killed process does not clean up.
    monkeypatch.setattr(Path, "unlink", lambda *_, **__: None)
    with pytest.raises(KeyboardInterrupt):
        store(tmp_path / "point", new)
    monkeypatch.undo()
    for path in (tmp_path, file):
        xr.testing.assert_identical(results.load(path), old)
    left = hidden_files(tmp_path)
    assert len(left) == {"to_netcdf": 0, "fsync": 1, "replace": 1}[last]
    store(tmp_path / "point", new)
    xr.testing.assert_identical(results.load(tmp_path), new)
    assert hidden_files(tmp_path) == left


@pytest.mark.parametrize("step", cases(STEPS, ["replace"]))
def test_a_failure_while_writing_leaves_the_old_result(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    old = fabricate(horizon=20)
    store(tmp_path / "point", old)

    def disk_full(*_: Any, **__: Any) -> None:
        raise OSError("disk full")

    monkeypatch.setattr(xr.Dataset if step == "to_netcdf" else os, step, disk_full)
    with pytest.raises(OSError, match="disk full"):
        store(tmp_path / "point", fabricate(horizon=30))
    monkeypatch.undo()
    xr.testing.assert_identical(results.load(tmp_path), old)
    assert hidden_files(tmp_path) == []


def test_a_half_written_first_result_is_never_read(tmp_path: Path) -> None:
    file = store(tmp_path / "point", fabricate())
    for name in (".point.nc.7.partial", ".point.nc"):
        file = file.rename(tmp_path / name)
        with pytest.raises(results.ResultError, match="no result under"):
            results.load(tmp_path)
        with pytest.raises(results.ResultError, match="is not a result: give a folder"):
            results.load(file)
    (tmp_path / ".hidden").mkdir()
    file.rename(tmp_path / ".hidden" / "point.nc")
    with pytest.raises(results.ResultError, match="no result under"):
        results.load(tmp_path)


@pytest.mark.slow
def test_a_result_of_another_format_is_refused_in_one_sentence(tmp_path: Path) -> None:
    """Format 2 had its description in a file of its own; later ones have their number."""
    file = store(tmp_path / "point", fabricate())
    fabricate().to_netcdf(file, engine="h5netcdf")
    file.with_suffix(".json").write_text('{"points": [], "common": {}}')
    with pytest.raises(files.FormatError, match=r"point\.nc has format 2 .* format 3: run") as no:
        results.load(tmp_path)
    assert "\n" not in str(no.value)
    trailer = files._TRAILER % (4, 2, files._checksum(4, b"{}"))
    file.write_bytes(b"{}" + trailer.encode())
    with pytest.raises(files.FormatError, match="has format 4 of another version"):
        results.load(tmp_path)


def test_a_flipped_bit_anywhere_is_refused(tmp_path: Path) -> None:
    """In the arrays when they are read, in description and trailer when they are listed."""
    file = store(tmp_path / "point", fabricate(("random",), num_seeds=1, horizon=2), alpha=0.5)
    whole = file.read_bytes()
    arrays = files.read_description(file)["bytes"]
    positions = [*range(0, arrays, 997), *range(arrays, len(whole))]
    for position in positions:
        changed = bytearray(whole)
        changed[position] ^= 1 << position % 7
        file.write_bytes(changed)
        read = results.load if position < arrays else results.read_manifest
        with pytest.raises(results.ResultError, match=r"point\.nc (is|has)") as error:
            read(file)
        assert "\n" not in str(error.value)


@pytest.mark.slow
def test_saving_keeps_unrelated_files(tmp_path: Path) -> None:
    store(tmp_path / "study", fabricate(horizon=20))
    store(tmp_path / "study" / "nested", fabricate(K=2))
    (tmp_path / "study" / "notes.txt").write_text("mine")
    store(tmp_path / "study", fabricate(horizon=30))
    assert (tmp_path / "study" / "notes.txt").read_text() == "mine"
    assert {point.attrs["K"] for point in results.load_points(tmp_path)} == {1, 2}
    assert results.load(tmp_path / "study.nc").sizes["round"] == 30


@pytest.mark.parametrize("num_bytes", cases([0, 10, 4000, -1], [-1]))
def test_a_truncated_file_is_refused(tmp_path: Path, num_bytes: int) -> None:
    file = store(tmp_path / "point", fabricate())
    file.write_bytes(file.read_bytes()[:num_bytes])
    for read in (results.load, results.load_points, results.read_manifest, results.read_config):
        with pytest.raises(results.ResultError, match="point.nc is damaged") as raised:
            read(file)
        assert "\n" not in str(raised.value)
    with pytest.raises(results.ResultError, match="point.nc is damaged"):
        results.load(tmp_path)


@pytest.mark.parametrize("place", cases([0, 0.25, 0.5, 0.75, 0.999], [0.5]))
def test_one_changed_byte_is_refused(tmp_path: Path, place: float) -> None:
    file = store(tmp_path / "point", fabricate())
    content = bytearray(file.read_bytes())
    content[int(place * len(content))] ^= 1
    file.write_bytes(content)
    with pytest.raises(results.ResultError, match="point.nc is damaged"):
        results.load(tmp_path)


@pytest.mark.slow
def test_files_of_other_programs_are_rejected(tmp_path: Path) -> None:
    theirs = tmp_path / "theirs.nc"
    fabricate().to_netcdf(theirs, engine="h5netcdf")
    with pytest.raises(results.ResultError, match="theirs.nc is damaged, or not a result of cqbj"):
        results.load(tmp_path)
    for body in (theirs.read_bytes(), b"no NetCDF"):
        theirs.write_bytes(
            body + files._describe([{"point": "p", "key": "k", "policies": {}}], body)
        )
        with pytest.raises(results.ResultError, match="theirs.nc is not a result of cqbjax: "):
            results.load(tmp_path)


@pytest.mark.slow
def test_newest_result_of_a_point_is_loaded_unless_a_key_is_passed(
    tmp_path: Path,
) -> None:
    for day, content, horizon in (("2", "bx", 20), ("3", "ay", 30), ("1", "cx", 10)):
        manifest = {"point": "K=1", "key": content, "policies": {"a": "1"}, "finished": day}
        save_point(fabricate(horizon=horizon), manifest, "", tmp_path / f"{content}.nc")
    assert results.load(tmp_path).sizes["round"] == 30
    assert results.load(tmp_path, key="c").sizes["round"] == 10
    assert len(results.load_points(tmp_path)) == 1
    for content in ("dd", "x"):
        with pytest.raises(results.ResultError, match=f"no result with key {content} under"):
            results.load(tmp_path, key=content)
    index = ResultIndex(tmp_path)
    assert [file.stem for file in index.outdated()] == ["bx", "cx"]
    (oldest,) = index.manifests[tmp_path / "cx.nc"]
    files.replace_manifests(tmp_path / "cx.nc", [oldest | {"order": 1}])
    assert results.load(tmp_path).sizes["round"] == 10, "it was asked for since"


@pytest.mark.slow
def test_requested_rounds_map_to_the_last_recorded_round(tmp_path: Path) -> None:
    ds = fabricate(every=5, horizon=40)
    store(tmp_path / "point", ds)
    for asked, got in (([20], [20]), ([24, 7], [5, 20]), ([1], [5]), ([40, 99], [40])):
        some = results.load(tmp_path, rounds=asked)
        xr.testing.assert_equal(some, ds.sel(round=got))
        xr.testing.assert_equal(results.load_points(tmp_path, asked)[0], ds.sel(round=got))


def test_newer_result_of_a_policy_is_read(tmp_path: Path) -> None:
    """Two files of one key share a policy; what the newer one lacks is the older one's."""
    old, new = (fabricate(("acqb", "random", "zero"), num_seeds=2) for _ in range(2))
    new["regret"] = new["regret"] + 1
    parts = {"b": (old, ["random", "acqb"], "2"), "a": (new, ["random", "zero"], "3")}
    for stem, (ds, labels, day) in parts.items():
        manifest_fields = {"point": "p", "key": "c", "policies": dict.fromkeys(labels, stem)}
        manifest_fields |= {"finished": day}
        save_point(ds.sel(policy=labels), manifest_fields, "", tmp_path / f"{stem}.nc")
    read = results.load(tmp_path)
    assert read["policy"].values.tolist() == ["random", "acqb", "zero"], "as they were computed"
    for label, ds in (("random", new), ("zero", new), ("acqb", old)):
        np.testing.assert_array_equal(
            read["regret"].sel(policy=label), ds["regret"].sel(policy=label)
        )


@pytest.mark.slow
def test_files_with_one_current_policy_are_not_outdated(tmp_path: Path) -> None:
    """Until a newer one of the same key has each of its policies too."""

    def save(stem: str, *manifests: dict[str, Any]) -> list[str]:
        point = fabricate(("random",), num_seeds=1, horizon=2)
        points = [StoredPoint(point, manifest, "") for manifest in manifests]
        files.write_file(points, tmp_path / f"{stem}.nc")
        return [file.stem for file in ResultIndex(tmp_path).outdated()]

    parts = [
        {"point": "p", "key": "c", "policies": policies, "finished": str(day)}
        for day, policies in enumerate(
            ({"acqb": "k1", "random": "k2"}, {"acqb": "k3"}, {"random": "k4", "zero": "k5"})
        )
    ]
    assert [save(f"{day}", one) for day, one in enumerate(parts)] == [[], [], ["0"]]
    # Of several points in a file a current one keeps it.
    other = {"point": "q", "key": "d", "policies": {"acqb": "k"}, "finished": "0"}
    assert save("0", parts[0], other) == []


@pytest.mark.slow
def test_result_order_survives_a_clock_set_back(tmp_path: Path) -> None:
    """What an earlier version stored has no number, and is older than all that have one."""
    made = [("aa", "2099", {}), ("bb", "2098", {"order": 1}), ("cc", "2020", {"order": 2})]
    for content, finished, order in made:
        manifest = {"point": "K=1", "key": content, "policies": {"a": "1"}, **order}
        manifest["finished"] = finished
        save_point(fabricate(), manifest, "", tmp_path / f"{content}.nc")
    index = ResultIndex(tmp_path)
    assert index.next_order == 3 and ResultIndex(tmp_path / "none").next_order == 1
    assert {key for _, key in index.newest()} == {"cc"}
    assert [file.stem for file in index.outdated()] == ["aa", "bb"]


@pytest.mark.slow
def test_only_the_newer_result_of_a_key_is_current(tmp_path: Path) -> None:
    for name, policies, order in (("b", "xy", 1), ("c", "x", 3), ("d", "x", 2), ("a", "y", 3)):
        manifest = {"point": "K=1", "key": "aa", "order": order, "finished": "1"}
        manifest["policies"] = dict.fromkeys(policies, "1")
        save_point(fabricate(), manifest, "", tmp_path / f"{name}.nc")
    assert [file.stem for file in ResultIndex(tmp_path).outdated()] == ["b", "d"]


@pytest.mark.slow
def test_points_are_sorted_naturally_by_name(tmp_path: Path) -> None:
    for i, scale in enumerate((10, 0.5, 2)):
        manifest = {"point": f"c1={scale}", "key": "a", "policies": {}, "finished": "1"}
        point = fabricate(("random",), num_seeds=1, horizon=2, c1=scale)
        save_point(point, manifest, "", tmp_path / f"{i}.nc")
    assert [point.attrs["c1"] for point in results.load_points(tmp_path)] == [0.5, 2, 10]


@pytest.mark.slow
def test_listing_many_points_reads_only_descriptions(tmp_path: Path) -> None:
    """Their descriptions are read, not their arrays; a second look reads what is new."""
    file = store(tmp_path / "point", fabricate(["random"], num_seeds=1, horizon=2))
    for number in range(500):
        os.link(file, tmp_path / f"{number:024x}.nc")
    file.unlink()
    begun = time.process_time()
    index = ResultIndex(tmp_path)
    first = time.process_time() - begun
    assert len(index.manifests) == 500
    begun = time.process_time()
    index.refresh()
    assert first < 0.4 and time.process_time() - begun < first, "two seconds for 10,000, and slack"
    (tmp_path / f"{7:024x}.nc").unlink()
    store(tmp_path / "new", fabricate(["random"], num_seeds=1, horizon=2))
    index.refresh()
    assert len(index.manifests) == 500 and tmp_path / "new.nc" in index.manifests


@pytest.mark.slow
def test_points_of_a_file_keep_their_arrays_and_metadata(tmp_path: Path) -> None:
    """Arrays, attributes, manifest and configuration, whichever points are read."""
    made = {k: fabricate(("random",), num_seeds=1, horizon=2, K=k) for k in (1, 2, 3)}
    points = [
        StoredPoint(point, {"a": k % 2, "b": k, "c": 0}, f"K: {k}\n") for k, point in made.items()
    ]
    files.write_file(points, tmp_path / "p.nc")
    assert files.read_description(tmp_path / "p.nc")["points"] == [one.manifest for one in points]
    for only in (None, {2, 0}, [1]):
        numbers = range(3) if only is None else sorted(only)
        read = files.read_file(tmp_path / "p.nc", None, only)
        for number, one in zip(numbers, read, strict=True):
            assert (one.config, one.manifest) == points[number][:0:-1]
            xr.testing.assert_identical(one.point, points[number].point)


@pytest.mark.slow
def test_points_of_two_code_versions_do_not_combine(tmp_path: Path) -> None:
    for k, code in ((1, "x"), (2, "y")):
        point = fabricate(("random",), num_seeds=1, horizon=2, K=k)
        manifest_fields = {"code": code, "point": f"K={k}", "key": code, "policies": {}}
        save_point(point, manifest_fields, "", tmp_path / f"{k}.nc")
    with pytest.raises(results.ResultError, match="holds points that 2 versions of the code"):
        results.load(tmp_path)
    assert len(results.load_points(tmp_path)) == len(ResultIndex(tmp_path).newest()) == 2


def test_attributes_of_a_point_precede_varied_values(tmp_path: Path) -> None:
    varied = {"varied": {"K": 9, "policy.alpha_scale": 0.3}}
    entry = IndexEntry(tmp_path / "p.nc", 0, varied)
    one = label_part(StoredPoint(fabricate(K=2), varied, ""), entry).point.attrs
    raised = {"K": 2, "policy.alpha_scale": 0.3, "path": str(tmp_path / "p.nc")}
    assert {key: one[key] for key in raised} == raised


def test_missing_results_are_reported(tmp_path: Path) -> None:
    with pytest.raises(results.ResultError, match="there is no such file or folder"):
        results.load(tmp_path / "absent")
    with pytest.raises(results.ResultError, match="there is no such file"):
        results.read_manifest(tmp_path / "absent.nc")
    with pytest.raises(results.ResultError, match="no result under"):
        results.load(tmp_path)
    (tmp_path / "other.txt").write_text("")
    with pytest.raises(results.ResultError, match=r"give a folder or a file \*.nc"):
        results.load(tmp_path / "other.txt")


@pytest.mark.slow
def test_points_combine_over_k_and_arrival_rate(tmp_path: Path) -> None:
    points = {
        (k, rate): fabricate(
            ("q_ucb", "acqb", "random") if k == 1 else ("random", "acqb"),
            rates=(rate,), K=k, num_seeds=4, horizon=30 * k,
        )
        for k, rate in [(1, 0.6), (1, 0.7), (2, 0.7)]
    }  # fmt: skip
    for (k, rate), ds in points.items():
        ds["queue_length"].attrs["units"] = "queries"
        store(tmp_path / f"K={k},rate={rate}", ds, arrival_rate=rate, **{"source.K": k})
    grid = results.load(tmp_path)
    assert dict(grid.sizes) == {"K": 2, "policy": 3, "arrival_rate": 2, "seed": 4, "round": 60}
    assert grid["queue_length"].dims == ("K", "policy", "arrival_rate", "seed", "round")
    assert grid["seconds_per_round"].dims == ("K", "policy", "arrival_rate")
    assert grid["policy"].values.tolist() == ["q_ucb", "acqb", "random"], "as they are first named"
    for (k, rate), ds in points.items():
        part = grid.sel(K=k, arrival_rate=[rate], policy=ds["policy"], round=ds["round"])
        for name in VARIABLES:
            values = part[name].transpose(*ds[name].dims, ...).values
            np.testing.assert_array_equal(np.squeeze(values), np.squeeze(ds[name].values))
    assert grid["queue_length"].sel(K=2, arrival_rate=0.6).isnull().all()
    assert grid["queue_length"].sel(K=2, policy="q_ucb").isnull().all()
    assert grid["queue_length"].sel(K=1, round=slice(31, None)).isnull().all()
    assert grid.attrs["num_servers"] == 5
    assert not {"K", "horizon", "arrival_rate", "path"} & set(grid.attrs)
    assert grid["queue_length"].attrs == {"units": "queries"}


@pytest.mark.slow
def test_a_complete_grid_keeps_its_integers(tmp_path: Path) -> None:
    for k in (1, 2):
        for servers in (3, 5):
            store(tmp_path / f"{k}{servers}", fabricate(K=k, num_servers=servers))
    grid = results.load(tmp_path)
    assert grid["queue_length"].dims[:2] == ("K", "num_servers")
    assert grid["queue_length"].dtype == np.int32
    assert grid["seconds_per_round"].dims == ("K", "num_servers", "policy")


@pytest.mark.slow
def test_other_varied_keys_become_dimensions(tmp_path: Path) -> None:
    for scale in (0.3, 1.0):
        store(tmp_path / str(scale), fabricate(), **{"policy.alpha_scale": scale})
    assert results.load(tmp_path)["policy.alpha_scale"].values.tolist() == [0.3, 1.0]


@pytest.mark.slow
def test_values_that_differ_by_rounding_are_merged(tmp_path: Path) -> None:
    for k, rate in ((1, 0.3), (2, 0.1 + 0.2)):
        store(tmp_path / str(k), fabricate(rates=(rate,), K=k, horizon=9), c1=rate)
    grid = results.load(tmp_path)
    assert grid["arrival_rate"].values.tolist() == [0.3] and "c1" not in grid.dims
    assert grid.sel(arrival_rate=0.3)["queue_length"].notnull().all()


@pytest.mark.slow
def test_single_runs_are_merged_into_the_grid_of_their_name(tmp_path: Path) -> None:
    """Its configuration says the keys of the grid; the same computation is there once."""

    def point(name: str, config: str, content: str, **varied: Any) -> None:
        manifest = {"point": name, "key": content, "policies": {}, "varied": varied}
        save_point(fabricate(horizon=9), manifest, config, tmp_path / f"{name}.nc")

    point("a", "source: {success: 0.5}", "aa", **{"source.success": 0.5})
    point("b", "source: {success: 0.6}", "bb", **{"source.success": 0.6})
    point("alone", "source: {success: 0.1}\nkind: {c1: 2}", "cc")
    point("same", "source: {success: 0.6}", "bb")
    assert results.load(tmp_path)["source.success"].values.tolist() == [0.1, 0.5, 0.6]
    point("nowhere", "source: {name: x}", "dd")
    texts = results.load(tmp_path)["source.success"].values.tolist()
    assert texts == ["0.1", "0.5", "0.6", "none"]


@pytest.mark.slow
def test_proxy_label_survives_combining(tmp_path: Path) -> None:
    store(tmp_path / "a", fabricate(K=1))
    store(tmp_path / "b", fabricate(K=2, stand_in="a slice"))
    assert results.load(tmp_path).attrs["stand_in"] == "a slice"


@pytest.mark.slow
def test_duplicate_grid_points_are_rejected(tmp_path: Path) -> None:
    store(tmp_path / "a", fabricate(rates=(0.6, 0.7)))
    store(tmp_path / "b", fabricate(rates=(0.7,), horizon=20))
    with pytest.raises(ValueError, match=r"/a.nc and .*/b.nc both hold arrival_rate=0.7"):
        results.load(tmp_path)
    assert len(results.load_points(tmp_path)) == 2


@pytest.mark.slow
def test_loading_several_experiments_is_rejected_with_their_names(tmp_path: Path) -> None:
    store(tmp_path / "a", fabricate())
    store(tmp_path / "b", fabricate(experiment="routerbench"))
    with pytest.raises(results.ResultError, match=r"several experiments \(routerbench, synthetic"):
        results.load(tmp_path)
    assert results.load(tmp_path / "b.nc").attrs["experiment"] == "routerbench"


def test_invalid_results_are_rejected_before_writing(tmp_path: Path) -> None:
    faults: list[tuple[xr.Dataset, dict[str, Any], str]] = [
        (fabricate().drop_vars("seed"), {"kind": "Mine"}, "dimension seed has no coordinate"),
        (fabricate(slackness=None), {}, "attribute slackness is None"),
        (fabricate(stand_in=True), {}, "attribute stand_in is True"),
        (fabricate(), {"varied": {"c1": [1]}}, r"varied\. c1 is \[1\]"),
    ]
    for ds, manifest, message in faults:
        with pytest.raises(results.ResultError, match=message):
            save_point(ds, manifest, "", tmp_path / "point.nc")
    assert list(tmp_path.iterdir()) == []
