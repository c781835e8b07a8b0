"""Several parts in one sweep: each equals the part alone, bit for bit."""

import dataclasses

import numpy as np
import pytest
import xarray as xr

from cqbjax.engine import batches, programs
from cqbjax.engine.batches import plan_sweep
from cqbjax.engine.spec import PerSeed
from cqbjax.engine.sweep import run_plan
from cqbjax.engine.validation import build_spec
from cqbjax.policies import Acqb, RandomRouting
from cqbjax.policies._template import EpsilonGreedy
from cqbjax.sources import Synthetic
from tests.reference import scenarios

TIMES = ["seconds_per_round", "compile_seconds"]
TABLE = scenarios.routing(np.random.default_rng(3).normal(0.5, 1.0, (6, 3)))


def mixed_points():
    """Points that differ in floats, words, rates, seeds, slackness, K, policies and source."""
    near, far = Synthetic(num_servers=3, dim=2, slackness=0.0), Synthetic(num_servers=3, dim=2)
    acqb, rand = Acqb(alpha_scale=0.3), RandomRouting()
    other = Acqb(alpha_scale=0.9, schedule="oldest")
    own = PerSeed([EpsilonGreedy(epsilon=0.4 * e) for e in range(3)])
    return [
        build_spec({"acqb": acqb, "random": rand}, near, [0.3, 0.5], range(3), 40),
        build_spec({"acqb": other}, far, [0.4], [7, 9], 40),
        build_spec({"random": rand, "own": own}, TABLE, [0.5], [3, 4, 5], 40, 2, capacity=40),
    ]


@pytest.mark.slow
def test_joint_sweep_equals_separate_sweeps(tmp_path):
    parts = mixed_points()
    together = run_plan(plan_sweep(parts), resume=tmp_path)
    for one, among in zip(parts, together, strict=True):
        (alone,) = run_plan(plan_sweep([one]))
        xr.testing.assert_identical(among.drop_vars(TIMES), alone.drop_vars(TIMES))
    labels = [group.labels for group in plan_sweep(parts).batches]
    # ACQB, `own`, random at K = 1 and at K = 2 with a capacity; the optimal policy for two shapes.
    assert len(labels) == 6
    again = run_plan(plan_sweep(parts), resume=tmp_path)
    for one, two in zip(together, again, strict=True):
        xr.testing.assert_identical(one.drop_vars(TIMES), two.drop_vars(TIMES))


@pytest.mark.slow
def test_grid_of_numbers_compiles_one_program_per_policy(monkeypatch):
    grid = [
        build_spec(
            {"acqb": Acqb(alpha_scale=a, c1=c)}, Synthetic(num_servers=3, dim=2, slackness=s),
            [rate], range(2), 24,
        )
        for a in (0.1, 0.3) for c in (0.2, 0.9) for rate in (0.4, 0.5) for s in (0.0, 0.03)
    ]  # fmt: skip
    shapes, compiled = [], programs.compile_one
    monkeypatch.setattr(
        programs, "compile_one", lambda shape: shapes.append(shape) or compiled(shape)
    )
    done = run_plan(plan_sweep(grid))
    assert len(shapes) == len(set(shapes)) == 2, "ACQB's and the optimal policy's"
    assert len({one.regret.sel(policy="acqb").values.tobytes() for one in done}) >= 10


def sharing_points():
    """Points that differ in constants of one policy, and in what touches no other."""
    source = Synthetic(num_servers=3, dim=2, slackness=0.0)
    return [
        build_spec(
            {"eps": EpsilonGreedy(epsilon=e), "random": RandomRouting()}, source, [rate],
            range(2), 24,
        )
        for e in (0.1, 0.5) for rate in (0.3, 0.4)
    ]  # fmt: skip


def test_shared_runs_of_grid_points_are_planned_once():
    groups = {group.labels: group for group in plan_sweep(sharing_points()).batches}
    runs = {labels[0]: len(group.runs.seed) for labels, group in groups.items()}
    assert runs == {"eps": 8, "random": 4, "optimal": 4}
    found = groups["optimal",].duplicates
    assert found == {(2, "optimal"): (0, "optimal"), (3, "optimal"): (1, "optimal")}


def test_runs_at_other_seeds_or_rates_are_not_shared():
    specs = [
        build_spec({"random": RandomRouting()}, TABLE, rates, seeds, 24)
        for rates, seeds in (([0.3], [0, 1]), ([0.3], [2, 3]), ([0.4], [0, 1]))
    ]
    batch = {one.labels: one for one in plan_sweep(specs).batches}["random",]
    assert not batch.duplicates and batch.runs.seed.tolist() == [0, 1, 2, 3, 0, 1]
    np.testing.assert_allclose(batch.runs.rate, [0.3] * 4 + [0.4] * 2)


def test_points_that_record_other_rounds_do_not_share_a_batch():
    specs = [
        build_spec({"random": RandomRouting()}, TABLE, [0.3], [0], 24, record_every=every)
        for every in (1, 6)
    ]
    recorded = [
        {one.records.every for one in batch.specs}
        for batch in plan_sweep(specs).batches if batch.labels == ("random",)
    ]  # fmt: skip
    assert recorded == [{1}, {6}]


@pytest.mark.slow
def test_shared_runs_equal_those_of_a_separate_grid_point():
    grid = sharing_points()
    done = run_plan(plan_sweep(grid))
    (alone,) = run_plan(plan_sweep([grid[3]]))
    xr.testing.assert_identical(done[3].drop_vars(TIMES), alone.drop_vars(TIMES))


@pytest.mark.slow
def test_sources_that_differ_in_a_small_table_share_a_batch_and_keep_their_numbers(monkeypatch):
    """As two weights of the cost do: prompts are the same, departure probabilities are not."""
    others = dataclasses.replace(TABLE, utilities=TABLE.utilities[::-1] - 0.1)
    copied = dataclasses.replace(TABLE, contexts=TABLE.contexts + 0)
    grid = [
        build_spec({"random": RandomRouting()}, one, [0.3], range(2), 24)
        for one in (TABLE, others, copied)
    ]
    by_labels = {group.labels: group for group in plan_sweep(grid).batches}
    random = by_labels["random",]
    assert random.numbers.utilities.shape == (2, 6, 3) and random.numbers.contexts is None
    assert random.duplicates == {(2, "random"): (0, "random")}, "equal content is one source"
    done = run_plan(plan_sweep(grid))
    alone = [run_plan(plan_sweep([one]))[0] for one in grid[:2]]
    for one, two in zip(done, alone, strict=False):
        xr.testing.assert_identical(one.drop_vars(TIMES), two.drop_vars(TIMES))
    assert not done[0].equals(done[1])
    # A table too large to be copied a run is another batch, of the same program.
    monkeypatch.setattr(batches, "MAX_COPIED_BYTES", 10)
    assert len(plan_sweep(grid[:2]).batches) == 4
