"""A plugin of pytest: which lines of the package the tests execute, in how many seconds.

Written as JSON where the environment's EXECUTED says, when the session ends. Lines that run while a
module is imported are not counted: any test executes them.
"""

import collections
import json
import os
import pathlib
import sys
import threading
import time
from typing import Any

import pytest

# Of the checkout: tests go elsewhere.
HERE = f"{pathlib.Path.cwd()}{os.sep}"
LINES: collections.defaultdict[str, set[int]] = collections.defaultdict(set)
# Modules that are being imported, as some are when a test asks for them.
IMPORTING: list[str] = []


def _call(frame: Any, event: str, argument: Any) -> Any:
    """Follow functions of the package; what runs while one of its modules is imported is not."""
    code = frame.f_code
    if not code.co_filename.startswith(f"{HERE}cqbjax"):
        return None
    if code.co_name == "<module>":
        IMPORTING.append(code.co_filename)
        return _imported
    if IMPORTING:
        return None
    lines = LINES[code.co_filename.removeprefix(HERE)]
    lines.add(frame.f_lineno)

    def line(frame: Any, event: str, argument: Any) -> Any:
        lines.add(frame.f_lineno)
        return line

    return line


def _imported(frame: Any, event: str, argument: Any) -> Any:
    """Wait for the end of a module."""
    if event == "return":
        IMPORTING.pop()
    return _imported


@pytest.hookimpl(wrapper=True)
def pytest_runtestloop() -> Any:
    """Trace while tests run."""
    threading.settrace(_call)
    sys.settrace(_call)
    try:
        return (yield)
    finally:
        sys.settrace(None)
        threading.settrace(None)


def pytest_sessionfinish(exitstatus: int) -> None:
    """Write what was executed, unless a test failed."""
    executed = {"lines": {file: sorted(lines) for file, lines in LINES.items()}}
    executed["seconds"] = time.process_time()
    if exitstatus in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED):
        pathlib.Path(os.environ["EXECUTED"]).write_text(json.dumps(executed))
