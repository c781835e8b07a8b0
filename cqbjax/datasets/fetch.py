"""Files of a dataset: from the Hugging Face hub at one pinned commit, or from a local path.

A record of a download in `<data_dir>/cache/` holds the commit and the SHA-256 of every file. Later
calls compare the files with it.
"""

import fnmatch
import os
import pathlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from cqbjax.core.files import JSON, read, sha256, write
from cqbjax.core.lazy import import_extra
from cqbjax.datasets.cache import CACHE
from cqbjax.datasets.table import TableError


class VerifiedFiles(NamedTuple):
    """The files of a dataset, verified if they were downloaded.

    Attributes:
        path: the file or folder that holds them.
        root: the folder that holds them.
        files: files to read.
        revision: their commit, or "local".
        contents: "name sha256" of each file, part of the cache key.
    """

    path: pathlib.Path
    root: pathlib.Path
    files: list[pathlib.Path]
    revision: str
    contents: list[str]


def fetch(
    name: str, data_dir: pathlib.Path, source: str | pathlib.Path | None,
    hub: tuple[str, Sequence[str], str | None], revision: str | None,
    list_files: Callable[[pathlib.Path], list[pathlib.Path]],
) -> VerifiedFiles:  # fmt: skip
    """Return a dataset's files, downloaded where necessary; downloads are compared with the record.

    Args:
        name: name of the dataset; a download goes to `data_dir/<name>/`.
        data_dir: the folder of data.
        source: a local file or folder instead of a download.
        hub: dataset repository (empty for none), patterns of its files, and the commit of the first
            download (the newest when None).
        revision: a commit; None: that of the record, else that of `hub`.
        list_files: returns the files of a path, or raises.

    Raises:
        ValueError: the dataset has no download and `source` is None, a downloaded file differs from
            the record, or `list_files` or `download` raises. The message is one sentence.
    """
    record = data_dir / CACHE / f"{name}.download.json"
    known = read(record, JSON) if record.is_file() else {}
    repository, patterns, first = hub
    if source is not None:
        path, revision = pathlib.Path(source), "local"
    elif not repository:
        raise TableError(f"dataset {name}: has no download, give source=PATH.")
    else:
        path, pinned = data_dir / name, known.get("revision")
        revision = revision or pinned or first
        complete = all((path / file).is_file() for file in known.get("files", ()))
        if pinned is None or revision != pinned or not complete:
            revision = download(repository, patterns, revision, path)
    files, root = list_files(path), path if path.is_dir() else path.parent
    digests = {file.relative_to(root).as_posix(): sha256(file) for file in files}
    fresh = {"revision": revision, "files": digests}
    if source is None and fresh != known:
        recorded = known["files"] if known.get("revision") == revision else {}
        for file, digest in recorded.items():
            if digests.get(file) != digest:
                raise TableError(
                    f"{root / file}: checksum mismatch, {record} has another one: remove the "
                    "file to get it again."
                )
        write(record, JSON, fresh)  # pins the commit, of which a second call reads the same bytes
    contents = [f"{file} {digest}" for file, digest in digests.items()]
    return VerifiedFiles(path, root, files, str(revision), contents)


def download(
    repository: str, patterns: Sequence[str], revision: str | None, folder: pathlib.Path
) -> str:
    """Download a dataset repository's files and verify each against the hub's checksum.

    Complete files are not downloaded again, so that a killed download continues with the missing
    ones; a broken connection continues within the file.

    Args:
        repository: "owner/name" of a dataset repository.
        patterns: names of files; `*` matches.
        revision: a commit (40 hex digits), branch or tag; the newest commit when None.
        folder: receives the files, under their path in the repository.

    Returns:
        The commit that was read: pass it as `revision` to get the same bytes again.

    Raises:
        ValueError: the extra is not installed.
        TableError: the hub cannot be reached, a file is missing, a download was cut short, or a
            checksum differs.
    """
    hub = import_extra("huggingface_hub", "download", f"download of {repository}")

    api = hub.HfApi(endpoint=os.environ.get("HF_ENDPOINT"))  # a mirror, as the client itself allows
    try:
        revision = str(api.dataset_info(repository, revision=revision).sha)
        copy: Any = {"repo_type": "dataset", "revision": revision, "local_dir": folder}
        folder.mkdir(parents=True, exist_ok=True)
        # The hub's client would trust its own notes and keep a changed file.
        _drop_differing(api, repository, copy, patterns)
        api.snapshot_download(repository, allow_patterns=list(patterns), **copy)
        # If the hub is lost half-way, the client returns the files so far with a warning only.
        differing = _drop_differing(api, repository, copy, patterns)
    except Exception as error:  # a dozen kinds of network and hub errors
        reason = f"{type(error).__name__}: {error}".splitlines()[0]
        raise TableError(
            f"{repository}: cannot be downloaded, give source=PATH where there is no network: "
            f"{reason}."
        ) from error
    for name, reason in differing.items():
        raise TableError(f"{folder / name}: {reason}: run it again.")
    for pattern in patterns:
        if not any(folder.glob(pattern)):
            raise TableError(f"{repository}: no file {pattern!r} at revision {revision}.")
    return revision


def _drop_differing(
    api: Any, repository: str, copy: Mapping[str, Any], patterns: Sequence[str]
) -> dict[str, str]:
    """Delete files that differ from the hub's checksums; return why, of missing ones too."""
    checked = api.verify_repo_checksums(repository, **copy)
    differing = {
        one["path"]: f"checksum mismatch, {one['algorithm']} {one['actual'][:12]}... where the hub "
        f"says {one['expected'][:12]}..."
        for one in checked.mismatches
    } | dict.fromkeys(checked.missing_paths, "is not there, the download was cut short")
    wanted = {k: v for k, v in differing.items() if any(fnmatch.fnmatch(k, p) for p in patterns)}
    for name in wanted:
        (copy["local_dir"] / name).unlink(missing_ok=True)
    return wanted


def list_files(source: pathlib.Path, patterns: Sequence[str]) -> list[pathlib.Path]:
    """Return the files of a source: itself, or the data files of the folder.

    Args:
        source: a file or folder.
        patterns: names of files in the official repository; if none exists, every CSV, Parquet and
            pickle file of the folder counts.

    Raises:
        TableError: the path does not exist or holds no data file.
    """
    if source.is_file():
        return [source]
    if not source.is_dir():
        raise TableError(f"{source}: no such file or folder.")
    for names in (patterns, ("**/*.csv", "**/*.parquet", "**/*.pkl")):
        files = sorted({file for name in names for file in source.glob(name) if file.is_file()})
        if files:
            return files
    raise TableError(f"{source}: no CSV, Parquet or pickle file there.")
