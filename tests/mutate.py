"""Do the tests see a fault? `python tests/mutate.py` plants some hundreds, one at a time.

cosmic-ray (the extra `mutation`) knows which faults there are; a seeded sample of them is planted
in copies of the checkout, where the tests of CHOSEN run until one fails: the quick tier, then, for
what survives it, the slow one. Every outcome is kept at once, so the same command goes on where it
was interrupted; `--again` tries survivors anew. Whoever has read a survivor and found that it
computes the same writes why under its `equivalent` in the file of outcomes. At the end every test
that saw a fault must pass without one. The page's tables are drawn after each fault.
"""

import argparse
import ast
import collections
import concurrent.futures
import itertools
import json
import os
import pathlib
import queue
import random
import shutil
import subprocess
import sys
import tempfile
from typing import Any

from cosmic_ray import plugins
from cosmic_ray.ast import ast_nodes, get_ast
from cosmic_ray.mutating import mutate_code

REPOSITORY = pathlib.Path(__file__).resolve().parent.parent
KEPT = REPOSITORY / "docs" / "notebook" / "mutation.json"
PAGE = KEPT.with_suffix(".md")
# The rooms that faults are planted in, and the folders whose tests shall see them.
CHOSEN = {
    "core": "core testing sweeping beliefs policies sources",
    "beliefs": "beliefs testing core policies",
    "policies": "policies testing core offline",
    "sources": "sources core testing sweeping",
    "sweeping": "sweeping core studies",
    "store": "store results studies",
    "worlds": "worlds testing core",
}
TIERS = {"quick": "not slow", "slow": "slow"}
PASSED, FAILED, NOTHING_RAN = 0, 1, 5
# What replaces what: numbers divided by bits and the like would be seen by any test that runs.
ALIKE = ("Add Sub Mul Div FloorDiv Mod Pow", "BitAnd BitOr BitXor", "LShift RShift")


def main() -> None:
    """Draw the sample, try what was not tried, and draw the page's table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--number", type=int, default=200, help="faults in the sample")
    parser.add_argument("--seed", type=int, default=0, help="of the sample")
    parser.add_argument("--files", nargs="*", help="only these, instead of the rooms'")
    parser.add_argument("--workers", type=int, default=os.cpu_count())
    parser.add_argument("--timeout", type=float, default=1800, help="seconds: then it is killed")
    parser.add_argument("--tiers", nargs="*", default=list(TIERS), choices=TIERS)
    parser.add_argument("--again", action="store_true", help="try survivors once more")
    given = parser.parse_args()
    files = [pathlib.Path(file) for file in given.files or modules()]
    sample = draw([fault for file in files for fault in faults(file)], given.number, given.seed)
    kept = json.loads(KEPT.read_text()) if KEPT.exists() else {}
    left = [fault for fault in sample if wanted(kept.get(name(fault)), given)]
    print(f"{len(sample)} faults, {len(left)} to try", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        copies = prepare(pathlib.Path(folder), min(given.workers, len(left)))
        with concurrent.futures.ThreadPoolExecutor(max(given.workers, 1)) as pool:
            tried = {pool.submit(attempt, one, copies, given): one for one in left}
            try:
                for number, done in enumerate(concurrent.futures.as_completed(tried), 1):
                    fault = tried[done]
                    kept[name(fault)] = kept.get(name(fault), {}) | fault | done.result()
                    save(kept)
                    draw_page(sample, kept)
                    print(f"{number} of {len(left)}: {name(fault)}  {done.result()}", flush=True)
            except KeyboardInterrupt:
                pool.shutdown(cancel_futures=True)
                raise SystemExit("stopped: the same command goes on") from None
        if left:
            check_sound([kept[name(fault)] for fault in left], copies.get())
    draw_page(sample, kept)


def modules() -> list[pathlib.Path]:
    """Return every module of the rooms that faults are planted in."""
    rooms = (REPOSITORY / "cqbjax" / room for room in CHOSEN)
    return [path.relative_to(REPOSITORY) for room in rooms for path in sorted(room.rglob("*.py"))]


def faults(path: pathlib.Path) -> list[list[dict]]:
    """Return the faults of a module, those at one place together."""
    text = (REPOSITORY / path).read_text()
    tree, silent, places = get_ast(text), annotated(text), collections.defaultdict(list)
    for operator_name in plugins.operator_names():
        operator_class = plugins.get_operator(operator_name)
        if operator_class.arguments() or not sensible(operator_name):
            continue
        operator = operator_class()
        found = (at for node in ast_nodes(tree) for at in operator.mutation_positions(node))
        for occurrence, (start, end) in enumerate(found):
            if not any(first <= start <= last for first, last in silent):
                one = {"file": str(path), "line": start[0], "operator": operator_name}
                places[start, end].append(one | {"occurrence": occurrence})
    return list(places.values())


def sensible(operator_name: str) -> bool:
    """Say whether an operator's faults could be a slip of the pen."""
    kind, _, words = operator_name.removeprefix("core/").partition("_")
    one, _, other = words.partition("_")
    if kind == "ReplaceBinaryOperator":
        return any({one, other} <= set(alike.split()) for alike in ALIKE)
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


def draw(places: list[list[dict]], number: int, seed: int) -> list[dict]:
    """Draw places, and one fault at each: an operator with ten replacements counts once."""
    chance, drawn = random.Random(seed), {}
    for place in chance.sample(places, len(places)):
        if len(drawn) < number and (fault := shown(place, chance)):
            drawn.setdefault(name(fault), fault)
    return list(drawn.values())


def shown(place: list[dict], chance: random.Random) -> dict | None:
    """Return one fault of a place with the lines that it changes; None if it changes no code."""
    fault = chance.choice(place)
    before = (REPOSITORY / fault["file"]).read_text()
    after = planted(fault, before)
    if ast.dump(ast.parse(before)) == ast.dump(ast.parse(after)):
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


def wanted(outcome: dict | None, given: argparse.Namespace) -> bool:
    """Say whether a fault is still to be tried."""
    if outcome is None:
        return True
    untried = any(outcome.get(tier) is None for tier in given.tiers)
    survives = outcome.get(given.tiers[-1]) == "survived" and "equivalent" not in outcome
    return survives if given.again else untried and not killed(outcome)


def prepare(folder: pathlib.Path, number: int) -> queue.Queue:
    """Copy the checkout, once a worker; what tests write into a copy is gone at the end."""
    asked = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(asked, cwd=REPOSITORY, capture_output=True, check=True, text=True)
    copies: queue.Queue = queue.Queue()
    for each in range(number):
        for file in filter(None, listed.stdout.split("\0")):
            to = folder / str(each) / file
            to.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(REPOSITORY / file, to)
        copies.put(folder / str(each))
    return copies


def attempt(fault: dict, copies: queue.Queue, given: argparse.Namespace) -> dict:
    """Plant a fault in a copy, run the tiers until a test fails, and take it out again."""
    copy = copies.get()
    path, outcome = copy / fault["file"], {}
    text = path.read_text()
    path.write_text(planted(fault, text))
    try:
        for tier in given.tiers:
            outcome[tier] = run(fault, copy, tier, given.timeout)
            if outcome[tier] != "survived":
                break
    finally:
        path.write_text(text)
        copies.put(copy)
    return outcome


def run(fault: dict, copy: pathlib.Path, tier: str, timeout: float) -> str:
    """Run one tier's chosen tests in a copy: `survived`, or what killed the fault."""
    try:
        done = test(copy, ["-x", "-m", TIERS[tier], *chosen(fault, copy)], timeout)
    except subprocess.TimeoutExpired:
        return "timeout"
    if done.returncode == PASSED:
        return "survived"
    if done.returncode == NOTHING_RAN:
        raise RuntimeError(f"no test of the {tier} tier is chosen for {fault['file']}")
    found = [line for line in done.stdout.splitlines() if line.startswith(("FAILED", "ERROR"))]
    if done.returncode == FAILED and found:
        return found[0].split(" ", 1)[1].partition(" - ")[0]
    return "not imported"


def test(copy: pathlib.Path, words: list[str], timeout: float | None) -> Any:
    """Run pytest in a copy, in one process."""
    # Programs with a fault are of no use to anybody else.
    known = {"PYTHONPATH": str(copy), "JAX_COMPILATION_CACHE_DIR": str(copy.parent / "programs")}
    known["PYTHONDONTWRITEBYTECODE"] = "1"  # a file may change twice within its time's precision
    known["CQBJAX_DATA"] = os.environ.get("CQBJAX_DATA", str(REPOSITORY.parent / "shared" / "data"))
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-n", "0", "-p", "no:cacheprovider", *words],
        cwd=copy, env=os.environ | known, capture_output=True, text=True, timeout=timeout,
    )  # fmt: skip


def check_sound(outcomes: list[dict], copy: pathlib.Path) -> None:
    """Refuse outcomes of tests that fail without a fault too."""
    seen = {one.get(tier, "survived") for one in outcomes for tier in TIERS}
    tests = sorted(one for one in seen if "::" in one)
    done = test(copy, tests, None) if tests else None
    if done and done.returncode != PASSED:
        raise SystemExit(f"error: these fail without a fault, so they saw none:\n{done.stdout}")


def chosen(fault: dict, copy: pathlib.Path) -> list[str]:
    """Return the files of tests for a fault: its module's own, the whole runs, then the others."""
    path = pathlib.Path(fault["file"])
    folders = [copy / "tests" / folder for folder in CHOSEN[path.parts[1]].split()]
    files = [file for folder in folders for file in sorted(folder.rglob("test_*.py"))]
    files.sort(key=lambda file: (path.stem not in file.stem, "against_reference" not in file.stem))
    return [str(file) for file in files]


def killed(outcome: dict, tiers: tuple[str, ...] = tuple(TIERS)) -> bool:
    """Say whether one of the tiers killed a fault."""
    return any(outcome.get(tier, "survived") != "survived" for tier in tiers)


def save(kept: dict) -> None:
    """Keep all outcomes, or those of before if this process ends meanwhile."""
    partial = KEPT.with_suffix(".partial")
    partial.write_text(json.dumps(kept, indent=1, sort_keys=True) + "\n")
    partial.replace(KEPT)


def draw_page(sample: list[dict], kept: dict) -> None:
    """Draw the tables of what was tried of the sample, between the page's marks."""
    outcomes = [kept[name(fault)] for fault in sample if name(fault) in kept]
    rows = [
        "| room | faults | equivalent | killed by the quick tier | by both |",
        "|---|--:|--:|--:|--:|",
    ]
    by_room = itertools.groupby(sorted(outcomes, key=room_of), room_of)
    for room, some in [*((room, list(some)) for room, some in by_room), ("all", outcomes)]:
        real = [one for one in some if "equivalent" not in one]
        quick, both = (sum(killed(one, of) for one in real) for of in (("quick",), tuple(TIERS)))
        shares = (f"{n} ({n / max(len(real), 1):.0%})" for n in (quick, both))
        rows.append(f"| {room} | {len(some)} | {len(some) - len(real)} | {' | '.join(shares)} |")
    survivors = [one for one in outcomes if not killed(one)]
    if survivors:
        rows += ["", "| survivor | line | fault | verdict |", "|---|--:|---|---|"]
    for one in survivors:
        fault = f"`{one['before']}` → `{one['after']}`".replace("|", r"\|")
        tried = [tier for tier in TIERS if tier in one]
        verdict = one.get("equivalent", f"not seen by the {' and the '.join(tried)} tier")
        rows.append(f"| {one['file']} | {one['line']} | {fault} | {verdict} |")
    head, rest = PAGE.read_text().split("<!-- tables -->\n")
    after = rest.partition("<!-- end -->")[2]
    PAGE.write_text("\n".join([f"{head}<!-- tables -->", "", *rows, "", f"<!-- end -->{after}"]))


def room_of(outcome: dict) -> str:
    """Return the room that a fault was planted in."""
    return pathlib.Path(outcome["file"]).parts[1]


if __name__ == "__main__":
    main()
