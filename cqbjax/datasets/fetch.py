"""Getting a dataset's files: from the Hugging Face hub at one pinned commit, or from a local path.

A record in `<data_dir>/cache/`, one for the download and one for each local path, holds commit,
size and SHA-256 of every file at the first build; from then on the files must be those.
"""

import contextlib
import fnmatch
import glob
import hashlib
import os
import pathlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from cqbjax.core.files import JSON, content_key, read, sha256, write
from cqbjax.datasets.cache import cache_folder
from cqbjax.datasets.table import TableError


class Files(NamedTuple):
    """A dataset's files, verified.

    Attributes:
        path: the file or folder that holds them.
        root: the folder that holds them.
        files: what is to be read.
        revision: the commit that they are of, or "local".
        contents: "name sha256" of each file, which a build depends on.
        remember: writes the record of local files, once what is built of them is good.
    """

    path: pathlib.Path
    root: pathlib.Path
    files: list[pathlib.Path]
    revision: str
    contents: list[str]
    remember: Callable[[], None]


def get(
    name: str,
    data_dir: pathlib.Path,
    source: str | pathlib.Path | None,
    hub: tuple[str, Sequence[str], str | None],
    revision: str | None,
    inventory: Callable[[pathlib.Path], list[pathlib.Path]],
) -> Files:
    """Get a dataset's files and verify them against the record of the first time.

    Args:
        name: of the dataset; a download goes to `data_dir/<name>/`.
        data_dir: the folder of data.
        source: a local file or folder instead of a download.
        hub: dataset repository (empty for none), patterns of the files wanted, and the commit that
            is read the first time unless another is asked for (the newest when None).
        revision: the commit wanted; None is that of the first time.
        inventory: lists the files that a path consists of, or refuses them.

    Raises:
        ValueError: one sentence, as `download` and `verify`.
    """
    where = "" if source is None else f".{content_key(str(pathlib.Path(source).resolve()))[:8]}"
    record = cache_folder(data_dir) / f"{name}{where}.checksums.json"
    known = read(record, JSON) if record.is_file() else {}
    repository, patterns, first = hub
    if source is not None:
        path, revision = pathlib.Path(source), "local"
    elif not repository:
        raise TableError(f"dataset {name}: has no download, give source=PATH.")
    else:
        path, pinned = data_dir / name, known.get("revision")
        revision = revision or pinned or first
        there = all((path / file).is_file() for file in known.get("files", ()))
        if pinned is None or revision != pinned or not there:
            revision = download(repository, patterns, revision, path)
    files, root = inventory(path), path if path.is_dir() else path.parent
    contents, remember = verify(files, root, record, str(revision))
    if source is None:
        remember()  # the commit, of which a second call reads the same bytes
    return Files(path, root, files, str(revision), contents, remember)


def download(
    repository: str, patterns: Sequence[str], revision: str | None, folder: pathlib.Path
) -> str:
    """Download a dataset repository's files and verify each against the hub's own record.

    A file that is whole already is not fetched again, so that a killed download goes on with those
    that are missing; within a file it goes on where a connection broke.

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
    with _reaching(repository):
        info = hub.HfApi(endpoint=endpoint).dataset_info(
            repository, revision=revision, files_metadata=True
        )
    siblings = info.siblings or []
    wanted = [s for s in siblings if any(fnmatch.fnmatch(s.rfilename, p) for p in patterns)]
    for pattern in patterns:
        if not fnmatch.filter([s.rfilename for s in wanted], pattern):
            raise TableError(f"{repository}: no file {pattern!r} at revision {info.sha}.")
    missing = [sibling for sibling in wanted if _differs(folder / sibling.rfilename, sibling)]
    if not missing:
        return str(info.sha)
    for sibling in missing:
        # The hub's client may take a file that is there for whole, and must not.
        (folder / sibling.rfilename).unlink(missing_ok=True)
    with _reaching(repository):
        hub.snapshot_download(
            repository,
            repo_type="dataset",
            revision=info.sha,
            local_dir=folder,
            allow_patterns=[glob.escape(sibling.rfilename) for sibling in missing],
            endpoint=endpoint,
        )
    # Where the hub is lost half-way, the client returns what there is with a warning alone.
    for sibling in missing:
        path = folder / sibling.rfilename
        if wrong := _differs(path, sibling):
            path.unlink(missing_ok=True)  # a bad download must not be left to be read
            raise TableError(f"{path}: {wrong}: run it again.")
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
    files = sorted({file for p in patterns for file in source.glob(p) if file.is_file()})
    if not files:
        kinds = ("*.csv", "*.parquet", "*.pkl")
        files = sorted({file for kind in kinds for file in source.rglob(kind) if file.is_file()})
    if not files:
        raise TableError(f"{source}: no CSV, Parquet or pickle file there.")
    return files


def verify(
    files: Sequence[pathlib.Path], root: pathlib.Path, record: pathlib.Path, revision: str
) -> tuple[list[str], Callable[[], None]]:
    """Check files against the record of the first time.

    A file whose size and time of change are as recorded is taken as unchanged, so that a second
    call need not read gigabytes.

    Args:
        files: the inventory.
        root: names in the record are relative to it.
        record: the checksums file.
        revision: the commit they came from; "local" for a path.

    Returns:
        "name sha256" of each file, the content that a build depends on; and what writes the record.

    Raises:
        TableError: a size or checksum differs from the record, or a recorded file is not there.
    """
    known = read(record, JSON) if record.is_file() else {}
    same_commit = known.get("revision") == revision  # another commit may hold other bytes
    entries: dict[str, dict[str, Any]] = dict(known.get("files", {})) if same_commit else {}
    names = [file.relative_to(root).as_posix() for file in files]
    if lost := sorted(set(entries) - set(names)):
        raise TableError(
            f"{root / lost[0]}: is not there, {record.name} records it: get it again, or remove "
            f"{record} to do without it."
        )
    lines = []
    for name, file in zip(names, files, strict=True):
        status, entry = file.stat(), entries.get(name, {})
        if entry and status.st_size != entry["size"]:
            raise TableError(
                f"{file}: {status.st_size:,} bytes where {record.name} records {entry['size']:,}, "
                f"cut short or changed: get it again, or remove {record} to accept it."
            )
        unchanged = status.st_mtime_ns == entry.get("changed")
        digest = entry["sha256"] if unchanged else sha256(file)
        if digest != entry.get("sha256", digest):
            raise TableError(
                f"{file}: checksum mismatch, SHA-256 {digest[:12]}... where {record} says "
                f"{entry['sha256'][:12]}...: get the file again."
            )
        entries[name] = {"size": status.st_size, "sha256": digest, "changed": status.st_mtime_ns}
        lines.append(f"{name} {digest}")
    fresh = {"revision": revision, "files": entries}
    return lines, lambda: write(record, JSON, fresh) if fresh != known else None


def _differs(path: pathlib.Path, sibling: Any) -> str | None:
    """Say how a file differs from what the hub says of it; None when it does not.

    The hub gives the SHA-256 of a large file (LFS), and git's own id, a SHA-1, of a small one.
    """
    if not path.is_file():
        return "is not there, the download was cut short"
    size, lfs, blob = sibling.size, getattr(sibling, "lfs", None), getattr(sibling, "blob_id", None)
    on_disk = path.stat().st_size
    if size is not None and on_disk != size:
        return f"the download was cut short, {on_disk:,} of {size:,} bytes"
    if lfs is not None:
        kind, wanted, actual = "SHA-256", lfs.sha256, sha256(path)
    elif blob:
        content = path.read_bytes()
        git = hashlib.sha1(b"blob %d\0" % len(content) + content, usedforsecurity=False)
        kind, wanted, actual = "git id", blob, git.hexdigest()
    else:
        return "the hub gives no checksum of it"
    if actual == wanted:
        return None
    return f"checksum mismatch, {kind} {actual[:12]}... where the hub says {wanted[:12]}..."


@contextlib.contextmanager
def _reaching(repository: str) -> Iterator[None]:
    """Say in one sentence why a repository cannot be reached."""
    try:
        yield
    except Exception as error:  # a dozen kinds of network and hub errors
        reason = f"{type(error).__name__}: {error}".splitlines()[0]
        raise TableError(
            f"{repository}: cannot be downloaded, give source=PATH where there is no network: "
            f"{reason}."
        ) from error
