"""Copies of the checkout in which a fault is planted, and the tests that meet it there."""

import collections
import contextlib
import hashlib
import json
import multiprocessing
import os
import pathlib
import queue
import shutil
import subprocess
import sys
from typing import Any, NamedTuple

import pytest
from mutation.faults import REPOSITORY, planted

# The packages that faults are planted in, and the folders whose tests shall see them.
CHOSEN = {
    "core": "core testing engine estimation policies sources dynamics logs",
    "estimation": "estimation testing core policies",
    "policies": "policies testing core offline",
    "sources": "sources core testing engine",
    "engine": "engine core experiments",
    "results": "results experiments",
    "dynamics": "dynamics testing core",
}
TIERS = {"quick": "not slow", "slow": "slow"}
# Which lines each file of tests executes, for as long as it and the modules stay what they are.
EXECUTED = REPOSITORY / ".pytest_cache" / "d" / "executed.json"
# Imported once, by the process that all tests are forked from.
HEAVY = """pytest hypothesis hypothesis.strategies jax jax.numpy optax numpy scipy.stats
scipy.optimize pandas polars xarray sklearn.linear_model matplotlib.pyplot hydra omegaconf"""
FORKED = multiprocessing.get_context("forkserver")
FORKED.set_forkserver_preload(HEAVY.split())


class TrialFolders(NamedTuple):
    """Where faults are tried, one after another in each copy.

    Attributes:
        copies: of the checkout.
        folder: that the copies are in; their compiled programs are kept there too.
        timeout: seconds after which a fault is killed.
        executed: of each tier and file of tests, the lines that it executes and its seconds.
    """

    copies: queue.Queue
    folder: pathlib.Path
    timeout: float
    executed: dict[str, dict[str, Any]]

    def attempt(self, fault: dict, tiers: list[str]) -> dict:
        """Plant a fault in a copy, run the tiers until a test fails, and take it out again."""
        copy = self.copies.get()
        path, outcome = copy / fault["file"], {}
        text = path.read_text()
        path.write_text(planted(fault, text))
        try:
            for tier in tiers:
                outcome[tier] = self._run(fault, copy, tier)
                if outcome[tier] != "survived":
                    break
        finally:
            path.write_text(text)
            self.copies.put(copy)
        return outcome

    def _run(self, fault: dict, copy: pathlib.Path, tier: str) -> str:
        """Run one tier's chosen tests in a copy: `survived`, or what killed the fault."""
        files = self.chosen(fault, tier)
        if not files:
            return "survived"
        done = test(copy, ["-x", "-m", TIERS[tier], *files], self.timeout)
        if done.code is None:
            return "timeout"
        if done.code in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED):
            return "survived"
        seen = [line for line in done.output.splitlines() if line.startswith(("FAILED", "ERROR"))]
        if done.code == pytest.ExitCode.TESTS_FAILED and seen:
            return seen[0].split(" ", 1)[1].partition(" - ")[0]
        return "not imported"

    def chosen(self, fault: dict, tier: str) -> list[str]:
        """Return the files of tests that execute a fault's line, the quickest first.

        What runs while a module is imported is executed by all that execute any line of it.
        """
        file, line = fault["file"], fault["line"]
        known = self.executed[tier]
        known = {name: known[name] for name in files_of(file) if name in known}
        lines = {name: one["lines"].get(file, []) for name, one in known.items()}
        here = [name for name in known if line in lines[name]]
        here = here or [name for name in known if lines[name]] or list(known)
        return sorted(here, key=lambda name: known[name]["seconds"])

    def check_sound(self, outcomes: list[dict]) -> None:
        """Refuse outcomes of tests that fail without a fault too."""
        seen = {one.get(tier, "survived") for one in outcomes for tier in TIERS}
        tests = sorted(one for one in seen if "::" in one)
        done = test(self.copies.get(), tests, None) if tests else None
        if done and done.code != pytest.ExitCode.OK:
            raise SystemExit(f"error: these fail without a fault, so they saw none:\n{done.said}")


def prepare(
    folder: pathlib.Path, number: int, timeout: float, tiers: list[str], left: list[dict]
) -> TrialFolders:
    """Copy the checkout, once a worker, and see which lines the tests of some faults execute.

    What tests write into a copy is gone at the end.
    """
    asked = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(asked, cwd=REPOSITORY, capture_output=True, check=True, text=True)
    copies: queue.Queue = queue.Queue()
    for each in range(number):
        for file in filter(None, listed.stdout.split("\0")):
            to = folder / str(each) / file
            to.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(REPOSITORY / file, to)
        copies.put(folder / str(each))
    modules = {fault["file"] for fault in left}
    return TrialFolders(copies, folder, timeout, executed(folder / "0", tiers, modules))


def files_of(module: str) -> list[str]:
    """Return the files of tests that shall see a module's faults."""
    folders = CHOSEN[pathlib.Path(module).parts[1]].split()
    paths = [path for one in folders for path in (REPOSITORY / "tests" / one).rglob("test_*.py")]
    return sorted(str(path.relative_to(REPOSITORY)) for path in paths)


def executed(copy: pathlib.Path, tiers: list[str], modules: set[str]) -> dict[str, dict[str, Any]]:
    """Return the lines that each file of tests executes, traced where they are not known."""
    stored = json.loads(EXECUTED.read_text()) if EXECUTED.exists() else {}
    files = sorted({file for module in modules for file in files_of(module)})
    are = {module: _digest(REPOSITORY / module) for module in modules}
    reported: collections.defaultdict[str, dict[str, Any]] = collections.defaultdict(dict)
    for tier in tiers:
        for file in files:
            key = f"{tier} {file} {_digest(REPOSITORY / file)}"
            were = stored.get(key, {"of": None})["of"]
            if were is None or any(were.get(module, now) != now for module, now in are.items()):
                print(f"which lines {file} executes, {tier}", flush=True)
                stored[key] = _traced(copy, file, tier)
                EXECUTED.parent.mkdir(parents=True, exist_ok=True)
                EXECUTED.write_text(json.dumps(stored))
            reported[tier][file] = stored[key]
    return reported


def _traced(copy: pathlib.Path, file: str, tier: str) -> dict[str, Any]:
    to = copy.parent / "executed.json"
    to.unlink(missing_ok=True)
    words = ["-p", "mutation.executed", "-m", TIERS[tier], file]
    done = test(copy, words, None, EXECUTED=str(to))
    if not to.exists():
        raise SystemExit(f"error: {file} fails without a fault:\n{done.said}")
    reported = json.loads(to.read_text())
    return reported | {"of": {module: _digest(copy / module) for module in reported["lines"]}}


def _digest(path: pathlib.Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()[:16]


class PytestOutcome(NamedTuple):
    """What became of a session of pytest: its exit code, None if it took too long; what it said."""

    code: int | None
    output: str


def test(
    copy: pathlib.Path, words: list[str], timeout: float | None, **reported: str
) -> PytestOutcome:
    """Run pytest in a copy, in one process, forked from one that has imported what is heavy."""
    log = copy.parent / f"{copy.name}.log"
    process = FORKED.Process(target=_session, args=(copy, words, reported, log))
    process.start()
    process.join(timeout)
    code = process.exitcode
    if code is None:
        process.kill()
        process.join()
    return PytestOutcome(code, log.read_text() if log.exists() else "")


def _session(
    copy: pathlib.Path, words: list[str], reported: dict[str, str], log: pathlib.Path
) -> None:
    """Be a session of pytest in a copy."""
    os.chdir(copy)
    sys.path[:0] = [str(copy), str(copy / "tests")]
    os.environ.update(reported, PYTHONPATH=os.pathsep.join(sys.path[:2]))
    own = ["-n", "0", "-p", "no:cacheprovider", *words]
    with log.open("w") as to, contextlib.redirect_stdout(to), contextlib.redirect_stderr(to):
        os.dup2(to.fileno(), 1)
        os.dup2(to.fileno(), 2)
        code = pytest.main(own)
    os._exit(int(code))
