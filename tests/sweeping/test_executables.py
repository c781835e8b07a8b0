"""Executables on disk: found by all that a program follows from, and by nothing less."""

import sys
import uuid

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import xarray as xr
from composing import script

from cqbjax.core.pytree import pytree
from cqbjax.policies import Acqb
from cqbjax.results import stored_points
from cqbjax.sweeping import executables

MINE = "from cqbjax.core.pytree import pytree\n@pytree\nclass Mine:\n    x: float = 1.0\n"
NUMBER = jax.ShapeDtypeStruct((), np.float32)


@pytree
class Told:
    """What a program is of here."""

    x: float = 1.0


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setattr(executables._State, "folder", tmp_path / "kept")
    return tmp_path / "kept"


class Made:
    """Compiles x + 1, and counts how often."""

    def __init__(self):
        self.times = 0

    def __call__(self):
        self.times += 1
        # Never the same text: what comes out of JAX's own cache cannot be kept.
        own = uuid.uuid4().int % 10**6 / 1e6
        return jax.jit(lambda x: jnp.floor(x + self.times + own / 2)).lower(NUMBER).compile()

    def asked(self, shapes=NUMBER, *follows):
        program = executables.kept(self, shapes, follows)
        return float(program(np.float32(1)))


def test_a_program_is_found_by_all_that_it_follows_from(folder, monkeypatch):
    made = Made()
    assert made.asked(NUMBER, "advance", 8) == made.asked(NUMBER, "advance", 8) == 2
    assert made.times == 1
    others = [
        (NUMBER, "start", 8), (NUMBER, "advance", 9), (jax.ShapeDtypeStruct((1,), np.float32),),
        (Acqb(), "advance"), (Acqb(schedule="oldest"), "advance"), (Told(), "advance"),
    ]  # fmt: skip
    for other in others:
        before = made.times
        executables.kept(made, other[0], other[1:])
        assert made.times == before + 1, other
    monkeypatch.setattr(executables, "_surroundings", lambda: "another version")
    assert made.asked(NUMBER, "advance", 8) != 2


def test_a_users_edit_is_another_program(folder, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(tmp_path))
    file = tmp_path / "kept_mine.py"
    file.write_text(MINE)
    import kept_mine

    made = Made()
    for times, text in ((1, MINE), (2, f"{MINE}# edited\n")):
        file.write_text(text)
        executables.kept(made, kept_mine.Mine(), ("advance",))
        assert made.times == times
    sys.modules.pop("kept_mine")


def test_what_has_no_words_or_is_torn_is_made_anew(folder):
    made = Made()
    for times in (1, 2):
        executables.kept(made, NUMBER, (object(),))
        assert made.times == times and not folder.exists()
    made.asked()
    (file,) = folder.iterdir()
    file.write_bytes(file.read_bytes()[:100])
    made.asked()
    made.asked()
    assert made.times == 4, "torn: made once more, and kept"


def test_those_asked_for_longest_ago_go(folder, monkeypatch):
    monkeypatch.setattr(executables, "MOST", 2)
    made = Made()
    for number in (1, 2, 3):
        made.asked(NUMBER, number)
    assert len(list(folder.iterdir())) == 2
    made.asked(NUMBER, 3)
    assert made.times == 3


@pytest.mark.slow
def test_a_second_process_compiles_no_round_and_stores_the_same(tmp_path, monkeypatch):
    xla = tmp_path / "xla"
    monkeypatch.setenv("JAX_COMPILATION_CACHE_DIR", str(xla))
    monkeypatch.setenv("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")
    words = "name=s", "policy=[random]", "num_servers=2", "dim=2", "num_seeds=2", "horizon=20"
    points, compiled = [], []
    for root in ("first", "second"):
        # What JAX itself keeps of a batch of runs: it is written where one is compiled.
        for file in xla.glob("jit_*"):
            file.unlink()
        done = script(*words, "table_rounds=[20]", "K=1", f"results_dir={tmp_path / root}")
        assert not done.returncode, done.stderr
        compiled.append(bool([*xla.glob("jit_together*"), *xla.glob("jit_alone*")]))
        points.append(stored_points(tmp_path / root / "data" / "s")[0].point)
    assert compiled == [True, False]
    times = ["seconds_per_round", "compile_seconds"]
    xr.testing.assert_equal(points[0].drop_vars(times), points[1].drop_vars(times))
