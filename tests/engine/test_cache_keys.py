"""An interrupted sweep goes on where it stopped; any change starts again."""

import dataclasses
from typing import Any

import pytest
import xarray as xr

import cqbjax
from cqbjax import sources
from cqbjax.engine import batches, checkpoints
from cqbjax.engine.progress import Reporter
from cqbjax.engine.validation import build_spec
from cqbjax.policies import Acqb, OptimalPolicy, RandomRouting

POLICIES: dict[str, Any] = {
    "random": RandomRouting(),
    "optimal": OptimalPolicy(),
}
SOURCE = sources.Synthetic(num_servers=3, dim=2, slackness=0.05)
KEYS: dict[str, Any] = {"arrival_rate": [0.4, 0.6], "seeds": range(3), "horizon": 30}
TIMES = ["seconds_per_round", "compile_seconds"]


class Stopper(Reporter):
    """List what is compiled; interrupt before one of the groups runs."""

    def __init__(self, at: int | None = None) -> None:
        self.at = at
        self.compiled: set[str] = set()
        self.ran = 0
        self.rounds = self.expected = 0

    def set_activity(self, activity: str, label: str) -> None:
        if activity == "compiling":
            self.compiled.add(label)
            return
        if self.ran == self.at:
            raise KeyboardInterrupt
        self.ran += 1

    def expect(self, rounds: int) -> None:
        self.expected += rounds

    def advance(self, rounds: int) -> None:
        self.rounds += rounds


def key_of(**changed) -> set[str]:
    """Return the keys of a sweep's groups."""
    own = {"source": SOURCE, **KEYS, **changed}
    one = build_spec(POLICIES, **own)
    return {checkpoints.batch_key(batch) for batch in batches.plan_sweep([one]).batches}


@pytest.mark.slow
def test_an_interrupted_sweep_goes_on_where_it_stopped(tmp_path):
    stopper = Stopper()
    with pytest.raises(KeyboardInterrupt):
        cqbjax.sweep(POLICIES, SOURCE, **KEYS, progress=Stopper(at=1), resume=tmp_path)
    resumed = cqbjax.sweep(POLICIES, SOURCE, **KEYS, progress=stopper, resume=tmp_path)
    whole = cqbjax.sweep(POLICIES, SOURCE, **KEYS)
    assert stopper.compiled == {"optimal"} and stopper.rounds == stopper.expected
    xr.testing.assert_identical(resumed.drop_vars(TIMES), whole.drop_vars(TIMES))
    assert (resumed.seconds_per_round > 0).all()
    again = Stopper()
    cqbjax.sweep(POLICIES, SOURCE, **KEYS, progress=again, resume=tmp_path)
    assert again.compiled == set() and again.rounds == again.expected


def key(policy) -> str:
    return checkpoints.hash_tree(policy) + checkpoints.hash_code(policy)


CHANGES = [
    {"seeds": [0, 1, 3]}, {"arrival_rate": [0.4, 0.7]}, {"horizon": 60}, {"record_every": 3},
    {"capacity": 30}, {"source": dataclasses.replace(SOURCE, slackness=0.06)},
    {"K": 2}, {"record": ["attempts"]},
]  # fmt: skip


@pytest.mark.parametrize("changed", CHANGES, ids=lambda changed: next(iter(changed)))
def test_cache_key_changes_with_every_argument(changed):
    assert len(key_of()) == 2 and key_of() == key_of()
    assert not key_of() & key_of(**changed)


def test_cache_key_covers_floats_and_settings_of_a_policy():
    acqb = Acqb(alpha_scale=0.2)
    found = {
        key(policy)
        for policy in (
            acqb,
            dataclasses.replace(acqb, alpha_scale=0.3),
            dataclasses.replace(acqb, schedule="oldest"),
            RandomRouting(),
        )
    }
    assert len(found) == 4 and key(Acqb(alpha_scale=0.2)) in found


def test_cache_key_changes_with_the_code_of_a_user_defined_policy(tmp_path, monkeypatch):
    head = "import dataclasses, jax\n@jax.tree_util.register_static\n"
    text = f"{head}@dataclasses.dataclass(frozen=True)\nclass Mine:\n    scale: float = 1.0\n"
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "users_own_policy.py").write_text(text)
    import users_own_policy  # type: ignore[import-not-found]

    mine = users_own_policy.Mine()
    before = key(mine)
    assert key(mine) == before
    (tmp_path / "users_own_policy.py").write_text(f"{text}# another rule\n")
    assert key(mine) != before
