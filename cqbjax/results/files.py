"""Stored points, how a point is joined from its parts, and the files that hold them.

Points that ran together share a file, which has checksums of every byte. It is NetCDF with its
points along the dimension `point`, then a description in JSON, then a trailer line with the number
of the format, the length of the description and its checksum. The description holds the manifests
of the points and the checksum of the arrays, so that an index does not read arrays. NetCDF readers
ignore everything after the arrays.
"""

import functools
import hashlib
import io
import itertools
import json
import numbers
import re
from collections.abc import Collection, Hashable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import xarray as xr

from cqbjax.core.files import write_atomic
from cqbjax.core.labels import OPTIMAL

RUN_DIMS = ("policy", "arrival_rate", "seed", "round")
VARIABLES: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("queue_length", "regret", "departures", "explored"), RUN_DIMS),
    "optimal_queue_length": RUN_DIMS[1:],
    **dict.fromkeys(("seconds_per_round", "compile_seconds"), RUN_DIMS[:1]),
}
# Manifest key: the study type, of a study that is not a sweep.
STUDY_TYPE = "kind"
# Coordinates that differ between points of a file, and the arrays that hold them there.
POINT_COORDS = {"arrival_rate": "arrival_rates", "seed": "seeds"}
# Dimensions along which a stored point can be extended.
AXES = ("arrival_rate", "seed")
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

Manifest = dict[str, Any]


class ResultError(ValueError):
    """A result cannot be written, is missing, or is damaged."""


class FormatError(ResultError):
    """A result has another format than this version of the package."""


class StoredPoint(NamedTuple):
    """A point with its manifest and configuration.

    Attributes:
        point: `VARIABLES` over policy, arrival_rate, seed and round, and other recorded arrays. For
            other study types: any arrays over policy and further labelled dimensions.
        manifest: provenance in JSON values; `varied` maps each swept key to this point's value.
        config: the resolved configuration as YAML text (JSON would turn integer keys into text).
    """

    point: xr.Dataset
    manifest: Manifest
    config: str

    def labels(self, dim: str) -> list[Any]:
        """Return a dimension's labels; [None] without the dimension."""
        return list(self.point[dim].values.tolist()) if dim in self.point.dims else [None]


def shape_of(point: xr.Dataset) -> tuple[Hashable, ...]:
    """Return what all points of a file have in common: labels, rounds, variables and sizes."""
    labels = [(str(name), tuple(point[name].values.tolist())) for name in shared_coords(point)]
    return *labels, *sorted((str(name), one.shape) for name, one in point.data_vars.items())


def shared_coords(point: xr.Dataset) -> list[Hashable]:
    """Return the coordinates that all points of a file have in common."""
    return sorted((name for name in point.coords if name not in POINT_COORDS), key=str)


def validate_point(one: StoredPoint) -> None:
    """Check that the dimensions and attributes of a point can be stored and combined.

    Raises:
        ResultError: names the wrong dimension or attribute.
    """
    # The dimensions of a sweep have coordinates.
    dims = ("policy", *map(str, one.point.dims)) if STUDY_TYPE in one.manifest else ()
    for dim in dims:
        if dim not in one.point.coords:
            raise ResultError(f"dimension {dim} has no coordinate: it must be labelled.")
    values = {f"attribute {key}": value for key, value in one.point.attrs.items()}
    for key, value in one.manifest.get("varied", {}).items():
        values[f"manifest key varied. {key}"] = value
    for key, value in values.items():
        if isinstance(value, bool) or not isinstance(value, str | numbers.Real | np.number):
            raise ResultError(
                f"{key} is {value!r}: only text and numbers can be stored and combined."
            )


def join_parts(parts: Sequence[StoredPoint]) -> list[StoredPoint]:
    """Join the parts of a point, which may differ in policies, arrival rates and seeds.

    Policies are in the order in which they were first computed; rates and seeds increase.

    Args:
        parts: parts with one cache key, the newest first; if two parts hold the same run, the newer
            one is taken.

    Returns:
        One point if all policies and rates have the same seeds. Otherwise several points, each
        without missing values.
    """
    if len(parts) == 1:
        return list(parts)
    seeds: dict[tuple[str, Any], set[Any]] = {}
    for one in reversed(parts):
        for run in itertools.product(one.labels("policy"), one.labels("arrival_rate")):
            seeds.setdefault(run, set()).update(one.labels("seed"))
    policies: dict[tuple[Any, tuple[Any, ...]], list[str]] = {}
    for label, rate in [run for run in seeds if run[0] != OPTIMAL] or seeds:
        policies.setdefault((rate, tuple(sorted(seeds[label, rate]))), []).append(label)
    rates: dict[tuple[tuple[str, ...], tuple[Any, ...]], list[Any]] = {}
    for (rate, own_seeds), labels in policies.items():
        rates.setdefault((tuple(labels), own_seeds), []).append(rate)
    return [
        select_runs(parts, labels, sorted(some), own_seeds)
        for (labels, own_seeds), some in rates.items()
    ]


def select_runs(
    parts: Sequence[StoredPoint], labels: Sequence[str], rates: Sequence[Any], seeds: Sequence[Any]
) -> StoredPoint:
    """Return runs of a point from its parts.

    Args:
        parts: the newest first; together they hold all of the runs.
        labels: labels of policies; the oracle is included if it is stored.
        rates: arrival rates; [None]: all of the newest part.
        seeds: like `rates`.
    """
    newest, oldest_first = parts[0].point, list(reversed(parts))
    there = {x for one in parts for x in one.labels("policy")} & {*labels, OPTIMAL}
    stored = dict.fromkeys(
        # A policy that a newer part replaced is still at its first place.
        x for one in oldest_first
        for x in (*(one.manifest.get("policies", ()) if parts[1:] else ()), *one.labels("policy"))
    )  # fmt: skip
    wanted: dict[Any, list[Any]] = {"policy": [x for x in stored if x in there]}
    runs = zip(AXES, (rates, seeds), strict=True)
    wanted |= {axis: list(own) for axis, own in runs if list(own) != [None]}
    if len(parts) == 1 and all(parts[0].labels(dim) == own for dim, own in wanted.items()):
        return parts[0]
    # Each value is overwritten by that of the newest part that holds it.
    fill = {name: array.dtype.type() for name, array in newest.data_vars.items()}
    whole = newest.reindex(wanted, fill_value=fill)
    for one in oldest_first:
        labels_of = {dim: {*one.labels(dim)} for dim in wanted}
        held = {dim: [x for x in own if x in labels_of[dim]] for dim, own in wanted.items()}
        for name, array in whole.data_vars.items():
            at = {dim: own for dim, own in held.items() if dim in array.dims}
            array.loc[at] = one.point[name].sel(at).values
    return parts[0]._replace(point=whole)


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
    description["points"] = [description["common"] | one for one in description["points"]]
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
    # NumPy's scalars become Python's.
    dump = functools.partial(json.dumps, sort_keys=True, default=np.generic.item)
    texts = [one.config for one in points], [dump(one.point.attrs) for one in points]
    data: dict[Any, Any] = {
        name: ("point", np.asarray(one, object)) for name, one in zip(TEXTS, texts, strict=True)
    }
    stacked = {name: array for name, array in POINT_COORDS.items() if name in first.coords}
    for name, array in ({name: name for name in first.data_vars} | stacked).items():
        values = np.stack([one.point[name].values for one in points])
        data[array] = ("point", *first[name].dims), values, first[name].attrs
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
        one = whole.isel(point=i)
        coords = {name: one[many].values for name, many in POINT_COORDS.items() if many in one}
        one = one.assign_coords(coords).drop_vars([*TEXTS, *(POINT_COORDS[x] for x in coords)])
        point = one.assign_attrs(json.loads(attributes[i]))
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
