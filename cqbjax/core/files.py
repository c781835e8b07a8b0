"""Atomic writes of files, results cached in files, and checksums."""

import atexit
import contextlib
import functools
import hashlib
import json
import os
import pathlib
import shutil
import tempfile
import uuid
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import IO, Any, NamedTuple, TypeVar

import numpy as np
import platformdirs

K = TypeVar("K")


@contextlib.contextmanager
def open_atomic(path: pathlib.Path) -> Iterator[IO[bytes]]:
    """Open a hidden temporary file, which replaces `path` once it is written to the end.

    A reader sees either the old content or all of the new content. The parent folder is created.

    Raises:
        OSError: `path` cannot be written; the message names it.
    """
    # Not a process id: nodes that share a folder may have the same one.
    partial = path.with_name(f".{path.name}.{uuid.uuid4().hex[:12]}.partial")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with partial.open("wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(partial, path)
    except OSError as error:
        raise OSError(error.errno, error.strerror or str(error), str(path)) from error
    finally:
        with contextlib.suppress(OSError):
            partial.unlink(missing_ok=True)


def write_atomic(path: pathlib.Path, content: bytes | Callable[[IO[bytes]], Any]) -> None:
    """Write a file by `open_atomic`.

    Args:
        path: the file's path.
        content: the file's bytes, or a function that writes them to an open binary file.
    """
    with open_atomic(path) as file:
        content(file) if callable(content) else file.write(content)


def check_writable(folder: pathlib.Path, key: str) -> pathlib.Path:
    """Make a folder, check that files can be written in it, and return it.

    Raises:
        ValueError: naming the setting `key` and the reason.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise ValueError(
            f"{key}: {folder} cannot be written ({error.strerror}); name a folder that can"
        ) from error
    return folder


@functools.cache
def user_cache() -> pathlib.Path:
    """Return the package's folder in the user's cache.

    If the user's cache cannot be written, return a temporary folder, which this process removes at
    its end, and warn once.
    """
    try:
        folder = pathlib.Path(platformdirs.user_cache_dir("cqbjax"))
        if not folder.is_absolute():
            raise ValueError("HOME is not set")
        return check_writable(folder, "HOME")
    except (RuntimeError, ValueError) as error:
        made = tempfile.mkdtemp(prefix="cqbjax-")
        atexit.register(shutil.rmtree, made, ignore_errors=True)
        warnings.warn(
            f"compiled programs and fits are cached for this process alone ({error}): set "
            "XDG_CACHE_HOME, or cache_dir= for fits",
            stacklevel=2,
        )
        return pathlib.Path(made)


@contextlib.contextmanager
def remove_on_error(*paths: pathlib.Path, unless: pathlib.Path | None = None) -> Iterator[None]:
    """On an error inside this context, remove the files and folders that were made in it.

    Empty parent folders that were made are removed too.

    Args:
        paths: files and folders to remove if they did not exist before.
        unless: if this file exists, another process wrote it, and nothing is removed.
    """
    above = {folder for path in paths for folder in path.parents}
    absent = [path for path in (*paths, *sorted(above, reverse=True)) if not path.exists()]
    try:
        yield
    except Exception:
        for path in absent if unless is None or not unless.is_file() else ():
            with contextlib.suppress(OSError):
                shutil.rmtree(path) if path in paths else path.rmdir()
        raise


class FileFormat(NamedTuple):
    """The format of a result's file.

    Attributes:
        suffix: the ending of the file's name.
        save: writes a result to an open binary file.
        load: reads the file at a path.
    """

    suffix: str
    save: Callable[[IO[bytes], Any], Any]
    load: Callable[[pathlib.Path], Any]


def _load_arrays(path: pathlib.Path) -> dict[str, np.ndarray]:
    with np.load(path) as file:
        return dict(file)


ARRAY = FileFormat(".npy", lambda file, array: np.save(file, array, allow_pickle=False), np.load)
ARRAYS = FileFormat(".npz", lambda file, arrays: np.savez(file, **arrays), _load_arrays)
JSON = FileFormat(
    ".json",
    lambda file, content: file.write(f"{json.dumps(content, indent=2, sort_keys=True)}\n".encode()),
    lambda path: json.loads(path.read_bytes()),
)


def write(path: pathlib.Path, form: FileFormat, content: Any) -> None:
    """Write a result to a file, atomically."""
    write_atomic(path, lambda file: form.save(file, content))


def read(path: pathlib.Path, form: FileFormat) -> Any:
    """Return the result in a file.

    Raises:
        ValueError: the file is damaged.
    """
    try:
        return form.load(path)
    except FileNotFoundError:
        raise
    except Exception as error:  # each library that reads files has its own errors
        reason = str(error).partition("\n")[0] or type(error).__name__
        raise ValueError(f"{path}: not readable, delete it to make it again: {reason}") from error


def load_or_compute_all(
    paths: Mapping[K, pathlib.Path],
    compute: Callable[[list[K]], Iterable[tuple[K, Any]]],
    form: FileFormat = ARRAY,
) -> dict[K, Any]:
    """Return the results in files; compute and write first those that have no file yet.

    A new result is read back from its file, so that the first call and later calls agree. Several
    processes may do this at the same time, since each file is written atomically.

    Args:
        paths: the file of each result, by the result's key. A file's name must depend on everything
            that its result depends on.
        compute: receives the keys without a file, and yields each key with its result, which is
            written before the next one is computed. It is not called if all files exist.
        form: format of the files.

    Raises:
        ValueError: a file is damaged.
    """
    missing = [one for one, path in paths.items() if not path.is_file()]
    for one, result in compute(missing) if missing else ():
        write(paths[one], form, result)
    return {one: read(path, form) for one, path in paths.items()}


def load_or_compute(
    path: pathlib.Path, compute: Callable[[], Any], form: FileFormat = ARRAY
) -> Any:
    """Return the result in a file, as `load_or_compute_all` does for several."""
    return load_or_compute_all({path: path}, lambda _: [(path, compute())], form)[path]


def sha256(path: pathlib.Path) -> str:
    """Return a file's SHA-256, in hex."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def is_path(word: str | os.PathLike[str]) -> bool:
    """Return whether a string is the path of a file, or of a folder if it has a separator."""
    try:
        return os.path.isfile(word) or (os.sep in os.fspath(word) and os.path.isdir(word))
    except ValueError:  # a string with a null character
        return False


def file_digest(path: pathlib.Path) -> str:
    """Hash a file, or all files in a folder; a file that has not changed is not read again."""
    if path.is_dir():
        files = sorted(file for file in path.rglob("*") if file.is_file())
        return hash_parts(*(f"{file.relative_to(path)} {file_digest(file)}" for file in files))
    state = path.stat()
    return _sha256_once(path.resolve(), state.st_mtime_ns, state.st_size, state.st_ino)


@functools.lru_cache(maxsize=4096)
def _sha256_once(path: pathlib.Path, *_: int) -> str:
    return sha256(path)


def arrays_digest(arrays: Iterable[np.ndarray]) -> str:
    """Return a SHA-256, in hex, of arrays' shapes, dtypes and contents."""
    digest = hashlib.sha256()
    for array in arrays:
        digest.update(f"{array.shape} {array.dtype}".encode())
        digest.update(array.tobytes())
    return digest.hexdigest()


def hash_parts(*parts: str) -> str:
    """Return a short hash of the parts, which depends on where each part ends."""
    digest = hashlib.sha256()
    for part in parts:
        data = part.encode("utf-8", "surrogatepass")
        digest.update(len(data).to_bytes(8, "little"))
        digest.update(data)
    return digest.hexdigest()[:24]
