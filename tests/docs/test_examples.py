"""The examples run, tiny, and what they leave keeps the contract."""

import importlib.util
import sys

import numpy as np
import pytest
from pages import REPOSITORY

from cqbjax.testing import check_fair, check_policy
from cqbjax.testing.contract.fair import SINGLE


@pytest.mark.slow
def test_a_scheduler_is_trained_and_may_enter_the_arena(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    file = REPOSITORY / "docs" / "examples" / "reinforce.py"
    spec = importlib.util.spec_from_file_location("reinforce", file)
    example = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "reinforce", example)
    spec.loader.exec_module(example)
    before, after = example.train(updates=2, rounds=15)
    assert np.isfinite([before, after]).all() and before >= 0 and after >= 0
    policy = example.Scheduler()
    assert policy.first.shape == (example.INPUTS, example.HIDDEN)
    check_policy(policy, SINGLE, uncompiled=False)
    check_fair(policy)
