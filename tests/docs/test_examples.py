"""Examples are listed and state a conclusion; the example that the site does not run, runs."""

import ast
import importlib.util
import re
import runpy
import sys

import numpy as np
import pytest
from pages import REPOSITORY
from scipy import stats

from cqbjax.testing import check_fairness, check_policy
from cqbjax.testing.fairness import SINGLE

EXAMPLES = REPOSITORY / "docs" / "examples"
LIST = (EXAMPLES / "README.md").read_text()
LISTED = re.findall(r"^/gallery/(\w+)$", LIST, re.MULTILINE)
LONG = ["reinforce", "ppo"]  # not run when the site is built


def test_list_of_examples_is_complete_and_ordered():
    assert sorted(LISTED) == sorted(path.stem for path in EXAMPLES.glob("*.py"))
    shown = re.findall(r"^   examples/(\w+)\.py$", LIST, re.MULTILINE)
    assert [*shown, *LONG] == LISTED and len(shown) == 10
    assert LISTED[0] == "compare_two_policies" and LISTED[9] == "custom_dynamics"


def test_site_runs_short_examples_and_fails_on_errors(monkeypatch):
    monkeypatch.setattr(sys, "path", list(sys.path))
    settings = runpy.run_path(str(REPOSITORY / "docs" / "conf.py"))["sphinx_gallery_conf"]
    run = [name for name in LISTED if re.search(settings["filename_pattern"], f"/{name}.py")]
    assert run == LISTED[:-2] and settings["abort_on_example_error"]
    place = runpy.run_path(str(REPOSITORY / "docs" / "_ext" / "examples_in_order.py"))["place"]
    assert [place(f"/somewhere/{name}.py") for name in LISTED] == list(range(12))


@pytest.mark.parametrize("name", LISTED)
def test_an_example_compiles_and_has_a_title_and_a_sentence(name):
    module = ast.parse((EXAMPLES / f"{name}.py").read_text())
    compile(module, name, "exec")
    title, line, empty, *text = ast.get_docstring(module).splitlines()
    assert len(title) > 5 and line == "=" * len(title) and not empty
    assert re.search(r"[.?:](\n|$)", "\n".join(text))


@pytest.mark.parametrize("name", LISTED[:-2])
def test_examples_end_with_a_figure_and_its_conclusion(name):
    first, *cells, last = (EXAMPLES / f"{name}.py").read_text().split("\n# %%\n")
    assert first.rstrip().endswith("on disk") and 2 <= len(cells) <= 4
    for cell in cells:
        text, _, code = cell.partition("\n\n")
        assert re.fullmatch(r"(# .+\n)*# .+\.", text) and code
    assert cells[-1].endswith("plt.show()\n")
    assert re.fullmatch(r"(# .+\n)*# .+\.\n", last)


def load(name, monkeypatch):
    """Import an example."""
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    example = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, name, example)
    spec.loader.exec_module(example)
    return example


@pytest.mark.slow
def test_trained_scheduler_can_enter_the_arena(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    example = load("reinforce", monkeypatch)
    before, after = example.train(updates=2, rounds=15)
    assert np.isfinite([before, after]).all() and before >= 0 and after >= 0
    policy = example.Scheduler()
    assert policy.first.shape == (example.INPUTS, example.HIDDEN)
    check_policy(policy, SINGLE)
    check_fairness(policy)


@pytest.mark.slow
def test_ppo_beats_random_actions(monkeypatch):
    pytest.importorskip("sb3_contrib", reason='needs `pip install "cqbjax[rl]"`')
    example = load("ppo", monkeypatch)
    queues = example.train(steps=20_000)
    assert stats.ttest_rel(queues["PPO"], queues["random"], alternative="less").pvalue < 1e-4
    assert queues["PPO"].mean() < (queues["random"].mean() + queues["oracle"].mean()) / 2
