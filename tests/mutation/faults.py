"""Which faults there are, and a seeded sample of them."""

import ast
import collections
import hashlib
import itertools
import pathlib
from collections.abc import Iterable

from cosmic_ray import plugins
from cosmic_ray.ast import ast_nodes, get_ast
from cosmic_ray.mutating import mutate_code

REPOSITORY = pathlib.Path(__file__).resolve().parents[2]
# What replaces what: numbers divided by bits and the like would be seen by any test that runs.
INTERCHANGEABLE = ("Add Sub Mul Div FloorDiv Mod Pow", "BitAnd BitOr BitXor", "LShift RShift")


def modules(names: Iterable[str]) -> list[pathlib.Path]:
    """Return every module of some packages."""
    packages = (REPOSITORY / "cqbjax" / package for package in names)
    return [
        path.relative_to(REPOSITORY)
        for package in packages
        for path in sorted(package.rglob("*.py"))
    ]


def of(path: pathlib.Path) -> list[list[dict]]:
    """Return the faults of a module, those at one place together."""
    text = (REPOSITORY / path).read_text()
    tree, silent, places = get_ast(text), annotated(text), collections.defaultdict(list)
    lines = text.splitlines()
    for operator_name in plugins.operator_names():
        operator_class = plugins.get_operator(operator_name)
        if operator_class.arguments() or not sensible(operator_name):
            continue
        operator = operator_class()
        found = (at for node in ast_nodes(tree) for at in operator.mutation_positions(node))
        for occurrence, (start, end) in enumerate(found):
            if not any(first <= start <= last for first, last in silent):
                one = {"file": str(path), "line": start[0], "operator": operator_name}
                one["address"] = address(lines, *start)
                places[start, end].append(one | {"occurrence": occurrence})
    return list(places.values())


def sensible(operator_name: str) -> bool:
    """Say whether an operator's faults could be a slip of the pen."""
    kind, _, words = operator_name.removeprefix("core/").partition("_")
    one, _, other = words.partition("_")
    if kind == "ReplaceBinaryOperator":
        return any({one, other} <= set(equal.split()) for equal in INTERCHANGEABLE)
    if kind == "ReplaceUnaryOperator":
        return one == "Delete"
    return kind != "NoOp"


def annotated(text: str) -> list[tuple[tuple[int, int], tuple[int, int]]]:
    """Return where types stand, whose faults say nothing: the module would not be imported."""
    nodes = list(ast.walk(ast.parse(text)))
    types = [getattr(node, field, None) for node in nodes for field in ("annotation", "returns")]
    return [
        ((one.lineno, one.col_offset), (one.end_lineno, one.end_col_offset))
        for one in types
        if one is not None
    ]


def address(lines: list[str], line: int, column: int) -> str:
    """Return what a place is known by, whatever is written elsewhere in its module."""
    own = lines[line - 1].strip()
    equal = sum(one.strip() == own for one in lines[: line - 1])
    return f"{own}, {equal}, {column - lines[line - 1].index(own)}"


def draw(places: list[list[dict]], number: int, seed: int) -> list[dict]:
    """Draw places, and one fault at each: an operator with ten replacements counts once.

    By their addresses, so that a changed line changes no other's chance.
    """

    def chance(place: list[dict]) -> int:
        seed_text = f"{seed}: {place[0]['file']}: {place[0]['address']}"
        return int(hashlib.sha256(seed_text.encode()).hexdigest(), 16)

    drawn: dict[str, dict] = {}
    for place in sorted(places, key=chance):
        if len(drawn) == number:
            break
        fault = shown(place[chance(place) % len(place)])
        if fault is not None:
            drawn.setdefault(name(fault), fault)
    return list(drawn.values())


def shown(fault: dict) -> dict | None:
    """Return a fault with the lines that it changes; None if it changes no code, or makes none."""
    before = (REPOSITORY / fault["file"]).read_text()
    after = planted(fault, before)
    try:
        if ast.dump(ast.parse(before)) == ast.dump(ast.parse(after)):
            return None
    except SyntaxError:
        return None
    pairs = itertools.zip_longest(before.splitlines(), after.splitlines(), fillvalue="")
    changed = [(one.strip(), other.strip()) for one, other in pairs if one != other]
    if len(changed) > 4:  # a line less moves those below it
        return fault | {"before": f"line {fault['line']}", "after": "removed"}
    old, new = (" ".join(lines) for lines in zip(*changed, strict=True))
    return fault | {"before": old, "after": new}


def planted(fault: dict, text: str) -> str:
    """Return a module's text with the fault in it."""
    operator = plugins.get_operator(fault["operator"])()
    return mutate_code(text, operator, fault["occurrence"])


def name(fault: dict) -> str:
    """Return what a fault is known by: as long as its lines are the same, it is the same."""
    return f"{fault['file']}: {fault['before']} -> {fault['after']}"
