"""Who may import whom: each layer sees only those before it."""

import ast
import collections
import functools
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
LAYERS = (
    "core",
    "estimation",
    "dynamics policies sources",
    "engine env gymnasium_env",
    "testing",
    "datasets results",
    "logs",
    "figures offline",
    "experiments",
    "arena log_analysis",
    "cli __main__",
    "notebook",
)
RANK = {package: rank for rank, layer in enumerate(LAYERS) for package in layer.split()}
# A template is code of a user, who imports from the public packages.
MODULES = sorted(path for path in (ROOT / "cqbjax").rglob("*.py") if path.stem != "_template")


@functools.cache
def imports_of(text: str, path: Path, everywhere: bool) -> frozenset[str]:
    tree = ast.parse(text)
    imported = set()
    for node in ast.walk(tree) if everywhere else tree.body:
        if isinstance(node, ast.Import):
            imported |= {name.name for name in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: write imports in full"
            imported |= {f"{node.module}.{name.name}" for name in node.names}
    return frozenset(imported)


def imports(path: Path, everywhere: bool = True) -> set[str]:
    """Return the modules that a file imports: everywhere in it, or at its top level alone."""
    return set(imports_of(path.read_text(), path, everywhere))


def packages(names: set[str]) -> set[str]:
    """Return the packages of cqbjax among imported names."""
    return {name.split(".")[1] for name in names if name.startswith("cqbjax.")}


def package(path: Path) -> str:
    """Return the package that a file belongs to."""
    return path.relative_to(ROOT / "cqbjax").parts[0].removesuffix(".py")


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(ROOT / "cqbjax")))
def test_modules_import_only_lower_layers(path):
    if path == ROOT / "cqbjax" / "__init__.py":
        return
    assert package(path) in RANK, f"give {package(path)} a layer in {Path(__file__).name}"
    allowed = {name for name, rank in RANK.items() if rank <= RANK[package(path)]}
    assert packages(imports(path)) <= allowed
    forbidden = ["scripts", "tests", "benchmarks", "reproduction"]
    forbidden += ["hydra"] * (package(path) != "cli")
    assert not any(name.split(".")[0] in forbidden for name in imports(path))


def test_configurations_target_only_the_package():
    targets = {
        target
        for path in (ROOT / "conf").rglob("*.yaml")
        for target in re.findall(r"^[^#\n]*_target_: *([\w.]+)", path.read_text(), re.MULTILINE)
    }
    assert {target.split(".")[0] for target in targets} == {"cqbjax", "hydra_plugins"}


RUNS = ["core/simulate.py", "core/attempts.py", "testing/policies.py"]
RUNS += [f"engine/{path.name}" for path in sorted((ROOT / "cqbjax" / "engine").glob("*.py"))]


@pytest.mark.parametrize("name", RUNS)
def test_simulator_imports_no_concrete_policies_or_sources(name):
    concrete = ("cqbjax.policies.", "cqbjax.sources.")
    known = {one for one in imports(ROOT / "cqbjax" / name) if one.startswith(concrete)}
    # The optimal policy is in every sweep, which is why it runs even unasked.
    optimal = {"cqbjax.policies.baselines.OptimalPolicy"}
    assert known == (optimal if name == "engine/validation.py" else set())


def test_engine_imports_no_display_library():
    """A sweep without a progress bar does not import rich."""
    paths = [*(ROOT / "cqbjax" / "core").glob("*.py"), *(ROOT / "cqbjax/engine").glob("*.py")]

    def users(everywhere: bool) -> set[str]:
        return {
            path.name
            for path in paths
            if "rich" in {name.split(".")[0] for name in imports(path, everywhere)}
        }

    assert users(True) == {"progress.py"} and users(False) == set()


def test_policies_and_sources_do_not_import_the_simulator():
    for folder in ("policies", "sources", "estimation"):
        for path in (ROOT / "cqbjax" / folder).glob("*.py"):
            leaned_on = {"cqbjax.core.simulate", "cqbjax.engine"}
            assert not {name for name in imports(path) if name.startswith(tuple(leaned_on))}


REFERENCE = [
    "__init__", "choice", "dynamics", "estimator", "policies", "queues", "records", "retries",
    "rounds", "switching",
]  # fmt: skip


@pytest.mark.parametrize("name", REFERENCE)
def test_the_reference_shares_no_code_with_the_simulator(name):
    names = imports(ROOT / "tests" / "reference" / f"{name}.py")
    own = {one.split(".")[2] for one in names if one.startswith("tests.reference.")}
    assert own <= set(REFERENCE)
    assert not any(one.split(".")[0] in ("cqbjax", "jax") for one in names)


def test_imports_inside_functions_are_found(tmp_path):
    path = tmp_path / "planted.py"
    path.write_text("def f():\n    from cqbjax import sweep\n    import hydra.utils\n")
    assert packages(imports(path)) == {"sweep"} and "hydra.utils" in imports(path)
    assert imports(path, everywhere=False) == set()


def modules() -> dict[str, Path]:
    """Return the files of all modules by name; a package's is its `__init__.py`."""
    paths = [*MODULES, *sorted((ROOT / "reproduction").rglob("*.py"))]
    names = {path: ".".join(path.relative_to(ROOT).with_suffix("").parts) for path in paths}
    return {name.removesuffix(".__init__"): path for path, name in names.items()}


def graph(files: dict[str, Path]) -> dict[str, set[str]]:
    """Return which modules each one imports, deferred imports included, itself left out."""

    def module(name: str) -> str:
        # `from package import name` means a module where there is one of that name.
        return name if name in files else name.rpartition(".")[0]

    return {
        name: {module(other) for other in imports(path)} & (files.keys() - {name})
        for name, path in files.items()
    }


def circle(edges: dict[str, set[str]]) -> set[str]:
    """Return the modules left when those at an end, importing or imported by none, are gone."""
    left = set(edges)
    while True:
        importing = {name for name in left if edges[name] & left}
        imported = set().union(*(edges[name] for name in left)) & left
        if importing & imported == left:
            return left
        left = importing & imported


def test_modules_have_no_import_cycles(tmp_path):
    assert not circle(graph(modules()))
    files = {name: tmp_path / f"{name}.py" for name in ("top", "top.a", "top.b", "top.c")}
    files["top"].write_text("from top.c import h\n")
    files["top.a"].write_text("def f():\n    from top import b\n")
    files["top.b"].write_text("from top.a import f\n")
    files["top.c"].write_text("import top.a\n")
    assert circle(graph(files)) == {"top.a", "top.b"}
    files["top.a"].write_text("import os\n")
    assert not circle(graph(files))


# Of a package with many modules: each imports only from the steps before its own.
ORDER = {
    "datasets": "table utility, readers, times embeddings catalogue, cache, source fetch, prepare",
    "log_analysis": "rows forms, requests, retries, summary departures, scenario, compare fit",
    "logs": "shards, conversations, linking, prepare, replay schedules",
    "offline": "contrastive, routers, fits, projection, priors, policies, value",
}


@pytest.mark.parametrize("package", ORDER)
def test_modules_of_a_package_follow_the_declared_order(package):
    steps = [step.split() for step in ORDER[package].split(", ")]
    rank = {name: place for place, step in enumerate(steps) for name in step}
    for name, others in graph(modules()).items():
        if not name.startswith(f"cqbjax.{package}."):
            continue
        here = name.split(".")[2]
        assert here in rank, f"give {name} a place in {Path(__file__).name}"
        allowed = {one for one in rank if rank[one] < rank[here]} | {here}
        seen = {other.split(".")[2] for other in others if other.startswith(f"cqbjax.{package}.")}
        assert seen <= allowed, f"{name} imports {seen - allowed}"


def test_class_names_are_unique():
    trees = [ast.parse(path.read_text()) for path in MODULES]
    named = collections.Counter(
        n.name for tree in trees for n in ast.walk(tree) if isinstance(n, ast.ClassDef)
    )
    assert not [name for name, count in named.items() if count > 1]
