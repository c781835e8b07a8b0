"""Result files: points that ran together, with checksums of every byte.

A file is NetCDF with its points along the dimension `point`, then a description in JSON, then a
trailer line with the number of the format, the length of the description and its checksum. The
description holds the manifests of the points and the checksum of the arrays, so that an index does
not read arrays. NetCDF readers ignore everything after the arrays.
"""

import functools
import hashlib
import io
import json
import re
from collections.abc import Collection, Hashable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr

from cqbjax.core.files import write_atomic
from cqbjax.results.points import (
    POINT_COORDS,
    Manifest,
    ResultError,
    StoredPoint,
    shape_of,
    shared_coords,
    validate_point,
)

ENDING = ".nc"
FORMAT = 3
# Texts of each point: its configuration in YAML and its attributes in JSON.
TEXTS = ("configs", "attributes")
AGAIN = "run the point again, or move the file away."  # the end of errors
_TRAILER = "\ncqbjax results, format %3d, description of %12d bytes, SHA-256 %s\n"
_TRAILER_BYTES = len(_TRAILER % (0, 0, "0" * 64))
_TRAILER_PATTERN = re.compile(
    rb"\ncqbjax results, format +(\d+), description of +(\d+) bytes, SHA-256 ([0-9a-f]{64})\n"
)


class FormatError(ResultError):
    """A result has another format than this version of the package."""


def write_file(points: Sequence[StoredPoint], path: Path) -> None:
    """Write points atomically, replacing an older file.

    A crash leaves the old file or the new one.

    Args:
        points: at least one, all with the same `shape_of`.
        path: ends in `.nc`; parent folders are created.

    Raises:
        ResultError: a variable, dimension or attribute is missing or cannot be stored.
        OSError: names the file that cannot be written.
    """
    for one in points:
        validate_point(one)
    arrays = _encode(_stack(points))
    write_atomic(path, arrays + _describe([one.manifest for one in points], arrays))


def replace_manifests(path: Path, manifests: Sequence[Mapping[str, Any]]) -> None:
    """Write a file again with other manifests and the same arrays."""
    arrays = _read_arrays(path, read_description(path))
    write_atomic(path, arrays + _describe(manifests, arrays))


def _describe(manifests: Sequence[Mapping[str, Any]], arrays: bytes) -> bytes:
    """Return description and trailer; common values of all manifests are written once."""
    first, *others = manifests
    common = {
        key: value for key, value in first.items()
        if all(key in one and one[key] == value for one in others)
    }  # fmt: skip
    description = {
        "bytes": len(arrays), "sha256": hashlib.sha256(arrays).hexdigest(), "common": common,
        "points": [{k: v for k, v in one.items() if k not in common} for one in manifests],
    }  # fmt: skip
    text = json.dumps(description, indent=1, ensure_ascii=False).encode()
    return text + (_TRAILER % (FORMAT, len(text), _checksum(FORMAT, text))).encode()


def _checksum(number: int, description: bytes) -> str:
    return hashlib.sha256(b"%d %d " % (number, len(description)) + description).hexdigest()


def read_description(path: Path) -> dict[str, Any]:
    """Return a file's description, with the manifests of its `points`; its arrays are not read.

    Raises:
        ResultError: the file is missing, damaged or not a result.
    """
    if not path.is_file():
        raise ResultError(f"no result at {path}: there is no such file.")
    with path.open("rb") as file:
        size = file.seek(0, io.SEEK_END)
        file.seek(max(0, size - _TRAILER_BYTES))
        trailer = _TRAILER_PATTERN.fullmatch(file.read())
        length = int(trailer[2]) if trailer else 0
        file.seek(max(0, size - _TRAILER_BYTES - length))
        text = file.read(length)
    number = int(trailer[1]) if trailer else 0
    if trailer is None and path.with_suffix(".json").is_file():
        number = FORMAT - 1  # had its description in a separate file
    elif trailer is None or trailer[3].decode() != _checksum(number, text):
        what = f"{path} is damaged, or not a result of cqbjax: its end is not as written"
        raise ResultError(f"{what}; {AGAIN}")
    if number != FORMAT:
        what = f"{path} has format {number} of another version of cqbjax, and this one reads format"
        raise FormatError(f"{what} {FORMAT}: {AGAIN}")
    description = dict(json.loads(text))
    if size - _TRAILER_BYTES - length != description["bytes"]:
        what = f"{path} is damaged: its arrays do not have {description['bytes']:,} bytes"
        raise ResultError(f"{what}; {AGAIN}")
    description["points"] = [{**description["common"], **one} for one in description["points"]]
    return description


def _read_arrays(path: Path, description: Mapping[str, Any]) -> bytes:
    with path.open("rb") as file:
        arrays = file.read(description["bytes"])
    if hashlib.sha256(arrays).hexdigest() != description["sha256"]:
        raise ResultError(f"{path} is damaged: its arrays do not have their checksum; {AGAIN}")
    return arrays


def read_file(
    path: Path, rounds: Sequence[int] | None = None, only: Collection[int] | None = None
) -> list[StoredPoint]:
    """Read the points of a file whose checksums are right.

    Args:
        path: the file.
        rounds: rounds to read; None: all. If a round was not recorded, the last recorded round
            before it is read.
        only: indices of the points to read, which are returned in increasing order; None: all.

    Raises:
        ResultError: the file is missing, damaged or not a result.
    """
    description = read_description(path)
    manifests, arrays = description["points"], _read_arrays(path, description)
    try:
        with xr.open_dataset(io.BytesIO(arrays), engine="h5netcdf") as opened:
            if rounds is not None and "round" in opened.coords:
                last = np.searchsorted(opened["round"].values, sorted(rounds), side="right") - 1
                opened = opened.isel(round=np.unique(np.maximum(last, 0)))
            whole = opened.load()
        wanted = range(len(manifests)) if only is None else sorted(only)
        return _unstack(whole, manifests, wanted)
    except Exception as error:  # of HDF5, NetCDF or JSON
        raise ResultError(f"{path} is not a result of cqbjax: {error!r}") from error


def _stack(points: Sequence[StoredPoint]) -> xr.Dataset:
    """Stack points of one shape along `point`."""
    first = points[0].point
    if len({shape_of(one.point) for one in points}) > 1:
        raise ResultError("points of one file must have the same policies, rounds and sizes.")
    data: dict[str, Any] = {
        name: (
            ("point", *first[name].dims), np.stack([one.point[name].values for one in points]),
            first[name].attrs,
        )
        for name in map(str, first.data_vars)
    }  # fmt: skip
    data |= {
        array: (("point", name), np.stack([each.point[name].values for each in points]))
        for name, array in POINT_COORDS.items()
        if name in first.coords
    }
    # NumPy's scalars become Python's.
    dump = functools.partial(json.dumps, sort_keys=True, default=np.generic.item)
    texts = [one.config for one in points], [dump(one.point.attrs) for one in points]
    data |= {n: ("point", np.asarray(t, object)) for n, t in zip(TEXTS, texts, strict=True)}
    return xr.Dataset(data, {name: first[name] for name in shared_coords(first)})


def _unstack(
    whole: xr.Dataset, manifests: Sequence[Manifest], numbers: Sequence[int]
) -> list[StoredPoint]:
    """Return points from the dataset of `_stack`."""
    whole = whole.assign_coords({
        name: (one.dims, [str(label) for label in one.values], one.attrs)
        for name, one in whole.coords.items() if one.dtype.kind == "O"
    })  # fmt: skip
    configs, attributes = (whole[name].values for name in TEXTS)
    points = []
    for i in numbers:
        data = {
            name: (whole[name].dims[1:], whole[name].values[i], whole[name].attrs)
            for name in whole.data_vars
            if name not in (*TEXTS, *POINT_COORDS.values())
        }
        coords = {one: whole[many].values[i] for one, many in POINT_COORDS.items() if many in whole}
        point = xr.Dataset(data, {**coords, **whole.coords}, json.loads(attributes[i]))
        points.append(StoredPoint(point, manifests[i], str(configs[i])))
    return points


def _encode(whole: xr.Dataset) -> bytes:
    """Return a dataset as compressed NetCDF.

    HDF5 writes to memory, because it crashes on a full disk and needs file locks.
    """
    # A chunk holds one point. HDF5 compresses neither text nor scalars.
    encoding: dict[Hashable, dict[str, Any]] = {
        name: {"zlib": True, "complevel": 4, "shuffle": True, "chunksizes": (1, *one.shape[1:])}
        for name, one in whole.data_vars.items()
        if one.dtype.kind not in "OU" and name not in POINT_COORDS.values()
    }
    file = io.BytesIO()
    whole.to_netcdf(file, engine="h5netcdf", encoding=encoding)
    return file.getvalue()
