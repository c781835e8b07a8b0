"""Configurations composed, and scripts called, as the tests of studies need them."""

import copy
import importlib
import io
import subprocess
import sys
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import NamedTuple

import pytest
from hydra.core.config_store import ConfigStore
from hydra.core.plugins import Plugins

from cqbjax.cli import _compose
from cqbjax.core import backend

REPOSITORY = Path(__file__).resolve().parents[1]
CONF = REPOSITORY / "conf"
# Commands that Hydra composes.
COMPOSED = ("run", "prepare_data")
# Files of experiments, by name: of the package, and of the paper's reproduction.
FILES = {path.stem: path for one in _compose.SHIPPED for path in one.glob("experiment/*.yaml")}
EXPERIMENTS = sorted(FILES)


def compose_config(*overrides):
    with _compose.initialize_hydra():
        (job,) = _compose.compose_jobs([overrides])
    return job.config


class CommandResult(NamedTuple):
    """What a command left, under the names that a finished process has."""

    returncode: int
    stdout: str
    stderr: str


def run_command(name, *words):
    """Call a command in this process, which saves starting one: of the package, or a module."""
    module, name = name if "." in name else f"cqbjax.cli.{name}", name.rpartition(".")[2]
    out, err, configured = io.StringIO(), io.StringIO(), []
    # Hydra's set-up of logging would close the stream that pytest had when JAX was imported.
    words += ("hydra/job_logging=none", "hydra/hydra_logging=none") if name in COMPOSED else ()
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(out), redirect_stderr(err):
        # What a command offers of Hydra's own is gone when it ends; what a plugin offers stays,
        # since it does so once, when it is imported, which is here.
        Plugins.instance()
        offered = ConfigStore.instance().repo
        patch.setitem(offered, "hydra", copy.deepcopy(offered["hydra"]))
        patch.setattr(sys, "argv", [f"{name}.py", *map(str, words)])
        patch.setattr(sys, "path", list(sys.path))
        # Too late for a device a core; that a command asks for it is seen all the same.
        patch.setattr(backend, "configure", lambda *_: configured.append(name))
        try:
            importlib.import_module(module).main()
            status = 0
        except SystemExit as stopped:
            status = stopped.code
    assert configured or status or name != "run"
    return CommandResult(status, out.getvalue(), err.getvalue())


def script(*words, cwd=REPOSITORY):
    return subprocess.run(
        [sys.executable, str(REPOSITORY / "scripts" / "run.py"), *words],
        capture_output=True, text=True, cwd=cwd, timeout=300,
    )  # fmt: skip


def refusal_of(words, name="run"):
    """Return what a command is refused with."""
    done = run_command(name, *words)
    assert done.returncode == 2, done
    return done.stderr.rstrip("\n")
