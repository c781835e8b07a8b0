"""The code that a number follows from: what is imported counts, in any depth, and nothing else."""

import importlib
import linecache
import sys

import numpy as np
import pytest

from cqbjax import policies, sources
from cqbjax.core import code

ENGINE = "cqbjax.engine"
HEAD = "import dataclasses\nimport numpy as np\n"
CLASS = "@dataclasses.dataclass(frozen=True)\nclass Mine:\n    scale: float = 1.0\n"


@pytest.fixture
def write_module(tmp_path, monkeypatch):
    """Return a function that writes a user's module; those imported are forgotten after it."""
    monkeypatch.syspath_prepend(str(tmp_path))
    before = set(sys.modules)

    def write(name, text):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        importlib.invalidate_caches()

    yield write
    for name in set(sys.modules) - before:
        del sys.modules[name]


def reach(*parts):
    """Return the folders of the package and the modules of others that count."""
    roots = []
    code._collect(parts, roots, [], set(), own=True)
    return sorted(code._reached(root.__module__ for root in roots))


def test_code_hash_covers_only_needed_folders_of_the_package():
    synthetic = sources.Synthetic(num_servers=3, dim=2, slackness=0.1)
    assert reach(synthetic, policies.Acqb()) == ["cqbjax.policies", "cqbjax.sources"]


def test_package_imports_of_user_modules_are_hashed(write_module):
    write_module("mine.py", f"{HEAD}import cqbjax\nfrom cqbjax.offline import value\n{CLASS}")
    assert reach(importlib.import_module("mine").Mine) == ["cqbjax.offline", "mine"]


@pytest.mark.parametrize(
    "imported",
    [
        "from helper import rate",
        "import helper",
        "import helper as h",
        "def lazily():\n    from helper import rate",
        "from box import rate",
        "from box.deep import rate",
        "import box.deep",
    ],
)
def test_edits_of_nested_imports_change_the_code_hash(write_module, imported):
    write_module("mine.py", f"{HEAD}{imported}\n{CLASS}")
    write_module("helper.py", "from bottom import rate\n")
    write_module("bottom.py", "rate = 1\n")
    write_module("box/__init__.py", "from .deep import rate\n")
    write_module("box/deep.py", "from bottom import rate\n")
    mine = importlib.import_module("mine").Mine()
    before = code.digest([ENGINE], mine)
    assert code.digest([ENGINE], mine) == before
    write_module("bottom.py", "rate = 22\n")
    after = code.digest([ENGINE], mine)
    write_module("unrelated.py", "rate = 3\n")
    assert after != before and code.digest([ENGINE], mine) == after


def test_relative_imports_and_package_files_are_hashed(write_module):
    write_module("kit/__init__.py", "LEAST = 1\n")
    write_module("kit/inner/__init__.py", "from .rule import Mine\n")
    write_module(
        "kit/inner/rule.py", f"{HEAD}from ..numbers import rate\nfrom . import also\n{CLASS}"
    )
    write_module("kit/inner/also.py", "")
    write_module("kit/numbers.py", "rate = 1\n")
    mine = importlib.import_module("kit.inner").Mine()
    names = ["kit", "kit.inner", "kit.inner.also", "kit.inner.rule", "kit.numbers"]
    assert [name for name in reach(mine) if name.startswith("kit")] == names


def test_only_the_installed_package_of_a_policy_is_hashed(write_module, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(tmp_path / "site-packages"))
    write_module("site-packages/kit/__init__.py", "")
    write_module("site-packages/kit/inner/__init__.py", "")
    write_module(
        "site-packages/kit/inner/rule.py", f"{HEAD}import other\nfrom kit import rate\n{CLASS}"
    )
    write_module("site-packages/kit/rate.py", "")
    write_module("site-packages/other.py", "")
    mine = importlib.import_module("kit.inner.rule").Mine()
    assert reach(mine) == ["kit", "kit.inner", "kit.inner.rule", "kit.rate"]


def test_base_classes_and_field_values_are_hashed(write_module):
    write_module("base.py", f"{HEAD}class Base:\n    rate = 1\n")
    write_module("field.py", f"{HEAD}{CLASS}def rule(): return 1\n")
    derived = CLASS.replace("Mine", "Mine(Base)") + "    held: object = None\n"
    write_module("mine.py", f"{HEAD}from base import Base\n{derived}")
    mine, field = (importlib.import_module(name) for name in ("mine", "field"))
    assert reach(mine.Mine()) == ["base", "mine"]
    for held in (field.Mine(), [field.Mine()], {"a": (field.Mine(),)}, field.rule):
        assert reach(mine.Mine(held=held)) == ["base", "field", "mine"]


def notebook(text, name="<cell 1>"):
    """Run a cell, as a notebook does: its lines are known to the interpreter, no file is."""
    linecache.cache[name] = (len(text), None, text.splitlines(True), name)
    cell = {"__name__": "no_such_module"}
    exec(compile(text, name, "exec"), cell)
    return cell


CELL = """import dataclasses, math
RATE = {rate}
def rule(x):
    return x * {factor} * RATE
@dataclasses.dataclass(frozen=True)
class Mine:
    scale: float = 1.0
    least = {least}
    def act(self):
        return (lambda: rule(self.scale) + {added})()
"""
SAME = {"rate": 1, "factor": 2, "least": 3, "added": 4}


@pytest.mark.parametrize("changed", [None, *SAME])
def test_notebook_classes_are_hashed_by_source_text_and_used_globals(changed):
    first = code.digest([], notebook(CELL.format(**SAME), "<cell 1>")["Mine"]())
    text = CELL.format(**{**SAME, **({changed: 9} if changed else {})})
    second = code.digest([], notebook(text, "<cell 2>")["Mine"]())
    assert (first == second) == (changed is None)


@pytest.mark.parametrize("untold", ["exec", "object"])
def test_unidentifiable_code_has_a_unique_hash(untold):
    cell = notebook(CELL.format(**SAME))
    if untold == "exec":
        del linecache.cache["<cell 1>"]
    else:
        cell["RATE"] = object()
    mine = cell["Mine"]()
    assert code.digest([], mine) != code.digest([], mine)


READS = """import dataclasses
import pathlib
@dataclasses.dataclass(frozen=True)
class Mine:
    weights: str = "weights.npy"
    folder: pathlib.Path = pathlib.Path("tables/here")
    table: object = None
class PlainClass:
    def __init__(self, **options):
        self.options = options
"""


def test_files_read_by_user_objects_are_hashed(write_module, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_module("reads.py", READS)
    module = importlib.import_module("reads")
    alone = code.digest([], module.Mine())
    for name in ("weights.npy", "tables/here/deep.csv"):
        before = code.digest([], module.Mine())
        for content in ("1", "22"):
            write_module(name, content)
            after = code.digest([], module.Mine())
            assert after not in (before, alone), name
            assert after == code.digest([], module.Mine())
            before = after
    write_module("other.npy", "1")
    assert code.digest([], module.Mine()) == before, "a file that no field names"
    # One number in the middle of many, which are not written out by `repr`.
    tables = [np.zeros(5000), np.zeros(5000)]
    tables[1][2500] = 1e-12
    for made in (
        lambda table: module.Mine(table=table),
        lambda table: module.PlainClass(inside=[table]),
        lambda table: policies.ContextWrapper(policy=module.Mine(table=table), view=None),
    ):
        assert len({code.digest([], made(table)) for table in tables}) == 2
    assert code.digest([], module.PlainClass(x="weights.npy")) != code.digest(
        [], module.PlainClass(x="x")
    )


def test_strings_of_package_objects_are_not_file_names(write_module, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    before = code.digest([], policies.Acqb(schedule="oldest"))
    write_module("oldest", "a file of this name")
    assert code.digest([], policies.Acqb(schedule="oldest")) == before
