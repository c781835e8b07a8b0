"""The memory plan: shapes alone, nothing is run."""

import jax
import numpy as np
import pytest

from cqbjax.bench.cases import unit_vectors
from cqbjax.policies import Acqb, OnContexts, Replaced
from cqbjax.sweeping import plan

GB = 10**9


@pytest.mark.parametrize("size", [1, 2])
@pytest.mark.parametrize("servers", [11, 28, 112])
def test_every_offline_study_fits_a_machine_of_24_gb(servers, size):
    source = unit_vectors(servers)
    problem = source.problem(size, 5000)
    contexts = np.zeros((problem.num_rows, problem.dim), np.float32)
    policy = OnContexts(policy=Acqb(), view=Replaced(contexts=contexts))
    needed = plan.bytes_a_run(policy, source, problem, problem.horizon)
    # The images of every server are the least that a run can hold.
    assert servers * problem.num_rows * problem.dim * 4 < needed
    devices = jax.devices()
    each = plan.width(needed, 180, devices, plan.budget(24 * plan.MEMORY_SHARE, devices))
    assert each >= 1 and each * needed * len(devices) <= 24 * plan.MEMORY_SHARE * GB


def test_the_budget_that_is_stated_is_kept():
    devices = jax.devices()
    allowed = plan.budget(1.0, devices)
    assert allowed == GB // len(devices)
    assert plan.width(1000, 10, devices, 3500) == min(3, -(-10 // len(devices)))
    with pytest.raises(ValueError, match="memory_gb must allow a run of 2e-06 GB"):
        plan.width(2000, 10, devices, 1999)


def test_the_plan_is_told_in_numbers():
    told = plan.describe(("a", "b"), 2_000_000, 10, 2, 2)
    assert told == "a, b: 10 runs of 2.00 MB, 4 a chunk on 2 devices (8 MB), 3 chunks"
