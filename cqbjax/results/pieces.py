"""Pieces of results: what ran together, written whole or not at all.

A piece is two files of one name. `KEY.nc` is NetCDF: a point as it is, or several of one shape
along a dimension `point`. `KEY.json` says what is in it, each point's manifest, the checksum of the
arrays and its own, so that what is stored is known without opening any. It is written last: arrays
without it are not there.
"""

import contextlib
import functools
import hashlib
import io
import json
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import xarray as xr

from cqbjax.core.files import write_atomic
from cqbjax.core.given import rounded
from cqbjax.results import layout
from cqbjax.results.layout import OlderError, ResultError, Stored

ENDING = ".nc"
SAID = ".json"  # of the description beside the arrays
# In a manifest: the number of the computation, above those of all that its folder held before.
ORDER = "order"
KEY_LETTERS = 24  # of `core.files.content_key`
LEFT_OVER = 600.0  # seconds without a change after which no process is writing a hidden file
# Begins a description: the checksum of all that follows.
_CHECK = '{\n "check": "%s",'
_KEYS = {"sha256", "bytes", "common", "points"}


def write(points: Sequence[Stored], path: Path) -> None:
    """Write a piece atomically, in place of an older one there.

    A crash leaves the old piece or the new one; or, between the renaming of the two files of a
    piece that replaces one, a piece that is told to be torn. Hidden partial files are never taken
    for a result; those that no process can be writing any more are removed, as are arrays of a
    key's name that nothing is said of.

    Args:
        points: at least one, all of one `shape`.
        path: of the arrays, which ends in `.nc`; parents are made.

    Raises:
        ResultError: a variable, dimension or attribute is missing or cannot be stored.
        OSError: which names the file that cannot be written.
    """
    path = Path(path)
    if path.suffix != ENDING:
        raise ResultError(f"{path} is no place for a result: its name must end in {ENDING}.")
    for one in points:
        layout.check(one)
    content = layout.encoded(layout.together(points))
    text = described([one.manifest for one in points], len(content), _sha256(content))
    write_atomic(path, content, json=text)
    # By the file system's own clock, and not before who is slow has written theirs.
    now = path.stat().st_mtime
    hidden, arrays = path.parent.glob(".*.partial"), path.parent.glob(f"*{ENDING}")
    for left in (*hidden, *(file for file in arrays if _is_leftover(file))):
        with contextlib.suppress(FileNotFoundError):
            if left.stat().st_mtime < now - LEFT_OVER:
                left.unlink()


def describe(path: Path, manifests: Sequence[Mapping[str, Any]]) -> None:
    """Write again what is said of a piece, whose arrays stay."""
    there = _said(path)
    write_atomic(path.with_suffix(SAID), described(manifests, there["bytes"], there["sha256"]))


def described(manifests: Sequence[Mapping[str, Any]], size: int, checksum: str) -> bytes:
    """Return what is said of a piece: what its points have in common once, then what each has.

    Args:
        manifests: of its points.
        size: of the arrays' file, in bytes.
        checksum: of that file, SHA-256 in hex.
    """
    first, *others = manifests
    common = {
        key: value for key, value in first.items()
        if all(key in one and one[key] == value for one in others)
    }  # fmt: skip
    own = [{k: v for k, v in one.items() if k not in common} for one in manifests]
    said = {"sha256": checksum, "bytes": size, "common": common, "points": own}
    text = json.dumps(said, indent=1, sort_keys=True, ensure_ascii=False).encode()[1:]
    return (_CHECK % _sha256(text)).encode() + text


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def found(folder: Path) -> list[Path]:
    """List the arrays' files of the pieces in a folder, and in those below it.

    What is hidden is a leftover, and so are arrays of a key's name that nothing is said of: they
    were being written when their process was killed, or are at this moment.
    """
    return [
        file
        for file in sorted(folder.rglob(f"*{ENDING}"))
        if not any(part.startswith(".") for part in file.relative_to(folder).parts)
        and not _is_leftover(file)
    ]


def _is_leftover(file: Path) -> bool:
    """Tell arrays of a key's name that nothing is said of."""
    is_key = len(file.stem) == KEY_LETTERS and set(file.stem) <= set("0123456789abcdef")
    return is_key and not file.with_suffix(SAID).exists()


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
    if _sha256(content) != checksum:
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
    try:
        state = beside.stat()
    except FileNotFoundError:
        raise OlderError(
            f"{path} is not a result of cqbjax, or of an older version: {beside.name}, which says "
            "what is in it, is not beside it; run the point again, or move the file away."
        ) from None
    return _parsed(beside, state.st_mtime_ns, state.st_size, state.st_ino)


@functools.lru_cache(maxsize=100_000)
def _parsed(beside: Path, *_: int) -> Mapping[str, Any]:
    text = beside.read_bytes()
    try:
        said = json.loads(text)
    except ValueError as error:
        raise ResultError(f"{beside} is torn, or does not describe a result: {error!r}") from error
    keys = set(said) if isinstance(said, dict) else set()
    if "check" in keys:
        if not text.startswith((_CHECK % _sha256(text[len(_CHECK) - 2 + 64 :])).encode()):
            raise ResultError(
                f"{beside} is torn: its content is not that of which it holds the checksum; run "
                "the point again, or move both files away."
            )
    elif keys != _KEYS:  # those alone are what the version before wrote, without a checksum
        raise OlderError(
            f"{beside} is of an older version of cqbjax, or does not describe a result; run the "
            "point again, or move both files away."
        )
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
    """Return a point whose attributes tell the keys that its study varied, and its piece.

    Numbers that name points are rounded: what differs in the last digit is the same.
    """
    attrs = {**one.manifest.get("varied", {}), **one.point.attrs, "path": str(path)}
    attrs = {key: rounded(value) for key, value in attrs.items()}
    point = one.point.drop_attrs(deep=False).assign_attrs(attrs)
    if "arrival_rate" in point.coords:
        rates = point["arrival_rate"]
        same = [rounded(rate) for rate in rates.values.tolist()]
        point = point.assign_coords(arrival_rate=("arrival_rate", same, rates.attrs))
    return one._replace(point=point)


def stamp(piece: Stored | Mapping[str, Any]) -> tuple[int, str]:
    """Return what orders the computations of a point, the newest last.

    A later one has a larger number, whatever the clock says; that is of those without alone.
    """
    manifest = piece.manifest if isinstance(piece, Stored) else piece
    return int(manifest.get(ORDER, 0)), str(manifest.get("finished", ""))


def next_order(said: Mapping[Path, Sequence[Mapping[str, Any]]]) -> int:
    """Return the number of a computation that is newer than all of these."""
    return 1 + max((stamp(one)[0] for of_file in said.values() for one in of_file), default=0)


def newest(said: Mapping[Path, Sequence[Mapping[str, Any]]]) -> dict[tuple[Path, str], str]:
    """Return (folder, point) -> the content of its newest piece.

    Args:
        said: piece -> the manifests of its points; those without a content are left out.
    """
    last: dict[tuple[Path, str], tuple[tuple[int, str], str]] = {}
    for file, one in ((file, one) for file, of_file in said.items() for one in of_file):
        if one.get("content"):
            place = file.parent, one["point"]
            last[place] = max(last.get(place, ((0, ""), "")), (stamp(one), one["content"]))
    return {place: content for place, (_, content) in last.items()}


def outdated(said: Mapping[Path, Sequence[Mapping[str, Any]]]) -> list[Path]:
    """Return the pieces of which every policy of every point has been computed otherwise since."""
    last, policies = newest(said), dict[tuple[Path, str, str], tuple[tuple[int, str], Path]]()
    every = [
        (file, (file.parent, one.get("point", "")), one)
        for file, of_file in said.items() for one in of_file
    ]  # fmt: skip
    for file, place, one in every:
        for label in one.get("policies", ()) if "content" in one else ():
            if last[place] == one["content"]:
                at, this = (*place, label), (stamp(one), file)
                policies[at] = max(policies.get(at, this), this)
    current = {file for _, file in policies.values()}
    current |= {file for file, _, one in every if not one.get("content")}
    return [file for file in said if file not in current]


def drop(file: Path) -> None:
    """Delete a piece, of which another process may have done so."""
    for one in (file.with_suffix(SAID), file):
        one.unlink(missing_ok=True)
