"""Who may import whom: each layer sees only those before it."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
LAYERS = (
    "types rng pytree linalg files",
    "mnl queueing",
    "beliefs metrics",
    "sources policies",
    "simulate",
    "sweeping",
    "testing",
    "datasets",
    "offline report",
    "studies",
    "bench",
    "commands",
)
RANK = {room: rank for rank, layer in enumerate(LAYERS) for room in layer.split()}
MODULES = sorted((ROOT / "cqbjax").rglob("*.py"))


def imports(path: Path, everywhere: bool = True) -> set[str]:
    """Return the modules that a file imports: everywhere in it, or at its top level alone."""
    tree = ast.parse(path.read_text())
    found = set()
    for node in ast.walk(tree) if everywhere else tree.body:
        if isinstance(node, ast.Import):
            found |= {name.name for name in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: write imports in full"
            found |= {f"{node.module}.{name.name}" for name in node.names}
    return found


def rooms(names: set[str]) -> set[str]:
    """Return the rooms of cqbjax among imported names."""
    return {name.split(".")[1] for name in names if name.startswith("cqbjax.")}


def room(path: Path) -> str:
    """Return the room that a file belongs to."""
    return path.relative_to(ROOT / "cqbjax").parts[0].removesuffix(".py")


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(ROOT / "cqbjax")))
def test_a_module_sees_only_the_layers_before_it(path):
    if path == ROOT / "cqbjax" / "__init__.py":
        return
    assert room(path) in RANK, f"give {room(path)} a layer in {Path(__file__).name}"
    allowed = {name for name, rank in RANK.items() if rank <= RANK[room(path)]}
    # The optimal policy is the yardstick of every sweep, which is why it runs even unasked.
    deferred = {"policies"} if path.name == "sweep.py" else set()
    assert rooms(imports(path)) <= allowed | deferred
    foreign = ("scripts", "tests") if room(path) == "commands" else ("scripts", "tests", "hydra")
    assert not any(name.split(".")[0] in foreign for name in imports(path))


RUNS = ["simulate.py", "metrics.py", "testing/contract.py"]
RUNS += [f"sweeping/{path.name}" for path in sorted((ROOT / "cqbjax" / "sweeping").glob("*.py"))]


@pytest.mark.parametrize("name", RUNS)
def test_the_simulator_knows_protocols_alone(name):
    concrete = {"policies", "sources"}
    assert not rooms(imports(ROOT / "cqbjax" / name, everywhere=False)) & concrete


def test_a_policy_or_source_does_not_lean_on_the_simulator():
    for folder in ("policies", "sources", "beliefs"):
        for path in (ROOT / "cqbjax" / folder).glob("*.py"):
            assert not rooms(imports(path)) & {"simulate", "sweeping", "metrics"}


def test_an_import_against_the_layers_would_be_seen(tmp_path):
    path = tmp_path / "planted.py"
    path.write_text("def f():\n    from cqbjax import sweep\n    import hydra.utils\n")
    assert rooms(imports(path)) == {"sweep"} and "hydra.utils" in imports(path)
    assert imports(path, everywhere=False) == set()
