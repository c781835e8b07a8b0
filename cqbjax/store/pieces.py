"""Pieces of results: what ran together, written whole or not at all.

A piece is two files of one name. `KEY.nc` is NetCDF: a point as it is, or several of one shape
along a dimension `point`. `KEY.json` says what is in it, each point's manifest and the checksum of
the arrays, so that what is stored is known without opening any. It is written last: arrays without
it are not there.
"""

import functools
import hashlib
import io
import json
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

import xarray as xr

from cqbjax.core.files import write_atomic
from cqbjax.store import layout
from cqbjax.store.layout import ResultError, Stored

ENDING = ".nc"
SAID = ".json"  # of the description beside the arrays
KEY_LETTERS = 24  # of `core.files.content_key`


def write(points: Sequence[Stored], path: Path) -> None:
    """Write a piece atomically, in place of an older one there.

    A crash leaves the old piece or the new one; or, between the renaming of the two files of a
    piece that replaces one, a piece that is told to be torn. Hidden partial files are never taken
    for a result, and the next piece of that name removes them.

    Args:
        points: at least one, all of one `shape`.
        path: of the arrays, which ends in `.nc`; parents are made.

    Raises:
        ResultError: a variable, dimension or attribute is missing or cannot be stored.
    """
    path = Path(path)
    if path.suffix != ENDING:
        raise ResultError(f"{path} is no place for a result: its name must end in {ENDING}.")
    for one in points:
        layout.check(one)
    whole = layout.together(points)
    content = b""

    def arrays(file: IO[bytes]) -> None:
        nonlocal content
        layout.write_file(whole, Path(file.name))
        content = Path(file.name).read_bytes()

    write_atomic(path, arrays)
    describe(path, [one.manifest for one in points], content)
    for sibling in path.parent.iterdir():
        if sibling.name.startswith(f".{path.stem}.") and sibling.suffix == ".partial":
            sibling.unlink(missing_ok=True)


def describe(
    path: Path, manifests: Sequence[Mapping[str, Any]], content: bytes | None = None
) -> None:
    """Write what is said of a piece: what its points have in common once, then what each has.

    Args:
        path: of the arrays.
        manifests: of its points.
        content: of the arrays' file; None if that is as it was described before.
    """
    first, *others = manifests
    common = {
        key: value for key, value in first.items()
        if all(key in one and one[key] == value for one in others)
    }  # fmt: skip
    own = [{k: v for k, v in one.items() if k not in common} for one in manifests]
    if content is None:
        there = json.loads(path.with_suffix(SAID).read_bytes())
        size, checksum = there["bytes"], there["sha256"]
    else:
        size, checksum = len(content), hashlib.sha256(content).hexdigest()
    said = {"sha256": checksum, "bytes": size, "common": common, "points": own}
    text = json.dumps(said, indent=1, sort_keys=True, ensure_ascii=False)
    write_atomic(path.with_suffix(SAID), text.encode())


def found(folder: Path) -> list[Path]:
    """List the arrays' files of the pieces in a folder, and in those below it.

    What is hidden is a leftover, and so are arrays of a key's name that nothing is said of: they
    were being written when their process was killed, or are at this moment.
    """
    return [
        file
        for file in sorted(folder.rglob(f"*{ENDING}"))
        if not any(part.startswith(".") for part in file.relative_to(folder).parts)
        and (file.with_suffix(SAID).exists() or not _is_key(file.stem))
    ]


def _is_key(name: str) -> bool:
    return len(name) == KEY_LETTERS and set(name) <= set("0123456789abcdef")


def read(
    path: Path, rounds: Sequence[int] | None = None, only: Collection[int] | None = None
) -> list[Stored]:
    """Read a piece whose checksum is right.

    Args:
        path: of the arrays.
        rounds: keep these alone, each the last recorded one that is not later; None keeps all.
        only: the numbers of the points wanted; None is all.

    Raises:
        ResultError: it is torn, or not a result.
    """
    manifests, checksum = manifests_of(path), _said(path)["sha256"]
    content = path.read_bytes()
    if hashlib.sha256(content).hexdigest() != checksum:
        raise ResultError(
            f"{path} is torn: its content is not that of which {path.with_suffix(SAID).name} holds "
            "the checksum; run the point again, or move both files away."
        )
    try:
        with xr.open_dataset(io.BytesIO(content), engine="h5netcdf") as opened:
            whole = (opened if rounds is None else layout.at(opened, rounds)).load()
        return layout.taken_apart(whole, manifests, only)
    except Exception as error:  # of HDF5, NetCDF or JSON
        raise ResultError(f"{path} is not a result of cqbjax: {error!r}") from error


def manifests_of(path: Path) -> list[dict[str, Any]]:
    """Return the manifests of a piece's points; none of its arrays is read.

    Raises:
        ResultError: there is none, its arrays are not as long as is said, or nothing is.
    """
    said = _said(path)
    if path.stat().st_size != said["bytes"]:
        raise ResultError(
            f"{path} is torn: it has {path.stat().st_size:,} bytes, and "
            f"{path.with_suffix(SAID).name} says {said['bytes']:,}; run the point again, or move "
            "both files away."
        )
    return [{**said["common"], **own} for own in said["points"]]


def _said(path: Path) -> Mapping[str, Any]:
    """Return what is said of a piece, parsed once for each content."""
    beside = path.with_suffix(SAID)
    if not path.is_file():
        raise ResultError(f"no result at {path}: there is no such file.")
    if not beside.is_file():
        raise ResultError(
            f"{path} is not a result of cqbjax, or of an older version: {beside.name}, which says "
            "what is in it, is not beside it; run the point again, or move the file away."
        )
    state = beside.stat()
    return _parsed(beside, state.st_mtime_ns, state.st_size, state.st_ino)


@functools.lru_cache(maxsize=100_000)
def _parsed(beside: Path, *_: int) -> Mapping[str, Any]:
    try:
        said = json.loads(beside.read_bytes())
        # What would be asked of it must be there.
        if not (said["points"] and {"sha256", "bytes", "common"} <= set(said)):
            raise ValueError("it says too little")
    except (ValueError, KeyError, TypeError) as error:
        raise ResultError(f"{beside} is torn, or does not describe a result: {error!r}") from error
    return dict(said)


def joined(pieces: Sequence[Stored]) -> Stored:
    """Return a point of its pieces: the newest one, and the policies that it lacks of the others.

    Policies stand in the order in which they were first computed.

    Args:
        pieces: of one point and one content.
    """
    newest, *others = in_time = sorted(pieces, key=stamp, reverse=True)
    policies = [newest.point]
    for one in others:
        there = {label for part in policies for label in part["policy"].values}
        new = [label for label in one.point["policy"].values if label not in there]
        policies += [one.point.sel(policy=new)] if new else []
    if len(policies) == 1:
        return newest
    by_policy = [name for name, one in newest.point.data_vars.items() if "policy" in one.dims]
    whole = xr.concat(
        policies, "policy", data_vars=by_policy, coords="minimal", compat="override",
        combine_attrs="override",
    )  # fmt: skip
    labels = dict.fromkeys(x for one in reversed(in_time) for x in one.point["policy"].values)
    return newest._replace(point=whole.sel(policy=list(labels)))


def labelled(one: Stored, path: Path) -> Stored:
    """Return a point whose attributes tell the keys that its study varied, and its piece."""
    varied = one.manifest.get("varied", {})
    own = {key: value for key, value in varied.items() if key not in one.point.attrs}
    return one._replace(point=one.point.assign_attrs(**own, path=str(path)))


def stamp(piece: Stored | Mapping[str, Any]) -> str:
    """Return when a point was last computed, or asked for where a newer one was there."""
    manifest = piece.manifest if isinstance(piece, Stored) else piece
    return max(str(manifest.get(key, "")) for key in ("finished", "asked"))


def newest(said: Mapping[Path, Sequence[Mapping[str, Any]]]) -> dict[tuple[Path, str], str]:
    """Return (folder, point) -> the content of its newest piece.

    Args:
        said: piece -> the manifests of its points; those without a content are left out.
    """
    last: dict[tuple[Path, str], tuple[str, str]] = {}
    for file, one in ((file, one) for file, of_file in said.items() for one in of_file):
        if one.get("content"):
            place = file.parent, one["point"]
            last[place] = max(last.get(place, ("", "")), (stamp(one), one["content"]))
    return {place: content for place, (_, content) in last.items()}


def outdated(said: Mapping[Path, Sequence[Mapping[str, Any]]]) -> list[Path]:
    """Return the pieces of which every policy of every point has been computed otherwise since."""
    last, policies = newest(said), dict[tuple[Path, str, str], tuple[str, str]]()
    every = [
        (file, (file.parent, one.get("point", "")), one)
        for file, of_file in said.items() for one in of_file
    ]  # fmt: skip
    for _, place, one in every:
        for label, key in one.get("policies", {}).items() if "content" in one else ():
            if last[place] == one["content"]:
                at = (*place, label)
                policies[at] = max(policies.get(at, ("", "")), (stamp(one), key))
    current = {
        file for file, place, one in every
        if not one.get("content") or (last[place] == one["content"] and any(
            policies[*place, label][1] == key for label, key in one["policies"].items()
        ))
    }  # fmt: skip
    return [file for file in said if file not in current]


def drop(file: Path) -> None:
    """Delete a piece."""
    file.with_suffix(SAID).unlink()
    file.unlink()
