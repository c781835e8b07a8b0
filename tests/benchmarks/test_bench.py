"""Measurements, schema and rows of the benchmark, and its behaviour without a GPU."""

import io
import json
import math
import re
import time

import jax
import numpy as np
import pytest
from rich.console import Console
from stationary import close, mean_queue

import benchmarks as bench
from benchmarks import (
    cases,
    costs,
    measure,
    numpy_loop,
    peers,
    sections,
)  # fmt: skip
from benchmarks.measure import Case, Clock
from cqbjax import dynamics
from cqbjax.core.recorders import OPTIONAL
from cqbjax.core.scenario import Scenario
from cqbjax.engine import batches, programs
from cqbjax.engine.sweep import sweep
from cqbjax.policies import OptimalPolicy
from cqbjax.sources import Synthetic
from tests import reference
from tests.reference import known_queues
from tests.reference.scenarios import unit_vectors

NAME = "d=5 N=5 K=1"
COLUMNS = {
    "throughput": ["case", "policy", "d", "N", "K", "horizon", "batch", "devices", "slots",
                   "rounds_a_second", "whole_rounds_a_second", "repeated", "bytes_a_run",
                   "compile_seconds"],
    "numpy": ["case", "loop", "rounds", "seconds_a_round", "rounds_a_second", "ratio"],
    "scenarios": ["what", "against", "policy", "seconds_a_round_run", "cost", "cost_from",
                  "cost_to", "repeats"],
    "peers": ["work", "peer", "peer_rounds_a_second", "peer_batch_rounds_a_second", "ours",
              "run_rounds_a_second", "batch_rounds_a_second", "horizon", "runs",
              "compile_seconds"],
}  # fmt: skip
# Shares, of which short runs may have none, or less.
MAY_BE_NONE = ("repeated", "cost", "cost_from", "cost_to")


def tiny(**fields) -> Case:
    """Return a case of one quick compilation: the oracle of every sweep under ACQB's label."""
    settings = {"horizon": 20, "batch": 2, "chunks": 2} | fields
    return Case(NAME, {"acqb": OptimalPolicy()}, unit_vectors(5, 5, 30), **settings)


@pytest.fixture(scope="module")
def report():
    """Run every section on tiny cases."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cases, "throughput", lambda quick: [tiny()])
        patch.setattr(cases, "problems", lambda quick: {NAME: tiny()})
        patch.setattr(costs, "POLICIES", {"acqb": (OptimalPolicy(), 8)})
        patch.setattr(costs, "QUICK", ("users=orbit", "record=dollars"))
        patch.setattr(costs, "BATCH", 2)
        patch.setattr(peers, "PAIRS", [pair._replace(case=tiny()) for pair in peers.PAIRS])
        patch.setattr(peers, "QUICK", {})
        return bench.run(True, log=lambda what: None)


@pytest.mark.slow
def test_every_section_has_its_columns_and_positive_numbers(report):
    assert report["schema"] == sections.report.SCHEMA and report["quick"]
    assert {"platform", "cpu", "num_devices"} <= set(report["machine"])
    assert set(report["versions"]) == {"cqbjax", "jax", "jaxlib", "numpy"}
    assert list(report["sections"]) == list(sections.SECTIONS)
    for name, columns in COLUMNS.items():
        rows = report["sections"][name]
        assert rows and all(list(row) == columns for row in rows), name
        for row in rows:
            for column, value in row.items():
                if isinstance(value, float) and column not in MAY_BE_NONE:
                    assert math.isfinite(value) and value > 0, (name, column)


@pytest.mark.slow
def test_speedups_compare_the_fastest_batch_with_both_numpy_loops(report):
    best = max(row["rounds_a_second"] for row in report["sections"]["throughput"])
    rows = report["sections"]["numpy"]
    assert [row["loop"] for row in rows] == ["lean loop", "reference"]
    for row in rows:
        assert row["ratio"] == pytest.approx(best * row["seconds_a_round"])


@pytest.mark.slow
def test_reports_round_trip_through_json_and_tables(report, tmp_path):
    path = tmp_path / "deep" / "report.json"
    bench.save(report, path)
    assert bench.load(path) == json.loads(json.dumps(report))
    assert [file.name for file in path.parent.iterdir()] == ["report.json"]
    text = bench.markdown(bench.load(path), tmp_path).read_text()
    printed = io.StringIO()
    bench.show(report, Console(file=printed, width=220))
    for shown in (text, printed.getvalue()):
        assert "QUICK" in shown
        assert f"{report['sections']['throughput'][0]['bytes_a_run']:,}" in shown
        assert "lean loop" in shown
    table = [line for line in text.splitlines() if line.startswith("| d=5 N=5 K=1 | acqb")]
    assert [line.count("|") for line in table] == [15]
    with pytest.raises(ValueError, match="missing"):
        bench.load(tmp_path / "none.json")
    path.write_text('{"schema": 0}')
    with pytest.raises(ValueError, match="schema"):
        bench.load(path)


def test_unknown_benchmark_sections_are_rejected():
    with pytest.raises(ValueError, match="section speed is unknown; choose from start"):
        bench.run(only=["speed"])


def test_clock_counts_rounds_and_excludes_idle_time():
    clock = Clock()
    clock.set_activity("compiling", "a")
    time.sleep(0.02)
    clock.set_activity("running", "a")
    time.sleep(0.03)
    clock.advance(7)
    clock.advance(5)
    time.sleep(0.2)
    first, second = clock.finish()
    assert (first.doing, first.label, first.rounds) == ("compiling", "a", 0)
    assert first.seconds >= 0.02
    assert second.rounds == 12 and 0.03 <= second.seconds < 0.2 + first.seconds


def test_repeated_runs_lower_the_measured_speed():
    span = measure.Span
    spans = [
        span("compiling", "acqb", 3.0, 0),
        span("running", "acqb", 9.0, 80),
        span("running", "acqb", 1.0, 80),
        span("running", "acqb", 2.0, 80),
        span("compiling", "acqb", 5.0, 0),
        span("running", "acqb", 4.0, 24),
    ]
    devices = len(jax.devices())
    case = tiny(horizon=20, batch=4) if devices == 1 else tiny(horizon=80 // devices, batch=1)
    row = measure._summarise(case, "acqb", spans)
    assert row["rounds_a_second"] == pytest.approx(60.0)  # the median of 80 and 40
    assert row["whole_rounds_a_second"] == pytest.approx(240 / 16)
    assert row["repeated"] == pytest.approx(0.1) and row["compile_seconds"] == 3.0


@pytest.mark.slow
def test_sweeps_are_timed_in_whole_chunks():
    spans = measure.listen(tiny(chunks=3))
    ours = [span for span in spans if span.label == "acqb"]
    full = 2 * len(jax.devices()) * 20
    running = [span for span in ours if span.doing == "running"]
    assert ours[0].doing == "compiling" and ours[-6:] == running
    # As many again for the optimal policy, which here is the same program.
    assert [span.rounds for span in running[:3]] == [full] * 3


@pytest.mark.slow
@pytest.mark.parametrize("size", [1, 2])
def test_lean_loop_reproduces_decisions_of_the_reference(size):
    constants = {"kappa": 1.2, "lambda0": 0.8, "alpha_scale": 0.4, "c1": 0.9}
    run = numpy_loop.record(Synthetic(), size, 0.7, 150, seed=size, **constants)
    ours, learner = numpy_loop.play(*run)
    theirs = reference.simulate("acqb", *run)
    assert (ours.query > 0).sum() > 60 and theirs.explored.any()
    for own, other in (
        (ours.query, theirs.query), (ours.servers, theirs.assortment),
        (ours.departed, theirs.departed), (ours.length, theirs.queue_length),
    ):  # fmt: skip
        np.testing.assert_array_equal(own, other)
    np.testing.assert_allclose(learner.theta, theirs.theta[-1], atol=1e-6)


def test_costs_cover_every_model_and_recorder():
    every = costs.list_cases()
    named = {one.record for one in every if one.record}
    assert named == {(name,) for name in OPTIONAL}
    settings = [one.source for one in every if isinstance(one.source, Scenario)]
    kinds = {type(kind) for one in settings for kind in (*one.users, *one.service)}
    there = {getattr(dynamics, name) for name in dynamics.__all__ if name[0].isupper()}
    assert kinds == {kind for kind in there if not kind.matches_paper}
    assert len({one.what for one in every}) == len(every)
    for one in every:
        problem = one.source.problem(1, 10)
        assert problem.num_servers == 5 and problem.has_costs >= ("dollars" in one.record)


def test_cost_is_the_median_ratio_to_the_surrounding_baselines(monkeypatch):
    """The machine slows down: costs of a half and of zero, at three repeats."""
    clock = iter([1.0, 1.5, 1.0, 1.0, 1.0] + [3.0, 6.0, 5.0, 6.0, 7.0] + [7.0, 12.0, 9.0, 9.0, 9.0])
    monkeypatch.setattr(costs, "_timer", lambda one, label, horizon: lambda: next(clock))
    monkeypatch.setattr(costs, "BATCH", 3)
    base = costs.list_cases()[0]
    assert base.what == base.against == costs.ROUND
    slow, free = costs._measure("acqb", base, [base, base], 100, 3)
    assert slow["cost"] == pytest.approx(0.5) and free["cost"] == pytest.approx(0.0)
    assert slow["seconds_a_round_run"] == pytest.approx(6 / (100 * 3 * len(jax.devices())))
    assert slow["cost_from"] == pytest.approx(0.5) and free["repeats"] == 3


@pytest.fixture
def ours(monkeypatch):
    """Measure nothing here: half a million rounds a second in a batch, and a tenth in one run."""

    def fake_measure(case):
        alone = case.num_devices == 1
        return [{"rounds_a_second": 5e4 if alone else 5e5, "compile_seconds": 3.0}]

    monkeypatch.setattr(peers, "measure", fake_measure)


def test_peer_rows_pair_the_peer_with_this_package(ours, monkeypatch):
    played = []
    for pair in peers.PAIRS:
        pytest.importorskip(pair.package)
    counted = [
        pair._replace(prepare=lambda case, runs: lambda: played.append((case.horizon, runs)))
        for pair in peers.PAIRS
    ]
    monkeypatch.setattr(peers, "PAIRS", counted)
    rows = list(peers.rows(True, lambda what: None))
    assert [list(row) for row in rows] == [COLUMNS["peers"]] * len(peers.PAIRS)
    assert [row["peer"].split()[0] for row in rows] == ["coba", "ciw", "jax", "numpy"]
    whole = 16 * len(jax.devices())
    for row, pair in zip(rows, counted, strict=True):
        assert (row["run_rounds_a_second"], row["batch_rounds_a_second"]) == (5e4, 5e5)
        assert (row["horizon"], row["runs"], row["work"]) == (100, whole, pair.case.name)
        assert row["peer_rounds_a_second"] > 0
        assert (row["peer_batch_rounds_a_second"] is None) == (not pair.batches)
    # The first time of each is not counted, but played.
    assert played == [(100, 1)] * 6 + [(100, whole)] * 2 + [(100, 1)] * 2


def test_missing_peers_are_skipped_with_the_install_command(ours, monkeypatch):
    monkeypatch.setattr(peers, "PAIRS", [peers.PAIRS[0]._replace(package="nowhere")])
    lines = []
    assert list(peers.rows(True, lines.append)) == []
    assert lines == ['nowhere is not measured: install it by pip install -e ".[peers]"']


def test_peers_are_timed_by_the_median_after_a_warm_up(monkeypatch):
    clock = iter([0.0, 9.0, 9.0, 10.0, 10.0, 12.0, 12.0, 16.0])
    monkeypatch.setattr(time, "perf_counter", lambda: next(clock))
    pair = peers.PAIRS[0]._replace(prepare=lambda case, runs: lambda: None)
    case = tiny(horizon=100, chunks=4)
    assert peers._rounds_a_second(pair, case, 3) == pytest.approx(3 * 100 / 2)


@pytest.mark.slow
def test_coba_learner_is_a_ridge_regression_per_llm_on_the_same_contexts():
    """`Linear` has the same estimates, and the answers are those of a user."""
    pytest.importorskip("coba")
    from coba import LinTSLearner, SequentialCB

    case = Case("", {}, Synthetic(), horizon=60)
    environment, learner = peers.Contexts(case), LinTSLearner(v=0.1, features=["ax"])
    rounds = list(SequentialCB(record=["action", "reward"]).evaluate(environment, learner))
    run = numpy_loop.record(Synthetic(), 1, 0.7, 60)
    came = run.instance.arrival_index
    contexts = run.instance.features[came]
    np.testing.assert_allclose(environment.contexts, contexts)
    taken = np.array([one["action"] for one in rounds]).argmax(axis=1)
    rewards = np.array([one["reward"] for one in rounds])
    chances = 1 / (1 + np.exp(-run.instance.utilities[came]))
    assert (rewards == (run.draws.choice < chances[np.arange(60), taken])).all()
    for server, theta in enumerate(learner._mu_hat.reshape(5, 5)):
        x, own = contexts[taken == server], rewards[taken == server]
        np.testing.assert_allclose(theta, np.linalg.solve(np.eye(5) + x.T @ x, x.T @ own))


@pytest.mark.slow
def test_mean_queue_of_ciw_matches_the_closed_form():
    rate = peers.GEO.rate(peers.LOAD)
    means = [
        mean_queue(peers.ciw_records(seed, rate, known_queues.M, 2400), 400, 2000)
        for seed in range(24)
    ]
    close(means, peers.GEO.expected(rate), widest=0.08)


@pytest.mark.slow
def test_plain_scan_reproduces_a_sweep():
    case = Case("", {"random": cases.BASELINES["random"]}, Synthetic(), horizon=40, capacity=64)
    data = sweep(
        case.policies, case.source, arrival_rate=[0.7], num_seeds=len(jax.devices()), horizon=40,
        record_every=1, capacity=64,
    )  # fmt: skip
    lengths = peers.prepare_scan(case, len(jax.devices()))()
    np.testing.assert_array_equal(lengths, data.queue_length.sel(policy="random")[0])


@pytest.mark.slow
def test_batch_widths_are_powers_of_four_within_memory():
    for case in cases.problems(quick=False).values():
        widths = cases.widths(case, quick=False)
        powers = range(9) if case.assortment_size == 1 else (0, 1, 3, 4)
        assert widths == [4**power for power in powers][: len(widths)] != []
        assert widths[-1] * case.bytes_a_run("acqb") < 2e9
    assert cases.widths(cases.problems(False)[NAME], quick=False)[-1] == 1024


@pytest.mark.slow
@pytest.mark.parametrize("parameters", ["disjoint", "shared"])
def test_single_run_copies_no_arrays_of_horizon_size(parameters):
    case = cases.acqb("", Synthetic(parameters=parameters), horizon=100_000, batch=1, num_devices=1)
    group = case.group("acqb")
    shape = batches.SweepPlan((), (group,), 1, tuple(case.devices), 0).program_spec(
        group, group.initial_slots()
    )
    text = programs.compile_one(shape).advance.as_text()
    copies = re.findall(r"= \w+\[([\d,]+)\]\S* copy\(", text)
    assert copies and not [one for one in copies if max(map(int, one.split(","))) >= 100_000 // 128]
