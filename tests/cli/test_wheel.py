"""The wheel, installed into an empty folder: a study of the user's own, far from the checkout."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from composing import CONF, REPOSITORY

import cqbjax

pytestmark = pytest.mark.slow

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

# A user's study, under every check that mypy has; the last line but one is wrong.
TYPED = """
import xarray

import cqbjax
from cqbjax import policies, sources
from cqbjax.core.types import Policy

chosen: dict[str, Policy] = {
    "acqb": policies.Acqb(alpha_scale=0.2, c1=0.25),
    "random": policies.RandomRouting(),
}
cqbjax.backend.configure()
data: xarray.Dataset = cqbjax.sweep(
    chosen, sources.Synthetic(), arrival_rate=[0.7], num_seeds=5, horizon=100
)
loaded: xarray.Dataset = cqbjax.results.load("results")
version: str = cqbjax.__version__
policies.Acqb(alpha_scale="much")
"""
WRONG = len(TYPED.splitlines())

# Checks each experiment that the wheel lists as a run does before it starts; prints what is said.
PLAN = """
from cqbjax.cli import _compose, _instantiate
from cqbjax.experiments import configs, study_types

for path in sorted(configs.CONF.glob("experiment/*.yaml")):
    with _compose.initialize_hydra():
        (job,) = _compose.compose_jobs([[f"experiment={path.stem}", "num_seeds=1", "horizon=40"]])
    try:
        study_types.prepare_points(job.config, _instantiate.make)
        print(path.stem)
    except (ValueError, OSError) as error:
        print(path.stem, error)
"""


def run(words, folder: Path, site: Path):
    """Run a command of the installed package, the checkout neither here nor on the path."""
    environment = {**os.environ, "PYTHONPATH": str(site)}
    return subprocess.run(
        [str(word) for word in words],
        capture_output=True, text=True, cwd=folder, timeout=600, env=environment,
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


def test_wheel_contains_all_modules_and_configurations(site):
    def files_below(folder: Path, ending: str) -> set[str]:
        return {str(path.relative_to(folder)) for path in folder.rglob(f"*.{ending}")}

    assert files_below(site / "cqbjax" / "conf", "yaml") == files_below(CONF, "yaml")
    package = REPOSITORY / "cqbjax"
    assert files_below(site / "cqbjax", "py") == files_below(package, "py")
    for ending in ("csv", "j2", "css"):
        assert files_below(site / "cqbjax", ending) == files_below(package, ending) != set()
    assert (
        files_below(site / "cqbjax" / "results", "yaml")
        == files_below(package / "results", "yaml")
        != set()
    )
    assert {path.name for path in site.iterdir()} - {"bin"} == {
        "cqbjax", "hydra_plugins", f"cqbjax-{cqbjax.__version__}.dist-info",
    }  # fmt: skip
    assert (
        files_below(site / "hydra_plugins", "py")
        == files_below(REPOSITORY / "hydra_plugins", "py")
        != set()
    )


def test_mypy_reads_the_types_of_the_wheel(site, tmp_path):
    (tmp_path / "study.py").write_text(TYPED)
    mypy = [sys.executable, "-m", "mypy", "--strict", "--no-incremental", "study.py"]
    done = run(mypy, tmp_path, site)
    assert done.returncode == 1, done.stdout + done.stderr
    reasons = [line for line in done.stdout.splitlines() if "note:" not in line]
    assert [line.split(" ")[0] for line in reasons[:-1]] == [f"study.py:{WRONG}:"], done.stdout
    assert "Acqb" in reasons[0]


def test_installed_command_runs_user_defined_policies_and_experiments(site, tmp_path):
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
    for word, listed in (("experiment=nothing", ", mine, mmlu_pro, "), ("kind=nothing", "replay,")):
        wrong = run([command, "run", word], tmp_path, site)
        assert wrong.returncode == 2 and listed in wrong.stderr
        assert not [name for name in ("theory_", "slopes", "switching") if name in wrong.stderr]


def test_every_experiment_of_the_wheel_can_run_or_states_which_data_it_needs(site, tmp_path):
    done = run([sys.executable, "-c", PLAN], tmp_path, site)
    assert done.returncode == 0, done.stderr
    reasons = dict(line.partition(" ")[::2] for line in done.stdout.splitlines())
    assert reasons.keys() == {path.stem for path in (CONF / "experiment").glob("*.yaml")}
    runs = {name for name, why in reasons.items() if not why}
    assert {name for name in reasons if name.startswith("synthetic")} <= runs
    for name in reasons.keys() - runs:
        named = ("nothing prepared in data/cache: run ", "no conversation log is prepared there: ")
        assert "python scripts/" not in reasons[name]
        assert any(one in reasons[name] for one in named) or (
            reasons[name].startswith("data/") and reasons[name].endswith(": no such file.")
        ), reasons[name]


def test_a_policy_of_a_single_file_enters_the_arena_from_the_wheel(site, tmp_path):
    (tmp_path / "my_policy.py").write_text(POLICY)
    command = site / "bin" / ("cqbjax.exe" if os.name == "nt" else "cqbjax")
    words = (
        "policy=my_policy.py:MyPolicy",
        "tasks=paper",
        "seeds=2",
        "rounds=0.01",
        "tuning=false",
    )
    done = run([command, "arena", *words], tmp_path, site)
    assert done.returncode == 0, done.stderr
    entry = tmp_path / "arena" / "MyPolicy"
    assert "MyPolicy in the arena" in (entry / "index.html").read_text()
    verified = run([command, "arena", "verify", entry, "samples=1"], tmp_path, site)
    assert verified.returncode == 0, verified.stderr
    assert "table and page follow from the stored arrays of 1 tasks" in verified.stdout
