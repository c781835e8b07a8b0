"""Getting a dataset's files: from the Hugging Face hub at one pinned commit, or from a local path.

`<data_dir>/cache/<dataset>.checksums.json` records commit, size and SHA-256 of every file at the
first build; from then on a file must match it.
"""

import fnmatch
import os
import pathlib
from collections.abc import Sequence
from typing import Any

from cqbjax.datasets.cache import read_json, write_json
from cqbjax.datasets.table import TableError
from cqbjax.files import sha256


def download(
    repository: str, patterns: Sequence[str], revision: str | None, folder: pathlib.Path
) -> str:
    """Download a dataset repository's files and verify each against the hub's own record.

    A file that is whole already is not fetched again; a killed download resumes.

    Args:
        repository: "owner/name" of a dataset repository.
        patterns: the files wanted; `*` matches.
        revision: a commit (40 hex digits), branch or tag; the newest commit when None.
        folder: where the files go, under their path in the repository.

    Returns:
        The commit that was read: pass it as `revision` to get the same bytes again.

    Raises:
        TableError: the hub cannot be reached, a file is not there, a download was cut short, or a
            checksum differs.
    """
    import huggingface_hub as hub

    endpoint = os.environ.get("HF_ENDPOINT")  # a mirror, as huggingface_hub itself allows
    try:
        info = hub.HfApi(endpoint=endpoint).dataset_info(
            repository, revision=revision, files_metadata=True
        )
    except Exception as error:  # a dozen kinds of network and hub errors
        raise TableError(_unreachable(repository, error)) from error
    siblings = info.siblings or []
    wanted = [s for s in siblings if any(fnmatch.fnmatch(s.rfilename, p) for p in patterns)]
    for pattern in patterns:
        if not fnmatch.filter([s.rfilename for s in wanted], pattern):
            raise TableError(f"{repository}: no file {pattern!r} at revision {info.sha}.")
    for sibling in wanted:
        size = sibling.size
        lfs = getattr(sibling, "lfs", None)
        digest = getattr(lfs, "sha256", None) if lfs is not None else None
        path = folder / sibling.rfilename
        if path.is_file() and digest and path.stat().st_size == size and sha256(path) == digest:
            continue
        try:
            hub.hf_hub_download(
                repository,
                sibling.rfilename,
                repo_type="dataset",
                revision=info.sha,
                local_dir=folder,
                endpoint=endpoint,
            )
        except Exception as error:
            raise TableError(_unreachable(f"{repository}/{sibling.rfilename}", error)) from error
        _verify(path, size, digest)
    return str(info.sha)


def inventory(source: pathlib.Path, patterns: Sequence[str]) -> list[pathlib.Path]:
    """Return the files a source consists of: itself, or what lies in the folder.

    Args:
        source: a file or folder.
        patterns: the names that the official repository has; when none is there, every CSV,
            Parquet and pickle file of the folder counts.

    Raises:
        TableError: the path is not there or holds no data file.
    """
    if source.is_file():
        return [source]
    if not source.is_dir():
        raise TableError(f"{source}: no such file or folder.")
    found = sorted({file for p in patterns for file in source.glob(p) if file.is_file()})
    if not found:
        kinds = ("*.csv", "*.parquet", "*.pkl")
        found = sorted({file for kind in kinds for file in source.rglob(kind) if file.is_file()})
    if not found:
        raise TableError(f"{source}: no CSV, Parquet or pickle file there.")
    return found


def verify(
    files: Sequence[pathlib.Path], root: pathlib.Path, record: pathlib.Path, revision: str
) -> list[str]:
    """Check files against the record, writing it where there is none.

    A file whose size and time of change are as recorded is taken as unchanged, so that a second
    call need not read gigabytes.

    Args:
        files: the inventory.
        root: names in the record are relative to it.
        record: the checksums file.
        revision: the commit they came from; "local" for a path.

    Returns:
        "name sha256" of each file, the content that a build depends on.

    Raises:
        TableError: a size or checksum differs from the record.
    """
    known = read_json(record) if record.is_file() else {}
    was = known.get("revision", revision)
    # Another commit may hold other bytes; a local path is held to whatever was recorded.
    asked_anew = revision not in ("local", was)
    entries: dict[str, dict[str, Any]] = {} if asked_anew else dict(known.get("files", {}))
    lines = []
    for file in files:
        name = file.relative_to(root).as_posix()
        status = file.stat()
        entry = entries.get(name)
        if entry is None:
            digest = sha256(file)
        elif status.st_size != entry["size"]:
            raise TableError(
                f"{file}: {status.st_size:,} bytes where {record.name} records {entry['size']:,}, "
                f"cut short or changed: get it again, or remove {record} to accept it."
            )
        elif status.st_mtime_ns == entry["changed"]:
            digest = entry["sha256"]
        else:
            digest = sha256(file)
            if digest != entry["sha256"]:
                raise TableError(_mismatch(file, digest, entry["sha256"], str(record)))
        entries[name] = {"size": status.st_size, "sha256": digest, "changed": status.st_mtime_ns}
        lines.append(f"{name} {digest}")
    fresh = {"revision": was if revision == "local" else revision, "files": entries}
    if fresh != known:
        write_json(record, fresh)
    return lines


def _verify(path: pathlib.Path, size: int | None, digest: str | None) -> None:
    """Hold a download against what the hub says of it; a bad one must not be left to be read."""
    found = path.stat().st_size
    if size is not None and found != size:
        path.unlink()
        raise TableError(
            f"{path}: the download was cut short, {found:,} of {size:,} bytes: run it again."
        )
    if digest is not None and (actual := sha256(path)) != digest:
        path.unlink()
        raise TableError(_mismatch(path, actual, digest, "the hub"))


def _mismatch(path: pathlib.Path, found: str, wanted: str, who: str) -> str:
    return (
        f"{path}: checksum mismatch, SHA-256 {found[:12]}... where {who} says {wanted[:12]}...: "
        f"get the file again."
    )


def _unreachable(what: str, error: Exception) -> str:
    reason = f"{type(error).__name__}: {error}".splitlines()[0]
    return f"{what}: cannot be downloaded, give source=PATH where there is no network: {reason}."
