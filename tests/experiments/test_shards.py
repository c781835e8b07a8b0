"""A sweep shard by shard: what is stored is never run again, and nothing stored is ever wrong."""

import datetime
import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
import xarray as xr
from composing import REPOSITORY, compose_config, refusal_of, run_command
from fabricated import fabricate
from rich.console import Console

from cqbjax.cli._instantiate import make
from cqbjax.core.queueing import QueueOverflow
from cqbjax.engine.progress import Reporter
from cqbjax.experiments import loop, manifests, study_types, sweeps
from cqbjax.results import files
from cqbjax.results import store as results
from cqbjax.results.index import ResultIndex

SEEDS = 8  # that are fabricated, of which a point has some
WORDS = ("name=grid", "num_seeds=2", "horizon=12")
TIMES = ["seconds_per_round", "compile_seconds"]
KILLS = int(os.environ.get("CQBJAX_KILLS", "1"))  # ten, for an hour nobody waits


def ready_of(*words, policy="random", rates=(0.3, 0.4, 0.5)):
    ready = []
    for rate in rates:
        config = compose_config(*WORDS, f"policy=[{policy}]", f"arrival_rate={rate}", *words)
        ready += study_types.prepare_points(config, make, {"arrival_rate": rate})
    return ready


def most_bytes(points):
    return max(
        sum(one.study_type.count_bytes(one) for one in shard)
        for shard in points[0].study_type.divide(points)
    )


@pytest.fixture
def fabricating(monkeypatch):
    """Let fabricated points stand for the simulator's; return the names of those that ran."""
    ran = []

    def run(self, shard, progress, resume=None):
        made = []
        for one in shard:
            config = one.point.config
            ran.append((one.point.label, *one.policies))
            if config.capacity == 1:
                raise QueueOverflow("capacity=1 overflowed")
            labels = list(dict.fromkeys([*one.policies, "optimal"]))
            runs = fabricate(labels, config.arrival_rate, SEEDS, 12, experiment="grid")
            last = config.first_seed + config.num_seeds
            made.append(runs.sel(seed=range(config.first_seed, last)))
        return made

    monkeypatch.setattr(sweeps.Sweep, "run", run)
    return ran


def left_of(ready, folder):
    return loop.select_missing(ready, ResultIndex.of_study(folder, ready[0].point.config.name))


def run_all(left, folder, fail_fast):
    index = ResultIndex(folder)
    return loop.run_points(left, index, make, Reporter(), Console(quiet=True), fail_fast)


def run(ready, folder):
    return run_all(left_of(ready, folder), folder, False)


def read_back(ready, folder):
    return loop.read_back(ready, ResultIndex.of_study(folder, ready[0].point.config.name))


@pytest.mark.slow
def test_memory_estimate_includes_query_records(monkeypatch):
    """Of each of 2 policies and 2 seeds: 12 rounds of 17 bytes, and 12 rows of 9 numbers."""
    plain, rows = ready_of(), ready_of("queries=true")
    assert most_bytes(plain) == 3 * 2 * 2 * 12 * 17
    assert most_bytes(rows) == 3 * 2 * 2 * 12 * (17 + 9 * 4)
    monkeypatch.setattr(sweeps, "MAX_SHARD_BYTES", 4_000)
    assert [len(shard) for shard in plain[0].study_type.divide(plain)] == [3]
    assert [len(shard) for shard in rows[0].study_type.divide(rows)] == [1, 1, 1]
    assert most_bytes(rows) == 2 * 2 * 12 * (17 + 9 * 4)


@pytest.mark.slow
def test_extending_grid_or_policies_runs_only_the_new_parts(tmp_path, fabricating):
    run(ready_of(), tmp_path)
    assert len(fabricating) == 3 and len(list(tmp_path.glob("*.nc"))) == 1
    before = results.load(tmp_path)
    for rate in (0.3, 0.4, 0.5):
        made = fabricate(["random", "optimal"], [rate], SEEDS, 12).sel(seed=[0, 1])
        stored = before.sel(arrival_rate=[rate], policy=made.policy)
        np.testing.assert_array_equal(stored.queue_length, made.queue_length)
    run(ready_of(rates=(0.3, 0.4, 0.5, 0.6)), tmp_path)
    assert fabricating[3:] == [("K=1,arrival_rate=0.6", "random")]
    run(ready_of(policy="random,rand_rout"), tmp_path)
    labels = [f"K=1,arrival_rate={rate}" for rate in (0.3, 0.4, 0.5)]
    assert fabricating[4:] == [(label, "rand_rout") for label in labels]
    both = results.load(tmp_path)
    assert set(both.policy.values) == {"random", "rand_rout", "optimal"}
    same = both.sel(policy=before.policy, arrival_rate=before.arrival_rate)
    for name in ("queue_length", "regret"):
        np.testing.assert_array_equal(same[name], before[name])
    assert not left_of(ready_of(policy="random,rand_rout"), tmp_path)


@pytest.mark.slow
def test_stored_policies_of_a_point_stay_when_one_is_added(tmp_path, fabricating):
    run(ready_of(rates=(0.3,)), tmp_path)
    run(ready_of(rates=(0.3,), policy="random,rand_rout"), tmp_path)
    assert len(list(tmp_path.glob("*.nc"))) == 2
    (point,) = read_back(ready_of(rates=(0.3,), policy="random,rand_rout"), tmp_path)
    assert set(point.policy.values) == {"random", "rand_rout", "optimal"}
    (asked,) = read_back(ready_of(rates=(0.3,)), tmp_path)
    assert set(asked.policy.values) == {"random", "optimal"}


@pytest.mark.slow
@pytest.mark.parametrize("change", ["horizon=6", "policy.acqb.c1=0.7"])
def test_results_of_other_configurations_stay_and_are_ignored(tmp_path, fabricating, change):
    """Changed and changed back: what is read is what was asked, and nothing runs twice."""
    run(ready_of(policy="acqb"), tmp_path)
    fabricating.clear()
    changed = ready_of(change, "table_rounds=[6]", policy="acqb")
    assert len(left_of(changed, tmp_path)) == 3
    run(changed, tmp_path)
    assert len(fabricating) == 3 and len(list(tmp_path.glob("*.nc"))) == 2
    for ready in (changed, ready_of(policy="acqb"), changed):
        assert not left_of(ready, tmp_path)
        read_back(ready, tmp_path)
        index = ResultIndex.of_study(tmp_path, ready[0].point.config.name)
        asked = loop.request_of(ready[0]).key
        (key,) = index.newest()
        assert key == ("K=1", asked.point), "what was asked for last is newest"


def test_seeds_and_rates_can_be_added_in_any_order_and_only_new_ones_run(tmp_path, fabricating):
    """Numbers are those of a study that was asked for everything at once."""
    steps = [
        (("num_seeds=2",), (0.4,), [(0.4, 0, 2)]),
        (("num_seeds=3", "first_seed=4"), (0.4, 0.3), [(0.4, 4, 3), (0.3, 4, 3)]),
        (("num_seeds=8",), (0.3, 0.4), [(0.3, 0, 4), (0.3, 7, 1), (0.4, 2, 2), (0.4, 7, 1)]),
        (("num_seeds=3", "first_seed=3"), (0.4, 0.3), []),
    ]  # fmt: skip
    for words, rates, new in steps:
        left = left_of(ready_of(*words, rates=rates), tmp_path)
        configs = [one.point.config for one in left]
        runs = [(each.arrival_rate[0], each.first_seed, each.num_seeds) for each in configs]
        assert sorted(runs) == sorted(new)
        run_all(left, tmp_path, True)
    whole = fabricate(["random", "optimal"], [0.3], SEEDS, 12)
    loaded = results.load(tmp_path)
    assert loaded.seed.values.tolist() == [*range(8)]
    for name in ("queue_length", "regret", "optimal_queue_length"):
        np.testing.assert_array_equal(loaded.sel(arrival_rate=[0.3])[name], whole[name])
    (asked, other) = read_back(ready_of("num_seeds=3", "first_seed=3", rates=(0.4, 0.3)), tmp_path)
    np.testing.assert_array_equal(other.regret, whole.regret.sel(seed=[3, 4, 5]))
    assert asked.arrival_rate.values.tolist() == [0.4]
    assert "num_seeds: 8" in results.read_config(tmp_path), "as it was asked for"


@pytest.mark.slow
def test_a_list_of_rates_is_stored_as_a_sweep_over_them(tmp_path, fabricating):
    run(ready_of(rates=(0.3, 0.4)), tmp_path)
    whole = ready_of(rates=("[0.4,0.5,0.3]",))
    (left,) = left_of(whole, tmp_path)
    assert left.point.config.arrival_rate == [0.5] and left.point.config.num_seeds == 2
    run(whole, tmp_path)
    assert not left_of(ready_of(rates=(0.5,)), tmp_path)
    (read,) = read_back(whole, tmp_path)
    assert read.arrival_rate.values.tolist() == [0.4, 0.5, 0.3]
    assert len(results.load_points(tmp_path)) == 1


@pytest.mark.slow
def test_stored_command_lists_and_drops_outdated_results(tmp_path, fabricating):
    folder = tmp_path / "grid"
    run(ready_of(), folder)
    (old,) = folder.glob("*.nc")
    run(ready_of("horizon=12", "shard_runs=2"), folder)
    done = run_command("stored", folder, "--drop", "outdated")
    assert old.exists() and "3 points in 1 files; newer runs have replaced all of 0" in done.stdout
    assert "newest    K=1: random; rate 0.4; seeds 0 to 1" in done.stdout
    run(ready_of("record_every=2"), folder)
    output = run_command("stored", folder).stdout
    assert output.count("outdated  K=1: random; rate 0.3") == 1 and old.exists()
    assert f"dropped {old}" in run_command("stored", folder, "--drop", "outdated").stdout
    assert not old.exists() and len(results.load_points(folder)) == 1
    assert "nothing is stored in" in run_command("stored", tmp_path / "none").stderr


@pytest.mark.slow
def test_results_of_changed_code_are_not_reused(tmp_path, fabricating, monkeypatch):
    run(ready_of(), tmp_path)
    assert not left_of(ready_of(), tmp_path)
    monkeypatch.setattr(manifests.checkpoints, "hash_code", lambda *parts: "another")
    assert len(left_of(ready_of(), tmp_path)) == 3


@pytest.mark.slow
def test_damaged_shards_are_set_aside_and_run_again(tmp_path, fabricating):
    run(ready_of(), tmp_path)
    (file,) = tmp_path.glob("*.nc")
    file.write_bytes(file.read_bytes()[:-100])
    (aside,) = ResultIndex(tmp_path).set_aside_unreadable()
    assert aside.name == f".{file.name}.torn" and aside.exists()
    run(ready_of(), tmp_path)
    assert len(fabricating) == 6 and results.load(tmp_path).sizes["arrival_rate"] == 3
    (file,) = tmp_path.glob("*.nc")
    # A byte is seen when it is read, and only that part is lost.
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)
    with pytest.raises(
        results.ResultError, match="damaged and is set aside: give the same command ag"
    ):
        read_back(ready_of(), tmp_path)
    run(ready_of(), tmp_path)
    assert len(fabricating) == 9 and read_back(ready_of(), tmp_path)


@pytest.mark.slow
def test_two_processes_can_run_the_same_study(tmp_path, fabricating):
    """The second finds what the first has stored meanwhile, and leaves it."""
    left = left_of(ready_of(), tmp_path)
    files = set()
    for _ in range(2):
        run_all(left, tmp_path, True)
        files |= set(tmp_path.glob("*.nc"))
    (file,) = files
    assert len(fabricating) == 6 and results.load(tmp_path).sizes["arrival_rate"] == 3
    # At the same moment neither sees the other: each writes files of its own, and both can be read.
    known = set(tmp_path.glob("*.nc"))
    file.rename(tmp_path / "hidden")
    run_all(left, tmp_path, True)
    (tmp_path / "hidden").rename(file)
    assert len({*tmp_path.glob("*.nc")} | known) == 2
    assert not left_of(ready_of(), tmp_path)
    assert len(read_back(ready_of(), tmp_path)) == 3
    assert results.load(tmp_path).sizes["arrival_rate"] == 3


@pytest.mark.slow
def test_rerun_results_replace_older_ones(tmp_path, fabricating):
    run(ready_of(), tmp_path)
    (first,) = tmp_path.glob("*.nc")
    run(ready_of("rerun=true"), tmp_path)
    (second,) = tmp_path.glob("*.nc")
    assert second != first and second.name[:16] == first.name[:16] and len(fabricating) == 6
    orders = [files.read_description(second)["points"][0]["order"], len(list(tmp_path.iterdir()))]
    assert orders == [2, 1]


@pytest.mark.slow
def test_result_order_does_not_depend_on_the_clock(tmp_path, fabricating, monkeypatch):
    class FutureClock(datetime.datetime):
        @classmethod
        def now(cls, tz=None):
            return cls(2099, 1, 1, tzinfo=tz)

    with monkeypatch.context() as changed:
        changed.setattr(manifests.datetime, "datetime", FutureClock)
        run(ready_of(rates=(0.3,)), tmp_path)
    (old,) = tmp_path.glob("*.nc")
    run(ready_of("record_every=2", rates=(0.3,)), tmp_path)
    keys = {key for _, key in ResultIndex(tmp_path).newest()}
    assert f"dropped {old}" in run_command("stored", tmp_path, "--drop", "outdated").stdout
    assert keys == {key for _, key in ResultIndex(tmp_path).newest()}


@pytest.mark.slow
def test_results_of_an_older_version_are_set_aside_as_older(tmp_path, fabricating):
    run(ready_of(), tmp_path)
    (file,) = tmp_path.glob("*.nc")
    file.write_bytes(file.read_bytes()[:-100])
    file.with_suffix(".json").write_text('{"format": 1, "points": []}')
    (aside,) = ResultIndex(tmp_path).set_aside_unreadable()
    assert aside.name == f".{file.name}.older" and aside.exists()


@pytest.mark.slow
def test_results_of_another_experiment_are_not_touched(tmp_path, fabricating):
    run(ready_of(), tmp_path)
    theirs = ready_of("name=theirs")
    with pytest.raises(ValueError, match="of experiment grid, and .* is where those of theirs go"):
        left_of(theirs, tmp_path)


@pytest.mark.slow
def test_overflowing_points_are_skipped_and_others_stored(tmp_path, fabricating):
    ready = ready_of()
    ready.insert(1, ready_of("capacity=1", rates=(0.45,))[0])
    assert run(ready, tmp_path) == {"K=1,arrival_rate=0.45": "capacity=1 overflowed"}
    assert results.load(tmp_path).arrival_rate.values.tolist() == [0.3, 0.4, 0.5]
    with pytest.raises(QueueOverflow):
        left = left_of(ready, tmp_path)
        run_all(left, tmp_path, True)


@pytest.mark.slow
def test_full_disk_is_reported_without_losing_results(tmp_path, fabricating, monkeypatch):
    run(ready_of(rates=(0.3,)), tmp_path)

    def full(*_, **__):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(files, "write_atomic", full)
    with pytest.raises(
        ValueError, match=r"cannot be written \(No space left.*: free some space"
    ) as error:
        run(ready_of(), tmp_path)
    assert "\n" not in str(error.value)
    monkeypatch.undo()
    assert results.load(tmp_path).arrival_rate.values.tolist() == [0.3]


@pytest.mark.slow
def test_an_unwritable_folder_is_reported_before_anything_runs(tmp_path):
    (tmp_path / "file").write_text("")
    message = refusal_of([f"results_dir={tmp_path}/file", *WORDS])
    assert "results_dir: " in message and "cannot be written (Not a directory)" in message
    for name in ("tables", "figures"):
        folder = tmp_path / f"no_{name}"
        folder.mkdir()
        (folder / name).write_text("")
        message = refusal_of([f"results_dir={folder}", *WORDS])
        assert message.startswith(f"error: results_dir: {folder / name} cannot be written")
        assert not list(folder.rglob("*.nc"))


@pytest.mark.slow
def test_shards_hold_up_to_shard_runs_runs(tmp_path):
    ready = ready_of("shard_runs=4", rates=(0.3, 0.35, 0.4, 0.45, 0.5))
    assert [len(shard) for shard in ready[0].study_type.divide(ready)] == [2, 2, 1]
    ready = ready_of(rates=(0.3, 0.35, 0.4, 0.45, 0.5))
    assert [len(shard) for shard in ready[0].study_type.divide(ready)] == [5]
    assert [len(shard) for shard in ready[0].study_type.divide(ready, 3)] == [2, 2, 1]


@pytest.mark.slow
def test_unrequested_rounds_are_not_held_in_memory(tmp_path, fabricating):
    run(ready_of(), tmp_path)
    whole, some = results.load(tmp_path), results.load(tmp_path, rounds=[5, 12])
    assert some["round"].values.tolist() == [5, 12]
    xr.testing.assert_identical(some.queue_length, whole.queue_length.sel(round=[5, 12]))


@pytest.mark.slow
def test_killed_and_resumed_sweeps_store_the_same_values(tmp_path):
    words = [
        "-m", "policy=[random]", "num_seeds=2", "horizon=12", "arrival_rate=0.3,0.4,0.5,0.6",
        "name=grid", "shard_runs=2",
    ]  # fmt: skip

    def start(folder):
        script = [sys.executable, str(REPOSITORY / "scripts" / "run.py")]
        return subprocess.Popen(
            [*script, *words, f"results_dir={folder}"],
            stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
        )  # fmt: skip

    begun = time.monotonic()
    whole = start(tmp_path / "whole")
    assert whole.wait() == 0, whole.stderr.read()
    lasted, draw = time.monotonic() - begun, np.random.default_rng(5)
    for _ in range(KILLS):
        again = start(tmp_path / "killed")
        time.sleep(draw.uniform(0.3, 1.0) * lasted)
        again.send_signal(signal.SIGKILL)
        again.wait()
    last = run_command("run", *words, f"results_dir={tmp_path / 'killed'}")
    assert last.returncode == 0, last.stderr
    killed, never = (results.load(tmp_path / name / "data") for name in ("killed", "whole"))
    xr.testing.assert_identical(killed.drop_vars(TIMES), never.drop_vars(TIMES))
    assert not list((tmp_path / "killed").rglob(".unfinished"))
