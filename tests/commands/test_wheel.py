"""The wheel, installed into an empty folder: a study of the user's own, far from the checkout."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from composing import CONF, REPOSITORY

import cqbjax

POLICY = '''
from cqbjax.policies._template import EpsilonGreedy
from cqbjax.core.pytree import pytree


@pytree
class MyPolicy(EpsilonGreedy):
    """The template under a name of the user's own."""
'''
EXPERIMENT = """# @package _global_
defaults:
  - override /policy: [mine, optimal]

name: mine
num_servers: 3
dim: 2
slackness: 0.0
num_seeds: 2
horizon: 12
"""


def run(words, folder: Path, site: Path):
    """Run a command of the installed package, the checkout neither here nor on the path."""
    environment = {**os.environ, "PYTHONPATH": str(site)}
    return subprocess.run(
        [str(word) for word in words],
        capture_output=True, text=True, cwd=folder, timeout=300, env=environment,
    )  # fmt: skip


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> Path:
    """A folder with nothing but the wheel in it, installed."""
    folder = tmp_path_factory.mktemp("wheel")
    # Nothing is downloaded: the builder is installed beside the tests.
    offline = ["--disable-pip-version-check", "--no-index", "--no-deps", "-q"]
    pip, target = [sys.executable, "-m", "pip"], folder / "site"
    build = [*pip, "wheel", *offline, "--no-build-isolation", "-w", folder, REPOSITORY]
    done = run(build, folder, target)
    assert done.returncode == 0, done.stderr
    (wheel,) = folder.glob("cqbjax-*.whl")
    done = run([*pip, "install", *offline, "--target", target, wheel], folder, target)
    assert done.returncode == 0, done.stderr
    return target


@pytest.mark.slow
def test_the_wheel_carries_what_the_checkout_has(site):
    def below(folder: Path, ending: str) -> set[str]:
        return {str(path.relative_to(folder)) for path in folder.rglob(f"*.{ending}")}

    assert below(site / "cqbjax" / "conf", "yaml") == below(CONF, "yaml")
    package = REPOSITORY / "cqbjax"
    assert below(site / "cqbjax", "py") == below(package, "py")
    for ending in ("csv", "j2", "css"):
        assert below(site / "cqbjax", ending) == below(package, ending) != set()
    assert below(site / "cqbjax" / "report", "yaml") == below(package / "report", "yaml") != set()
    assert {path.name for path in site.iterdir()} - {"bin"} == {
        "cqbjax", "hydra_plugins", f"cqbjax-{version()}.dist-info",
    }  # fmt: skip
    assert below(site / "hydra_plugins", "py") == below(REPOSITORY / "hydra_plugins", "py") != set()


def version() -> str:
    text = (REPOSITORY / "pyproject.toml").read_text()
    return next(line.split('"')[1] for line in text.splitlines() if line.startswith("version"))


@pytest.mark.slow
def test_an_installed_command_runs_a_policy_and_an_experiment_of_the_users_own(site, tmp_path):
    for name, text in (
        ("my_policy.py", POLICY),
        ("conf/policy/mine.yaml", "mine:\n  _target_: my_policy.MyPolicy\n  epsilon: 0.2\n"),
        ("conf/experiment/mine.yaml", EXPERIMENT),
    ):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    command = site / "bin" / ("cqbjax.exe" if os.name == "nt" else "cqbjax")
    done = run([command, "run", "experiment=mine"], tmp_path, site)
    assert done.returncode == 0, done.stderr
    data = cqbjax.results.load(tmp_path / "results")
    assert sorted(data.policy.values) == ["mine", "optimal"]
    assert dict(data.sizes) == {"policy": 2, "arrival_rate": 1, "seed": 2, "round": 12}
    assert (tmp_path / "results" / "figures" / "mine.png").stat().st_size > 1000
    where = run([sys.executable, "-c", "import cqbjax; print(cqbjax.__file__)"], tmp_path, site)
    assert Path(where.stdout.strip()).is_relative_to(site), "the checkout was not what ran"
    again = run([command, "report"], tmp_path, site)
    assert again.returncode == 0, again.stderr
    wrong = run([command, "run", "experiment=nothing"], tmp_path, site)
    assert wrong.returncode == 2 and ", mine, mmlu_pro, " in wrong.stderr
