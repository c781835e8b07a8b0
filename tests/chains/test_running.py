"""Replays in segments: batched, resumed after a kill bit for bit, with more places when needed."""

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from composing import called

from cqbjax.chains import instance, prepare, replay, running
from cqbjax.chains.linking import Rule
from cqbjax.chains.rules import Learning, Ranked
from cqbjax.policies import Acqb
from cqbjax.results import stored as results
from cqbjax.sweeping import programs
from cqbjax.sweeping.progress import Silent

REPOSITORY = Path(__file__).resolve().parents[2]
SEEDS, HORIZON = 2, 120
ACQB = Learning(policy=Acqb(alpha_scale=0.2, c1=0.25, estimator="running"))


@pytest.fixture(scope="module")
def world(generated):
    log = prepare.load(generated)
    chains = prepare.link(log, Rule())
    arrivals = instance.root_arrivals(log, chains)
    runs = [instance.draw_run(s, arrivals, chains, 0.7, HORIZON, 0.8) for s in range(SEEDS)]
    return instance.tables(log, chains, 0.8), instance.stacked(runs)


class Killed(Exception):
    pass


class KilledAfter(Silent):
    """Ends a run after so many slots."""

    def __init__(self, slots):
        self.left = slots

    def advance(self, rounds):
        self.left -= rounds
        if self.left < 0:
            raise Killed


def same(one, other):
    for label, made in one.items():
        for mine, theirs in zip(made.totals, other[label].totals, strict=True):
            np.testing.assert_array_equal(mine, theirs)


@pytest.mark.slow
def test_a_killed_run_goes_on_to_the_same_bits(world, tmp_path):
    cut = running.plan(HORIZON, 4, 20)
    whole = running.run({"acqb": ACQB}, *world, cut)
    assert whole["acqb"].totals.queue_length.shape == (SEEDS, 30)
    # In the middle of the clairvoyant schedule, then of ACQB.
    for slots in (3 * 20 * SEEDS, (6 + 3) * 20 * SEEDS):
        with pytest.raises(Killed):
            running.run({"acqb": ACQB}, *world, cut, tmp_path, KilledAfter(slots))
    assert len(list(tmp_path.glob("*.npz"))) == 2
    counted = []

    class Counting(Silent):
        def doing(self, activity, label):
            counted.append((activity, label))

    same(whole, running.run({"acqb": ACQB}, *world, cut, tmp_path, Counting()))
    assert counted.count(("running", "acqb")) <= 3 and ("running", "optimal") not in counted


@pytest.mark.slow
def test_segments_records_and_places_change_nothing(world):
    rule = {"fifo": Ranked(by="fifo_chain")}
    whole = running.run(rule, *world, running.plan(HORIZON, 4, 120))
    same(whole, running.run(rule, *world, running.plan(HORIZON, 4, 20)))
    same(whole, running.run(rule, *world, running.plan(HORIZON, 4, 40), first_places=1))
    fine = running.run(rule, *world, running.plan(HORIZON, 1, 40))["fifo"].totals
    np.testing.assert_array_equal(fine.queue_length[:, 3::4], whole["fifo"].totals.queue_length)


@pytest.mark.slow
def test_a_batch_is_its_runs_one_by_one(world):
    tables, runs = world
    made = running.run({"sjf": Ranked(by="shortest")}, tables, runs, running.plan(HORIZON, 1))
    for seed in range(SEEDS):
        run = jax.tree.map(lambda leaf, seed=seed: leaf[seed], runs)
        alone = replay.trace(Ranked(by="shortest"), HORIZON, tables, run, 256)
        np.testing.assert_array_equal(
            made["sjf"].totals.queue_length[seed], np.asarray(alone.queue_length)
        )
    arrived = np.asarray(runs.until)[:, 1:]
    totals = made["sjf"].totals
    np.testing.assert_array_equal(arrived - totals.departures, totals.queue_length)


@pytest.mark.slow
def test_programs_are_compiled_once_until_they_are_forgotten(world, fresh_programs):
    cut = running.plan(HORIZON, 4, 60)
    running.run({"fifo": Ranked(by="fifo")}, *world, cut)
    compiled = programs.compiled_batch.cache_info().misses
    running.run({"fifo": Ranked(by="fifo")}, *world, cut)
    assert programs.compiled_batch.cache_info().misses == compiled > 0
    programs.forget()
    assert programs.compiled_batch.cache_info().currsize == 0


@pytest.mark.slow
def test_another_scheduler_or_log_does_not_find_the_checkpoint(world, tmp_path):
    tables, runs = world
    cut = running.plan(HORIZON, 4, 60)
    running.run({}, tables, runs, cut, tmp_path)
    count = len(list(tmp_path.glob("*.npz")))
    running.run({}, tables, runs, cut, tmp_path)
    assert len(list(tmp_path.glob("*.npz"))) == count == 1
    other = tables._replace(length=jnp.where(tables.length > 2, 2, tables.length))
    running.run({}, other, runs, cut, tmp_path)
    running.run({"fifo": Ranked(by="fifo")}, tables, runs, cut, tmp_path)
    assert len(list(tmp_path.glob("*.npz"))) == 3


def test_a_damaged_checkpoint_is_one_sentence(world, tmp_path):
    cut = running.plan(HORIZON, 4, 60)
    running.run({}, *world, cut, tmp_path)
    (file,) = tmp_path.glob("*.npz")
    file.write_bytes(file.read_bytes()[:300])
    with pytest.raises(ValueError, match="not readable, delete it to run again"):
        running.run({}, *world, cut, tmp_path)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [((0,), "horizon=0 must be at least 1"), ((100, 30), "record_every=30 must divide horizon"),
     ((100, 5, 12), "segment=12 must divide horizon=100 and be a multiple of the 5"),
     ((100, 5, 0), "segment=0 must be at least 1")],
)  # fmt: skip
def test_a_wrong_cut_is_one_sentence(arguments, words):
    with pytest.raises(ValueError, match=words):
        running.plan(*arguments)


def test_a_cut_divides_the_horizon():
    for horizon in (1, 7, 250, 1000, 5000, 25_000):
        cut = running.plan(horizon)
        assert cut.records * cut.every == horizon and cut.records % cut.segment == 0


def words_of(data, out):
    return [
        "experiment=wildchat", f"data_dir={data}", f"results_dir={out}", "num_seeds=2",
        "horizon=900", "record_every=6", "replay.segment=30", "table_rounds=[450,900]",
    ]  # fmt: skip


@pytest.mark.slow
def test_a_study_that_was_killed_ends_with_the_same_arrays(generated, tmp_path):
    """The process is ended by the system, between and within segments; then the command again."""
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    done = called("run", *words_of(generated, whole))
    assert done.returncode == 0 and re.search(
        r"^simulation [0-9.]+ s of", done.stdout, re.MULTILINE
    )
    run = subprocess.Popen(
        [sys.executable, str(REPOSITORY / "scripts" / "run.py"), *words_of(generated, killed)],
        env=environment,
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    unfinished = killed / "data" / "wildchat" / ".unfinished"
    deadline = time.monotonic() + 300
    while len(list(unfinished.glob("*.npz"))) < 2 and time.monotonic() < deadline:
        time.sleep(0.02)
    run.send_signal(signal.SIGKILL)
    assert run.wait() == -signal.SIGKILL, "it was still running"
    assert len(list(unfinished.glob("*.npz"))) >= 2
    assert not list(killed.rglob("*.nc"))
    again = called("run", *words_of(generated, killed))
    assert again.returncode == 0, again.stderr
    assert not unfinished.exists()
    one, other = (results.load(folder / "data" / "wildchat") for folder in (whole, killed))
    for name in ("queue_length", "departures", "explored", "optimal_queue_length"):
        np.testing.assert_array_equal(one[name], other[name])
