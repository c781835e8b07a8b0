"""A long sweep that was killed goes on from its last snapshot, to the same bits."""

import jax
import numpy as np
import pytest
import xarray as xr

import cqbjax
from cqbjax.engine import checkpoints, programs
from cqbjax.engine.progress import Reporter
from cqbjax.policies._template import EpsilonGreedy
from tests.reference import scenarios

POOL = scenarios.routing(np.random.default_rng(3).normal(0.5, 1.0, (6, 4)))
POLICIES = {"mine": EpsilonGreedy(epsilon=0.3)}
# Three chunks of two runs, ten calls each; and as many of the oracle.
KEYS = {
    "arrival_rate": [0.4, 0.6], "num_seeds": 3, "horizon": 60, "record_every": 2,
    "chunk": 2, "devices": jax.devices()[:1],
}  # fmt: skip
TIMES = ["seconds_per_round", "compile_seconds"]


class KilledSweep(Exception):
    pass


class RoundCounter(Reporter):
    """Counts rounds; ends the sweep when so many are done."""

    def __init__(self, most=None):
        self.most, self.rounds, self.expected = most, 0, 0

    def expect(self, rounds):
        self.expected += rounds

    def advance(self, rounds):
        self.rounds += rounds
        if self.most is not None and self.rounds > self.most:
            raise KilledSweep


@pytest.fixture
def frequent_checkpoints(monkeypatch):
    monkeypatch.setattr(checkpoints, "SECONDS", 0.0)


@pytest.mark.slow
@pytest.mark.parametrize("capacity", ["auto", 60])
def test_resumed_sweep_is_bitwise_equal_to_an_uninterrupted_one(
    tmp_path, frequent_checkpoints, monkeypatch, capacity
):
    """Killed in its first chunk and then in a later one; only what was not done is run."""
    ran = []
    whole = cqbjax.sweep(POLICIES, POOL, **KEYS, capacity=capacity)
    compiled = programs.compile_one

    def count_calls(shape):
        made = compiled(shape)

        def advance(*arguments):
            ran.append(int(arguments[-1].first))
            return made.advance(*arguments)

        return made._replace(advance=advance)

    monkeypatch.setattr(programs, "compile_one", count_calls)
    for most in (40, 190):
        with pytest.raises(KilledSweep):
            cqbjax.sweep(
                POLICIES,
                POOL,
                **KEYS,
                capacity=capacity,
                progress=RoundCounter(most),
                resume=tmp_path,
            )
    assert len(list(tmp_path.glob("*.checkpoint"))) >= 2
    counting = RoundCounter()
    again = cqbjax.sweep(
        POLICIES, POOL, **KEYS, capacity=capacity, progress=counting, resume=tmp_path
    )
    xr.testing.assert_identical(again.drop_vars(TIMES), whole.drop_vars(TIMES))
    assert counting.rounds == counting.expected and (again.seconds_per_round > 0).all()
    stored = [file.name for file in tmp_path.iterdir()]
    assert len(stored) == 6 and all(".done." in name for name in stored), "what came of each chunk"
    assert len(ran) == 2 * 3 * 10 + 2, "a kill costs the call that it fell into, no more"


@pytest.mark.slow
def test_snapshots_of_other_sweeps_are_ignored(tmp_path, frequent_checkpoints):
    with pytest.raises(KilledSweep):
        cqbjax.sweep(POLICIES, POOL, **KEYS, progress=RoundCounter(40), resume=tmp_path)
    other = {"mine": EpsilonGreedy(epsilon=0.4)}
    taken = cqbjax.sweep(other, POOL, **KEYS, resume=tmp_path)
    alone = cqbjax.sweep(other, POOL, **KEYS)
    xr.testing.assert_identical(taken.drop_vars(TIMES), alone.drop_vars(TIMES))
    stored = [file for file in tmp_path.iterdir() if ".done." not in file.name]
    assert len(stored) == 1, "what was kept of the first is still there"


@pytest.mark.slow
def test_damaged_snapshots_are_reported_in_one_sentence(tmp_path, frequent_checkpoints):
    with pytest.raises(KilledSweep):
        cqbjax.sweep(POLICIES, POOL, **KEYS, progress=RoundCounter(40), resume=tmp_path)
    (file,) = tmp_path.glob("*.checkpoint")
    file.write_bytes(file.read_bytes()[:300])
    with pytest.raises(ValueError, match="not readable, delete it to run again"):
        cqbjax.sweep(POLICIES, POOL, **KEYS, resume=tmp_path)


def test_snapshots_are_stored_at_intervals(tmp_path, monkeypatch):
    stored = checkpoints.Checkpoints(tmp_path, "group")
    tree = {"key": jax.random.split(jax.random.key(3)), "count": np.arange(4)}
    stored.save("1", tree)
    assert stored.load("1", tree) is None, "too soon"
    stored.save("always", tree, always=True)
    assert stored.load("always", tree) is not None
    monkeypatch.setattr(checkpoints, "SECONDS", 0.0)
    stored.save("1", tree)
    found = stored.load("1", tree)
    np.testing.assert_array_equal(found["count"], tree["count"])
    assert (jax.random.key_data(found["key"]) == jax.random.key_data(tree["key"])).all()
    assert found["key"].dtype == tree["key"].dtype
    checkpoints.Checkpoints(tmp_path, "other").drop()
    assert stored.load("1", tree) is not None
    stored.drop()
    assert stored.load("1", tree) is None and not list(tmp_path.iterdir())
    assert checkpoints.Checkpoints(None).load("1", tree) is None


def test_checkpoints_without_a_folder_write_no_files(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    checkpoints.Checkpoints(None).save("1", [np.zeros(2)], always=True)
    checkpoints.Checkpoints(None).drop()
    assert not list(tmp_path.iterdir())


def test_files_removed_by_another_process_cause_no_error(tmp_path, monkeypatch):
    """It has finished, and removed the folder: at any moment of this one."""
    stored = checkpoints.Checkpoints(tmp_path / "gone", "group")
    assert stored.load("0", np.zeros(2)) is None
    monkeypatch.setattr(type(tmp_path), "glob", lambda *_: [tmp_path / "gone" / "a.checkpoint"])
    stored.drop()

    def remove_twice(path, _):
        raise FileNotFoundError(path)

    monkeypatch.setattr(checkpoints, "write_atomic", remove_twice)
    stored.save("0", np.zeros(2), always=True)
