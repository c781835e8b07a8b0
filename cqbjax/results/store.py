"""Load stored results, and combine them.

A point is one configuration of a study; points that ran together share a file. The results of a
point may be spread over several files: each has some of its policies, arrival rates and seeds, or
older results that were computed with other inputs.
"""

import functools
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import xarray as xr
import yaml

from cqbjax.core.inputs import is_number
from cqbjax.results import files
from cqbjax.results.files import ENDING, ResultError, StoredPoint, join_parts
from cqbjax.results.index import IndexEntry, ResultIndex, covering, read_entries
from cqbjax.results.summaries import combine_points

Paths = Path | str | Sequence[Path | str]


def load(path: Paths, rounds: Sequence[int] | None = None, key: str | None = None) -> xr.Dataset:
    """Read one result, or all the results under folders combined into one dataset.

    Points that differ only in arrival rate are joined along it. If points differ in K, num_servers,
    slackness, parameters or a varied key, each of these becomes a dimension. The value of a key
    that a study did not vary is read from its configuration. A combination that was not run is NaN
    (integers are then float64); `load_points` needs less memory if most combinations are missing.
    Variables with one value per policy, such as seconds_per_round, gain the dimension arrival_rate
    if points have different rates.

    Args:
        path: a file, a folder with results, or a list of these. If several studies ran the same
            point, their seeds and arrival rates are joined.
        rounds: as in `load_points`.
        key: as in `load_points`.

    Raises:
        ResultError: there is no result, a result is damaged, one path holds several experiments,
            points were computed by several versions of the code, or two points have the same
            combination.
    """
    stored = stored_points(path, rounds, key)
    experiments = sorted({str(each.point.attrs["experiment"]) for each in stored})
    if len(experiments) > 1 and isinstance(path, Path | str):
        raise ResultError(
            f"{path} holds results of several experiments ({', '.join(experiments)}): "
            "load one experiment's folder, give a list of folders, or use load_points."
        )
    codes = {str(each.manifest["code"]) for each in stored if each.manifest.get("code")}
    if len(codes) > 1:
        raise ResultError(
            f"{path} holds points that {len(codes)} versions of the code computed: run them again "
            "with rerun=true, move the older ones away, or use load_points."
        )
    varied = sorted({name for each in stored for name in each.manifest.get("varied", {})})
    same: dict[Any, list[StoredPoint]] = {}
    for each in stored:
        point = _add_configured(each, varied)
        values = (str(point.attrs.get(name)) for name in varied)
        # A point may have run alone and in a sweep.
        same.setdefault((each.manifest["key"], *values), []).append(each._replace(point=point))
    whole = []
    for parts in same.values():
        first, *others = (one.point for one in join_parts(parts))
        labels = dict.fromkeys(x for one in parts for x in one.labels("policy"))
        # Missing rates and seeds are NaN.
        joined = functools.reduce(lambda a, b: a.combine_first(b), others, first)
        joined = joined.sel(policy=list(labels)).assign_attrs(first.attrs) if others else first
        whole.append(joined)
    return combine_points(whole, varied)


def _add_configured(one: StoredPoint, keys: Sequence[str]) -> xr.Dataset:
    """Return a point with its values of keys that its study did not vary, as attributes."""
    missing, values = [key for key in keys if key not in one.point.attrs], dict[str, Any]()
    config = yaml.safe_load(one.config) if missing else {}
    for key in missing:
        for words in (key, f"kind.{key}"):  # keys of the study type are varied without its name
            value: Any = config
            for word in words.split("."):
                value = value.get(word) if isinstance(value, Mapping) else None
            if value is not None:
                values[key] = value if is_number(value) else str(value)
    return one.point.assign_attrs(values)


def load_points(
    path: Paths, rounds: Sequence[int] | None = None, key: str | None = None
) -> list[xr.Dataset]:
    """Read the points under folders, in the order of their names.

    If a point was computed several times, with other constants, data or code, only the newest
    result is returned, with all its arrival rates and seeds. The newest result is the one
    that the last command computed, or found stored. If its policies or rates have different
    seeds, it is returned in several datasets, each without missing values.

    Args:
        path: a file, a folder with results, or a list of these.
        rounds: the rounds to read, to save memory with thousands of points; None reads all. For a
            round that was not recorded, the last earlier one that was is read.
        key: the cache key of an older result, as listed by `cqbjax stored`; its first characters
            are enough.

    Returns:
        One dataset for each point, or several as above. Its attributes are those stored with the
        point, the keys under `varied` in its manifest, and `path`, its file.

    Raises:
        ResultError: no result under `path`, none with that key, or a damaged one.
    """
    return [one.point for one in stored_points(path, rounds, key)]


def stored_points(
    path: Paths, rounds: Sequence[int] | None = None, key: str | None = None
) -> list[StoredPoint]:
    """Read the points under folders, each with its manifest and configuration.

    Args:
        path: as in `load_points`.
        rounds: as in `load_points`.
        key: as in `load_points`.

    Raises:
        ResultError: no result under `path`, none with that key, or a damaged one.
    """
    newest = _index(path).newest(key)
    if not newest:
        raise ResultError(f"no result with key {key} under {path}: `cqbjax stored` lists all")
    # Numbers in names are padded, so that they are sorted by value.
    numbers = re.compile(r"\d+(?:\.\d+)?")
    names = {one: numbers.sub(lambda x: f"{float(x[0]):030.12f}", one[0]) for one in newest}
    ordered = sorted(newest, key=lambda one: (newest[one][0].file.parent, names[one]))
    chosen = [covering(newest[one]) for one in ordered]
    return [point for parts in read_entries(chosen, rounds) for point in join_parts(parts)]


def read_manifest(path: Paths) -> dict[str, Any]:
    """Read the manifest of the newest point at or below a path.

    Raises:
        ResultError: there is no result, or a damaged one.
    """
    return _newest(path).manifest


def read_config(path: Paths) -> str:
    """Read the resolved configuration of the newest point at or below a path, as YAML text.

    Raises:
        ResultError: there is no result, or a damaged one.
    """
    newest = _newest(path)
    return files.read_file(newest.file, [1], [newest.number])[0].config


def _newest(path: Paths) -> IndexEntry:
    entries = [one for some in _index(path).newest().values() for one in some]
    return max(entries, key=lambda one: (one.age, -one.number))


def _index(path: Paths) -> ResultIndex:
    """Return the index of files and folders.

    Raises:
        ResultError: a path or a result is missing, or a file cannot be read.
    """
    paths = [Path(path)] if isinstance(path, Path | str) else [Path(one) for one in path]
    for one in paths:
        if one.is_file() and (one.suffix != ENDING or one.name.startswith(".")):
            raise ResultError(f"{one} is not a result: give a folder or a file *{ENDING}.")
        if not one.is_file() and not one.is_dir():
            raise ResultError(f"no result at {one}: there is no such file or folder.")
    index = ResultIndex(*paths)
    for error in index.unreadable.values():
        raise error
    if not index.manifests:
        raise ResultError(f"no result under {path}: no folder there holds a file *{ENDING}.")
    return index
