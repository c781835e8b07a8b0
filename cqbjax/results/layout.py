"""How points lie in a NetCDF file: one as it is, or several of one shape along `point`."""

import io
import json
import numbers
from collections.abc import Collection, Hashable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import xarray as xr

RUN_DIMS = ("policy", "arrival_rate", "seed", "round")
CONFIG = "config"
# In a manifest: what kind of study measured, where that was no sweep.
KIND = "kind"
VARIABLES: dict[str, tuple[str, ...]] = {
    "queue_length": RUN_DIMS,
    "regret": RUN_DIMS,
    "departures": RUN_DIMS,
    "explored": RUN_DIMS,
    "optimal_queue_length": RUN_DIMS[1:],
    "seconds_per_round": RUN_DIMS[:1],
    "compile_seconds": RUN_DIMS[:1],
}
REQUIRED_ATTRIBUTES = ("experiment", "K", "num_servers", "source", "provenance")
# Of several points: coordinates that are each point's own, and what stands beside its arrays.
OWN = {"arrival_rate": "arrival_rates", "seed": "seeds"}
BESIDE = ("configs", "attributes")


class ResultError(ValueError):
    """Report a result that cannot be written, is missing, or is torn."""


class OlderError(ResultError):
    """Report a result of an older version, or a file that is none."""


class Stored(NamedTuple):
    """A point and what stands beside it.

    Attributes:
        point: `VARIABLES` over policy, arrival_rate, seed and round, and what else was recorded;
            or, of a study that is no sweep, whatever it measured, by policy and other dimensions.
            Its attributes are its own.
        manifest: what ran, JSON values only; `varied` maps each swept key to this point's value.
        config: the resolved configuration, as YAML text (in JSON its whole-number keys would turn
            into text).
    """

    point: xr.Dataset
    manifest: dict[str, Any]
    config: str


def shape(point: xr.Dataset) -> tuple[Hashable, ...]:
    """Return what points of one file have in common: labels, rounds, variables and their sizes."""
    labels = [(str(name), tuple(point[name].values.tolist())) for name in _common(point)]
    return *labels, *sorted((str(name), one.shape) for name, one in point.data_vars.items())


def _common(point: xr.Dataset) -> list[Hashable]:
    """Return the coordinates that points of one file share, in order."""
    return sorted((name for name in point.coords if name not in OWN), key=str)


def together(points: Sequence[Stored]) -> xr.Dataset:
    """Return the content of a file of points."""
    return _alone(points[0]) if len(points) == 1 else _stacked(points)


def _alone(one: Stored) -> xr.Dataset:
    """Return a file's content: a point, with its configuration as an attribute."""
    return one.point.assign_attrs({CONFIG: one.config})


def _stacked(points: Sequence[Stored]) -> xr.Dataset:
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
        if one in first.coords
    }
    texts = (
        [one.config for one in points],
        [json.dumps(_plain(one.point.attrs), sort_keys=True) for one in points],
    )
    data |= {n: ("point", np.asarray(t, object)) for n, t in zip(BESIDE, texts, strict=True)}
    return xr.Dataset(data, {name: first[name] for name in _common(first)})


def taken_apart(
    whole: xr.Dataset, manifests: Sequence[dict[str, Any]], only: Collection[int] | None
) -> list[Stored]:
    """Return the points of a file, or some."""
    labels = [str(label) for label in whole["policy"].values]
    whole = whole.assign_coords(policy=labels)
    if "point" not in whole.dims:
        config = str(whole.attrs.pop(CONFIG))
        own = whole.drop_attrs(deep=False).assign_attrs(_plain(whole.attrs))
        return [Stored(own, manifests[0], config)]
    configs, attributes = (whole[name].values for name in BESIDE)
    return [
        Stored(_one(whole, i, json.loads(attributes[i])), manifests[i], str(configs[i]))
        for i in (range(len(manifests)) if only is None else sorted(only))
    ]


def _one(whole: xr.Dataset, number: int, attributes: Mapping[str, Any]) -> xr.Dataset:
    """Return one of the points along `point`."""
    data = {
        name: (whole[name].dims[1:], whole[name].values[number], whole[name].attrs)
        for name in whole.data_vars
        if name not in (*BESIDE, *OWN.values())
    }
    own = {one: whole[many].values[number] for one, many in OWN.items() if many in whole}
    return xr.Dataset(data, {**own, **whole.coords}, attributes)


def at(opened: xr.Dataset, rounds: Sequence[int]) -> xr.Dataset:
    """Keep the last recorded rounds that are not later than these."""
    if "round" not in opened.coords:
        return opened
    recorded = opened["round"].values
    places = np.searchsorted(recorded, sorted(rounds), side="right") - 1
    return opened.isel(round=np.unique(np.maximum(places, 0)))


def check(one: Stored) -> None:
    """Refuse a dataset that is not a point, or that NetCDF or a combination would not hold."""
    is_sweep = one.manifest.get(KIND) is None
    for name, dims in VARIABLES.items() if is_sweep else ():
        if name not in one.point:
            raise ResultError(f"the dataset lacks {name}: a point has {', '.join(VARIABLES)}.")
        stored_dims = one.point[name].dims
        if stored_dims != dims:
            raise ResultError(f"{name} has dimensions {stored_dims}, expected {dims}.")
    for dim in RUN_DIMS if is_sweep else dict.fromkeys(("policy", *map(str, one.point.dims))):
        if dim not in one.point.coords:
            raise ResultError(f"dimension {dim} has no coordinate: it must be labelled.")
    for key in REQUIRED_ATTRIBUTES if is_sweep else REQUIRED_ATTRIBUTES[:1]:
        if key not in one.point.attrs:
            raise ResultError(f"attribute {key} is missing: it is needed to combine results.")
    if CONFIG in one.point.attrs:
        raise ResultError(f"attribute {CONFIG} is taken: the file's own {CONFIG} stands there.")
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


def encoded(whole: xr.Dataset) -> bytes:
    """Return a dataset as NetCDF, compressed.

    HDF5 writes to memory: it would crash on a full disk, and wants locks that not every file
    system has.
    """
    several = "point" in whole.dims
    encoding: dict[Hashable, dict[str, Any]] = {}
    beside = {*BESIDE, *OWN.values()}
    # HDF5 compresses neither words nor a number alone.
    arrays = [n for n, one in whole.data_vars.items() if one.ndim and one.dtype.kind not in "OU"]
    for name in [name for name in arrays if name not in beside]:
        encoding[name] = {"zlib": True, "complevel": 4, "shuffle": True}
        if several:
            # A point is read without the others.
            encoding[name]["chunksizes"] = (1, *whole[name].shape[1:])
    file = io.BytesIO()
    whole.to_netcdf(file, engine="h5netcdf", encoding=encoding)
    return file.getvalue()


def _plain(attributes: Mapping[Hashable, Any]) -> dict[Hashable, Any]:
    """Turn NumPy's scalars into Python's own."""
    return {
        key: value.item() if isinstance(value, np.generic) else value
        for key, value in attributes.items()
    }
