"""Stored points: their content, and how a point is joined from its parts."""

import numbers
from collections.abc import Hashable, Sequence
from typing import Any, NamedTuple

import numpy as np
import xarray as xr

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

Manifest = dict[str, Any]


class ResultError(ValueError):
    """A result cannot be written, is missing, or is damaged."""


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
    for dim in dict.fromkeys(dims):
        if dim not in one.point.coords:
            raise ResultError(f"dimension {dim} has no coordinate: it must be labelled.")
    varied = one.manifest.get("varied", {})
    for what, values in (("attribute", one.point.attrs), ("manifest key varied.", varied)):
        for key, value in values.items():
            is_number = isinstance(value, numbers.Real | np.number)
            if not isinstance(value, str) and (not is_number or isinstance(value, bool)):
                raise ResultError(
                    f"{what} {key} is {value!r}: only text and numbers can be stored and combined."
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
        for label in _list_labels(one.point, "policy"):
            for rate in _list_labels(one.point, "arrival_rate"):
                seeds.setdefault((label, rate), set()).update(_list_labels(one.point, "seed"))
    policies: dict[tuple[Any, tuple[Any, ...]], list[str]] = {}
    for (label, rate), own in seeds.items():
        if label != OPTIMAL:
            policies.setdefault((rate, tuple(sorted(own))), []).append(label)
    if not policies:
        policies = {(rate, tuple(sorted(own))): [] for (_, rate), own in seeds.items()}
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
    newest = parts[0].point
    # A policy that a newer part replaced is still at its first place.
    computed = [list(one.manifest.get("policies", ())) for one in parts] if parts[1:] else [[]]
    stored = dict.fromkeys(
        x for one, own in zip(reversed(parts), reversed(computed), strict=True)
        for x in (*own, *_list_labels(one.point, "policy"))
    )  # fmt: skip
    there = {x for one in parts for x in _list_labels(one.point, "policy")} & {*labels, OPTIMAL}
    wanted: dict[Any, list[Any]] = {"policy": [x for x in stored if x in there]}
    runs = zip(AXES, (rates, seeds), strict=True)
    wanted |= {axis: list(own) for axis, own in runs if list(own) != [None]}
    if len(parts) == 1 and all(_list_labels(newest, dim) == own for dim, own in wanted.items()):
        return parts[0]
    shared = [
        {dim: [x for x in own if x in _list_labels(one.point, dim)] for dim, own in wanted.items()}
        for one in parts
    ]

    def joined(name: Hashable, array: xr.DataArray) -> xr.DataArray:
        sizes = [len(wanted.get(dim, array[dim])) for dim in array.dims]
        coords = {dim: own for dim, own in wanted.items() if dim in array.dims}
        whole = xr.DataArray(np.empty(sizes, array.dtype), coords, array.dims, attrs=array.attrs)
        for one, labels in zip(reversed(parts), reversed(shared), strict=True):
            at = {dim: own for dim, own in labels.items() if dim in array.dims}
            whole.loc[at] = one.point[name].sel(at).values
        return whole

    data = {name: joined(name, array) for name, array in newest.data_vars.items()}
    others = {name: one for name, one in newest.coords.items() if name not in wanted}
    whole = xr.Dataset(data, others, newest.attrs)
    for dim in wanted:
        whole[dim].attrs = newest[dim].attrs
    return parts[0]._replace(point=whole)


def _list_labels(point: xr.Dataset, dim: str) -> list[Any]:
    """Return a dimension's labels; [None] without the dimension."""
    return list(point[dim].values.tolist()) if dim in point.dims else [None]
