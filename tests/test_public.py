"""The public surface: every public name is listed and documented; the docs import nothing else."""

import ast
import importlib
import inspect
import re
import subprocess
import sys

import pytest
from pages import PAGES, REPOSITORY, blocks

PUBLIC = (
    "cqbjax", "cqbjax.datasets", "cqbjax.dynamics", "cqbjax.env", "cqbjax.experiments",
    "cqbjax.experiments.clusters", "cqbjax.figures", "cqbjax.gymnasium_env", "cqbjax.offline",
    "cqbjax.offline.routers", "cqbjax.policies", "cqbjax.results", "cqbjax.sources",
    "cqbjax.testing",
)  # fmt: skip
EXAMPLES = sorted((REPOSITORY / "docs" / "examples").glob("*.py"))
TEMPLATES = sorted((REPOSITORY / "cqbjax").rglob("_template.py"))


def private_imports(text):
    """Return the names that code imports from cqbjax and that are not public."""
    private = []
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            names = [one.name for one in node.names if one.name.split(".")[0] == "cqbjax"]
            private += [name for name in names if name not in PUBLIC]
        elif isinstance(node, ast.ImportFrom) and str(node.module).split(".")[0] == "cqbjax":
            listed = importlib.import_module(node.module).__all__ if node.module in PUBLIC else ()
            private += [f"{node.module}.{x.name}" for x in node.names if x.name not in listed]
    return private


@pytest.mark.parametrize("path", [*PAGES, *EXAMPLES, *TEMPLATES], ids=lambda path: path.name)
def test_documentation_code_imports_only_public_names(path):
    read = path.suffix in (".md", ".ipynb")
    texts = [one.text for one in blocks(path)] if read else [path.read_text()]
    languages = [one.language for one in blocks(path)] if read else ["python"]
    for text, language in zip(texts, languages, strict=True):
        assert language != "python" or not private_imports(text)


def documented_names():
    """Return the names that the pages of the reference document."""
    names = set()
    for page in (REPOSITORY / "docs" / "reference").glob("*.md"):
        directives = r"^\.\. (?:auto|py:)(\w+):: ([\w.]+)\n((?:   :.*\n)*)"
        for kind, name, options in re.findall(directives, page.read_text(), re.MULTILINE):
            names.add(name)
            if kind != "module" or ":no-members:" in options:
                continue
            module = importlib.import_module(name)
            hidden = " ".join(re.findall(":exclude-members:(.*)", options)).replace(",", " ")
            for member, value in vars(module).items():
                if not (inspect.isclass(value) or inspect.isfunction(value)):
                    continue
                imported = ":imported-members:" in options and member in module.__all__
                shown = imported or (value.__module__ == name and not member.startswith("_"))
                if shown and member not in hidden.split() and inspect.getdoc(value):
                    names.add(f"{value.__module__}.{value.__qualname__}")
    return names


def test_every_public_name_is_listed_and_documented():
    there, missing = documented_names() | {*PUBLIC}, []
    for name in PUBLIC:
        module = importlib.import_module(name)
        assert {*module.__all__} <= {*dir(module)} and len({*module.__all__}) == len(module.__all__)
        for public in module.__all__:
            value, home = getattr(module, public), f"{name}.{public}"
            if inspect.ismodule(value):
                home = value.__name__
            elif inspect.isclass(value) or inspect.isfunction(value):
                home = f"{value.__module__}.{value.__qualname__}"
                assert inspect.isclass(value) or inspect.signature(value)
            missing += [f"{name}.{public}"] * (home not in there)
    assert not missing


def test_private_imports_are_detected():
    assert private_imports("from cqbjax import sweep\nimport cqbjax\n") == []
    text = "from cqbjax.core.types import Action\nfrom cqbjax import nothing\nimport cqbjax.core\n"
    seen = {"cqbjax.core.types.Action", "cqbjax.nothing", "cqbjax.core"}
    assert set(private_imports(text)) == seen


def test_importing_the_package_does_not_import_jax():
    listed = "import sys, cqbjax; dir(cqbjax); sys.exit('jax' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", listed], check=False).returncode == 0
