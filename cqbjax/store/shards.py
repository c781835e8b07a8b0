"""The file of a shard: points that ran together, written whole or not at all.

A file is one NetCDF. It holds a point as it is, or several of one shape along a dimension `point`.
Its last bytes are the checksum of all before them: NetCDF's readers pass over them, `read` refuses
a file without.
"""

import hashlib
import io
import json
import numbers
import os
from collections.abc import Hashable, Mapping, Sequence
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np
import xarray as xr

from cqbjax.core.files import write_atomic

ENDING = ".nc"
RUN_DIMS = ("policy", "arrival_rate", "seed", "round")
MANIFEST, CONFIG = "manifest", "config"
VARIABLES: dict[str, tuple[str, ...]] = {
    "queue_length": RUN_DIMS,
    "regret": RUN_DIMS,
    "departures": RUN_DIMS,
    "explored": RUN_DIMS,
    "optimal_queue_length": RUN_DIMS[1:],
    "seconds_per_round": RUN_DIMS[:1],
    "compile_seconds": RUN_DIMS[:1],
}
REQUIRED_ATTRIBUTES = ("experiment", "K", "num_servers", "source")
# Of several points: coordinates that are each point's own, and what stands beside its arrays.
OWN = {"arrival_rate": "arrival_rates", "seed": "seeds"}
BESIDE = ("manifests", "configs", "attributes")


class ResultError(ValueError):
    """Report a result that cannot be written, is missing, or is torn."""


class Stored(NamedTuple):
    """A point and what stands beside it.

    Attributes:
        point: `VARIABLES` over policy, arrival_rate, seed and round, and what else was recorded;
            its attributes are its own.
        manifest: what ran, JSON values only; `varied` maps each swept key to this point's value.
        config: the resolved configuration, as YAML text (in JSON its whole-number keys would turn
            into text).
    """

    point: xr.Dataset
    manifest: dict[str, Any]
    config: str


def write(points: Sequence[Stored], path: Path) -> None:
    """Write a file atomically, in place of an older one there.

    A crash leaves the old file or the new one, and at most a hidden partial file, which is never
    taken for a result and which the next one of that name removes.

    Args:
        points: at least one, all of one `shape`.
        path: of the file, which ends in `.nc`; parents are made.

    Raises:
        ResultError: a variable, dimension or attribute is missing or cannot be stored.
    """
    path = Path(path)
    if path.suffix != ENDING:
        raise ResultError(f"{path} is no place for a result: its name must end in {ENDING}.")
    for one in points:
        _check(one)
    whole = _alone(points[0]) if len(points) == 1 else _together(points)
    write_atomic(path, lambda file: _write(whole, file))
    for sibling in path.parent.iterdir():
        if sibling.name.startswith(f".{path.name}.") and sibling.suffix == ".partial":
            sibling.unlink(missing_ok=True)


def shape(point: xr.Dataset) -> tuple[Hashable, ...]:
    """Return what points of one file have in common: labels, rounds, variables and their sizes."""
    labels, rounds = (tuple(point[name].values.tolist()) for name in ("policy", "round"))
    return labels, rounds, *sorted((str(name), one.shape) for name, one in point.data_vars.items())


def more(point: xr.Dataset, dims: Sequence[str] = RUN_DIMS) -> list[str]:
    """Return the variables over these dimensions that a result need not have, in their order."""
    return [str(n) for n, one in point.data_vars.items() if n not in VARIABLES and one.dims == dims]


def read(path: Path, rounds: Sequence[int] | None = None) -> list[Stored]:
    """Read a file whose checksum is right.

    Args:
        path: of the file.
        rounds: keep these alone, each the last recorded one that is not later; None keeps all.

    Raises:
        ResultError: it is torn, or not a result.
    """
    content = _verified(path)
    try:
        with xr.open_dataset(io.BytesIO(content), engine="h5netcdf") as opened:
            whole = (opened if rounds is None else _at(opened, rounds)).load()
        return _taken_apart(whole)
    except Exception as error:  # of HDF5, NetCDF or JSON
        raise ResultError(f"{path} is not a result of cqbjax: {error!r}") from error


def read_manifests(path: Path) -> list[dict[str, Any]]:
    """Read the manifests of a file's points, and none of their arrays.

    Raises:
        ResultError: it is torn, or not a result.
    """
    content = _verified(path)
    try:
        with xr.open_dataset(io.BytesIO(content), engine="h5netcdf") as opened:
            several = "point" in opened.dims
            texts = opened[BESIDE[0]].values if several else [opened.attrs[MANIFEST]]
            return [json.loads(text) for text in texts]
    except Exception as error:  # of HDF5, NetCDF or JSON
        raise ResultError(f"{path} is not a result of cqbjax: {error!r}") from error


def _alone(one: Stored) -> xr.Dataset:
    """Return a file's content: a point, with manifest and configuration as attributes."""
    text = json.dumps(one.manifest, indent=2, sort_keys=True)
    return one.point.assign_attrs({MANIFEST: text, CONFIG: one.config})


def _together(points: Sequence[Stored]) -> xr.Dataset:
    """Return a file's content: points along a dimension of their own."""
    first = points[0].point
    if len({shape(one.point) for one in points}) > 1:
        raise ResultError("points of one file must have the same policies, rounds and sizes.")
    data: dict[str, Any] = {
        name: (
            ("point", *first[name].dims), np.stack([one.point[name].values for one in points]),
            first[name].attrs,
        )
        for name in map(str, first.data_vars)
    }  # fmt: skip
    data |= {
        many: (("point", one), np.stack([each.point[one].values for each in points]))
        for one, many in OWN.items()
    }
    texts = (
        [json.dumps(one.manifest, sort_keys=True) for one in points],
        [one.config for one in points],
        [json.dumps(_plain(one.point.attrs), sort_keys=True) for one in points],
    )
    data |= {n: ("point", np.asarray(t, object)) for n, t in zip(BESIDE, texts, strict=True)}
    return xr.Dataset(data, {"policy": first["policy"], "round": first["round"]})


def _taken_apart(whole: xr.Dataset) -> list[Stored]:
    """Return the points of a file."""
    labels = [str(label) for label in whole["policy"].values]
    whole = whole.assign_coords(policy=labels)
    if "point" not in whole.dims:
        manifest, config = json.loads(whole.attrs.pop(MANIFEST)), str(whole.attrs.pop(CONFIG))
        own = whole.drop_attrs(deep=False).assign_attrs(_plain(whole.attrs))
        return [Stored(own, manifest, config)]
    manifests, configs, attributes = (whole[name].values for name in BESIDE)
    return [
        Stored(_one(whole, number, json.loads(own)), json.loads(manifest), str(config))
        for number, (manifest, config, own) in enumerate(
            zip(manifests, configs, attributes, strict=True)
        )
    ]


def _one(whole: xr.Dataset, number: int, attributes: Mapping[str, Any]) -> xr.Dataset:
    """Return one of the points along `point`."""
    data = {
        name: (whole[name].dims[1:], whole[name].values[number], whole[name].attrs)
        for name in whole.data_vars
        if name not in (*BESIDE, *OWN.values())
    }
    coords = {one: whole[many].values[number] for one, many in OWN.items()}
    coords |= {"policy": whole["policy"], "round": whole["round"]}
    return xr.Dataset(data, coords, attributes)


def _at(opened: xr.Dataset, rounds: Sequence[int]) -> xr.Dataset:
    """Keep the last recorded rounds that are not later than these."""
    recorded = opened["round"].values
    places = np.searchsorted(recorded, sorted(rounds), side="right") - 1
    return opened.isel(round=np.unique(np.maximum(places, 0)))


def _check(one: Stored) -> None:
    """Refuse a dataset that is not a point, or that NetCDF or a combination would not hold."""
    for name, dims in VARIABLES.items():
        if name not in one.point:
            raise ResultError(f"the dataset lacks {name}: a point has {', '.join(VARIABLES)}.")
        stored_dims = one.point[name].dims
        if stored_dims != dims:
            raise ResultError(f"{name} has dimensions {stored_dims}, expected {dims}.")
    for dim in RUN_DIMS:
        if dim not in one.point.coords:
            raise ResultError(f"dimension {dim} has no coordinate: it must be labelled.")
    for key in REQUIRED_ATTRIBUTES:
        if key not in one.point.attrs:
            raise ResultError(f"attribute {key} is missing: it is needed to combine results.")
    for key in (MANIFEST, CONFIG):
        if key in one.point.attrs:
            raise ResultError(f"attribute {key} is taken: the file's own {key} stands there.")
    varied = one.manifest.get("varied", {})
    if not isinstance(varied, Mapping):
        raise ResultError("manifest key varied must map each swept key to this point's value.")
    _check_scalars("attribute", one.point.attrs)
    _check_scalars("manifest key varied.", varied)


def _check_scalars(kind: str, values: Mapping[Any, Any]) -> None:
    """Refuse attributes that are neither text nor a number."""
    for key, value in values.items():
        is_number = isinstance(value, numbers.Real | np.number)
        if not isinstance(value, str) and (not is_number or isinstance(value, bool)):
            raise ResultError(
                f"{kind} {key} is {value!r}: only text and numbers can be stored and combined."
            )


def _write(whole: xr.Dataset, file: IO[bytes]) -> None:
    """Write a dataset, compressed, and behind it the checksum of what was written."""
    several = "point" in whole.dims
    encoding: dict[Hashable, dict[str, Any]] = {}
    beside = {*BESIDE, *OWN.values()}
    for name in [name for name in whole.data_vars if name not in beside]:
        encoding[name] = {"zlib": True, "complevel": 4, "shuffle": True}
        if several:
            # A point is read without the others.
            encoding[name]["chunksizes"] = (1, *whole[name].shape[1:])
    whole.to_netcdf(file.name, engine="h5netcdf", encoding=encoding)
    content = Path(file.name).read_bytes()
    file.seek(0, os.SEEK_END)
    file.write(_ending(content))


def _ending(content: bytes) -> bytes:
    """Return the last bytes of a file with this content: the checksum, in words."""
    return b"\nsha256 %s\n" % hashlib.sha256(content).hexdigest().encode()


def _verified(path: Path) -> bytes:
    """Return a file's content without its checksum, which must be that of the content."""
    if not path.is_file():
        raise ResultError(f"no result at {path}: there is no such file.")
    content = path.read_bytes()
    size = len(_ending(b""))
    content, ending = content[:-size], content[-size:]
    if ending != _ending(content):
        raise ResultError(
            f"{path} is torn, or not a result of cqbjax: it does not end in the checksum of its "
            "content; run the point again, or move the file away."
        )
    return content


def _plain(attributes: Mapping[Hashable, Any]) -> dict[Hashable, Any]:
    """Turn NumPy's scalars into Python's own."""
    return {
        key: value.item() if isinstance(value, np.generic) else value
        for key, value in attributes.items()
    }
