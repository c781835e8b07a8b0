"""A kind of study of the user's own: one file outside the package, stored and shown as any."""

import importlib
import sys
from pathlib import Path

import polars as pl
import pytest
from composing import compose_config, refusal_of, run_command

from cqbjax.cli._instantiate import make
from cqbjax.engine.progress import Reporter
from cqbjax.experiments import loop, study_types
from cqbjax.experiments.clusters import TaskResult
from cqbjax.results import store as results
from cqbjax.results.index import ResultIndex

pytestmark = pytest.mark.slow

KIND = """import dataclasses

import numpy as np
import polars as pl
import xarray as xr

from cqbjax.experiments import grid
from cqbjax.experiments.study_types import OutputTable, StudyOutput, StudyType


@dataclasses.dataclass(frozen=True)
class DoublingStudy(StudyType):
    factor: float = 2.0
    digits: int = 3
    display_keys = ("kind.digits",)

    def measure(self, ready, progress):
        config = ready.point.config
        seeds = np.asarray(grid.list_seeds(config))
        with open("measured", "a") as file:
            file.write(f"{ready.point.name}: {', '.join(ready.policies)}\\n")
        if ready.policies.keys() & {"q_ths"}:
            raise KeyboardInterrupt
        each = [len(label) + self.factor * seeds for label in ready.policies]
        coords = {"policy": list(ready.policies), "seed": seeds}
        return xr.Dataset({"doubled": (("policy", "seed"), np.stack(each))}, coords)

    def show(self, points, config):
        rows = [
            {"K": p.attrs["K"], "factor": p.attrs.get("factor"), "policy": label,
             "mean": round(float(p["doubled"].sel(policy=label).mean()), self.digits)}
            for p in points for label in p["policy"].values.tolist()
        ]
        return StudyOutput({"": OutputTable(pl.DataFrame(rows), "Doubled")}, {})
"""
WORDS = ("kind=doubled", "name=mine", "num_seeds=4", "horizon=12")


@pytest.fixture
def own(tmp_path, monkeypatch):
    """Write the user's module and its configuration into the folder where commands are given."""
    monkeypatch.chdir(tmp_path)
    Path("conf/kind").mkdir(parents=True)
    Path("conf/kind/doubled.yaml").write_text(
        "_target_: own_kind.DoublingStudy\nfactor: 2\ndigits: 3\n"
    )
    Path("own_kind.py").write_text(KIND)
    monkeypatch.syspath_prepend(str(tmp_path))
    importlib.invalidate_caches()
    return tmp_path


def new_measurements():
    """Return what has been measured since this was last asked."""
    file = Path("measured")
    lines = file.read_text().splitlines() if file.exists() else []
    file.unlink(missing_ok=True)
    return lines


def run(*words):
    done = run_command("run", *WORDS, *words)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_user_defined_study_types_run_only_missing_parts(own):
    policies = "policy=[random,rand_rout]"
    run(policies, "kind.factor=[1,2]")
    assert len(new_measurements()) == 4
    assert len(list(Path("results/data/mine").glob("*.nc"))) == 4, (
        "each policy of a point is a part"
    )
    table = pl.read_csv("results/tables/mine.csv")
    # len("random") + factor * 1.5
    assert table["mean"].to_list() == [7.5, 10.5, 9.0, 12.0]
    assert table["factor"].to_list() == [1, 1, 2, 2]
    assert "4 of 4 policies at 2 points are stored" in run(policies, "kind.factor=[1,2]")
    run(policies, "kind.factor=[1,2]", "kind.digits=1", "title=T")
    assert not new_measurements(), "what is only for show makes no other key"
    run("policy=[random,rand_rout,optimal]", "kind.factor=[1,2,3]")
    assert sorted(new_measurements()) == [
        "factor=1: optimal", "factor=2: optimal", "factor=3: optimal", "factor=3: rand_rout",
        "factor=3: random",
    ]  # fmt: skip


def test_interrupted_study_types_resume_and_are_shown(own):
    words = ("policy=[random,q_ths,optimal]",)
    stopped = run_command("run", *WORDS, *words)
    assert stopped.returncode == 130 and new_measurements() == ["K=1: random", "K=1: q_ths"]
    file = Path("own_kind.py")
    before = file.read_text()
    file.write_text(before.replace('{"q_ths"}', "set()"))
    sys.modules.pop("own_kind")
    run(*words)
    assert len(new_measurements()) == 3, "an edit of the module makes another key"
    shown = Path("results/tables/mine.csv").read_bytes()
    Path("results/tables/mine.csv").unlink()
    assert run_command("report", "results", "mine").returncode in (0, 3)
    assert Path("results/tables/mine.csv").read_bytes() == shown
    (point,) = results.load_points("results/data/mine")
    assert point["policy"].values.tolist() == ["random", "q_ths", "optimal"]
    assert results.load("results/data/mine")["doubled"].equals(point["doubled"])


def test_study_types_are_rebuilt_on_workers_from_their_grid_points(own, monkeypatch):
    monkeypatch.setattr(loop, "_configure_process", lambda folder: None)

    class LocalCluster:
        def run(self, function, tasks):
            for number, task in enumerate(tasks):
                yield TaskResult(number, function(task), "")

    config = compose_config(*WORDS, "policy=[random,rand_rout]")
    ready = study_types.prepare_points(config, make)
    folder = own / "results" / "data" / "mine"
    assert (
        loop.run_on_cluster(LocalCluster(), make, ready, ResultIndex(folder), Reporter(), True)
        == {}
    )
    assert new_measurements() == ["K=1: random", "K=1: rand_rout"]
    assert not loop.select_missing(ready, ResultIndex(folder))


def test_unknown_study_types_and_keys_are_rejected_in_one_sentence(own):
    assert "kind.factors is no key of kind: did you mean factor?" in refusal_of(
        [*WORDS, "kind.factors=2"]
    )
    assert "record=['traffic'] is of a sweep, and DoublingStudy is none" in refusal_of(
        [*WORDS, "record=[traffic]"]
    )
    assert "kind zzz is unknown; choose from doubled, eigenvalues" in refusal_of(["kind=zzz"])
    two = refusal_of(["-m", "name=mine", "kind=doubled,sweep", "num_seeds=2", "horizon=12"])
    assert "name=mine has several types of study" in two
