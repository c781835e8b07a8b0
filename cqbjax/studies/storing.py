"""Points' results: where they are stored, with what beside them, and which are there already."""

import datetime
import functools
import importlib.metadata
import json
import platform
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import xarray as xr
import yaml
from omegaconf import DictConfig, OmegaConf

from cqbjax.datasets import DatasetSource
from cqbjax.files import content_key
from cqbjax.report import results, shards
from cqbjax.report.names import OPTIMAL
from cqbjax.studies.grid import Point, Ready
from cqbjax.sweeping import backend, checkpoint

SHOWN_VERSIONS = (
    "cqbjax", "jax", "jaxlib", "numpy", "xarray", "hydra-core", "flax", "optax", "scikit-learn",
)  # fmt: skip
# The keys of a configuration that numbers follow from.
COMPUTING = [
    "policy", "source", "arrival_rate", "num_seeds", "first_seed", "horizon", "record_every", "K",
    "capacity", "tuning_seed", "arrivals", "burst", "burst_rounds", "trace", "trace_column",
]  # fmt: skip


class Content(NamedTuple):
    """What a point's numbers follow from, hashed.

    Attributes:
        point: configuration, data and code, policies apart.
        policies: label -> the policy's configuration, and the code of its own.
    """

    point: str
    policies: Mapping[str, str]


class Finished(NamedTuple):
    """A point that has run.

    Attributes:
        point: which.
        content: what its numbers follow from.
        data: from `run`.
        seconds: it took, fits and compiling included, with those batched with it.
        tuned: label -> the hyper-parameters that a router was fitted with.
    """

    point: Point
    content: Content
    data: xr.Dataset
    seconds: float
    tuned: Mapping[str, Any]


def content_of(ready: Ready) -> Content:
    """Hash all that a point's numbers follow from.

    Args:
        ready: a checked point; its policies may be untrained.
    """
    config, source = ready.point.config, ready.source
    computing: Any = OmegaConf.to_container(OmegaConf.masked_copy(config, COMPUTING))
    policies = computing.pop("policy")
    data = ""
    if isinstance(source, DatasetSource):
        computing["source"].pop("data_dir", None)
        data = f"{source.digest} {source.departure_digest}"
    words = json.dumps(computing, sort_keys=True, default=str)
    return Content(
        content_key(words, data, checkpoint.code()),
        {
            label: content_key(json.dumps(policies[label], default=str), checkpoint.code(policy))
            for label, policy in ready.policies.items()
        },
    )


class Stock:
    """What loading a folder gives: which policies of which points, by their contents."""

    def __init__(self, folder: Path, experiment: str) -> None:
        held = _manifests(folder)
        for file, manifests in held.items():
            theirs = {one["experiment"] for one in manifests} - {experiment}
            if theirs:
                raise ValueError(
                    f"{file} is of experiment {', '.join(theirs)}, and {folder} is where those of "
                    f"{experiment} go: move it away, or choose another name="
                )
        pieces = [manifest for of_file in held.values() for manifest in of_file]
        self._stored: dict[str, Content] = {}
        # As in `results.stored_points` the newest counts, and what else is of its content.
        for piece in sorted(pieces, key=lambda manifest: manifest["finished"], reverse=True):
            own = Content(piece["content"], piece["policies"])
            newest = self._stored.setdefault(piece["point"], own)
            if own.point == newest.point:
                both = Content(own.point, {**own.policies, **newest.policies})
                self._stored[piece["point"]] = both

    def left(self, ready: Ready) -> Ready:
        """Return a point with those of its policies alone that are not stored."""
        if ready.point.name not in self._stored or ready.point.config.rerun:
            return ready
        missing = self.missing(ready.point.name, content_of(ready))
        kept = {label: policy for label, policy in ready.policies.items() if label in missing}
        return ready._replace(policies=kept)

    def missing(self, name: str, content: Content) -> set[str]:
        """Return the labels of a point's policies that are not stored with this content."""
        there = self._stored.get(name)
        if there is None or there.point != content.point:
            return set(content.policies)
        known = there.policies
        return {label for label, key in content.policies.items() if known.get(label) != key}


def check_writable(folder: Path) -> None:
    """Make a folder, and refuse one in which no file can be written.

    Raises:
        ValueError: naming it, and why.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise ValueError(
            f"results_dir: {folder} cannot be written ({error.strerror}); name a folder that can"
        ) from error


def set_aside_torn(folder: Path) -> list[Path]:
    """Hide the files that are torn, so that none is taken for a result; return their new names."""
    torn = []
    for file in sorted(folder.glob(f"*{results.ENDING}")):
        try:
            shards.read_manifests(file)
        except results.ResultError:
            torn.append(file.rename(file.with_name(f".{file.name}.torn")))
    return torn


def _manifests(folder: Path) -> dict[Path, list[dict[str, Any]]]:
    """Return the manifests of a folder's files, but for what is torn or of an older kind."""
    found = {}
    for file in sorted(folder.glob(f"*{results.ENDING}")):
        try:
            manifests = shards.read_manifests(file)
        except results.ResultError:
            continue  # its points are computed again; who loads it is told
        if all(manifest.get("content") and "policies" in manifest for manifest in manifests):
            found[file] = manifests
    return found


def store(points: Sequence[Finished], folder: Path) -> list[Path]:
    """Store points atomically, in a file for each shape, with manifest and configuration.

    Args:
        points: that ran together.
        folder: of the experiment.

    Returns:
        The files.

    Raises:
        ValueError: one cannot be written, as on a full disk.
    """
    by_shape: dict[Any, list[shards.Stored]] = {}
    for one in points:
        config = _yaml(one.point.config)
        stored = shards.Stored(one.data, manifest_of(one), config)
        by_shape.setdefault(shards.shape(one.data), []).append(stored)
    written = []
    for alike in by_shape.values():
        file = _place([one.manifest for one in alike], folder)
        try:
            shards.write(alike, file)
        except OSError as error:
            raise ValueError(
                f"{file} cannot be written ({error.strerror or error}): make room, and give the "
                "same command again; what was stored before is kept"
            ) from error
        written.append(file)
    return written


def manifest_of(one: Finished) -> dict[str, Any]:
    """Return what is said of a point beside its arrays."""
    point, data, content = one.point, one.data, one.content
    per_policy = data.sizes["arrival_rate"] * data.sizes["seed"] * data.attrs["horizon"]
    labels = [str(label) for label in data.policy.values]
    return {
        "experiment": point.config.name,
        "point": point.name,
        "varied": point.varied,
        "left_out": point.left_out,
        "content": content.point,
        "policies": dict(content.policies),
        "code": checkpoint.code(),
        "tuned": dict(one.tuned),
        "versions": {"python": platform.python_version()}
        | {name: _version(name) for name in SHOWN_VERSIONS},
        "revision": _revision(),
        "machine": backend.describe(),
        "finished": datetime.datetime.now(datetime.UTC).isoformat(),
        "seconds": round(one.seconds, 2),
        "compile_seconds": _by_policy(labels, data.compile_seconds.values),
        "run_seconds": _by_policy(labels, data.seconds_per_round.values * per_policy),
    }


def _place(manifests: Sequence[Mapping[str, Any]], folder: Path) -> Path:
    """Return the file of points: a point's name; of several, how many and what tells them apart.

    A file of the name stays if it holds other policies of the same point.
    """
    words = [
        word for m in manifests for word in (m["point"], m["content"], *m["policies"].values())
    ]
    key = content_key(*words)[:12]
    if len(manifests) > 1:
        return folder / f"{len(manifests)}_points_{key}{results.ENDING}"
    (manifest,) = manifests
    plain = folder / f"{manifest['point']}{results.ENDING}"
    return (
        plain.with_name(f"{manifest['point']}+{key}{results.ENDING}")
        if _adds_to(plain, manifest)
        else plain
    )


def _adds_to(file: Path, manifest: Mapping[str, Any]) -> bool:
    """Tell whether a file holds policies of the same point that are not to be lost."""
    try:
        (there,) = shards.read_manifests(file)
    except (results.ResultError, ValueError):
        return False
    new = set(manifest["policies"]) | {OPTIMAL}
    return there.get("content") == manifest["content"] and not set(there.get("policies", ())) <= new


def read(
    names: Sequence[str], folder: Path, rounds: Sequence[int] | None = None
) -> list[xr.Dataset]:
    """Return points of a folder by name; it may hold more.

    Args:
        names: of points that are stored.
        folder: of the experiment.
        rounds: as in `results.load_points`.
    """
    stored = {
        one.manifest["point"]: one.point
        for one in results.stored_points(folder, rounds)
        if Path(one.point.attrs["path"]).parent == folder
    }
    return [stored[name] for name in names]


def drop_outdated(folder: Path) -> None:
    """Delete the files of which every point has been computed anew since."""
    held = _manifests(folder)
    newest: dict[str, tuple[str, str]] = {}
    for manifest in (one for of_file in held.values() for one in of_file):
        stamp = manifest["finished"], manifest["content"]
        newest[manifest["point"]] = max(newest.get(manifest["point"], stamp), stamp)
    for file, manifests in held.items():
        if not any(m["content"] == newest[m["point"]][1] for m in manifests):
            file.unlink(missing_ok=True)


def _yaml(config: DictConfig) -> str:
    """Return a configuration as YAML; LibYAML writes it in a third of OmegaConf's time."""
    plain = OmegaConf.to_container(config, resolve=True)
    dumper = getattr(yaml, "CSafeDumper", yaml.SafeDumper)
    return str(yaml.dump(plain, Dumper=dumper, sort_keys=False, allow_unicode=True))


def _by_policy(labels: list[str], values: np.ndarray) -> dict[str, float]:
    """Round seconds for a manifest."""
    return {label: round(float(value), 3) for label, value in zip(labels, values, strict=True)}


@functools.cache
def _version(package: str) -> str:
    """Return an installed version, or say that the package is not installed."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"


@functools.cache
def _revision() -> str:
    """Return the commit that last changed the package, marked if files were changed since.

    Nothing where the package is not in a checkout.
    """
    git = ["git", "-C", str(Path(__file__).parents[1])]
    try:
        last, changed = (
            subprocess.run([*git, *words, "--", "."], capture_output=True, text=True).stdout.strip()
            for words in (("log", "-1", "--format=%h"), ("status", "--porcelain"))
        )
    except OSError:
        return ""
    return f"{last}-dirty" if last and changed else last
