"""The memory plan: shapes alone, nothing is run."""

import dataclasses

import jax
import numpy as np
import pytest

from cqbjax.core.pytree import as_arrays, signature_of
from cqbjax.engine import batches, memory, programs, runner
from cqbjax.engine.memory import bytes_per_run
from cqbjax.engine.spec import PerSeed
from cqbjax.engine.validation import build_spec
from cqbjax.policies import Acqb, ContextWrapper, OptimalPolicy, RandomRouting, ReplacedContexts
from cqbjax.sources import Synthetic
from tests.reference.scenarios import unit_vectors

GB = 10**9


@pytest.mark.slow
@pytest.mark.parametrize("size", [1, 2])
@pytest.mark.parametrize("servers", [11, 28, 112])
def test_every_offline_study_fits_a_machine_of_24_gb(servers, size):
    source = unit_vectors(servers)
    problem = source.problem(size, 5000)
    contexts = np.zeros((problem.num_rows, problem.dim), np.float32)
    policy = ContextWrapper(policy=Acqb(), view=ReplacedContexts(contexts=contexts))
    kinds = signature_of(as_arrays(policy)), signature_of(as_arrays(source))
    needed = bytes_per_run(*kinds, problem, problem.horizon)
    # The images of every server are the least that a run can hold.
    assert servers * problem.num_rows * problem.dim * 4 < needed
    devices = jax.devices()
    allowed = memory.device_budget(24 * memory.MEMORY_SHARE, devices)
    each = memory.chunk_width(needed, 540, 180, devices, allowed)
    assert each >= 1 and each * needed * len(devices) <= 24 * memory.MEMORY_SHARE * GB


def test_the_memory_budget_is_respected():
    devices = jax.devices()
    allowed = memory.device_budget(1.0, devices)
    assert allowed == GB // len(devices)
    assert memory.chunk_width(1000, 10, 10, devices, 3500) == min(3, -(-10 // len(devices)))
    with pytest.raises(ValueError, match="memory_gb must allow a run of 2e-06 GB"):
        memory.chunk_width(2000, 10, 10, devices, 1999)


def test_batch_width_on_a_cpu_is_bounded_by_the_number_of_runs():
    devices = jax.devices()[:1]
    several, one = (memory.chunk_width(1000, runs, 40, devices, GB) for runs in (240, 40))
    assert several == one == 40
    # A few runs of a policy: a batch of several policies is not as narrow.
    assert memory.chunk_width(1000, 60, 2, devices, GB) == memory.CPU_NARROW
    assert memory.chunk_width(1000, 4, 2, devices, GB) == 4
    # Many runs, or quick ones, may be some more than were asked for: the width is that of all.
    assert memory.chunk_width(1000, 900, 900, devices, GB) == memory.CPU_NARROW
    assert memory.chunk_width(1000, 40, 40, devices, GB, spare=24) == memory.CPU_NARROW
    assert memory.chunk_width(1000, 4, 2, devices, GB, spare=30) == memory.CPU_NARROW
    assert memory.chunk_width(1000, 4, 2, devices, 31_000, spare=30) == 4, "more do not fit"


def plan(policies, capacity="auto", rate=0.7, horizon=1000, chunk=2):
    one = build_spec(
        {"optimal": OptimalPolicy()} | policies,
        Synthetic(),
        np.atleast_1d(rate).tolist(),
        range(5),
        horizon,
        1,
        None,
        capacity,
    )
    whole = batches.plan_sweep([one], chunk, None, jax.devices()[:1])
    return dataclasses.replace(whole, batches=whole.batches[1:])


def test_the_plan_is_described_in_numbers():
    sweep = plan({"a": Acqb(), "b": Acqb(schedule="oldest")})
    (group,) = sweep.batches
    size = group.run_bytes(64) / 1e6
    description = sweep.describe(group, 64, 10)
    assert description == (
        f"a, b: 10 runs of {size:.2f} MB, 2 a chunk on 1 device ({2 * size:,.0f} MB), 5 chunks, "
        "64 queue slots"
    )


def test_policies_that_differ_in_options_and_floats_share_a_program():
    names = ["joint", "fifo", "eps", "explore"]
    family = [
        Acqb(), Acqb(schedule="oldest", c1=1), Acqb(exploration="phased", explore_rounds=9),
        Acqb(exploration="independent", explore_query="random"),
    ]  # fmt: skip
    others = {"ucb": Acqb(optimism="ucb"), "one sample": Acqb(num_samples=1)}
    groups = plan(dict(zip(names, family, strict=True)) | others).batches
    assert [group.labels for group in groups] == [tuple(names), ("ucb",), ("one sample",)]
    assert groups[0].policies.schedule.dtype == np.int32


@pytest.mark.slow
def test_studies_share_batches_if_programs_match_and_tables_are_small(monkeypatch):
    near, far = Synthetic(slackness=0.01), Synthetic(slackness=0.05)
    table = unit_vectors(11)
    scaled = dataclasses.replace(table, utilities=table.utilities * 2)
    acqb, fifo = Acqb(alpha_scale=0.3), Acqb(schedule="oldest")

    def policies_together(*settings):
        specs = [
            build_spec({"p": policy}, source, [rate], range(seeds), 100, size)
            for source, policy, rate, seeds, size in settings
        ]
        made = batches.plan_sweep(specs).batches
        return [[member.spec for member in one.members] for one in made if "p" in one.labels]

    assert policies_together((near, acqb, 0.5, 3, 1), (far, fifo, 0.6, 4, 1)) == [[0, 1]]
    assert policies_together((near, acqb, 0.5, 3, 1), (near, acqb, 0.5, 3, 2)) == [[0], [1]]
    assert policies_together((table, acqb, 0.5, 3, 1), (near, acqb, 0.5, 3, 1)) == [[0], [1]]
    assert policies_together((table, acqb, 0.5, 3, 1), (table, fifo, 0.6, 2, 1)) == [[0, 1]]
    # Another table of the same shape is a run's own while it is small.
    assert policies_together((table, acqb, 0.5, 3, 1), (scaled, acqb, 0.5, 3, 1)) == [[0, 1]]
    with monkeypatch.context() as patch:
        patch.setattr(batches, "MAX_COPIED_BYTES", 10)
        assert policies_together((table, acqb, 0.5, 3, 1), (scaled, acqb, 0.5, 3, 1)) == [[0], [1]]


def test_runs_of_a_batch_are_ordered_by_study_with_its_rates_seeds_and_policy():
    each = PerSeed([Acqb(c1=float(c)) for c in range(3)])
    others = PerSeed([Acqb(c1=float(c)) for c in range(5, 7)])
    parts = [
        build_spec({"p": each}, Synthetic(slackness=0.01), [0.4, 0.5], [4, 5, 6], 50),
        build_spec({"p": others}, Synthetic(slackness=0.02), [0.6], [8, 9], 50),
    ]
    group = next(one for one in batches.plan_sweep(parts).batches if one.per_seed)
    runs = group.runs
    assert runs.member.tolist() == [0] * 6 + [1] * 2
    assert runs.rate.tolist() == [0.4] * 3 + [0.5] * 3 + [0.6] * 2
    assert runs.seed.tolist() == [4, 5, 6, 4, 5, 6, 8, 9]
    assert group.policies.c1[runs.policy].tolist() == [0, 1, 2, 0, 1, 2, 5, 6]
    slackness = group.numbers.slackness[runs.member]
    np.testing.assert_allclose(slackness, [0.01] * 6 + [0.02] * 2, rtol=1e-6)


def test_runs_of_a_rate_are_batched_together_the_highest_first():
    policies = {"a": Acqb(), "b": Acqb(c1=0.3)}
    parts = [
        build_spec(policies, Synthetic(), rates, range(4), 50) for rates in ([0.3, 0.5], [0.4, 0.5])
    ]
    group = next(one for one in batches.plan_sweep(parts).batches if "a" in one.labels)
    runs, chunks = group.runs, [group.order[at] for at, _ in runner._chunk_indices(32, 8)]
    assert sorted(np.concatenate(chunks)) == list(range(32))
    assert [set(runs.rate[batch]) for batch in chunks] == [{0.5}, {0.5}, {0.4}, {0.3}]
    # Within a rate as the runs stand: member by member, seed by seed.
    assert (np.diff(chunks[0]) > 0).all()


def test_context_free_policies_start_with_capacity_for_the_load():
    wanted = {"blind": RandomRouting(), "sees": Acqb()}
    crowded = plan(wanted)
    slots = {group.labels[0]: group.initial_slots() for group in crowded.batches}
    assert slots["sees"] == batches.START_CAPACITY < slots["blind"] <= 1024
    both = {
        group.labels[0]: group.initial_slots() for group in plan(wanted, rate=[0.1, 0.7]).batches
    }
    assert both == slots, "the highest rate counts"
    # More than a round's one never wait, and marks are read a word at a time.
    assert batches.max_slots(1000) == batches.max_slots(1024) == 1024
    assert {group.initial_slots() for group in plan(wanted, horizon=50).batches} == {64}
    idle = plan(wanted, rate=0.1)
    assert {group.initial_slots() for group in idle.batches} == {batches.START_CAPACITY}
    fixed = plan(wanted, capacity=7)
    assert {group.initial_slots() for group in fixed.batches} == {7}


def test_context_free_policies_store_no_contexts_in_the_queue():
    features = 5 * 4  # bytes of a slot
    grown = {
        group.labels[0]: group.run_bytes(96) - group.run_bytes(64)
        for group in plan({"blind": RandomRouting(), "sees": Acqb()}).batches
    }
    assert grown["sees"] - grown["blind"] == 32 * features


def test_number_of_cached_programs_is_bounded():
    for cached in (programs._lower, programs._lower_draw):
        assert cached.cache_info().maxsize == programs.CACHE_SIZE
