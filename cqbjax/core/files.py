"""Small file habits: atomic writes, results kept on disk, checksums."""

import hashlib
import json
import os
import pathlib
from collections.abc import Callable, Iterable
from typing import IO, Any, TypeVar

import numpy as np

T = TypeVar("T")


def write_atomic(path: pathlib.Path, content: bytes | Callable[[IO[bytes]], Any]) -> None:
    """Write a file so that a reader sees its old content or all of the new, never a part.

    Args:
        path: where it shall stand; its folder is made.
        content: what to write, or a function that writes it, given the open binary file.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        with partial.open("wb") as file:
            content(file) if callable(content) else file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(partial, path)
    finally:
        partial.unlink(missing_ok=True)


def memo(
    path: pathlib.Path,
    compute: Callable[[], T],
    save: Callable[[IO[bytes], T], Any],
    load: Callable[[pathlib.Path], T],
) -> T:
    """Return what a file holds; where there is no file yet, compute it and write the file first.

    What comes back was read from the file the first time too, so that no later call can differ.

    Args:
        path: of the file; its name must tell apart all that the result depends on.
        compute: makes the result. It is called at most once, and not where the file stands.
        save: writes the result to an open binary file, as `numpy.save` does.
        load: reads the file.

    Raises:
        ValueError: the file is damaged.
    """
    if not path.is_file():
        result = compute()
        write_atomic(path, lambda file: save(file, result))
    try:
        return load(path)
    except Exception as error:  # of whatever library reads the file
        reason = str(error).partition("\n")[0] or type(error).__name__
        raise ValueError(f"{path}: not readable, delete it to make it again: {reason}") from error


def save_json(file: IO[bytes], content: Any) -> None:
    """Write JSON values to an open binary file."""
    file.write(json.dumps(content).encode())


def load_json(path: pathlib.Path) -> Any:
    """Read a file of JSON.

    Raises:
        ValueError: it is not JSON.
    """
    return json.loads(path.read_bytes())


def sha256(path: pathlib.Path) -> str:
    """Return a file's SHA-256, in hex."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def arrays_digest(arrays: Iterable[np.ndarray]) -> str:
    """Return a SHA-256, in hex, of shapes, dtypes and contents."""
    digest = hashlib.sha256()
    for array in arrays:
        digest.update(f"{array.shape} {array.dtype}".encode())
        digest.update(array.tobytes())
    return digest.hexdigest()


def content_key(*parts: str) -> str:
    """Return a short hash of the parts, unambiguous about where one ends."""
    digest = hashlib.sha256()
    for part in parts:
        data = part.encode("utf-8", "surrogatepass")
        digest.update(len(data).to_bytes(8, "little"))
        digest.update(data)
    return digest.hexdigest()[:24]
