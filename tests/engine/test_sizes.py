"""How a sweep is cut: records, chunks, memory, and runs that are repeated with more slots."""

import dataclasses
import types

import jax
import numpy as np
import pytest

from cqbjax.core import recorders
from cqbjax.core.queueing import QueueOverflow
from cqbjax.engine import batches, memory, programs, runner, spec, validation
from cqbjax.engine.checkpoints import Checkpoints
from cqbjax.engine.progress import Reporter
from cqbjax.engine.runner import RunResults
from cqbjax.engine.spec import RecordSchedule
from cqbjax.engine.sweep import _to_dataset
from cqbjax.engine.validation import build_spec
from cqbjax.policies import Acqb, OptimalPolicy, RandomRouting
from cqbjax.sources import Coin, Synthetic


@pytest.mark.parametrize(
    ("horizon", "every", "wanted"),
    [
        (1000, None, RecordSchedule(4, 25, 10)),
        (250, None, RecordSchedule(1, 25, 10)),
        (251, None, RecordSchedule(1, 251, 1)),
        (254, None, RecordSchedule(2, 127, 1)),
        (497, None, RecordSchedule(1, 71, 7)),
        (501, None, RecordSchedule(3, 167, 1)),
        (1000, 5, RecordSchedule(5, 20, 10)),
        (6, 6, RecordSchedule(6, 1, 1)), (18, 1, RecordSchedule(1, 2, 9)),
    ],
)  # fmt: skip
def test_default_record_interval_bounds_the_number_of_records(horizon, every, wanted):
    stored = spec.choose_records(horizon, every)
    assert stored == wanted
    assert stored.rounds.tolist() == list(range(stored.every, horizon + 1, stored.every))


@pytest.mark.parametrize("every", [0, -2, 4, 14])
def test_records_that_do_not_divide_the_horizon_are_refused(every):
    with pytest.raises(ValueError, match=f"record_every={every} must divide horizon=7"):
        spec.choose_records(7, every)


def test_seeds_are_distinct_integers_below_a_bound():
    for seeds in ([5, 2], range(3), range(2**31 - 2, 2**31), np.array([4])):
        validation.check_seeds(seeds)
    for seeds, message in (
        ([0.5], "must be integers"), ([], "at least 1"), (range(2, 2), "at least 1"),
        ([3, 3], "distinct"), ([-1, 0], "negative"), (range(-1, 4), "negative"),
        (range(2**31, 2**31 + 1), "must be below"), ([1, 2**31], "must be below"),
    ):  # fmt: skip
        with pytest.raises(ValueError, match=message):
            validation.check_seeds(seeds)


def test_chunks_are_padded_with_the_last_run():
    cut = [(index.tolist(), real) for index, real in runner._chunk_indices(7, 3)]
    assert cut == [([0, 1, 2], 3), ([3, 4, 5], 3), ([6, 6, 6], 1)]
    assert [real for _, real in runner._chunk_indices(6, 3)] == [3, 3]


def device(platform, **stats):
    return types.SimpleNamespace(platform=platform, memory_stats=lambda: stats)


def test_memory_budget_is_a_share_of_the_device_memory():
    card, processor = device("gpu", bytes_limit=1000), device("cpu")
    assert memory.device_budget(None, [card, card]) == 800
    machine = memory.device_memory(processor)
    pages = memory.os.sysconf("SC_PAGE_SIZE") * memory.os.sysconf("SC_PHYS_PAGES")
    assert machine == pages // len(jax.local_devices()) == memory.device_memory(device("gpu"))
    assert memory.device_budget(None, [processor]) == int(0.4 * machine)
    assert memory.device_budget(3.0, [card, card]) == 1_500_000_000
    assert memory.shard_runs([processor]) == 4096 and memory.shard_runs([card] * 2) == 2 * 65_536


def test_batch_width_is_bounded_by_speed_and_memory():
    card, processor = device("gpu"), device("cpu")
    # On a GPU all that fit, of each device's share; on a CPU what its caches hold.
    assert memory.chunk_width(10, 901, 9, [card] * 2, 10**9) == 451
    assert memory.chunk_width(10, 10**6, 9, [card], 10**9) == 65_536
    assert memory.chunk_width(10, 901, 9, [card], 99) == 9
    assert memory.chunk_width(10, 901, 100, [processor] * 2, 10**9) == 50
    assert memory.chunk_width(10, 901, 9, [processor] * 2, 10**9) == memory.CPU_NARROW
    assert memory.chunk_width(memory.CPU_BYTES_ALONE, 900, 40, [processor], 10**9) == 40
    assert memory.chunk_width(memory.CPU_BYTES_ALONE + 1, 900, 20, [processor], 10**9) == 1
    assert memory.chunk_width(10, 5, 5, [processor], 10) == 1
    reported = "memory_gb must allow a run of 3 GB on each of 2 devices, and it is 4"
    with pytest.raises(ValueError, match=reported):
        memory.chunk_width(3 * 10**9, 5, 5, [processor] * 2, 2 * 10**9)


def plan(policies, capacity="auto", rates=(0.3, 0.6), seeds=range(3), chunk=2):
    source = Synthetic(num_servers=3, dim=2, slackness=0.0)
    one = build_spec(
        policies | {"optimal": OptimalPolicy()}, source, list(rates), seeds, 12, 1, 3, capacity
    )
    return batches.plan_sweep([one], chunk, None, jax.devices()[:1])


def test_counts_of_one_are_written_in_the_singular():
    sweep = plan({"mine": RandomRouting()})
    group = sweep.batches[0]
    size = group.run_bytes(32) / 1e6
    assert sweep.describe(group, 32, 2) == (
        f"mine: 2 runs of {size:.2f} MB, 2 a chunk on 1 device ({2 * size:,.0f} MB), 1 chunk, "
        "32 queue slots"
    )
    assert "on 2 devices (0 MB), 3 chunks" in dataclasses.replace(
        sweep, devices=sweep.devices * 2
    ).describe(group, 32, 12)  # fmt: skip


class NoticeRecorder(Reporter):
    def __init__(self):
        self.expected, self.done, self.lines = 0, 0, []

    def expect(self, rounds):
        self.expected += rounds

    def advance(self, rounds):
        self.done += rounds

    def log(self, line):
        self.lines.append(line)


@pytest.fixture
def slots_by_seed(monkeypatch):
    """Have a run need so many slots as its seed says, and record its seed and rate."""
    tried = []

    def attempt(sweep, group, runs, slots, progress, stored=None):
        tried.append((slots, len(runs.seed)))
        needs = 40 * runs.seed
        reported = runs.seed + runs.rate
        values = np.stack([reported, 10 * reported, 100 * reported, 1000 * reported], axis=1)
        recorded = {"queue_length": values}
        return RunResults(recorded, np.where(needs > slots, 5, 0)), runner.Seconds(2.0, 3.0)

    monkeypatch.setattr(runner, "attempt", attempt)
    monkeypatch.setattr(batches, "max_slots", lambda queries: 128)
    return tried


def test_overflowing_runs_are_repeated_in_place(slots_by_seed, monkeypatch):
    monkeypatch.setattr(batches, "START_CAPACITY", 2)
    sweep, reported = plan({"a": Acqb(), "b": Acqb(c1=0.5)}, seeds=[1, 3, 0]), NoticeRecorder()
    (group,) = (one for one in sweep.batches if "a" in one.labels)
    measured = runner.run_batch(sweep, group, reported, Checkpoints(None))
    assert slots_by_seed == [(2, 12), (8, 8), (32, 8), (128, 8)], "those of the seeds 1 and 3"
    assert reported.expected == 3 * 8 * 12
    for member in group.members:
        values = measured[member].recorded["queue_length"]
        np.testing.assert_allclose(values[..., 0], np.add.outer([0.3, 0.6], [1, 3, 0]))
        np.testing.assert_allclose(values[..., 3], 1000 * values[..., 0])
        assert measured[member].compile_seconds == 8.0
        assert measured[member].seconds_per_round == 12.0 / (12 * 12)
    assert reported.lines[-1] == (
        "a, b: 144 rounds in 12.0 s, 12 a second, after 8.0 s of compiling"
    )
    assert [line.split(", ")[-1] for line in reported.lines[:-1]] == [
        f"{slots} queue slots" for slots in (8, 32, 128)
    ]


def test_insufficient_capacity_is_reported(slots_by_seed):
    sweep = plan({"a": Acqb()}, capacity=30, seeds=[0, 1, 3])
    (group,) = (one for one in sweep.batches if "a" in one.labels)
    with pytest.raises(QueueOverflow) as refusal:
        runner.run_batch(sweep, group, NoticeRecorder(), Checkpoints(None))
    assert str(refusal.value) == (
        "capacity=30 overflowed in round 5 of policy a, seed 1, arrival_rate 0.6; "
        "raise it, or use capacity=auto"
    )
    assert slots_by_seed == [(30, 6)]


def test_seconds_of_compiling_and_running_are_measured_separately(monkeypatch):
    sweep, clock = plan({}, chunk=4), iter([10.0, 10.0, 13.0, 20.0])
    (group,), reported = sweep.batches, NoticeRecorder()
    # Compiled ahead, they took longer than they are waited for.
    made, once = types.SimpleNamespace(seconds=4.0), {"queue_length": np.ones((2, 1))}

    def run_chunk(compiled, group, runs, real, progress, stored, name):
        assert compiled is made and name.startswith("32-")
        return RunResults(once, np.zeros(2)), 0.5

    monkeypatch.setattr(runner.time, "perf_counter", lambda: next(clock))
    monkeypatch.setattr(programs, "compile_one", lambda spec: made)
    monkeypatch.setattr(runner, "run_chunk", run_chunk)
    outcome, spent = runner.attempt(sweep, group, group.runs, 32, reported, Checkpoints(None))
    assert len(outcome.overflow) == 4, "two chunks"
    assert spent == runner.Seconds(4.0, 7.0 + 2 * 0.5) and reported.run_seconds == 7.0


@pytest.mark.parametrize(("full", "calls"), [([2, 1, 2], 2), ([2, 9, 1], 4), ([1, 1, 1], 1)])
def test_a_batch_stops_once_every_run_overflows(full, calls, monkeypatch):
    """Each run does so in a call of its own; the last run is padding."""
    (group,) = plan({}, rates=[0.1, 0.2, 0.3], seeds=[0]).batches
    begun, reported = [], NoticeRecorder()

    def advance(policy, instance, carry, first):
        begun.append(int(first))
        overflow = np.where(np.array(full) <= len(begun), first, 0)
        after = types.SimpleNamespace(breach=None, overflow=overflow)
        return after, {one.name: np.full((3, 1), len(begun)) for one in group.spec.recorders}

    monkeypatch.setattr(runner, "start_chunk", lambda *arguments: (None, None, None))
    once = types.SimpleNamespace(advance=advance, stretches=lambda first: [(first, 1)])
    compiled, stored = once, Checkpoints(None)
    outcome, before = runner.run_chunk(compiled, group, group.runs, 2, reported, stored, "32-")
    assert begun == [1, 4, 7, 10][:calls] and before == 0.0
    assert reported.done == 2 * 3 * calls == 2 * 12 + reported.expected, (
        "of what is left none is expected"
    )
    lengths = [min(call, calls) for call in (1, 2, 3, 4)]
    assert outcome.recorded["queue_length"].tolist() == [lengths] * 2


def test_records_are_concatenated_and_the_last_of_a_run_counts():
    by_round, by_run = recorders.QueueLength(), recorders.OPTIONAL["time_in_system"]
    of = dataclasses.replace(plan({}).batches[0].spec, recorders=(by_round, by_run))
    none = runner._empty_records(of, 5)
    assert none["queue_length"].shape == (5, 0)
    assert none["time_in_system"].shape[:2] == (5, 2)
    first = {"queue_length": np.ones((5, 2)), "time_in_system": np.ones((5, 2))}
    last = {"queue_length": np.zeros((5, 3)), "time_in_system": np.full((5, 2), 7)}
    both = runner._append_records(of, none, first, last)
    assert both["queue_length"].tolist() == [[1, 1, 0, 0, 0]] * 5
    assert both["time_in_system"].tolist() == [[7, 7]] * 5


def test_splitting_and_merging_a_source_preserves_its_leaves():
    source = {"a": np.arange(3), "b": np.float64(2.0), "c": np.ones((2, 2))}
    numbers, tables = programs.split_source(source, [False, True, False])
    assert numbers == {"a": None, "b": 2.0, "c": None} and tables["b"] is None
    united = programs.merge_source(numbers, tables)
    assert united["a"] is source["a"] and united["b"] == 2.0 and united["c"] is source["c"]


def test_slot_counts_are_multiples_of_a_word_up_to_one_slot_per_query():
    assert [batches.max_slots(n) for n in (1, 32, 33, 1000)] == [32, 32, 64, 1024]
    assert batches.grow_slots(64, 5000) == 256 and batches.grow_slots(256, 400) == 416


def test_policies_of_a_batch_share_tables():
    source = Synthetic(num_servers=3, dim=2, slackness=0.1)
    far = dataclasses.replace(source, slackness=0.2)
    several = [
        build_spec({"p": Acqb(c1=0.3), "q": Acqb(c1=0.4)}, source, [0.3], range(2), 12, 1, 3),
        build_spec({"p": Acqb(c1=0.3)}, source, [0.3], range(2), 12, 1, 3),
        build_spec({"p": Acqb(c1=0.3)}, far, [0.3], range(2), 12, 1, 3),
        build_spec({"p": Acqb(c1=0.3)}, source, [0.3], range(3), 12, 1, 3),
    ]
    (group,) = (one for one in batches.form_batches(several) if "p" in one.labels)
    members = [(one.spec, one.label) for one in group.members]
    assert members == [(0, "p"), (0, "q"), (2, "p"), (3, "p")] and not group.per_seed
    assert {(a.spec, b.spec) for a, b in group.duplicates.items()} == {(1, 0)}
    np.testing.assert_allclose(group.numbers.slackness, [0.1, 0.1, 0.2, 0.1], rtol=1e-6)
    np.testing.assert_allclose(group.policies.c1, [0.3, 0.4, 0.3, 0.3], rtol=1e-6)
    assert group.runs_per_label == 2 + 2 + 3 and group.labels == ("p", "q")
    assert group.runs.policy.tolist() == [0, 0, 1, 1, 2, 2, 3, 3, 3]


def test_seconds_of_a_batch_are_divided_among_its_grid_points():
    """Eight seconds for four runs of ten rounds, which two points show."""
    one, other = batches.Member(0, "a"), batches.Member(1, "a")
    axis = types.SimpleNamespace(size=2)
    spec = types.SimpleNamespace(
        runs_per_policy=4, rates=axis, seeds=axis, problem=types.SimpleNamespace(horizon=10)
    )
    group = types.SimpleNamespace(
        spec=spec, runs=types.SimpleNamespace(seed=np.zeros(4)), members=(one,), specs=(spec,),
        duplicates={other: one}, labels=("a",),
    )  # fmt: skip
    spent = [runner.Seconds(1.0, 2.0), runner.Seconds(0.5, 6.0)]
    made = runner._split_by_member(group, {"x": np.arange(4)}, spent, NoticeRecorder())[one]
    assert (made.seconds_per_round, made.compile_seconds) == (8 / 80, 1.5)
    assert made.recorded["x"].tolist() == [[0, 1], [2, 3]], "rate by rate, seed by seed"


@pytest.mark.parametrize(
    ("every", "message"), [(1, "every round"), (2, "one round in 2 is recorded")]
)
def test_optimal_queue_length_is_read_from_the_policy_optimal(every, message):
    asked = {"a": RandomRouting(), "optimal": OptimalPolicy()}
    one = build_spec(asked, Coin(), [0.3], range(2), 4, record_every=every)
    measured = {
        label: runner.PolicyResults(
            {r.name: np.full((1, 2, 4 // every), value) for r in one.recorders}, 0.0, 0.0
        )
        for value, label in enumerate(asked, 1)
    }
    made = _to_dataset(measured, one)
    assert made["policy"].values.tolist() == ["a", "optimal"]
    assert (made["optimal_queue_length"] == 2).all()
    assert (made["queue_length"].sel(policy="a") == 1).all()
    assert made["round"].attrs["thinned"] == message
