"""An interrupted sweep goes on where it stopped; any change starts anew."""

import dataclasses
from typing import Any

import numpy as np
import pytest
import xarray as xr

import cqbjax
from cqbjax import sources
from cqbjax.core import recorders
from cqbjax.policies import Acqb, Optimal, RandomRouting
from cqbjax.sweeping import checkpoint
from cqbjax.sweeping import sweep as sweep_module
from cqbjax.sweeping.progress import Silent

POLICIES: dict[str, Any] = {
    "random": RandomRouting(),
    "optimal": Optimal(),
}
SOURCE = sources.Synthetic(num_servers=3, dim=2, slackness=0.05)
KEYS: dict[str, Any] = {"arrival_rates": [0.4, 0.6], "seeds": 3, "horizon": 30}
TIMES = ["seconds_per_round", "compile_seconds"]


class Stopper(Silent):
    """Count compiled groups; interrupt at one of them."""

    def __init__(self, at: int | None = None) -> None:
        self.at = at
        self.compiled: list[str] = []
        self.rounds = self.expected = 0

    def doing(self, activity: str, label: str) -> None:
        if activity == "compiling":
            if len(self.compiled) == self.at:
                raise KeyboardInterrupt
            self.compiled.append(label)

    def expect(self, rounds: int) -> None:
        self.expected += rounds

    def advance(self, rounds: int) -> None:
        self.rounds += rounds


@pytest.fixture
def unrun(monkeypatch):
    """Have groups compile and run nothing: which are run is the question."""

    def run_group(whole, group, progress, kept):
        progress.doing("compiling", group.labels[0])
        one = group.part
        progress.advance(len(group.runs.seed) * one.problem.horizon)
        zero = np.zeros((one.rates.size, one.seeds.size, one.records.rounds.size), np.int32)
        recorded = {recorder.name: zero for recorder in recorders.ALWAYS}
        none = checkpoint.Measured(recorded, 1.0, 1.0)
        return dict.fromkeys(group.members, none)

    monkeypatch.setattr(sweep_module, "run_group", run_group)


def compiled(folder, policies=POLICIES, source=SOURCE, **changed) -> list[str]:
    """Sweep and return which groups were not taken from the folder."""
    told = Stopper()
    cqbjax.sweep(policies, source, **{**KEYS, **changed}, progress=told, resume=folder)
    assert told.rounds == told.expected
    return told.compiled


def test_an_interrupted_sweep_goes_on_where_it_stopped(tmp_path):
    told = Stopper()
    with pytest.raises(KeyboardInterrupt):
        cqbjax.sweep(POLICIES, SOURCE, **KEYS, progress=Stopper(at=1), resume=tmp_path)
    resumed = cqbjax.sweep(POLICIES, SOURCE, **KEYS, progress=told, resume=tmp_path)
    whole = cqbjax.sweep(POLICIES, SOURCE, **KEYS)
    assert told.compiled == ["optimal"] and told.rounds == told.expected
    xr.testing.assert_identical(resumed.drop_vars(TIMES), whole.drop_vars(TIMES))
    assert (resumed.seconds_per_round > 0).all()
    assert compiled(tmp_path) == []


@pytest.mark.parametrize(
    "changed",
    [
        {"seeds": [0, 1, 3]},
        {"arrival_rates": [0.4, 0.7]},
        {"horizon": 60},
        {"record_every": 3},
        {"capacity": 30},
        {"source": dataclasses.replace(SOURCE, slackness=0.06)},
        {"assortment_size": 2},
    ],
    ids=lambda changed: next(iter(changed)),
)
def test_whatever_else_is_run_is_run_anew(tmp_path, unrun, changed):
    compiled(tmp_path)
    assert compiled(tmp_path) == []
    assert compiled(tmp_path, **changed) == ["random", "optimal"]


def test_a_policy_is_known_by_its_floats_and_its_settings():
    acqb = Acqb(alpha_scale=0.2)
    keys = {
        checkpoint.key(policy)
        for policy in (
            acqb,
            dataclasses.replace(acqb, alpha_scale=0.3),
            dataclasses.replace(acqb, schedule="oldest"),
            RandomRouting(),
        )
    }
    assert len(keys) == 4 and checkpoint.key(Acqb(alpha_scale=0.2)) in keys


def test_a_changed_policy_of_the_users_own_is_another_one(tmp_path, monkeypatch):
    head = "import dataclasses, jax\n@jax.tree_util.register_static\n"
    text = f"{head}@dataclasses.dataclass(frozen=True)\nclass Mine:\n    scale: float = 1.0\n"
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "users_own_policy.py").write_text(text)
    import users_own_policy  # type: ignore[import-not-found]

    mine = users_own_policy.Mine()
    before = checkpoint.key(mine)
    assert checkpoint.key(mine) == before
    (tmp_path / "users_own_policy.py").write_text(f"{text}# another rule\n")
    assert checkpoint.key(mine) != before


def test_a_damaged_file_is_named(tmp_path, unrun):
    compiled(tmp_path)
    for path in tmp_path.glob("*.npz"):
        path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(ValueError, match=r"\.npz: not readable, delete it to run again"):
        compiled(tmp_path)


def test_numbers_come_back_bit_for_bit(tmp_path):
    rng = np.random.default_rng(0)
    recorded = {
        "queue_length": rng.integers(0, 9, (2, 3, 4)),
        "regret": rng.normal(size=(2, 3, 4)).astype(np.float32),
        "by_query": rng.integers(0, 9, (2, 3, 5, 2)),
    }
    checkpoint.save(tmp_path / "a.npz", {"mine": checkpoint.Measured(recorded, 0.5, 2.0)})
    kept = checkpoint.load(tmp_path / "a.npz")
    assert kept is not None and kept["mine"].compile_seconds == 2.0
    assert kept["mine"].recorded.keys() == recorded.keys()
    for name, theirs in recorded.items():
        np.testing.assert_array_equal(kept["mine"].recorded[name], theirs)
        assert kept["mine"].recorded[name].dtype == theirs.dtype
    assert checkpoint.load(tmp_path / "b.npz") is None
