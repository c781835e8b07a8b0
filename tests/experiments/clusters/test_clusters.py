"""Shards on Ray and as jobs of Slurm: the values of one process, whoever is killed on the way."""

import os
import signal

import numpy as np
import pytest
import xarray as xr
from composing import compose_config, refusal_of

from cqbjax.cli._instantiate import make
from cqbjax.core import lazy
from cqbjax.engine.checkpoints import Checkpoints
from cqbjax.engine.progress import Reporter
from cqbjax.experiments import loop, study_types
from cqbjax.experiments.clusters import Ray, Slurm
from cqbjax.results import store as results
from cqbjax.results.index import ResultIndex

WORDS = ("name=grid", "policy=[random]", "num_seeds=2", "horizon=12", "capacity=12")
RATES = (0.3, 0.4, 0.5, 0.6)
TIMES = ["seconds_per_round", "compile_seconds"]


def grid(folder):
    """Return the points of a small grid, the last of which overflows at its capacity."""
    ready = []
    for rate in RATES:
        config = compose_config(*WORDS, f"arrival_rate={rate}", f"results_dir={folder}")
        ready += study_types.prepare_points(config, make, {"arrival_rate": rate})
    tight = compose_config(*WORDS[:-1], "capacity=2", "arrival_rate=0.65", f"results_dir={folder}")
    return ready + study_types.prepare_points(tight, make, {"arrival_rate": 0.65})


def run_in_one_process(folder):
    """Return what the grid comes to in one process."""
    index = ResultIndex(folder)
    loop.run_points(grid(folder)[:-1], index, make, Reporter(), loop.Console(quiet=True), True)
    return results.load(folder)


def assert_same(folder, whole):
    xr.testing.assert_identical(results.load(folder).drop_vars(TIMES), whole.drop_vars(TIMES))


@pytest.mark.slow
def test_ray_reproduces_one_process_despite_a_killed_worker(tmp_path):
    pytest.importorskip("ray")
    whole = run_in_one_process(tmp_path / "here")
    folder, killed = tmp_path / "ray", tmp_path / "killed"

    def perform_and_die_once(task):
        """Kill the process as soon as something of its shard is finished."""

        real = Checkpoints.save

        def save_and_die(self, chunk, tree, always=False):
            real(self, chunk, tree, always)
            if always and not killed.exists():
                killed.touch()
                os.kill(os.getpid(), signal.SIGKILL)

        Checkpoints.save = save_and_die
        return loop.run_task(task)

    ready, cluster = grid(folder), Ray(workers=2)

    class DyingCluster:
        def run(self, function, tasks):
            assert function is loop.run_task and len(tasks) >= 4
            return cluster.run(perform_and_die_once, tasks)

    lost = loop.run_on_cluster(DyingCluster(), make, ready, ResultIndex(folder), Reporter(), False)
    assert killed.exists()
    assert list(lost) == ["K=1,arrival_rate=0.65"]
    assert "capacity=2 overflowed" in lost["K=1,arrival_rate=0.65"]
    assert_same(folder, whole)


@pytest.mark.slow
def test_slurm_jobs_reproduce_one_process_and_lost_jobs_are_reported(tmp_path):
    pytest.importorskip("submitit")
    whole = run_in_one_process(tmp_path / "here")
    folder, die = tmp_path / "slurm", tmp_path / "die"
    die.touch()

    def perform_or_die(task):
        if die.exists() and task.points[0].label == "K=1,arrival_rate=0.4":
            os.kill(os.getpid(), signal.SIGKILL)
        return loop.run_task(task)

    cluster = Slurm(str(tmp_path / "jobs"), local=True, every=0.1)

    class DyingCluster:
        def run(self, function, tasks):
            return cluster.run(perform_or_die, tasks)

    lost = loop.run_on_cluster(
        DyingCluster(), make, grid(folder), ResultIndex(folder), Reporter(), False
    )
    assert sorted(lost) == ["K=1,arrival_rate=0.4", "K=1,arrival_rate=0.65"]
    assert "was lost" in lost["K=1,arrival_rate=0.4"]
    die.unlink()
    # The same command submits what is missing, and nothing else.
    left = loop.select_missing(grid(folder), ResultIndex(folder))
    assert [one.point.label for one in left] == ["K=1,arrival_rate=0.4", "K=1,arrival_rate=0.65"]
    lost = loop.run_on_cluster(DyingCluster(), make, left, ResultIndex(folder), Reporter(), False)
    assert list(lost) == ["K=1,arrival_rate=0.65"]
    assert_same(folder, whole)


def test_missing_cluster_libraries_are_named():
    with pytest.raises(ValueError, match=r"cluster=ray needs no_such_engine.*cqbjax\[ray\]"):
        lazy.import_extra("no_such_engine", "ray", "cluster=ray")


def test_an_unknown_cluster_is_refused():
    assert "cluster dask is unknown; choose from ray, slurm" in refusal_of(["cluster=dask"])


def test_missing_slurm_is_reported(tmp_path, monkeypatch):
    pytest.importorskip("submitit")
    monkeypatch.setenv("PATH", "")
    with pytest.raises(ValueError, match="cluster=slurm cannot submit"):
        list(Slurm(str(tmp_path)).run(np.sum, [1]))
