"""Fixtures of many tests."""

import os
import pathlib

import jax
import pytest

from cqbjax.sweeping import runner

REPOSITORY = pathlib.Path(__file__).resolve().parent.parent


@pytest.fixture(scope="session")
def shared_data() -> pathlib.Path:
    """The folder of real data: CQBJAX_DATA, else ../shared/data beside the repository.

    A user's machine need not have it, so its tests are skipped there with the reason; CI must.
    """
    folder = pathlib.Path(os.environ.get("CQBJAX_DATA", REPOSITORY.parent / "shared" / "data"))
    if folder.is_dir():
        return folder
    reason = f"no data folder at {folder}: set CQBJAX_DATA to one that holds routerbench/"
    if os.environ.get("CI"):
        pytest.fail(reason)
    pytest.skip(reason)


@pytest.fixture
def x64():
    """Run one test in float64."""
    with jax.enable_x64(True):
        yield


@pytest.fixture(autouse=True)
def no_programs_of_earlier_tests():
    """Let each test compile its own programs: some plant faults in what is compiled."""
    runner.PROGRAMS.clear()
