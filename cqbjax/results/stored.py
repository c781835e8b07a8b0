"""Stored results: written, found, read back and combined.

A *point* is one compiled experiment; the points that ran together share a file (`shards.py`). A
point may stand in several files, each with some of its policies. Figures and tables read these,
never a live run.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import xarray as xr

from cqbjax.results.summaries import combine
from cqbjax.store.shards import ENDING, VARIABLES, ResultError, Stored, read, read_manifests, write

__all__ = [
    "ENDING", "VARIABLES", "ResultError", "load", "load_points", "read_config", "read_manifest",
    "save", "stored_points",
]  # fmt: skip


def save(dataset: xr.Dataset, manifest: Mapping[str, Any], config: str, path: Path) -> None:
    """Write one point's file atomically, in place of an older one there.

    Args:
        dataset: a point: `VARIABLES` over policy, arrival_rate, seed and round.
        manifest: what ran, as in `Stored`.
        config: the resolved configuration, as YAML text.
        path: of the file, which ends in `.nc`; parents are made.

    Raises:
        ResultError: a variable, dimension or attribute is missing or cannot be stored.
    """
    write([Stored(dataset, dict(manifest), config)], path)


def load(path: Path | str, rounds: Sequence[int] | None = None) -> xr.Dataset:
    """Read one result, or all the results under a folder combined into one dataset.

    Points that differ in arrival rate are joined along it; K, num_servers, slackness, parameters
    and every other varied key in which points differ becomes a dimension of that name. A
    combination that was not run is NaN (integers are then float64). Where most combinations were
    not run, the keys are coordinates of one dimension, `point`. Variables by policy alone, such as
    seconds_per_round, gain the arrival_rate dimension where points hold different rates.

    Args:
        path: a file of points, or any folder above.
        rounds: as in `load_points`: what is not asked for is never in memory together.

    Raises:
        ResultError: no result, a torn one, several experiments, points of several versions of the
            code, or two points for one combination.
    """
    stored = stored_points(path, rounds)
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


def load_points(path: Path | str, rounds: Sequence[int] | None = None) -> list[xr.Dataset]:
    """Read the points under a folder one by one, in the order of their files' names.

    Args:
        path: a file of points, or any folder above.
        rounds: keep these alone, each the last recorded one that is not later, so that thousands
            of points fit in memory; None keeps all.

    Returns:
        One dataset a point; attrs hold the point's own, each key of the manifest's `varied`, and
        `path`, the point's file.

    Raises:
        ResultError: no result under `path`, or a torn one.
    """
    return [one.point for one in stored_points(path, rounds)]


def stored_points(path: Path | str, rounds: Sequence[int] | None = None) -> list[Stored]:
    """Read the points under a folder, each with its manifest and configuration.

    Of a point that stands in several files the newest counts, and those computed with the same
    configuration, data and code, which add policies to it.

    Args:
        path: as in `load_points`.
        rounds: as in `load_points`.

    Raises:
        ResultError: no result under `path`, or a torn one.
    """
    pieces: dict[Any, list[Stored]] = {}
    for file in _find(Path(path)):
        for number, one in enumerate(read(file, rounds)):
            manifest = one.manifest
            # What is not said to be a piece of something is whole.
            piece = manifest["point"] if manifest.get("content") else (file.name, number)
            own = {k: v for k, v in manifest.get("varied", {}).items() if k not in one.point.attrs}
            labelled = one.point.assign_attrs(**own, path=str(file))
            pieces.setdefault((file.parent, piece), []).append(one._replace(point=labelled))
    return [_joined(of_one) for of_one in pieces.values()]


def _joined(pieces: Sequence[Stored]) -> Stored:
    """Return a point of its pieces."""
    newest, *others = sorted(pieces, key=lambda one: one.manifest.get("finished", ""), reverse=True)
    policies = [newest.point]
    for one in others:
        if one.manifest.get("content") == newest.manifest["content"]:
            there = {label for part in policies for label in part["policy"].values}
            new = [label for label in one.point["policy"].values if label not in there]
            policies += [one.point.sel(policy=new)] if new else []
    if len(policies) == 1:
        return newest
    by_policy = [name for name in policies[0].data_vars if "policy" in policies[0][name].dims]
    joined = xr.concat(
        policies, "policy", data_vars=by_policy, coords="minimal", compat="override",
        combine_attrs="override",
    )  # fmt: skip
    return newest._replace(point=joined)


def read_manifest(path: Path | str) -> dict[str, Any]:
    """Read the manifest of a file's first point.

    Raises:
        ResultError: there is no such file, it is torn, or it is not a result.
    """
    return read_manifests(Path(path))[0]


def read_config(path: Path | str) -> str:
    """Read the resolved configuration of a file's first point, as YAML text.

    Raises:
        ResultError: there is no such file, it is torn, or it is not a result.
    """
    return read(Path(path))[0].config


def _find(path: Path) -> list[Path]:
    """List the files at or under a path; what is hidden is a leftover and not one of them."""
    if path.is_file():
        if path.suffix != ENDING or path.name.startswith("."):
            raise ResultError(f"{path} is not a result: give a folder or a file *{ENDING}.")
        return [path]
    if not path.is_dir():
        raise ResultError(f"no result at {path}: there is no such file or folder.")
    files = sorted(
        file
        for file in path.rglob(f"*{ENDING}")
        if not any(part.startswith(".") for part in file.relative_to(path).parts)
    )
    if not files:
        raise ResultError(f"no result under {path}: no folder there holds a file *{ENDING}.")
    return files
