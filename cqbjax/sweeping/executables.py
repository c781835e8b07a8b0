"""Executables on disk: a second process runs what the first one compiled, and traces nothing.

JAX's own cache of compiled programs is asked by a program's text, which takes seconds of tracing
and lowering to write. Here a program is found by all that its text follows from: the package's
files, a user's own classes, shapes, JAX's settings, its version and the processor's. Only commands
ask for it (`keep`): in a notebook or a test the code may not be what the files say.
"""

import functools
import os
import pickle
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jaxlib
from jax.experimental import serialize_executable

from cqbjax.core import backend, code
from cqbjax.core.files import Form, content_key, read, sha256, write

FOLDER = "executables"
# About a megabyte each; those asked for longest ago go when there are more.
MOST = 400
# JAX tells this to who listens when a program was compiled before, by its own cache.
FOUND = "/jax/compilation_cache/cache_hits"
# An object that is told by its place in memory may be another one in the next process.
UNTOLD = " at 0x"


def _save(file: Any, compiled: Any) -> None:
    pickle.dump(serialize_executable.serialize(compiled), file)


def _load(path: Path) -> Any:
    with path.open("rb") as file:
        return serialize_executable.deserialize_and_load(*pickle.load(file))


EXECUTABLE = Form(".executable", _save, _load)


class _State:
    """Of this process.

    Attributes:
        folder: where executables are kept; None: nowhere.
        found: how many programs JAX has found compiled.
    """

    folder: Path | None = None
    found = 0


def keep() -> None:
    """Keep executables from now on, beside JAX's compiled programs, if it keeps those.

    For a process in which the package's code is as its files say, on a CPU.
    """
    settings = jax.config.values
    parent = settings["jax_compilation_cache_dir"]
    if parent and settings["jax_enable_compilation_cache"] and jax.default_backend() == "cpu":
        _State.folder = Path(parent) / FOLDER


def _listen(event: str, **_: Any) -> None:
    _State.found += event == FOUND


jax.monitoring.register_event_listener(_listen)


def kept(make: Callable[[], Any], shapes: Any, follows: tuple[Any, ...]) -> Any:
    """Return a compiled program from the disk, or make it and keep it there.

    Args:
        make: traces, lowers and compiles it.
        shapes: of its arguments, in trees.
        follows: what else it follows from; a function stands for itself.
    """
    path = _path(shapes, follows)
    if path is None:
        return make()
    if path.is_file():
        try:
            program = read(path, EXECUTABLE)
            os.utime(path)
            return program
        except (ValueError, OSError):
            path.unlink(missing_ok=True)  # torn, or of another jaxlib after all
    before = _State.found
    program = make()
    # What JAX found compiled lacks the functions that loading it once more would look for.
    if _State.found == before:
        _write(path, program)
    return program


def _path(shapes: Any, follows: tuple[Any, ...]) -> Path | None:
    """Return where a program is kept; None where none is, or what it follows from has no words."""
    if _State.folder is None:
        return None
    leaves, structure = jax.tree.flatten(shapes)
    words = [f"{structure}", f"{leaves}", *map(_word, follows)]
    if any(UNTOLD in word for word in words):
        return None
    key = content_key(_surroundings(), code.digest((), shapes, follows), *words)
    return _State.folder / f"{key}{EXECUTABLE.suffix}"


def _word(told: Any) -> str:
    """Return words for a part of what a program follows from."""
    named = isinstance(told, types.FunctionType) and "<" not in told.__qualname__
    return f"{told.__module__}.{told.__qualname__}" if named else f"{told!r}"


def _write(path: Path, program: Any) -> None:
    """Keep a program; a disk that is full or not ours to write costs the next process its time."""
    try:
        write(path, EXECUTABLE, program)
        files = sorted(path.parent.iterdir(), key=lambda one: one.stat().st_mtime)
        for old in files[:-MOST]:
            old.unlink(missing_ok=True)
    except (OSError, jax.errors.JaxRuntimeError):
        return


@functools.cache
def _surroundings() -> str:
    """Return a hash of what every program follows from: code, versions, processor, settings."""
    root = Path(code.__file__).parents[1]
    files = [f"{file.relative_to(root)} {sha256(file)}" for file in sorted(root.rglob("*.py"))]
    settings = sorted((k, v) for k, v in jax.config.values.items() if "cache" not in k)
    versions = f"{jax.__version__} {jaxlib.__version__} {os.environ.get('XLA_FLAGS')}"
    return content_key(*files, f"{settings!r}", versions, backend.processor())
