"""Small file habits: atomic writes and checksums."""

import hashlib
import os
import pathlib
from collections.abc import Callable, Iterable
from typing import IO, Any

import numpy as np


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
