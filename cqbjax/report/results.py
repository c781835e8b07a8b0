"""Stored results: one NetCDF file a point, written whole or not at all, read back and combined.

A *point* is one compiled experiment. Its file holds the arrays, the manifest (global attribute
`manifest`, JSON) and the resolved configuration (`config`, YAML). The last bytes of the file are
the checksum of all before them: NetCDF's readers pass over them, `load` refuses a file without.
Figures and tables read these, never a live run.
"""

import hashlib
import io
import json
import numbers
import os
from collections.abc import Hashable, Mapping
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np
import xarray as xr

from cqbjax.files import write_atomic
from cqbjax.report.summaries import RUN_DIMS, combine

ENDING = ".nc"
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


class ResultError(ValueError):
    """Report a result that cannot be written, is missing, or is torn."""


class _Stored(NamedTuple):
    """What a file holds: the point, its attributes its own, and what stands beside it."""

    point: xr.Dataset
    manifest: dict[str, Any]
    config: str


def save(dataset: xr.Dataset, manifest: Mapping[str, Any], config: str, path: Path) -> None:
    """Write one point's file atomically, in place of an older one there.

    A crash leaves the old result or the new one, and at most a hidden partial file, which is never
    taken for a result and which the next result there removes.

    Args:
        dataset: a point: `VARIABLES` over policy, arrival_rate, seed and round.
        manifest: what ran, JSON values only; `varied` maps each swept key to this point's value.
        config: the resolved configuration, as YAML text (in JSON its whole-number keys would turn
            into text).
        path: of the file, which ends in `.nc`; parents are made.

    Raises:
        ResultError: a variable, dimension or attribute is missing or cannot be stored.
    """
    path = Path(path)
    if path.suffix != ENDING:
        raise ResultError(f"{path} is no place for a result: its name must end in {ENDING}.")
    _check_point(dataset, manifest)
    text = json.dumps(manifest, indent=2, sort_keys=True)
    whole = dataset.assign_attrs({MANIFEST: text, CONFIG: config})
    write_atomic(path, lambda file: _write(whole, file))
    for sibling in path.parent.iterdir():
        if sibling.name.startswith(f".{path.name}.") and sibling.suffix == ".partial":
            sibling.unlink(missing_ok=True)


def load(path: Path | str) -> xr.Dataset:
    """Read one result, or all the results under a folder combined into one dataset.

    Points that differ in arrival rate are joined along it; K, num_servers, slackness, parameters
    and every other varied key in which points differ becomes a dimension of that name. A
    combination that was not run is NaN (integers are then float64). Variables by policy alone,
    such as seconds_per_round, gain the arrival_rate dimension where points hold different rates.

    Args:
        path: a point's file, or any folder above.

    Raises:
        ResultError: no result, a torn one, several experiments, points of several versions of the
            code, or two points for one combination.
    """
    stored = [_read(file) for file in _find(Path(path))]
    experiments = sorted({str(each.point.attrs["experiment"]) for each in stored})
    if len(experiments) > 1:
        raise ResultError(
            f"{path} holds results of several experiments ({', '.join(experiments)}): "
            "load one experiment's folder, or use load_points."
        )
    codes = {str(each.manifest["code"]) for each in stored if each.manifest.get("code")}
    if len(codes) > 1:
        raise ResultError(
            f"{path} holds points that {len(codes)} versions of the code computed: run them again "
            "with rerun=true, move the older ones away, or use load_points."
        )
    varied = sorted({key for each in stored for key in each.manifest.get("varied", {})})
    return combine([each.point for each in stored], varied)


def load_points(path: Path | str) -> list[xr.Dataset]:
    """Read the points under a folder one by one, in the order of their files' names.

    Returns:
        One dataset a point; attrs hold the point's own, each key of the manifest's `varied`, and
        `path`, the point's file.

    Raises:
        ResultError: no result under `path`, or a torn one.
    """
    return [_read(file).point for file in _find(Path(path))]


def read_manifest(path: Path | str) -> dict[str, Any]:
    """Read the manifest of one point's file.

    Raises:
        ResultError: there is no such file, it is torn, or it is not a result.
    """
    return _read(Path(path)).manifest


def read_config(path: Path | str) -> str:
    """Read the resolved configuration of one point's file, as YAML text.

    Raises:
        ResultError: there is no such file, it is torn, or it is not a result.
    """
    return _read(Path(path)).config


def _check_point(dataset: xr.Dataset, manifest: Mapping[str, Any]) -> None:
    """Refuse a dataset that is not a point, or that NetCDF or a combination would not hold."""
    for name, dims in VARIABLES.items():
        if name not in dataset:
            raise ResultError(f"the dataset lacks {name}: a point has {', '.join(VARIABLES)}.")
        if dataset[name].dims != dims:
            raise ResultError(f"{name} has dimensions {dataset[name].dims}, expected {dims}.")
    for dim in RUN_DIMS:
        if dim not in dataset.coords:
            raise ResultError(f"dimension {dim} has no coordinate: it must be labelled.")
    for key in REQUIRED_ATTRIBUTES:
        if key not in dataset.attrs:
            raise ResultError(f"attribute {key} is missing: it is needed to combine results.")
    for key in (MANIFEST, CONFIG):
        if key in dataset.attrs:
            raise ResultError(f"attribute {key} is taken: the file's own {key} stands there.")
    varied = manifest.get("varied", {})
    if not isinstance(varied, Mapping):
        raise ResultError("manifest key varied must map each swept key to this point's value.")
    _check_scalars("attribute", dataset.attrs)
    _check_scalars("manifest key varied.", varied)


def _check_scalars(kind: str, values: Mapping[Any, Any]) -> None:
    """Refuse attributes that are neither text nor a number."""
    for key, value in values.items():
        is_number = isinstance(value, numbers.Real | np.number)
        if not isinstance(value, str) and (not is_number or isinstance(value, bool)):
            raise ResultError(
                f"{kind} {key} is {value!r}: only text and numbers can be stored and combined."
            )


def _write(dataset: xr.Dataset, file: IO[bytes]) -> None:
    """Write a dataset, compressed, and behind it the checksum of what was written."""
    encoding: dict[Hashable, dict[str, Any]] = {
        name: {"zlib": True, "complevel": 4, "shuffle": True} for name in dataset.data_vars
    }
    dataset.to_netcdf(file.name, engine="h5netcdf", encoding=encoding)
    content = Path(file.name).read_bytes()
    file.seek(0, os.SEEK_END)
    file.write(_ending(content))


def _ending(content: bytes) -> bytes:
    """Return the last bytes of a file with this content: the checksum, in words."""
    return b"\nsha256 %s\n" % hashlib.sha256(content).hexdigest().encode()


def _find(path: Path) -> list[Path]:
    """List the results at or under a path; what is hidden is a leftover and not one of them."""
    if path.is_file():
        if path.suffix != ENDING or path.name.startswith("."):
            raise ResultError(f"{path} is not a result: give a folder or a file *{ENDING}.")
        return [path]
    if not path.is_dir():
        raise ResultError(f"no result at {path}: there is no such file or folder.")
    results = sorted(
        file
        for file in path.rglob(f"*{ENDING}")
        if not any(part.startswith(".") for part in file.relative_to(path).parts)
    )
    if not results:
        raise ResultError(f"no result under {path}: no folder there holds a file *{ENDING}.")
    return results


def _read(path: Path) -> _Stored:
    """Read a file whose checksum is right.

    Raises:
        ResultError: it is torn, or not a result.
    """
    content = _verified(path)
    try:
        with xr.open_dataset(io.BytesIO(content), engine="h5netcdf") as opened:
            point = opened.load()
        manifest, config = json.loads(point.attrs.pop(MANIFEST)), str(point.attrs.pop(CONFIG))
    except Exception as error:  # of HDF5, NetCDF or JSON
        raise ResultError(f"{path} is not a result of cqbjax: {error!r}") from error
    point = point.assign_coords(policy=[str(label) for label in point["policy"].values])
    attributes = {key: _plain(value) for key, value in point.attrs.items()}
    for key, value in manifest.get("varied", {}).items():
        attributes.setdefault(key, value)
    point = point.drop_attrs(deep=False).assign_attrs(attributes, path=str(path))
    return _Stored(point, manifest, config)


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


def _plain(value: Any) -> Any:
    """Turn a NumPy scalar into Python's own."""
    return value.item() if isinstance(value, np.generic) else value
