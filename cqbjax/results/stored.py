"""Stored results: written, found, read back and combined.

A *point* is one compiled experiment; the points that ran together share a piece (`store`). A point
may stand in several pieces, each with some of its policies, or computed from another configuration.
Figures and tables read these, never a live run.
"""

import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import xarray as xr
import yaml

from cqbjax.core.given import is_number, rounded
from cqbjax.results import pieces
from cqbjax.results.layout import VARIABLES, ResultError, Stored
from cqbjax.results.pieces import ENDING, read, write
from cqbjax.results.summaries import combine

__all__ = [
    "ENDING", "VARIABLES", "ResultError", "count_points", "load", "load_points", "read_config",
    "read_manifest", "save", "stored_points",
]  # fmt: skip


def save(dataset: xr.Dataset, manifest: Mapping[str, Any], config: str, path: Path) -> None:
    """Write one point's piece atomically, in place of an older one there.

    Args:
        dataset: a point: `VARIABLES` over policy, arrival_rate, seed and round.
        manifest: what ran, as in `Stored`.
        config: the resolved configuration, as YAML text.
        path: of the arrays, which ends in `.nc`; parents are made. What is said of them goes into
            a file beside, which ends in `.json`.

    Raises:
        ResultError: a variable, dimension or attribute is missing or cannot be stored.
    """
    write([Stored(dataset, dict(manifest), config)], path)


def load(
    path: Path | str, rounds: Sequence[int] | None = None, content: str | None = None
) -> xr.Dataset:
    """Read one result, or all the results under a folder combined into one dataset.

    Points that differ in arrival rate are joined along it; K, num_servers, slackness, parameters
    and every other varied key in which points differ becomes a dimension of that name; of a point
    that was not run in a sweep of the key its configuration says it. A
    combination that was not run is NaN (integers are then float64). Where most combinations were
    not run, the keys are coordinates of one dimension, `point`. Variables by policy alone, such as
    seconds_per_round, gain the arrival_rate dimension where points hold different rates.

    Args:
        path: a file of points, or any folder above.
        rounds: as in `load_points`: what is not asked for is never in memory together.
        content: as in `load_points`.

    Raises:
        ResultError: no result, a torn one, several experiments, points of several versions of the
            code, or two points for one combination.
    """
    stored = stored_points(path, rounds, content)
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
    same: dict[Any, list[Stored]] = {}
    for number, each in enumerate(stored):
        one = each._replace(point=each.point.assign_attrs(_settings(each, varied)))
        values = (str(one.point.attrs.get(key)) for key in varied)
        # One computation may have run by itself, and under its name in a sweep.
        same.setdefault((each.manifest.get("content", number), *values), []).append(one)
    return combine([pieces.joined(some).point for some in same.values()], varied)


def _settings(one: Stored, keys: Sequence[str]) -> dict[str, Any]:
    """Return what a point was run with in keys that its own study did not vary."""
    missing = [key for key in keys if key not in one.point.attrs]
    config = yaml.safe_load(one.config) if missing else {}
    told = {}
    for key in missing:
        for words in (key, f"kind.{key}"):  # a key of its kind of study is told without saying so
            value = config
            for word in words.split("."):
                value = value.get(word) if isinstance(value, Mapping) else None
            if value is not None:
                told[key] = rounded(value) if is_number(value) else str(value)
    return told


def load_points(
    path: Path | str, rounds: Sequence[int] | None = None, content: str | None = None
) -> list[xr.Dataset]:
    """Read the points under a folder one by one, in the order of their names.

    Of a point that was computed from several configurations, versions of the data or of the code,
    the newest counts: the one that was run, or asked for again, last.

    Args:
        path: a file of points, or any folder above.
        rounds: keep these alone, each the last recorded one that is not later, so that thousands
            of points fit in memory; None keeps all.
        content: of an older computation, as `cqbjax stored` lists them; its first letters do.

    Returns:
        One dataset a point; attrs hold the point's own, each key of the manifest's `varied`, and
        `path`, the point's file.

    Raises:
        ResultError: no result under `path`, none of that content, or a torn one.
    """
    return [one.point for one in stored_points(path, rounds, content)]


def stored_points(
    path: Path | str, rounds: Sequence[int] | None = None, content: str | None = None
) -> list[Stored]:
    """Read the points under a folder, each with its manifest and configuration.

    Args:
        path: as in `load_points`, like the rest.
        rounds: of each point.
        content: of an older computation.

    Raises:
        ResultError: no result under `path`, none of that content, or a torn one.
    """
    said = {file: pieces.manifests_of(file) for file in _find(Path(path))}
    wanted = _wanted(said, content)
    if not any(wanted.values()):
        raise ResultError(f"no result of content {content} under {path}: `cqbjax stored` lists all")
    parts: dict[Any, list[Stored]] = {}
    for file, numbers in wanted.items():
        for number, one in zip(
            numbers, read(file, rounds, numbers) if numbers else (), strict=True
        ):
            manifest = one.manifest
            # What is not said to be a piece of something is whole.
            point = manifest["point"] if manifest.get("content") else (file.name, number)
            parts.setdefault((file.parent, point), []).append(pieces.labelled(one, file))
    in_order = sorted(parts, key=lambda place: (place[0], *_in_numbers(str(place[1]))))
    return [pieces.joined(parts[place]) for place in in_order]


def count_points(path: Path | str) -> int:
    """Return how many points are stored under a folder; no array is read.

    Raises:
        ResultError: no result under `path`, or a torn one.
    """
    return len(pieces.newest({file: pieces.manifests_of(file) for file in _find(Path(path))}))


def _in_numbers(name: str) -> list[tuple[float, str]]:
    """Return what sorts names as a reader does: numbers in them by their values."""
    words = re.split(r"(\d+(?:\.\d+)?)", name)
    return [(float(word), "") if i % 2 else (math.inf, word) for i, word in enumerate(words)]


def _wanted(
    said: Mapping[Path, Sequence[Mapping[str, Any]]], content: str | None
) -> dict[Path, list[int]]:
    """Return, for each piece, the numbers of the points that count."""
    newest = pieces.newest(said)

    def counts(file: Path, one: Mapping[str, Any]) -> bool:
        own = str(one.get("content", ""))
        if content is not None:
            return own.startswith(content)
        return not own or newest[file.parent, one["point"]] == own

    return {
        file: [i for i, one in enumerate(manifests) if counts(file, one)]
        for file, manifests in said.items()
    }


def read_manifest(path: Path | str) -> dict[str, Any]:
    """Read the manifest of a file's first point.

    Raises:
        ResultError: there is no such file, it is torn, or it is not a result.
    """
    return pieces.manifests_of(Path(path))[0]


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
    files = pieces.found(path)
    if not files:
        raise ResultError(f"no result under {path}: no folder there holds a file *{ENDING}.")
    return files
