"""Small file habits: atomic writes and checksums."""

import hashlib
import os
import pathlib
import tempfile
from collections.abc import Callable
from typing import IO, Any


def write_atomic(path: pathlib.Path, write: Callable[[IO[bytes]], Any]) -> None:
    """Write a file under a temporary name and move it into place when it is whole.

    Args:
        path: where it shall stand; its folder is made.
        write: given the open binary file.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            write(file)
        os.replace(name, path)
    except BaseException:
        pathlib.Path(name).unlink(missing_ok=True)
        raise


def sha256(path: pathlib.Path) -> str:
    """Return a file's SHA-256, in hex."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def content_key(*parts: str) -> str:
    """Return a short hash of the parts, unambiguous about where one ends."""
    digest = hashlib.sha256()
    for part in parts:
        data = part.encode("utf-8", "surrogatepass")
        digest.update(len(data).to_bytes(8, "little"))
        digest.update(data)
    return digest.hexdigest()[:24]
