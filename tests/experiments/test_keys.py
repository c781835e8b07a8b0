"""Nothing stale is called stored: each edit that numbers follow from makes another key."""

import dataclasses
import importlib
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
from composing import CONF, compose_config, script

from cqbjax import results
from cqbjax.cli._instantiate import make
from cqbjax.core import code
from cqbjax.datasets import dataset_source
from cqbjax.experiments import configs, manifests, study_types

SOURCE = """from cqbjax import sources
from cqbjax.core.pytree import pytree
from helper_of_source import FACTOR

@pytree
class Mine(sources.Synthetic):
    scale: float = 1.0
"""
POLICY = """from cqbjax import policies
from cqbjax.core.pytree import pytree
from helper_of_policy import rule

@pytree
class Mine(policies.RandomRouting):
    scale: float = 1.0
"""


@pytest.fixture
def own(tmp_path, monkeypatch):
    """Write a user's modules and a trace into the folder where a command is given."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    written = {
        "my_source.py": SOURCE, "helper_of_source.py": "FACTOR = 1\n", "my_policy.py": POLICY,
        "helper_of_policy.py": "from deep import rule\n", "deep.py": "def rule():\n    return 1\n",
        "trace.csv": "timestamp\n1\n2\n5\n9\n",
    }  # fmt: skip
    for name, text in written.items():
        Path(name).write_text(text)
    importlib.invalidate_caches()


def content(*words):
    words = [
        "name=mine", "num_seeds=2", "horizon=12", "policy=[random]",
        "source._target_=my_source.Mine", "arrivals=trace", "trace=trace.csv",
        "+policy.mine={_target_: my_policy.Mine}", *words,
    ]  # fmt: skip
    (ready,) = study_types.prepare_points(compose_config(*words), make)
    return manifests.cache_key_of(ready)


def append(name, text="\n# edited\n"):
    with Path(name).open("a") as file:
        file.write(text)


@pytest.mark.slow
def test_code_edits_change_only_the_affected_cache_keys(own):
    first = content()
    assert content() == first
    for name in ("my_source.py", "helper_of_source.py"):
        append(name)
        edited = content()
        assert edited.point != first.point and edited.policies == first.policies, name
        first = edited
    for name in ("my_policy.py", "helper_of_policy.py", "deep.py"):
        append(name)
        edited = content()
        assert edited.point == first.point, name
        assert edited.policies["random"] == first.policies["random"]
        assert edited.policies["mine"] != first.policies["mine"]
        first = edited
    append("trace.csv", "12\n")
    assert content().point != first.point, "a trace with another content under the same path"
    Path("unrelated.py").write_text("x = 1\n")
    assert content() == content("title=T", "table_rounds=[3]", "chunk=2", "results_dir=r", "c1=9")


@pytest.mark.slow
def test_package_edits_change_cache_keys_only_in_computing_folders(monkeypatch, tmp_path):
    """The package is copied, and its copy edited."""
    package = Path(code.__file__).parents[1]
    copy = tmp_path / "cqbjax"
    shutil.copytree(package, copy, ignore=shutil.ignore_patterns("__pycache__"))
    find = code._file_of
    monkeypatch.setattr(
        code, "_file_of", lambda name: copy / "__init__.py" if name == "cqbjax" else find(name)
    )
    words = ["num_seeds=2", "horizon=12", "policy=[random,acqb]"]
    (ready,) = study_types.prepare_points(compose_config(*words), make)

    def content_now():
        ready.point.keys.clear()
        code._digest_folder.cache_clear()
        return manifests.cache_key_of(ready)

    before = content_now()
    separate = (
        "arena/report.py", "figures/curves.py", "results/tables.py", "logs/conversations.py",
        "offline/policies.py", "datasets/readers/sprout.py", "experiments/display.py",
        "results/files.py",
    )  # fmt: skip
    for name in separate:
        assert (copy / name).exists(), name
        append(copy / name)
    assert content_now() == before
    append(copy / "policies" / "acqb.py")
    ready.point.keys.clear()
    assert manifests.cache_key_of(ready) == before, "what is edited while it runs did not run"
    after = content_now()
    assert after.policies["random"] != before.policies["random"] and after.point != before.point
    for name in ("core/simulate.py", "dynamics/users.py", "estimation/gaussian.py"):
        append(copy / name)
        before, after = after, content_now()
        assert after.point != before.point, name


@pytest.mark.slow
def test_undeclared_keys_change_the_cache_key():
    words = ["num_seeds=2", "horizon=12", "policy=[random]"]
    config = compose_config(*words)
    declared = {*manifests.DISPLAY_KEYS, *manifests.INDIRECT_KEYS}
    assert declared - {"cluster"} <= set(config), "a key that is gone"
    one = configs.to_plain(config)
    assert {"K", "horizon", "arrival_rate", "source", "trace", "capacity"} <= set(one) - declared
    keys = set()
    for more in ((), ("+mine=1",), ("+mine=2",), ("burst=0.7",), ("horizon=13",)):
        (ready,) = study_types.prepare_points(compose_config(*words, *more), make)
        keys.add(manifests.cache_key_of(ready).point)
    assert len(keys) == 5
    runs = ("first_seed=5", "num_seeds=3", "arrival_rate=[0.1,0.2]")
    (ready,) = study_types.prepare_points(compose_config(*words, *runs), make)
    assert manifests.cache_key_of(ready).point in keys, "seeds and rates can be added"


def test_policy_constants_change_only_cache_keys_of_policies_that_read_them():
    files = [path.read_text() for path in CONF.glob("policy/**/*.yaml")]
    read = {key for text in files for key in re.findall(r"\$\{(\w+)", text)}
    assert {"linucb_alpha", "lints_alpha", "tries", "ucb_width", "restart", "c1"} <= read
    assert read - {"tau", "horizon"} <= {*manifests.INDIRECT_KEYS}  # a resolver, and a run's key

    def keys(*more):
        words = "policy=[random,linucb,lints,best_llm,ucb,acqb_restarted]"
        (ready,) = study_types.prepare_points(compose_config(words, *more), make)
        return manifests.cache_key_of(ready)

    plain = keys()
    for key, label in (("linucb_alpha", "linucb"), ("lints_alpha", "lints"), ("tries", "best_llm"),
                       ("ucb_width", "ucb"), ("restart.threshold", "acqb_restarted")):  # fmt: skip
        other = keys(f"{key}=7.5")
        assert other.point == plain.point, key
        assert {one for one in plain.policies if other.policies[one] != plain.policies[one]} == {
            label
        }


class UserDefined:
    """A class whose code a result depends on."""


def test_source_data_and_file_contents_change_the_cache_key(tmp_path):
    """The same words are another content where either is another."""
    trace = tmp_path / "trace.csv"
    trace.write_text("timestamp\n1\n2\n5\n9\n")
    words = ("num_seeds=2", "horizon=12", "policy=[random]", "arrivals=trace", f"trace={trace}")
    (ready,) = study_types.prepare_points(compose_config(*words), make)

    def content(**other):
        fresh = dataclasses.replace(ready.point, keys={})
        return manifests.cache_key_of(ready._replace(point=fresh, **other)).point

    before = content()
    assert content() == before and content(attributes={"stand_in": "a word"}) == before
    assert content(source=dataclasses.replace(ready.source, slackness=0.04)) != before
    for code_of in ("users", "service", "recorders"):
        assert content(**{code_of: (UserDefined(),)}) != before, code_of
    trace.write_text("timestamp\n1\n2\n5\n8\n")
    assert content() != before
    # Latencies are joined by names.
    data = dataset_source("paretobandit", tmp_path, pool_size=5)
    names = {"servers": ("a", "b", "c"), "prompt_ids": data.table.prompt_ids[::-1]}
    others = [dataclasses.replace(data.table, **{key: value}) for key, value in names.items()]
    sources = [data, *(dataclasses.replace(data, table=table) for table in others)]
    assert len({content(source=source) for source in sources}) == 3


READER = """import jax.numpy as jnp
import numpy as np
from cqbjax.core import queueing, rng
from cqbjax.core.pytree import pytree, static
from cqbjax.core.types import Action, Needs

@pytree
class Reader:
    weights: str = static(default="w.npy")
    needs = Needs(contexts=False)

    def init(self, problem, contexts):
        return jnp.asarray(int(np.load(self.weights)), jnp.int32)

    def select(self, key, state, observation):
        slot = queueing.pick("oldest", observation.queue, rng.uniform(key, rng.Stream.QUERY))
        return Action(slot, state[None], jnp.bool_(False))

    def update(self, state, observation, action, feedback):
        return state
"""


@pytest.mark.slow
def test_policies_that_read_a_file_run_again_when_it_changes(tmp_path):
    """Its path stands in no configuration; programs on disk are those of the first study."""
    (tmp_path / "reader.py").write_text(READER)
    for server, name in ((0, "one"), (3, "one"), (3, "two")):
        np.save(tmp_path / "w.npy", server)
        done = script(
            "policy=[random]", "+policy.mine={_target_: reader.Reader}", "num_seeds=2",
            "horizon=60", "record=[traffic]", f"name={name}", "table_rounds=[60]", cwd=tmp_path,
        )  # fmt: skip
        assert not done.returncode, done.stderr
        traffic = results.load(tmp_path / "results" / "data" / name).traffic
        served = traffic.sel(policy="mine").isel(round=-1).mean(["seed", "arrival_rate"])
        assert int(served.argmax("llm")) == server, name


def test_a_checkout_that_is_not_installed_has_no_version():
    assert manifests._find_version("jax")[0].isdigit()
    assert manifests._find_version("no-such-package") == "not installed"
