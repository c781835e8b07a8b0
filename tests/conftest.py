"""Fixtures of many tests."""

import collections
import contextlib
import gc
import os
import pathlib
import re
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from absent import skip_or_fail
from flags import flags

REPOSITORY = pathlib.Path(__file__).resolve().parent.parent

# Compiled programs are kept for the other workers, for the processes that tests start, and for the
# next session: compiling is most of the suite's time. A program is found again by its own text, its
# options and the versions of JAX and XLA, so a fault planted in what is compiled is compiled again.
# The folder is pytest's own, in the checkout, where nothing else leans on it: `--cache-clear`
# empties it, and JAX_ENABLE_COMPILATION_CACHE=false does without. JAX reads these names when it is
# imported, hence before everything else.
PROGRAMS = REPOSITORY / ".pytest_cache" / "d" / "xla"
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")
os.environ["XLA_FLAGS"] = flags()
# A program runs for a moment only here: machine code is made quickly rather than well, in half of
# the time that is left. What must be seen as a study computes it, or runs for long, takes one of
# the fixtures `as_in_a_study`.
os.environ.setdefault("JAX_DISABLE_MOST_OPTIMIZATIONS", "1")

import jax  # noqa: E402

from cqbjax.core import backend  # noqa: E402
from cqbjax.engine import programs  # noqa: E402

jax.config.update(
    "jax_compilation_cache_dir",
    os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(backend.programs_folder(PROGRAMS))),
)
# How often a program was found there, in this process and, under xdist, in each that has ended.
FOUND: collections.Counter[str] = collections.Counter()
HIT, MISSED = (f"/jax/compilation_cache/cache_{word}" for word in ("hits", "misses"))
jax.monitoring.register_event_listener(lambda event, **_: FOUND.update([event]))


# Python looks for circles of dead objects after every few hundred new ones; tracing makes millions,
# and most live as long as their program. To look less often takes a tenth of the time.
gc.set_threshold(50_000, 20, 50)


@pytest.fixture(autouse=True)
def own_modules_of_each_test(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Forget what a test imported out of a folder of its own: another's has the same name."""
    before = set(sys.modules)
    yield
    base = str(tmp_path_factory.getbasetemp())
    for name in set(sys.modules) - before:
        if str(getattr(sys.modules[name], "__file__", "")).startswith(base):
            del sys.modules[name]


def pytest_ignore_collect(collection_path: pathlib.Path, config: pytest.Config) -> bool | None:
    """Leave modules of slow tests alone out of the quick tier: some import for seconds."""
    module = collection_path.name.startswith("test_") and collection_path.suffix == ".py"
    if not module or config.option.markexpr != "not slow":
        return None
    slow = re.search(r"^pytestmark = .*pytest\.mark\.slow", collection_path.read_text(), re.M)
    return True if slow else None


def pytest_collection_finish() -> None:
    """Leave out what was imported: it stays."""
    gc.freeze()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with what is slow, so that no worker is left with it at the end."""
    items.sort(key=lambda item: item.get_closest_marker("slow") is None)


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Tell the process that started this worker what was found."""
    if hasattr(session.config, "workeroutput"):
        session.config.workeroutput["found"] = dict(FOUND)


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """Add what a worker found."""
    FOUND.update(getattr(node, "workeroutput", {}).get("found", {}))


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Say how many programs were compiled, and how many were found compiled."""
    terminalreporter.line(f"compiled programs: {FOUND[HIT]} found, {FOUND[MISSED]} compiled")


@pytest.fixture(scope="session")
def shared_data() -> pathlib.Path:
    """The folder of real data: CQBJAX_DATA, else ../shared/data beside the repository.

    A user's machine need not have it, so its tests are skipped there with the reason; CI must.
    """
    folder = pathlib.Path(os.environ.get("CQBJAX_DATA", REPOSITORY.parent / "shared" / "data"))
    if folder.is_dir():
        return folder
    reason = f"no data folder at {folder}: set CQBJAX_DATA to one that holds routerbench/"
    skip_or_fail(reason)


@pytest.fixture
def x64():
    """Run one test in float64."""
    with jax.enable_x64(True):
        yield


@contextlib.contextmanager
def compiled_well():
    """Compile as a study's programs are compiled."""
    was = jax.config.read("jax_disable_most_optimizations")
    jax.config.update("jax_disable_most_optimizations", False)
    jax.clear_caches()
    programs.clear_cache()
    yield
    jax.config.update("jax_disable_most_optimizations", was)
    jax.clear_caches()
    programs.clear_cache()


@pytest.fixture
def as_in_a_study():
    """Compile what one test runs as in a study: to see it, or because it runs for long."""
    with compiled_well():
        yield


@pytest.fixture(scope="module")
def all_as_in_a_study():
    """Compile what a module's tests run as in a study: they share programs that run for long."""
    with compiled_well():
        yield


@pytest.fixture
def fresh_programs():
    """Compile a test's sweeps again: it plants a fault in what is compiled, or counts compiling."""
    programs.clear_cache()
    yield
    programs.clear_cache()


@pytest.fixture(scope="session")
def generated(shared_data, tmp_path_factory):
    """A small generated log of conversations, prepared: its data folder, its shards below `log`."""
    from log_files import prepare_log

    from reproduction import generated_log

    folder = tmp_path_factory.mktemp("generated")
    settings = generated_log.GeneratorSettings(2500, longer=4.0, early=0.03, follow_ups=0.08)
    generated_log.generate(folder / "log", shared_data, settings, shard_rows=700)
    prepare_log(folder, folder / "log")
    return folder
