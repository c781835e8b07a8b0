"""Configurations composed, and scripts called, as the tests of studies need them."""

import runpy
import subprocess
import sys
from pathlib import Path

import hydra
import pytest

from cqbjax.commands import _refusing
from cqbjax.studies import grid
from cqbjax.sweeping import backend

REPOSITORY = Path(__file__).resolve().parents[1]
CONF = REPOSITORY / "conf"
EXPERIMENTS = sorted(path.stem for path in (CONF / "experiment").glob("*.yaml"))


def composed(*overrides):
    grid.register_resolvers()
    with hydra.initialize_config_dir(str(CONF), version_base="1.3"):
        return hydra.compose("config", overrides=list(overrides))


def script(*words, cwd=REPOSITORY):
    return subprocess.run(
        [sys.executable, str(REPOSITORY / "scripts" / "run.py"), *words],
        capture_output=True, text=True, cwd=cwd, timeout=300,
    )  # fmt: skip


def refused(words, monkeypatch, name="run"):
    """Return what a script is refused with; in this process, which saves starting one."""
    monkeypatch.setattr(sys, "argv", [f"{name}.py", *words])
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(backend, "configure", lambda *_: None)  # too late for a device a core
    said = []
    # Not by capturing the stream: Hydra's set-up of logging shuts absl's handler, which closes
    # whatever stream was pytest's when it was imported.
    monkeypatch.setattr(_refusing, "print", lambda line, file: said.append(line), raising=False)
    with pytest.raises(SystemExit) as stopped:
        runpy.run_path(str(REPOSITORY / "scripts" / f"{name}.py"), run_name="__main__")
    assert stopped.value.code == 2
    return "\n".join(said)
