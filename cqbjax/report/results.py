"""Stored results: arrays and a manifest, written whole or not at all, read back and combined.

A *point* is one compiled experiment. Its folder holds `arrays.nc`, `manifest.json` (with the
checksum of the arrays) and `config.yaml`. Figures and tables read these, never a live run.
"""

import hashlib
import json
import numbers
import os
import shutil
from collections.abc import Hashable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr

from cqbjax.report.summaries import RUN_DIMS, combine

ARRAYS, MANIFEST, CONFIG = "arrays.nc", "manifest.json", "config.yaml"
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


def save(dataset: xr.Dataset, manifest: dict[str, Any], config: str, folder: Path) -> None:
    """Write one point's folder atomically, in place of an older result there.

    Everything is written into a hidden sibling first and renamed when whole, so that a crash
    leaves the old result or the new one. Files in `folder` that are not a result's stay.

    Args:
        dataset: a point: `VARIABLES` over policy, arrival_rate, seed and round.
        manifest: what ran, JSON values only; `varied` maps each swept key to this point's value.
        config: the resolved configuration, as YAML text.
        folder: where the point goes; parents are made.

    Raises:
        ResultError: a variable, dimension or attribute is missing or cannot be stored.
    """
    _check_point(dataset, manifest)
    folder = Path(folder).resolve()
    folder.parent.mkdir(parents=True, exist_ok=True)
    partial, previous = _sibling(folder, "partial"), _sibling(folder, "previous")
    _finish_interrupted(folder, previous)
    shutil.rmtree(partial, ignore_errors=True)
    try:
        partial.mkdir()
        _write_files(dataset, manifest, config, partial)
        _swap(partial, folder, previous)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise
    _finish_interrupted(folder, previous)


def load(path: Path | str) -> xr.Dataset:
    """Read one result, or all the results under a folder combined into one dataset.

    Points that differ in arrival rate are joined along it; K, num_servers, slackness, parameters
    and every other varied key in which points differ becomes a dimension of that name. A
    combination that was not run is NaN (integers are then float64). Variables by policy alone,
    such as seconds_per_round, gain the arrival_rate dimension where points hold different rates.

    Args:
        path: a point's folder, its arrays.nc, or any folder above.

    Raises:
        ResultError: no result, a torn one, several experiments, or two points for one combination.
    """
    points = load_points(path)
    experiments = sorted({str(point.attrs["experiment"]) for point in points})
    if len(experiments) > 1:
        raise ResultError(
            f"{path} holds results of several experiments ({', '.join(experiments)}): "
            "load one experiment's folder, or use load_points."
        )
    manifests = [read_manifest(point.attrs["path"]) for point in points]
    return combine(points, sorted({key for found in manifests for key in found.get("varied", {})}))


def load_points(path: Path | str) -> list[xr.Dataset]:
    """Read the points under a folder one by one, in the order of their folders' names.

    Returns:
        One dataset a point; attrs hold the point's own, each key of the manifest's `varied`, and
        `path`, the point's folder.

    Raises:
        ResultError: no result under `path`, or a torn one.
    """
    return [_read_point(folder) for folder in _find_points(Path(path))]


def read_manifest(path: Path | str) -> dict[str, Any]:
    """Read one point's manifest.

    Args:
        path: the point's folder, or a file in it.

    Raises:
        ResultError: there is no manifest, or it is not a JSON object.
    """
    folder = Path(path).parent if Path(path).is_file() else Path(path)
    file = _survivor(folder) / MANIFEST
    if not file.is_file():
        raise ResultError(f"{folder} holds no result: {MANIFEST} is missing.")
    try:
        manifest = json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ResultError(f"{file} is torn: it is not JSON ({error}).") from None
    if not isinstance(manifest, dict):
        raise ResultError(f"{file} is not a manifest: a JSON object is expected.")
    return manifest


def _check_point(dataset: xr.Dataset, manifest: Mapping[str, Any]) -> None:
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
    varied = manifest.get("varied", {})
    if not isinstance(varied, Mapping):
        raise ResultError("manifest key varied must map each swept key to this point's value.")
    _check_scalars("attribute", dataset.attrs)
    _check_scalars("manifest key varied.", varied)


def _check_scalars(kind: str, values: Mapping[Any, Any]) -> None:
    for key, value in values.items():
        is_number = isinstance(value, numbers.Real | np.number)
        if not isinstance(value, str) and (not is_number or isinstance(value, bool)):
            raise ResultError(
                f"{kind} {key} is {value!r}: only text and numbers can be stored and combined."
            )


def _write_files(
    dataset: xr.Dataset, manifest: Mapping[str, Any], config: str, folder: Path
) -> None:
    encoding: dict[Hashable, dict[str, Any]] = {
        name: {"zlib": True, "complevel": 4, "shuffle": True} for name in dataset.data_vars
    }
    arrays = folder / ARRAYS
    dataset.to_netcdf(arrays, engine="h5netcdf", encoding=encoding)
    with arrays.open("rb") as stream:
        os.fsync(stream.fileno())
        digest = hashlib.file_digest(stream, "sha256").hexdigest()
    text = json.dumps({**manifest, "arrays_sha256": digest}, indent=2, sort_keys=True)
    _write_synced(folder / CONFIG, config.encode())
    _write_synced(folder / MANIFEST, f"{text}\n".encode())
    _sync_folder(folder)


def _write_synced(path: Path, content: bytes) -> None:
    with path.open("wb") as stream:
        stream.write(content)
        stream.flush()
        os.fsync(stream.fileno())


def _sync_folder(folder: Path) -> None:
    if os.name != "posix":
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _sibling(folder: Path, role: str) -> Path:
    return folder.with_name(f".{folder.name}.{role}")


def _swap(partial: Path, folder: Path, previous: Path) -> None:
    """Put `partial` at `folder`; between the two renames readers find the old one aside."""
    if folder.exists():
        os.replace(folder, previous)
    try:
        os.replace(partial, folder)
    except BaseException:
        if previous.exists():
            previous.rename(folder)
        raise
    _sync_folder(folder.parent)


def _finish_interrupted(folder: Path, previous: Path) -> None:
    """End a swap: bring the old result back if no new one came, else drop it, keeping the rest."""
    if not previous.exists():
        return
    if not folder.exists():
        previous.rename(folder)
        return
    for entry in previous.iterdir():
        if entry.name not in (ARRAYS, MANIFEST, CONFIG) and not (folder / entry.name).exists():
            entry.rename(folder / entry.name)
    shutil.rmtree(previous)


def _survivor(folder: Path) -> Path:
    """Say where a point's files lie: aside, if a crash hit between the two renames of a swap."""
    previous = _sibling(folder.resolve(), "previous")
    return previous if not folder.exists() and previous.exists() else folder


def _find_points(path: Path) -> list[Path]:
    if path.is_file():
        if path.name not in (ARRAYS, MANIFEST, CONFIG):
            raise ResultError(f"{path} is not a result: give a folder or its {ARRAYS}.")
        return [path.parent]
    root = _survivor(path)
    if not root.is_dir():
        raise ResultError(f"no result at {path}: there is no such folder.")
    found = {file.parent for name in (ARRAYS, MANIFEST) for file in root.rglob(name)}
    points = sorted(folder for folder in found if _is_current(folder.relative_to(root), root))
    if not points:
        raise ResultError(f"no result under {path}: no folder there holds a {MANIFEST}.")
    return points


def _is_current(relative: Path, root: Path) -> bool:
    """Tell a result from leftovers: hidden folders are, unless one is all that a crash left."""
    folder = root
    for part in relative.parts:
        if part.startswith("."):
            name = part.removeprefix(".").removesuffix(".previous")
            if not part.endswith(".previous") or (folder / name).exists():
                return False
        folder = folder / part
    return True


def _read_point(folder: Path) -> xr.Dataset:
    manifest = read_manifest(folder)
    arrays = _survivor(folder) / ARRAYS
    if not arrays.is_file():
        raise ResultError(f"{folder} is torn: {ARRAYS} is missing beside its {MANIFEST}.")
    with arrays.open("rb") as stream:
        digest = hashlib.file_digest(stream, "sha256").hexdigest()
    if digest != manifest.get("arrays_sha256"):
        raise ResultError(
            f"{arrays} is torn: its checksum is not the one in {MANIFEST}; run the point again."
        )
    with xr.open_dataset(arrays, engine="h5netcdf") as opened:
        point = opened.load()
    point = point.assign_coords(policy=[str(label) for label in point["policy"].values])
    attributes = {key: _plain(value) for key, value in point.attrs.items()}
    for key, value in manifest.get("varied", {}).items():
        attributes.setdefault(key, value)
    return point.drop_attrs(deep=False).assign_attrs(attributes, path=str(folder))


def _plain(value: Any) -> Any:
    return value.item() if isinstance(value, np.generic) else value
